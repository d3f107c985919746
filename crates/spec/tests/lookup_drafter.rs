//! Prompt lookup: what it finds, how sure it is, and that it keeps to its own sequence.

use foretoken_spec::drafters::{LookupDrafter, LookupParams};
use foretoken_spec::{
    Budget, Committed, Drafter, Node, Request, Sampler, SamplerParams, SequenceId, Source, Token, TokenTree,
};
use proptest::prelude::*;

const SEQUENCE: SequenceId = SequenceId(3);

fn budget(length: usize) -> Budget {
    Budget {
        max_nodes: length,
        max_depth: length,
        min_path_probability: 0.0,
        min_confidence: 0.0,
    }
}

/// Extends `tree` after `tokens`.
fn extend(
    drafter: &mut LookupDrafter,
    sequence: SequenceId,
    tokens: &[Token],
    budget: Budget,
    tree: &mut TokenTree,
) {
    let sampler = &Sampler::new(SamplerParams::default(), 0, tokens).snapshot();
    let (hidden, position_limit, deadline) = (None, 10_000, None);
    let request = Request {
        sequence,
        tokens,
        hidden,
        sampler,
        budget,
        position_limit,
        deadline,
        tree,
    };
    drafter.draft(&mut [request]).unwrap();
}

/// The chain drafted after `tokens`.
fn draft(drafter: &mut LookupDrafter, tokens: &[Token], length: usize) -> Vec<Token> {
    let mut tree = TokenTree::default();
    extend(drafter, SEQUENCE, tokens, budget(length), &mut tree);
    assert!(
        tree.nodes()
            .iter()
            .all(|n| n.source == Source::Lookup && (0.0..=1.0).contains(&n.confidence))
    );
    tree.nodes().iter().map(|n| n.token).collect()
}

/// A drafter of n-grams of `min` to `max` tokens.
fn ngrams(min: usize, max: usize) -> LookupDrafter {
    LookupDrafter::new(LookupParams {
        min_ngram: min,
        max_ngram: max,
        ..Default::default()
    })
}

#[test]
fn the_longest_ngram_at_its_latest_place_is_copied() {
    let check = |(min, max), tokens: &[Token], expected: &[Token]| {
        assert_eq!(draft(&mut ngrams(min, max), tokens, 3), expected, "{tokens:?}");
    };
    check((1, 3), &[1, 2, 3, 4, 5, 6, 1, 2, 3], &[4, 5, 6]);
    check((1, 3), &[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3], &[5, 9, 1]); // the latest
    check((1, 3), &[1, 2, 3, 4, 9, 8, 2, 3, 5, 9, 1, 2, 3], &[4, 9, 8]); // longer before later
    check((1, 3), &[7, 3, 4, 5, 6, 3], &[4, 5, 6]); // one token
    check((2, 3), &[7, 3, 4, 5, 6, 3], &[]);
    check((1, 3), &[1, 2, 3, 4], &[]);
    check((1, 3), &[1], &[]);
    check((1, 3), &[], &[]);
    check((0, 0), &[5, 6, 5], &[6, 5, 6]); // raised to 1
    let twice: Vec<Token> = (0..20).chain([90]).chain(0..20).collect();
    check((1, 99), &twice, &[90, 0, 1]); // lowered to 16, of which twenty are enough
    check((40, 99), &twice, &[90, 0, 1]);
    check((40, 99), &twice[5..], &[]); // fifteen are not
    // A copy that reaches the end goes on with itself.
    check((1, 3), &[5, 5], &[5, 5, 5]);
    check((1, 3), &[9, 1, 2, 1, 2], &[1, 2, 1]);
}

