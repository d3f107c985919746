//! The speculator's drafter over a scripted network.

use foretoken_spec::drafters::{Network, SpeculatorDrafter};
use foretoken_spec::testing::{
    FixedText, OwnNoiseDrafter, ScriptedModel, ScriptedNetwork, Task, decode_drafted, decode_plain,
    open_params,
};
use foretoken_spec::{
    Budget, Drafter, Grammar as _, HiddenNeed, ModelError, Node, Request, Sampler, SamplerParams, SequenceId,
    Source, Sources, Token, TokenTree,
};
use proptest::prelude::*;

const VOCAB: usize = 23;

fn model() -> ScriptedModel {
    ScriptedModel::random(VOCAB, 3, 2.0)
}

fn drafter(model: &ScriptedModel, heads: usize) -> SpeculatorDrafter<ScriptedNetwork> {
    SpeculatorDrafter::new(ScriptedNetwork::new(model.clone(), heads), VOCAB, Vec::new())
}

fn chain(length: usize) -> Budget {
    Budget {
        max_branches: 1,
        ..tree(length)
    }
}

fn tree(nodes: usize) -> Budget {
    Budget {
        sources: Sources::ALL,
        max_nodes: nodes,
        max_depth: nodes,
        max_branches: 4,
        max_read: usize::MAX,
        min_path_probability: 0.0,
        min_confidence: 0.0,
    }
}

/// The state of the row before the last of `tokens`.
fn state(tokens: &[Token]) -> [f32; 4] {
    let before = &tokens[..tokens.len() - 1];
    let last = |back: usize| before.iter().rev().nth(back).map_or(0.0, |&token| token as f32);
    [before.len() as f32, last(0), last(1), last(2)]
}

