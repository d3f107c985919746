//! Suffix drafting: what it finds, how sure it is, and that it keeps to its own sequence.

use std::sync::Arc;

use foretoken_spec::drafters::{Corpus, SuffixDrafter};
use foretoken_spec::{
    Budget, Drafter, Node, NodeId, Request, Sampler, SamplerParams, SequenceId, Source, Sources, Token,
    TokenTree,
};
use proptest::prelude::*;

const SEQUENCE: SequenceId = SequenceId(3);

fn budget(nodes: usize) -> Budget {
    Budget {
        max_nodes: nodes,
        max_depth: nodes,
        max_branches: 4,
        sources: Sources::ALL,
        max_read: usize::MAX,
        min_path_probability: 0.0,
        min_confidence: 0.0,
    }
}

fn greedy() -> SamplerParams {
    SamplerParams {
        temperature: 0.0,
        ..SamplerParams::default()
    }
}

/// What a drafter is asked for, all but the tokens at its default.
struct Ask {
    sequence: SequenceId,
    budget: Budget,
    position_limit: usize,
    params: SamplerParams,
    tree: TokenTree,
}

impl Ask {
    fn nodes(nodes: usize) -> Self {
        Self {
            sequence: SEQUENCE,
            budget: budget(nodes),
            position_limit: 10_000,
            params: greedy(),
            tree: TokenTree::default(),
        }
    }

    fn after(mut self, drafter: &mut SuffixDrafter, tokens: &[Token]) -> TokenTree {
        drafter
            .draft(&mut [Request {
                sequence: self.sequence,
                tokens,
                hidden: None,
                sampler: &Sampler::new(self.params, 0, tokens).snapshot(),
                budget: self.budget,
                position_limit: self.position_limit,
                grammar: None,
                deadline: None,
                tree: &mut self.tree,
            }])
            .unwrap();
        self.tree
    }
}

/// The tokens drafted after `tokens`, in the order proposed.
fn draft(tokens: &[Token], nodes: usize) -> Vec<Token> {
    said(&Ask::nodes(nodes).after(&mut SuffixDrafter::default(), tokens))
}

fn said(tree: &TokenTree) -> Vec<Token> {
    tree.nodes().iter().map(|node| node.token).collect()
}

#[test]
fn what_followed_the_same_words_is_drafted() {
    assert_eq!(draft(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 3), [4, 5, 6]);
    // A copy that reaches the end goes on with itself.
    assert_eq!(draft(&[9, 1, 2, 1, 2], 4), [1, 2, 1, 2]);
    assert_eq!(draft(&[5, 5, 5], 3), [5, 5, 5]);
    for nothing in [&[][..], &[1], &[1, 2, 3]] {
        assert_eq!(draft(nothing, 3), []);
    }
}

#[test]
fn the_longer_and_the_more_frequent_context_wins() {
    // After 2, 3: 4 once and 5 once, but after 1, 2, 3 it was 4.
    assert_eq!(draft(&[1, 2, 3, 4, 9, 8, 2, 3, 5, 7, 1, 2, 3], 1), [4]);
    // After 3: twice 5, once 4.
    let tree = Ask::nodes(2).after(&mut SuffixDrafter::default(), &[3, 5, 8, 3, 4, 9, 3, 5, 7, 3]);
    let root: Vec<_> = tree.nodes().iter().filter(|n| n.parent.is_none()).collect();
    assert_eq!((root[0].token, root[0].rank), (5, 0));
    // Of equals the latest.
    assert_eq!(draft(&[3, 5, 8, 3, 4, 9, 3], 1), [4]);
}

#[test]
fn alternatives_become_branches() {
    // 1 2 was followed by 3 and by 4.
    let text = [1, 2, 3, 7, 5, 1, 2, 4, 8, 6, 1, 2];
    let tree = Ask::nodes(6).after(&mut SuffixDrafter::default(), &text);
    let mut root: Vec<Token> = tree
        .children(None)
        .map(|n| tree.nodes()[n as usize].token)
        .collect();
    root.sort_unstable();
    assert_eq!(root, [3, 4]);
    let below = |token| {
        let node = tree.child(None, token).unwrap();
        tree.children(Some(node))
            .map(|n| tree.nodes()[n as usize].token)
            .collect::<Vec<_>>()
    };
    assert_eq!((below(3)[0], below(4)[0]), (7, 8));
}

#[test]
fn confidence_grows_with_the_match_and_with_the_count() {
    let confidence = |tokens: &[Token]| {
        let tree = Ask::nodes(1).after(&mut SuffixDrafter::default(), tokens);
        tree.nodes()[0].confidence
    };
    let matched = |length: u32| {
        let text: Vec<Token> = (0..length).chain([90, 91]).chain(0..length).collect();
        confidence(&text)
    };
    let by_length: Vec<f32> = [1, 2, 4, 8, 16].map(matched).to_vec();
    assert!(
        by_length.is_sorted() && by_length[0] < 0.3 && by_length[4] > 0.9,
        "{by_length:?}"
    );
    let repeated = |times: usize| confidence(&[&[7, 8, 9].repeat(times)[..], &[7]].concat());
    assert!(repeated(1) < repeated(4));
    // A context that was never right twice is trusted less.
    assert!(confidence(&[7, 1, 7, 2, 7, 3, 7]) < confidence(&[7, 1, 7, 1, 7, 1, 7]));
}