#[test]
fn the_budget_is_kept() {
    let tokens = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
    let check = |budget: Budget, position_limit: usize, expected: &[Token]| {
        let mut drafter = LookupDrafter::new(LookupParams {
            end_of_generation: vec![7],
            ..Default::default()
        });
        let mut tree = TokenTree::default();
        drafter
            .draft(&mut [Request {
                sequence: SEQUENCE,
                tokens: &tokens,
                hidden: None,
                sampler: &Sampler::new(SamplerParams::default(), 0, &tokens).snapshot(),
                budget,
                position_limit,
                deadline: None,
                tree: &mut tree,
            }])
            .unwrap();
        assert_eq!(tree.nodes().iter().map(|n| n.token).collect::<Vec<_>>(), expected);
    };
    check(budget(2), 100, &[4, 5]);
    check(
        Budget {
            max_nodes: 1,
            ..budget(3)
        },
        100,
        &[4],
    );
    check(
        Budget {
            max_depth: 1,
            ..budget(3)
        },
        100,
        &[4],
    );
    check(budget(0), 100, &[]);
    check(budget(3), 12, &[4, 5]);
    check(budget(3), 10, &[]);
    check(budget(3), 0, &[]);
    check(budget(100), 100, &[4, 5, 6, 7]); // the end of generation
    check(budget(usize::MAX), usize::MAX, &[4, 5, 6, 7]);
    check(
        Budget {
            min_confidence: 1.1,
            ..budget(3)
        },
        100,
        &[],
    );
    check(
        Budget {
            min_path_probability: 1.1,
            ..budget(3)
        },
        100,
        &[],
    );
    // A match of three is believed at 0.55 at first, one of five at 0.7: paths 0.55, 0.30, 0.21.
    check(
        Budget {
            min_path_probability: 0.35,
            ..budget(9)
        },
        100,
        &[4, 5],
    );
    check(
        Budget {
            min_confidence: 0.6,
            ..budget(3)
        },
        100,
        &[],
    );
}

#[test]
fn confidence_follows_what_was_seen() {
    // Every 1 is followed by a 2 for a while, and then never again.
    let mut drafter = ngrams(1, 1);
    let mut tokens = vec![1, 2];
    let confidence = |drafter: &mut LookupDrafter, tokens: &[Token]| {
        let mut tree = TokenTree::default();
        extend(drafter, SEQUENCE, tokens, budget(1), &mut tree);
        tree.nodes()[0].confidence
    };
    let mut round = |filler: Token, said: Token| {
        tokens.extend([filler, 1]);
        let before = confidence(&mut drafter, &tokens);
        drafter.observe(
            SEQUENCE,
            &Committed {
                tokens: vec![said],
                ..Default::default()
            },
        );
        tokens.push(said);
        before
    };
    let first = round(100, 2);
    assert!((0.2..0.4).contains(&first), "{first}");
    let sure = (101..160).map(|filler| round(filler, 2)).last().unwrap();
    assert!(sure > 0.85, "{sure}");
    let unsure = (160..220).map(|filler| round(filler, filler)).last().unwrap();
    assert!(unsure < 0.25, "{unsure}");
    // A budget that lets nothing through does not keep it from learning.
    let strict = Budget {
        min_confidence: 0.5,
        ..budget(1)
    };
    let mut tokens = tokens.clone();
    for filler in 220..300 {
        tokens.extend([filler, 1]);
        extend(&mut drafter, SEQUENCE, &tokens, strict, &mut TokenTree::default());
        drafter.observe(
            SEQUENCE,
            &Committed {
                tokens: vec![2],
                ..Default::default()
            },
        );
        tokens.push(2);
    }
    let mut tree = TokenTree::default();
    tokens.extend([300, 1]);
    extend(&mut drafter, SEQUENCE, &tokens, strict, &mut tree);
    assert_eq!(tree.len(), 1);
}

#[test]
fn state_belongs_to_one_sequence_and_ends_with_it() {
    let mut drafter = ngrams(1, 3);
    let secret = [1, 2, 3, 4, 5, 6, 1, 2, 3];
    assert_eq!(draft(&mut drafter, &secret, 3), [4, 5, 6]);
    let mut other = TokenTree::default();
    extend(&mut drafter, SequenceId(4), &[9, 1, 2, 3], budget(3), &mut other);
    assert!(other.is_empty());
    drafter.end(SEQUENCE);
    assert_eq!(draft(&mut drafter, &[9, 1, 2, 3], 3), []);
    drafter.begin(SEQUENCE, &[1]).unwrap();
    assert_eq!(draft(&mut drafter, &[9, 8, 1, 2, 3], 3), []);
}

