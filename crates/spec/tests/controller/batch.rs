//! Several sequences in a pass, and parts of prompts beside them.

use foretoken_spec::{
    Committed, ControlledDrafter, Drafter, NodeId, PassTime, PlainReason, Request, Sampler, SamplerParams,
    SequenceId, Token, TokenTree,
};

use crate::{BUDGET, Chain, controller, flat, free, table};

/// What a pass that also reads a part of a prompt takes.
const CHUNK: f64 = 2.5;

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

/// One round of all members, beside a prompt's chunk if `reader` names whose; returns the seconds of its pass.
fn round(controller: &mut ControlledDrafter, members: &mut [Member], reader: Option<SequenceId>) -> f64 {
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
    let seconds = flat(rows) + if reader.is_some() { CHUNK } else { 0.0 };
    controller.timed(&PassTime {
        rows: rows + if reader.is_some() { 256 } else { 0 },
        context: 20,
        seconds,
    });
    if let Some(reader) = reader {
        let chunk = Committed {
            tokens: vec![1; 256],
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
        round(&mut controller, &mut members, Some(reader));
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
        prompt += round(&mut controller, &mut other, Some(wrong[0].id));
    }
    controller.end(other[0].id);
    let mut seconds = prompt;
    while wrong[0].tokens < 100 {
        seconds += round(&mut controller, &mut wrong, None);
    }
    let plain = prompt + 100.0 * flat(1);
    assert!(seconds <= 1.02 * plain + flat(1) + 1e-3, "{seconds} for {plain}");
}
