//! Token recycling: what the target thought before is proposed again.

use foretoken_spec::drafters::RecyclingDrafter;
use foretoken_spec::{
    Budget, Committed, Drafter, Node, Request, Sampler, SamplerParams, SequenceId, Source, Sources, Token,
    TokenTree, VerifiedRow,
};

const SEQUENCE: SequenceId = SequenceId(7);

fn draft(drafter: &mut RecyclingDrafter, tokens: &[Token], nodes: usize) -> TokenTree {
    let params = SamplerParams {
        temperature: 0.0,
        ..SamplerParams::default()
    };
    let mut tree = TokenTree::default();
    drafter
        .draft(&mut [Request {
            sequence: SEQUENCE,
            tokens,
            hidden: None,
            sampler: &Sampler::new(params, 0, tokens).snapshot(),
            budget: Budget {
                max_nodes: nodes,
                max_depth: nodes,
                max_branches: 4,
                sources: Sources::ALL,
                max_read: usize::MAX,
                min_path_probability: 0.0,
                min_confidence: 0.0,
            },
            position_limit: 1000,
            grammar: None,
            deadline: None,
            tree: &mut tree,
        }])
        .unwrap();
    tree
}

fn row(node: Option<u32>, logits: &[(Token, f32)]) -> VerifiedRow {
    VerifiedRow {
        node,
        top_logits: logits.to_vec(),
        hidden: None,
    }
}

fn said(tree: &TokenTree) -> Vec<(Option<u32>, Token, u16)> {
    tree.nodes().iter().map(|n| (n.parent, n.token, n.rank)).collect()
}

#[test]
fn rows_of_accepted_and_rejected_tokens_are_strung_together() {
    let mut drafter = RecyclingDrafter::new(vec![9]);
    drafter.begin(SEQUENCE, &[4, 1]).unwrap();
    assert!(draft(&mut drafter, &[4, 1], 4).is_empty());
    // The root was 1; of the proposed 2 and 3, 2 was right and 5 came after it.
    let mut tree = TokenTree::default();
    for token in [2, 3] {
        tree.push(Node {
            token,
            parent: None,
            confidence: 0.5,
            source: Source::Scripted,
            rank: 0,
        });
    }
    drafter.submitted(SEQUENCE, &tree);
    drafter.observe(
        SEQUENCE,
        &Committed {
            tokens: vec![2, 5],
            accepted: vec![0],
            rows: vec![
                row(None, &[(2, 3.0), (3, 1.0)]),
                row(Some(0), &[(5, 2.0), (9, 1.9), (1, 0.0)]),
                row(Some(1), &[(4, 2.0)]),
            ],
        },
    );
    // After 5 nothing is known. After 1: 2, then 3; the end is not proposed.
    assert!(draft(&mut drafter, &[4, 1, 2, 5], 4).is_empty());
    let tree = draft(&mut drafter, &[4, 1, 2, 5, 1], 4);
    assert_eq!(
        said(&tree),
        [(None, 2, 0), (None, 3, 1), (Some(0), 5, 0), (Some(1), 4, 0)]
    );
    let confidence: Vec<f32> = tree.nodes().iter().map(|n| n.confidence).collect();
    assert!(
        (confidence[0] - 0.25 / (1.0 + (-2.0f32).exp())).abs() < 1e-6,
        "{confidence:?}"
    );
    assert_eq!(confidence[3], 0.25);
    // A later row of the same token replaces the earlier one: the root is now the last token committed, 5.
    drafter.observe(
        SEQUENCE,
        &Committed {
            tokens: vec![1],
            accepted: vec![],
            rows: vec![row(None, &[(1, 0.0)])],
        },
    );
    assert_eq!(said(&draft(&mut drafter, &[4, 1, 2, 5], 1)), [(None, 1, 0)]);
    // Another sequence cannot tell that this one was there.
    drafter.end(SEQUENCE);
    drafter.begin(SEQUENCE, &[5]).unwrap();
    assert!(draft(&mut drafter, &[5], 1).is_empty());
}

#[test]
fn rows_of_nodes_that_were_never_submitted_are_ignored() {
    let mut drafter = RecyclingDrafter::default();
    drafter.begin(SEQUENCE, &[]).unwrap();
    drafter.observe(
        SEQUENCE,
        &Committed {
            tokens: vec![3],
            accepted: vec![],
            rows: vec![row(None, &[(1, 0.0)]), row(Some(4), &[(1, 0.0)]), row(None, &[])],
        },
    );
    assert!(draft(&mut drafter, &[3], 2).is_empty());
}
