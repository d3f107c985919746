//! Several sequences in a pass, and parts of prompts beside them.

use foretoken_spec::{
    Committed, ControlledDrafter, Drafter, NodeId, PassTime, PlainReason, Request, Sampler, SamplerParams,
    SequenceId, Token, TokenTree,
};

use crate::speculator::speculator;
use crate::{BUDGET, Chain, controller, flat, free, table};

/// A sequence in a batch, and what came of it.
struct Member {
    id: SequenceId,
    text: Vec<Token>,
    tree: TokenTree,
    /// Whether draft tokens come true.
    right: bool,
    tokens: usize,
    reasons: Vec<PlainReason>,
}

impl Member {
    fn new(controller: &mut ControlledDrafter, id: u64, right: bool) -> Self {
        let id = SequenceId(id);
        controller.begin(id, &[1]).unwrap();
        Self {
            id,
            text: vec![1; 20],
            tree: TokenTree::default(),
            right,
            tokens: 0,
            reasons: Vec::new(),
        }
    }
}

/// One round of all members, beside a chunk of a prompt if `reader` says whose, and of how many rows; returns the seconds of its pass.
fn round(
    controller: &mut ControlledDrafter,
    members: &mut [Member],
    reader: Option<(SequenceId, usize)>,
) -> f64 {
    let greedy = SamplerParams {
        temperature: 0.0,
        ..SamplerParams::default()
    };
    let samplers: Vec<_> = members
        .iter()
        .map(|member| Sampler::new(greedy.clone(), 0, &member.text).snapshot())
        .collect();
    let mut requests: Vec<Request<'_>> = members
        .iter_mut()
        .zip(&samplers)
        .map(|(member, sampler)| {
            member.tree.clear();
            Request {
                sequence: member.id,
                tokens: &member.text,
                hidden: None,
                sampler,
                budget: BUDGET,
                position_limit: 100_000,
                grammar: None,
                deadline: None,
                tree: &mut member.tree,
            }
        })
        .collect();
    controller.draft(&mut requests).unwrap();
    drop(requests);
    let mut rows = members.len();
    for member in members.iter_mut() {
        controller.submitted(member.id, &member.tree);
        member
            .reasons
            .extend(controller.forecast(member.id).unwrap().plain);
        rows += member.tree.len();
    }
    rows += reader.map_or(0, |(_, chunk)| chunk);
    let seconds = flat(rows);
    controller.timed(&PassTime {
        rows,
        context: 20,
        seconds,
    });
    if let Some((reader, chunk)) = reader {
        let chunk = Committed {
            tokens: vec![1; chunk],
            ..Committed::default()
        };
        controller.observe(reader, &chunk);
    }
    for member in members {
        let accepted = if member.right { member.tree.len() } else { 0 };
        let committed = Committed {
            tokens: vec![7; accepted + 1],
            accepted: (0..accepted as NodeId).collect(),
            rows: Vec::new(),
        };
        controller.observe(member.id, &committed);
        member.tokens += accepted + 1;
        member.text.extend(committed.tokens);
    }
    seconds
}

#[test]
fn rows_go_to_the_sequence_whose_drafts_come_true() {
    let mut controller = controller(free(4, 0.9), None, table(flat));
    let mut members = [
        Member::new(&mut controller, 10, true),
        Member::new(&mut controller, 11, false),
    ];
    let (mut seconds, mut rounds) = (0.0, 0);
    while members[0].tokens < 600 {
        seconds += round(&mut controller, &mut members, None);
        rounds += 1;
    }
    assert!(rounds < 300, "{rounds}");
    // The one that gains nothing loses no more than the budget's share and a round, but for what the model of costs takes
    // positions to cost, which nothing in this world does.
    let plain = members[1].tokens as f64 * flat(2);
    assert!(seconds <= 1.05 * plain + flat(2), "{seconds} for {plain}");
}