/// The trees for texts, all in one call.
fn drafts<N: Network>(
    drafter: &mut SpeculatorDrafter<N>,
    texts: &[&[Token]],
    params: &SamplerParams,
    mut change: impl FnMut(&mut Request<'_>),
) -> Vec<TokenTree> {
    let mut trees = vec![TokenTree::default(); texts.len()];
    let states: Vec<[f32; 4]> = texts.iter().map(|text| state(text)).collect();
    let samplers: Vec<_> = texts
        .iter()
        .map(|text| Sampler::new(params.clone(), 5, text).snapshot())
        .collect();
    let mut requests: Vec<Request<'_>> = (0..texts.len())
        .zip(&mut trees)
        .map(|(at, tree)| Request {
            sequence: SequenceId(at as u64),
            tokens: texts[at],
            hidden: Some(&states[at]),
            sampler: &samplers[at],
            grammar: None,
            budget: chain(8),
            position_limit: usize::MAX,
            deadline: None,
            tree,
        })
        .collect();
    requests.iter_mut().for_each(&mut change);
    drafter.draft(&mut requests).unwrap();
    drop(requests);
    trees
}

fn draft(
    drafter: &mut SpeculatorDrafter<ScriptedNetwork>,
    text: &[Token],
    change: impl FnMut(&mut Request<'_>),
) -> TokenTree {
    drafts(drafter, &[text], &open_params(0.0), change).remove(0)
}

fn tokens(tree: &TokenTree) -> Vec<Token> {
    tree.nodes().iter().map(|node| node.token).collect()
}

#[test]
fn a_chain_is_what_the_target_says_as_far_as_the_heads_reach() {
    let model = model();
    let text = [1, 2, 3, 4];
    for temperature in [0.0, 0.7, 1.3] {
        let params = SamplerParams {
            repeat_penalty: 1.3,
            presence_penalty: 0.4,
            ..open_params(temperature)
        };
        let mut said = Sampler::new(params.clone(), 5, &text);
        let mut path = text.to_vec();
        for _ in 0..3 {
            let token = said.sample(&model.logits_after(&path)).unwrap();
            said.accept(token);
            path.push(token);
        }
        for length in [1, 2, 3, 8] {
            let got = drafts(&mut drafter(&model, 3), &[&text], &params, |r| {
                r.budget = chain(length)
            });
            assert_eq!(
                tokens(&got[0]),
                path[4..][..length.min(3)],
                "{temperature}, {length}"
            );
            assert!(
                got[0]
                    .nodes()
                    .iter()
                    .all(|n| n.source == Source::Mlp && n.rank == 0)
            );
        }
    }
}

#[test]
fn it_asks_for_states_and_without_them_adds_nothing() {
    let mut drafter = drafter(&model(), 3);
    assert_eq!(drafter.needs().hidden, HiddenNeed::LastRow);
    let without = |change: fn(&mut Request<'_>), drafter: &mut _| draft(drafter, &[1, 2, 3], change).len();
    assert_eq!(without(|_| (), &mut drafter), 3);
    assert_eq!(without(|r| r.hidden = None, &mut drafter), 0);
    assert_eq!(without(|r| r.budget.max_nodes = 0, &mut drafter), 0);
    assert_eq!(without(|r| r.budget.max_depth = 0, &mut drafter), 0);
    assert_eq!(
        without(|r| r.budget.sources = Sources::only(Source::Suffix), &mut drafter),
        0
    );
    assert_eq!(
        without(|r| r.budget.sources = Sources::only(Source::Mlp), &mut drafter),
        3
    );
    assert_eq!(without(|r| r.position_limit = 3, &mut drafter), 0);
    assert_eq!(without(|r| r.position_limit = 5, &mut drafter), 2);
    // No step begins after the deadline.
    let passes = drafter.times().unwrap().passes;
    assert_eq!(
        without(|r| r.deadline = Some(std::time::Instant::now()), &mut drafter),
        0
    );
    assert_eq!(drafter.times().unwrap().passes, passes);
}

#[test]
fn one_step_serves_all_requests_and_branches() {
    let model = model();
    let texts: [&[Token]; 3] = [&[1, 2, 3], &[4, 5, 6, 7], &[8, 9]];
    let mut together = drafter(&model, 4);
    let got = drafts(&mut together, &texts, &open_params(0.7), |r| r.budget = tree(12));
    let times = together.times().unwrap();
    assert_eq!(times.passes, 4);
    // A row for each text, and from the second head on as many as cost little more.
    assert_eq!(times.eval_rows, 3 + 3 * 4);
    for (text, got) in texts.iter().zip(&got) {
        assert!(got.nodes().iter().any(|node| node.rank > 0) && got.len() == 12);
        // What stands first does not depend on the company.
        let alone = drafts(&mut drafter(&model, 4), &[text], &open_params(0.7), |r| {
            r.budget = chain(1);
        });
        assert_eq!(tokens(&alone[0]).len(), 1);
    }
    // Others' rows do not change what a chain holds.
    let chains = drafts(&mut drafter(&model, 4), &texts, &open_params(0.0), |_| ());
    for (text, together) in texts.iter().zip(chains) {
        let alone = draft(&mut drafter(&model, 4), text, |_| ());
        assert_eq!(tokens(&alone), tokens(&together));
    }
}

#[test]
fn the_likeliest_nodes_are_kept_and_grow_on() {
    let model = model();
    let text = [5, 6, 7];
    let all = draft(&mut drafter(&model, 3), &text, |r| r.budget = tree(usize::MAX));
    let mut paths: Vec<(f32, Vec<Token>)> = (0..all.len() as u32)
        .map(|node| (all.path_probability(node), all.path(node)))
        .collect();
    paths.sort_by(|a, b| b.0.total_cmp(&a.0));
    // Of every place that is evaluated the four best.
    assert_eq!(all.len(), 4 + 4 * 4 + 4 * 4);
    for nodes in [1, 2, 5, 9] {
        let some = draft(&mut drafter(&model, 3), &text, |r| r.budget = tree(nodes));
        let kept: Vec<_> = (0..some.len() as u32).map(|node| some.path(node)).collect();
        let best: Vec<_> = paths[..nodes].iter().map(|(_, path)| path.clone()).collect();
        assert_eq!(kept, best);
    }
    // Paths that are not worth a step end where they are; leaves may be an eighth as likely.
    let least = 0.3;
    let pruned = draft(&mut drafter(&model, 3), &text, |r| {
        r.budget = Budget {
            min_path_probability: least,
            ..tree(usize::MAX)
        }
    });
    assert!(!pruned.is_empty() && pruned.len() < all.len());
    for node in 0..pruned.len() as u32 {
        assert!(pruned.path_probability(node) >= least / 8.0);
    }
    let sure = draft(&mut drafter(&model, 3), &text, |r| r.budget.min_confidence = 0.5);
    assert!(sure.nodes().iter().all(|node| node.confidence >= 0.5));
}

#[test]
fn what_ends_the_generation_is_not_proposed() {
    let model = model();
    let all = draft(&mut drafter(&model, 3), &[5, 6, 7], |r| r.budget = tree(99));
    let end = all.nodes()[1].token;
    let network = ScriptedNetwork::new(model.clone(), 3);
    let mut ending = SpeculatorDrafter::new(network, VOCAB, vec![end]);
    let got = draft(&mut ending, &[5, 6, 7], |r| r.budget = tree(99));
    assert!(!got.is_empty() && got.nodes().iter().all(|node| node.token != end));
}

#[test]
fn others_nodes_are_merged_and_do_not_count() {
    let model = model();
    let text = [5, 6, 7];
    let own = tokens(&draft(&mut drafter(&model, 3), &text, |_| ()));
    let node = |token, parent| Node {
        token,
        parent,
        confidence: 0.01,
        source: Source::Suffix,
        rank: 0,
    };
    let other = (own[0] + 1) % VOCAB as Token;
    let got = draft(&mut drafter(&model, 3), &text, |r| {
        r.budget = chain(2);
        r.tree.push(node(other, None));
        r.tree.push(node(own[0], None));
    });
    assert_eq!(got.len(), 2 + 1, "one of two was there");
    assert_eq!(got.nodes()[1].source, Source::Mlp);
    assert_eq!(got.path(2), own[..2]);
}

#[test]
fn a_draft_vocabulary_limits_what_is_said_not_what_is_read() {
    let model = model();
    let vocabulary: Vec<Token> = (0..VOCAB as Token).filter(|token| token % 3 == 0).collect();
    let network = || ScriptedNetwork::new(model.clone(), 3).with_vocabulary(vocabulary.clone());
    let new = || SpeculatorDrafter::new(network(), VOCAB, Vec::new());
    let mut limited = new().with_vocabulary(vocabulary.clone()).unwrap();
    let got = draft(&mut limited, &[1, 2, 4], |r| r.budget = tree(20));
    assert!(got.len() == 20 && got.nodes().iter().all(|node| node.token % 3 == 0));
    let refused = |tokens: Vec<Token>| new().with_vocabulary(tokens).unwrap_err().to_string();
    assert!(refused(vec![1]).contains("1 tokens for 8 logits"));
    let mut wrong = vocabulary.clone();
    wrong.swap(0, 1);
    assert!(refused(wrong).contains("not ascending"));
    let mut wrong = vocabulary.clone();
    *wrong.last_mut().unwrap() = 99;
    assert!(refused(wrong).contains("99"));
}

#[test]
fn a_grammar_is_asked_at_every_place_and_left_as_it_was() {
    let places: [&[Token]; 4] = [&[9, 8], &[1], &[7, 6, 5], &[2]];
    let mut grammar = FixedText::new(&places, 0);
    let (text, mut tree_of) = ([1, 2, 3], TokenTree::default());
    let sampler = Sampler::new(open_params(0.7), 5, &text).snapshot();
    drafter(&model(), 3)
        .draft(&mut [Request {
            sequence: SequenceId(0),
            tokens: &text,
            hidden: Some(&state(&text)),
            sampler: &sampler,
            grammar: Some(&mut grammar),
            budget: tree(99),
            position_limit: usize::MAX,
            deadline: None,
            tree: &mut tree_of,
        }])
        .unwrap();
    for node in 0..tree_of.len() as u32 {
        let path = tree_of.path(node);
        let legal = path
            .iter()
            .zip(places)
            .all(|(token, place)| place.contains(token));
        assert!(legal, "{path:?}");
    }
    assert_eq!(tree_of.len(), 2 + 2 + 2 * 3);
    // As it stood before.
    assert!(grammar.accept(8) && grammar.forced() == [1]);
}

#[test]
fn a_step_that_fails_is_an_error_that_leaves_the_tree_alone() {
    let network = ScriptedNetwork::new(model(), 3).failing_at(1);
    let mut failing = SpeculatorDrafter::new(network, VOCAB, Vec::new());
    let text = [1, 2, 3];
    let sampler = Sampler::new(open_params(0.0), 5, &text).snapshot();
    let mut attempt = |hidden: &[f32]| {
        let mut tree = TokenTree::default();
        let request = Request {
            sequence: SequenceId(0),
            tokens: &text,
            hidden: Some(hidden),
            sampler: &sampler,
            grammar: None,
            budget: chain(3),
            position_limit: usize::MAX,
            deadline: None,
            tree: &mut tree,
        };
        let outcome = failing.draft(&mut [request]).map_err(|error| error.to_string());
        (outcome, tree.len())
    };
    let (outcome, added) = attempt(&state(&text));
    assert!(outcome.is_err_and(|error| error.starts_with("the speculator: ")));
    assert_eq!(added, 0);
    // A state of another length.
    assert!(attempt(&state(&text)[..2]).0.is_err());
    assert_eq!(attempt(&state(&text)), (Ok(()), 3));
}

/// A network whose rows for one token come to nothing.
struct Spoiled {
    network: ScriptedNetwork,
    token: Token,
    /// The states for the next head, or the logits.
    states: bool,
}

impl Network for Spoiled {
    fn heads(&self) -> usize {
        self.network.heads()
    }
    fn hidden_size(&self) -> usize {
        self.network.hidden_size()
    }
    fn inner_size(&self) -> usize {
        self.network.inner_size()
    }
    fn vocab_size(&self) -> usize {
        self.network.vocab_size()
    }
    fn step(
        &mut self,
        head: usize,
        tokens: &[Token],
        states: &[f32],
        next: &mut Vec<f32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        self.network.step(head, tokens, states, next, logits)?;
        let (spoiled, width) = match self.states {
            true => (next, self.inner_size()),
            false => (logits, self.vocab_size()),
        };
        for (row, _) in tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| **token == self.token)
        {
            spoiled[row * width] = f32::NAN;
        }
        Ok(())
    }
}

#[test]
fn what_is_not_finite_ends_the_drafts_of_its_own_sequence_alone() {
    let model = model();
    let alone = |text: &[Token]| tokens(&draft(&mut drafter(&model, 3), text, |_| ()));
    let texts_with = |odd| [[1, 2, 3], [4, 5, odd], [7, 8, 9]];
    // A token that stands nowhere else, drafts included.
    let is_odd = |odd: &Token| texts_with(*odd).iter().all(|text| !alone(text).contains(odd));
    let odd = (10..VOCAB as Token).find(is_odd).unwrap();
    let texts = texts_with(odd);
    let texts: Vec<&[Token]> = texts.iter().map(|text| &text[..]).collect();
    let spoiled = |token, states, change: &dyn Fn(&mut Request<'_>)| {
        let network = Spoiled {
            network: ScriptedNetwork::new(model.clone(), 3),
            token,
            states,
        };
        let mut drafter = SpeculatorDrafter::new(network, VOCAB, Vec::new());
        let trees = drafts(&mut drafter, &texts, &open_params(0.0), change);
        trees.iter().map(tokens).collect::<Vec<_>>()
    };
    let whole: Vec<_> = texts.iter().map(|text| alone(text)).collect();
    // Its logits; the state after its first token; the target's own state.
    let of_state = |request: &mut Request<'_>| {
        if request.tokens.ends_with(&[odd]) {
            request.hidden = Some(&[f32::INFINITY; 4]);
        }
    };
    let none = VOCAB as Token;
    for (got, left) in [
        (spoiled(odd, false, &|_| ()), 0),
        (spoiled(odd, true, &|_| ()), 1),
        (spoiled(none, false, &of_state), 0),
    ] {
        assert_eq!(got[1], whole[1][..left]);
        assert_eq!((&got[0], &got[2]), (&whole[0], &whole[2]));
    }
}

proptest! {
    /// The state of the row from which the last token was drawn, and the target's own noise: nothing is ever wrong.
    #[test]
    fn the_right_states_make_every_token_right(
        temperature in prop_oneof![Just(0f32), 0.2f32..1.5],
        key: u64,
        prompt in prop::collection::vec(0..VOCAB as Token, 1..9),
        heads in 1usize..6,
        length in 1usize..8,
    ) {
        let mut model = model();
        let task = Task { params: open_params(temperature), key, prompt, max_tokens: 60 };
        let plain = decode_plain(&mut model, &task).unwrap();
        let mut drafter = drafter(&model, heads);
        let run = decode_drafted(&mut model, &mut drafter, chain(length), &task).unwrap();
        prop_assert_eq!(&run.tokens, &plain.tokens);
        prop_assert_eq!(run.counters.accepted + run.counters.discarded_by_cut, run.counters.drafted);
        prop_assert!(run.counters.drafted > 0 && run.draft_errors == 0);
        let reach = heads.min(length) as u64;
        prop_assert!(run.counters.rounds <= 2 + 60 / (reach + 1), "{:?}", run.counters);
    }
}

#[test]
fn noise_of_its_own_is_accepted_less() {
    let mut model = model();
    let task = Task {
        params: open_params(1.0),
        key: 4,
        prompt: vec![1, 2, 3],
        max_tokens: 400,
    };
    let mut own = OwnNoiseDrafter::new(drafter(&model, 3), 99);
    let run = decode_drafted(&mut model, &mut own, chain(3), &task).unwrap();
    assert!(run.counters.acceptance_rate().unwrap() < 0.7);
}