#[test]
fn the_budget_is_kept() {
    let tokens: Vec<Token> = (0..20).chain(0..10).collect();
    let ask = |ask: Ask| said(&ask.after(&mut SuffixDrafter::new(vec![15]), &tokens));
    assert_eq!(ask(Ask::nodes(3)), [10, 11, 12]);
    // The end of the generation is not proposed, nor what follows it.
    assert_eq!(ask(Ask::nodes(9)), [10, 11, 12, 13, 14]);
    let mut limited = Ask::nodes(9);
    limited.position_limit = 32;
    assert_eq!(ask(limited), [10, 11]);
    let mut shallow = Ask::nodes(9);
    shallow.budget.max_depth = 1;
    assert_eq!(ask(shallow), [10]);
    for (probability, confidence) in [(1.0, 0.0), (0.0, 1.0)] {
        let mut strict = Ask::nodes(9);
        strict.budget.min_path_probability = probability;
        strict.budget.min_confidence = confidence;
        assert_eq!(ask(strict), []);
    }
}

#[test]
fn a_tree_is_continued_where_another_drafter_left_it() {
    let text: Vec<Token> = (0..10).chain([50, 0]).collect();
    let mut ask = Ask::nodes(4);
    // Its child 4 leads on to 5, though the text's own end would go on with 1.
    let foreign = ask.tree.push(Node {
        token: 4,
        parent: None,
        confidence: 0.9,
        source: Source::Scripted,
        rank: 0,
    });
    let tree = ask.after(&mut SuffixDrafter::default(), &text);
    assert!(tree.child(None, 1).is_some() && tree.child(Some(foreign), 5).is_some());
    let own = tree.nodes().iter().filter(|n| n.source == Source::Suffix).count();
    assert_eq!((own, tree.len()), (4, 5));
}

#[test]
fn sequences_and_edited_histories_are_kept_apart() {
    let mut drafter = SuffixDrafter::default();
    assert_eq!(said(&Ask::nodes(1).after(&mut drafter, &[1, 2, 3, 1])), [2]);
    let mut other = Ask::nodes(1);
    other.sequence = SequenceId(4);
    assert_eq!(said(&other.after(&mut drafter, &[1])), []);
    // The same sequence, rewound and gone another way: 2 after 1 was never said.
    assert_eq!(said(&Ask::nodes(1).after(&mut drafter, &[1, 5, 1])), [5]);
    drafter.end(SEQUENCE);
    assert_eq!(said(&Ask::nodes(1).after(&mut drafter, &[1])), []);
}

#[test]
fn a_corpus_serves_every_sequence_and_its_texts_stay_apart() {
    let texts: [&[Token]; 2] = [&[1, 2, 3, 4], &[5, 6, 7]];
    let corpus = Arc::new(Corpus::new(texts));
    assert_eq!(corpus.len(), 9);
    for sequence in [0, 1] {
        let mut drafter = SuffixDrafter::default().with_corpus(corpus.clone());
        let mut ask = Ask::nodes(3);
        ask.sequence = SequenceId(sequence);
        assert_eq!(said(&ask.after(&mut drafter, &[9, 1, 2])), [3, 4]);
        assert_eq!(said(&Ask::nodes(3).after(&mut drafter, &[9, 6])), [7]);
    }
    // What the sequence says itself counts too.
    let mut drafter = SuffixDrafter::default().with_corpus(corpus);
    let tree = Ask::nodes(2).after(&mut drafter, &[1, 2, 8, 1, 2]);
    let mut root: Vec<Token> = tree
        .children(None)
        .map(|n| tree.nodes()[n as usize].token)
        .collect();
    root.sort_unstable();
    assert_eq!(root, [3, 8]);
}

#[test]
fn above_temperature_0_the_targets_noise_chooses_between_equals() {
    // 1 was followed by 2 and by 3, equally often; which of them the target draws depends on the position alone.
    let params = SamplerParams {
        temperature: 1.0,
        ..SamplerParams::default()
    };
    let mut first = [0, 0];
    for pad in 0..200u32 {
        let text: Vec<Token> = (0..pad)
            .map(|t| 1000 + t)
            .chain([1, 2, 50, 1, 3, 51, 1, 2, 52, 1, 3, 53, 1])
            .collect();
        let mut ask = Ask::nodes(1);
        ask.params = params.clone();
        let tree = ask.after(&mut SuffixDrafter::default(), &text);
        let mut sampler = Sampler::new(params.clone(), 0, &text);
        let mut logits = vec![f32::NEG_INFINITY; 4];
        (logits[2], logits[3]) = (0.0, 0.0);
        assert_eq!(tree.nodes()[0].token, sampler.sample(&logits).unwrap());
        first[(tree.nodes()[0].token - 2) as usize] += 1;
    }
    assert!(first.iter().all(|&n| n > 60), "{first:?}");
}

proptest! {
    #[test]
    fn trees_are_well_formed(
        text in prop::collection::vec(0u32..5, 0..80),
        nodes in 0usize..12,
        temperature in prop_oneof![Just(0.0f32), 0.2f32..1.5],
    ) {
        let mut ask = Ask::nodes(nodes);
        ask.params.temperature = temperature;
        let mut drafter = SuffixDrafter::default();
        // In two goes, as rounds do it.
        Ask::nodes(2).after(&mut drafter, &text[..text.len() / 2]);
        let tree = ask.after(&mut drafter, &text);
        prop_assert!(tree.len() <= nodes);
        for (id, node) in (0..).zip(tree.nodes()) {
            prop_assert!((0.0..=1.0).contains(&node.confidence));
            prop_assert!(text.contains(&node.token));
            // Siblings share what probability there is.
            let siblings: Vec<NodeId> = tree.children(node.parent).collect();
            let sum: f32 = siblings.iter().map(|&n| tree.nodes()[n as usize].confidence).sum();
            prop_assert!(sum <= 1.0 + 1e-5, "{id}: {sum}");
        }
        let again = Ask { params: SamplerParams { temperature, ..greedy() }, ..Ask::nodes(nodes) };
        prop_assert_eq!(tree, again.after(&mut SuffixDrafter::default(), &text));
    }
}