#[test]
fn a_prompt_beside_them_is_no_loss_of_drafts() {
    let mut controller = controller(free(4, 0.9), None, table(flat));
    let reader = SequenceId(99);
    controller.begin(reader, &[1]).unwrap();
    let mut members = [Member::new(&mut controller, 10, true)];
    for _ in 0..20 {
        round(&mut controller, &mut members, Some((reader, 256)));
    }
    // Seconds were spent on the prompt; the drafts go on, and what a row costs is as it was.
    let before = members[0].tokens;
    for _ in 0..20 {
        round(&mut controller, &mut members, None);
    }
    assert!(
        !members[0].reasons.contains(&PlainReason::LossBudget),
        "{:?}",
        members[0].reasons
    );
    assert!(members[0].tokens - before > 80, "{}", members[0].tokens - before);
    assert!((controller.target_cost().seconds(1, 0) / flat(1) - 1.0).abs() < 0.1);
}

#[test]
fn a_prompt_gives_no_credit_to_drafts_that_are_wrong() {
    // A prompt of many chunks, beside another sequence, then an answer of its own with drafts that are always wrong.
    let drafts = vec![Box::new(Chain {
        source: foretoken_spec::Source::Suffix,
        length: 15,
        confidence: 0.99,
        fails: false,
    }) as Box<dyn Drafter>];
    let mut controller = controller(drafts, None, table(flat));
    let mut other = [Member::new(&mut controller, 10, false)];
    let mut wrong = [Member::new(&mut controller, 11, false)];
    let mut prompt = 0.0;
    for _ in 0..6 {
        prompt += round(&mut controller, &mut other, Some((wrong[0].id, 256)));
    }
    controller.end(other[0].id);
    let mut seconds = prompt;
    while wrong[0].tokens < 100 {
        seconds += round(&mut controller, &mut wrong, None);
    }
    let plain = prompt + 100.0 * flat(1);
    assert!(seconds <= 1.02 * plain + flat(1) + 1e-3, "{seconds} for {plain}");
}

#[test]
fn a_speculator_beside_prompts_is_found_out() {
    // Its file promises much and nothing comes true; prompts are always read.
    let mut controller = controller(Vec::new(), Some(speculator(0.9, 0.01, Some(0.9))), table(flat));
    let reader = SequenceId(99);
    controller.begin(reader, &[1]).unwrap();
    let mut members = [Member::new(&mut controller, 10, false)];
    let mut steps = [0, 0];
    for steps in &mut steps {
        let before = controller.times().unwrap().passes;
        for _ in 0..100 {
            round(&mut controller, &mut members, Some((reader, 256)));
        }
        *steps = controller.times().unwrap().passes - before;
    }
    assert!(steps[0] > 0 && steps[1] < 60, "{steps:?}");
}

#[test]
fn draft_rows_beside_prompts_are_lost_where_they_are_wrong() {
    // So unsure and so cheap that they are tried again and again; beside eight rows of a prompt each costs what it costs.
    let mut controller = controller(free(4, 0.3), None, table(flat));
    let reader = SequenceId(99);
    controller.begin(reader, &[1]).unwrap();
    let mut members = [Member::new(&mut controller, 10, false)];
    for _ in 0..40 {
        round(&mut controller, &mut members, Some((reader, 8)));
    }
    assert!(
        members[0].reasons.contains(&PlainReason::LossBudget),
        "{:?}",
        members[0].reasons
    );
}

#[test]
fn a_step_is_priced_for_the_rows_that_it_has() {
    // Where each row of a step costs as much, few requests can be drafted together, however right the drafts are.
    let asked = |requests: u64| {
        let mut dear = speculator(0.9, 0.004, Some(0.9));
        dear.cost = table(|rows| 0.004 * rows as f64);
        let mut controller = controller(Vec::new(), Some(dear), table(|rows| 0.06 + 1e-4 * rows as f64));
        let mut members: Vec<Member> = (10..10 + requests)
            .map(|id| Member::new(&mut controller, id, true))
            .collect();
        round(&mut controller, &mut members, None);
        controller.times().unwrap().passes > 0
    };
    assert!(asked(1) && asked(4) && !asked(40));
}