#[test]
fn another_drafters_tree_is_extended() {
    let tokens = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
    let mut tree = TokenTree::default();
    let mut push = |parent, token, confidence| {
        tree.push(Node {
            token,
            parent,
            confidence,
            source: Source::Scripted,
            rank: 0,
        })
    };
    let first = push(None, 4, 0.9); // also the lookup's first
    push(None, 6, 0.3);
    push(Some(first), 1, 0.8); // the likeliest leaf: 4, 1
    extend(&mut ngrams(1, 3), SEQUENCE, &tokens, budget(4), &mut tree);
    let nodes: Vec<_> = tree
        .nodes()
        .iter()
        .map(|n| (n.parent, n.token, n.source))
        .collect();
    let (s, l) = (Source::Scripted, Source::Lookup);
    let expected = [
        (None, 4, s),
        (None, 6, s),
        (Some(0), 1, s),
        (Some(0), 5, l), // from the root, after the shared 4
        (Some(3), 6, l),
        (Some(4), 7, l),
        (Some(2), 2, l), // from the leaf
    ];
    assert_eq!(nodes, expected);
}

#[test]
fn memory_is_bounded() {
    let params = LookupParams {
        min_ngram: 1,
        max_ngram: 1,
        max_entries: 4,
        ..Default::default()
    };
    let mut drafter = LookupDrafter::new(params);
    let mut tokens: Vec<Token> = (0..100).collect();
    tokens.push(2);
    assert_eq!(draft(&mut drafter, &tokens, 2), [3, 4]); // known early
    tokens.push(50);
    assert_eq!(draft(&mut drafter, &tokens, 2), []); // came too late
    // Known n-grams still move to their latest place.
    tokens.extend([2, 77, 9, 2]);
    assert_eq!(draft(&mut drafter, &tokens, 1), [77]);
    tokens.extend([60, 2]);
    assert_eq!(draft(&mut drafter, &tokens, 1), [60]);
}

/// The definition, by search.
fn reference(tokens: &[Token], min: usize, max: usize, length: usize) -> Vec<Token> {
    let end = tokens.len();
    for n in (min..=max.min(end)).rev() {
        let wanted = &tokens[end - n..];
        let places = (n..end).rev();
        if let Some(after) = places
            .into_iter()
            .find(|&after| &tokens[after - n..after] == wanted)
        {
            let mut all = tokens.to_vec();
            (0..length).for_each(|i| all.push(all[after + i]));
            return all[end..].to_vec();
        }
    }
    Vec::new()
}

proptest! {
    #[test]
    fn growing_shrinking_and_edited_histories_propose_only_what_stands_there(
        (min, max) in (1usize..3, 2usize..5),
        steps in prop::collection::vec((0usize..4, prop::collection::vec(0u32..5, 1..20), 0usize..100), 1..20),
        length in 1usize..9,
    ) {
        let mut drafter = ngrams(min, max);
        let mut tokens: Vec<Token> = Vec::new();
        let mut edited = false;
        for (kind, more, at) in steps {
            match kind {
                0 | 1 => tokens.extend(more), // grows
                2 => tokens.truncate(at % (tokens.len() + 1)), // shrinks
                _ if tokens.is_empty() => {}
                _ => {
                    let at = at % tokens.len();
                    tokens[at] = more[0];
                    edited = true;
                }
            }
            let drafted = draft(&mut drafter, &tokens, length);
            let expected = reference(&tokens, min, max, length);
            if edited {
                // An edit in the middle may hide places, and show none that is not there.
                let end = tokens.len();
                let stands = |after: usize| {
                    let mut all = tokens.clone();
                    (0..length).for_each(|i| all.push(all[after + i]));
                    all[end..] == drafted && all[after - min..after] == tokens[end - min..]
                };
                prop_assert!(drafted.is_empty() || (min..end).any(stands));
            } else {
                prop_assert_eq!(drafted, expected);
            }
        }
    }
}
