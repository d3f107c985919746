//! The draft model's trees: what grows, what is evaluated for it, and what is left afterwards.

use foretoken_spec::drafters::ModelDrafter;
use foretoken_spec::testing::{ScriptedModel, Task, decode_drafted, decode_plain, open_params};
use foretoken_spec::{
    Budget, Drafter, ModelError, Node, Request, Sampler, SequenceId, Source, Sources, Token, TokenTree,
};
use proptest::prelude::*;

const SEQUENCE: SequenceId = SequenceId(7);

const WIDE: Budget = Budget {
    max_nodes: 15,
    max_depth: 15,
    max_branches: 4,
    sources: Sources::ALL,
    max_read: usize::MAX,
    min_path_probability: 0.0,
    min_confidence: 0.0,
};

/// Extends a tree after these tokens.
fn extend(
    drafter: &mut dyn Drafter,
    tokens: &[Token],
    budget: Budget,
    temperature: f32,
    tree: &mut TokenTree,
) {
    let snapshot = Sampler::new(open_params(temperature), 5, tokens).snapshot();
    let request = Request {
        sequence: SEQUENCE,
        tokens,
        hidden: None,
        sampler: &snapshot,
        budget,
        position_limit: 1000,
        grammar: None,
        deadline: None,
        tree,
    };
    drafter.draft(&mut [request]).unwrap();
}

fn draft(drafter: &mut dyn Drafter, tokens: &[Token], budget: Budget, temperature: f32) -> TokenTree {
    let mut tree = TokenTree::default();
    extend(drafter, tokens, budget, temperature, &mut tree);
    tree
}

/// Paths of a tree's nodes, in order.
fn paths(tree: &TokenTree) -> Vec<Vec<Token>> {
    (0..tree.len() as u32).map(|node| tree.path(node)).collect()
}

/// After an even token surely the next one; after an odd one the next with 0.62, the one after it with 0.33.
fn forking() -> ScriptedModel {
    ScriptedModel::new(64, |path, logits| {
        let last = path[path.len() - 1] as usize;
        logits.fill(-20.0);
        if last.is_multiple_of(2) {
            logits[(last + 1) % 64] = 20.0;
        } else {
            logits[(last + 1) % 64] = 0.62f32.ln();
            logits[(last + 2) % 64] = 0.33f32.ln();
            logits[63] = 0.05f32.ln();
        }
    })
}

#[test]
fn the_likeliest_paths_grow_and_a_pass_serves_all_that_are_worth_it() {
    let check = |budget: Budget, expected: &[&[Token]], passes: usize, rows: usize| {
        let mut drafter = ModelDrafter::new(forking(), 64);
        let tree = draft(&mut drafter, &[1], budget, 0.0);
        assert_eq!(paths(&tree), expected);
        let times = drafter.times().unwrap();
        assert_eq!(
            (times.passes, times.prompt_rows + times.eval_rows),
            (passes as u64, rows as u64)
        );
        drafter.end(SEQUENCE);
        assert_eq!(drafter.model().open_sequences(), 0);
    };
    // 2 at 0.62 is worth a step; 3 at 0.33 comes along for its row, and what follows both are leaves. 63 at 0.05 is not even
    // worth a row.
    let budget = Budget {
        min_path_probability: 0.5,
        max_depth: 2,
        ..WIDE
    };
    check(budget, &[&[2], &[3], &[2, 3], &[3, 4], &[3, 5]], 2, 3);
    // Nodes are few: the two likeliest need no second pass to be told.
    check(
        Budget {
            max_nodes: 2,
            ..budget
        },
        &[&[2], &[2, 3]],
        2,
        2,
    );
    // Nothing is worth a step.
    let dear = Budget {
        min_path_probability: 0.7,
        ..budget
    };
    check(dear, &[&[2], &[3]], 1, 1);
    // A chain, though there would be room for more.
    let chain = Budget {
        max_branches: 1,
        max_depth: 3,
        ..WIDE
    };
    check(chain, &[&[2], &[2, 3], &[2, 3, 4]], 3, 3);
}

#[test]
fn what_another_drafter_proposed_is_extended() {
    let mut tree = TokenTree::default();
    let node = |parent, token, confidence| Node {
        token,
        parent,
        confidence,
        source: Source::Suffix,
        rank: 0,
    };
    let first = tree.push(node(None, 2, 0.2));
    tree.push(node(Some(first), 9, 0.5));
    let budget = Budget {
        max_depth: 2,
        min_path_probability: 0.5,
        ..WIDE
    };
    extend(
        &mut ModelDrafter::new(forking(), 64),
        &[1],
        budget,
        0.0,
        &mut tree,
    );
    assert_eq!(paths(&tree), [vec![2], vec![2, 9], vec![2, 3], vec![3]]);
    // The surer of two drafters speaks for a node.
    let Node {
        confidence, source, ..
    } = tree.nodes()[0];
    assert!((confidence - 0.62).abs() < 1e-3 && source == Source::Model);
    assert_eq!(tree.nodes()[1].source, Source::Suffix);
}

#[test]
fn what_another_drafter_proposed_is_evaluated_at_once() {
    // 2, 3, 4 is what the model would say too; it takes one pass to find that out, and another for what follows.
    let mut tree = TokenTree::default();
    let mut parent = None;
    for token in [2, 3, 4] {
        parent = Some(tree.push(Node {
            token,
            parent,
            confidence: 0.5,
            source: Source::Suffix,
            rank: 0,
        }));
    }
    let budget = Budget {
        max_depth: 5,
        max_branches: 1,
        ..WIDE
    };
    let mut drafter = ModelDrafter::new(forking(), 64);
    extend(&mut drafter, &[1], budget, 0.0, &mut tree);
    assert_eq!(paths(&tree).last().unwrap(), &[2, 3, 4, 5, 6]);
    let times = drafter.times().unwrap();
    assert_eq!((times.passes, times.prompt_rows + times.eval_rows), (2, 5));
}

#[test]
fn the_branch_that_came_true_is_not_evaluated_again() {
    let mut drafter = ModelDrafter::new(forking(), 64);
    let budget = Budget {
        max_depth: 4,
        min_path_probability: 0.2,
        ..WIDE
    };
    let tree = draft(&mut drafter, &[1], budget, 0.0);
    assert!(paths(&tree).contains(&vec![3, 4, 5]), "{:?}", paths(&tree));
    // The target went the less likely way, 3 and 4, and then said what was not proposed.
    let before = drafter.model().evaluations().len();
    draft(
        &mut drafter,
        &[1, 3, 4, 30],
        Budget {
            max_depth: 1,
            ..budget
        },
        0.0,
    );
    let rows = &drafter.model().evaluations()[before..];
    assert_eq!(
        rows.iter().map(|e| (e.position, e.token)).collect::<Vec<_>>(),
        [(3, 30)]
    );
    assert_eq!(drafter.model().open_sequences(), 1);
}

#[test]
fn of_a_long_text_the_end_is_read_if_no_more_can_be_repaid() {
    let read = |drafter: &ModelDrafter<ScriptedModel>| drafter.model().evaluations().len();
    let mut drafter = ModelDrafter::new(forking(), 64);
    let mut tokens: Vec<Token> = (0..60).collect();
    let budget = Budget {
        max_read: 16,
        max_branches: 1,
        max_nodes: 1,
        ..WIDE
    };
    assert_eq!(paths(&draft(&mut drafter, &tokens, budget, 0.0)), [[60]]);
    assert_eq!(read(&drafter), 16);
    // What follows is read as it comes; the window stays.
    tokens.push(60);
    assert_eq!(paths(&draft(&mut drafter, &tokens, budget, 0.0)), [[61]]);
    assert_eq!(read(&drafter), 17);
    // Too much that was not seen: again the end alone.
    tokens.extend((0..20).rev());
    assert_eq!(paths(&draft(&mut drafter, &tokens, budget, 0.0)), [[1]]);
    assert_eq!(read(&drafter), 33);
    // A history that was cut is read from its start, if it may be.
    tokens.truncate(12);
    assert_eq!(paths(&draft(&mut drafter, &tokens, budget, 0.0)), [[12]]);
    assert_eq!(read(&drafter), 45);
    assert_eq!(drafter.model().open_sequences(), 1);
}

#[test]
fn branches_without_room_stay_leaves() {
    let budget = Budget {
        max_depth: 6,
        min_path_probability: 0.2,
        ..WIDE
    };
    let drafted = |pages: usize| {
        let mut drafter = ModelDrafter::new(forking().with_pages(4, pages), 64);
        let tree = draft(&mut drafter, &[0, 0, 0, 1], budget, 0.0);
        drafter.end(SEQUENCE);
        assert_eq!(drafter.model().open_sequences(), 0);
        paths(&tree)
    };
    // Three pages hold the first line, and of a branch what it shares with that; more of them hold the branches too.
    let (few, many) = (drafted(3), drafted(100));
    assert!(few.contains(&vec![3]) && !few.contains(&vec![3, 4]), "{few:?}");
    assert!(
        many.contains(&vec![2, 3]) && many.contains(&vec![3, 4, 5]),
        "{many:?}"
    );
}

#[test]
fn after_a_pass_that_failed_with_several_branches_all_goes_on() {
    let mut target = ScriptedModel::random(20, 3, 1.0);
    let task = Task {
        params: open_params(0.0),
        key: 3,
        prompt: vec![1, 2, 3],
        max_tokens: 40,
    };
    let plain = decode_plain(&mut target, &task).unwrap();
    for pass in 0..12 {
        let draft_model = target.blurred(1, 0.5);
        let broken = ModelError::Backend("broken".to_owned());
        let mut drafter = Checked {
            inner: ModelDrafter::new(draft_model.clone().failing_at(pass, broken), 20),
            model: draft_model,
            budget: WIDE,
            nodes: 0,
        };
        let run = decode_drafted(&mut target, &mut drafter, WIDE, &task).unwrap();
        assert_eq!((&run.tokens, run.draft_errors), (&plain.tokens, 1), "pass {pass}");
        assert_eq!(drafter.inner.model().open_sequences(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_node_is_what_the_draft_model_would_say_there(
        (seed, key) in any::<(u64, u64)>(),
        temperature in prop_oneof![Just(0f32), 0.2f32..1.5],
        blur in 0f32..1.5,
        prompt in prop::collection::vec(0u32..20, 1..20),
        nodes in 1usize..16,
        depth in 1usize..8,
        branches in 1usize..5,
        least in 0f32..0.6,
        max_read in prop_oneof![Just(usize::MAX), 3usize..12],
        pages in prop_oneof![Just(1000usize), 4usize..30],
    ) {
        let mut target = ScriptedModel::random(20, seed, 2.0);
        let draft_model = target.blurred(1, blur);
        let mut drafter = Checked {
            inner: ModelDrafter::new(draft_model.clone().with_pages(4, pages), 20),
            model: draft_model,
            budget: Budget {
                max_nodes: nodes,
                max_depth: depth,
                max_branches: branches,
                sources: Sources::ALL,
                max_read,
                min_path_probability: least,
                min_confidence: 0.0,
            },
            nodes: 0,
        };
        let task = Task { params: open_params(temperature), key, prompt, max_tokens: 50 };
        let plain = decode_plain(&mut target, &task).unwrap();
        let budget = drafter.budget;
        let run = decode_drafted(&mut target, &mut drafter, budget, &task).unwrap();
        prop_assert_eq!(&run.tokens, &plain.tokens);
        prop_assert_eq!(run.draft_errors, 0);
        prop_assert_eq!(drafter.inner.model().open_sequences(), 0);
        prop_assert!(pages < 1000 || drafter.nodes > 0);
    }
}

/// Compares every node with what the model says from scratch.
struct Checked {
    inner: ModelDrafter<ScriptedModel>,
    model: ScriptedModel,
    budget: Budget,
    /// Nodes that were compared.
    nodes: usize,
}

impl Drafter for Checked {
    fn name(&self) -> &str {
        "checked"
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), foretoken_spec::DraftError> {
        self.inner.begin(sequence, prompt)
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), foretoken_spec::DraftError> {
        self.inner.draft(requests)?;
        for request in requests {
            let tree: &TokenTree = request.tree;
            assert!(tree.len() <= self.budget.max_nodes);
            self.nodes += tree.len();
            for (id, node) in (0..).zip(tree.nodes()) {
                assert!(tree.depth(id) <= self.budget.max_depth);
                let before = node.parent.map_or_else(Vec::new, |parent| tree.path(parent));
                let mut sampler = request.sampler.sampler();
                before.iter().for_each(|&token| {
                    sampler.accept(token);
                });
                // The scripted model looks at three tokens, fewer than the least window.
                let text = [request.tokens, &before].concat();
                let logits = self.model.logits_after(&text);
                let said = sampler
                    .propose(&logits, None, None, self.budget.max_branches)
                    .unwrap();
                let said = said[usize::from(node.rank)];
                assert_eq!((node.token, node.confidence), (said.token, said.confidence));
            }
        }
        Ok(())
    }

    fn end(&mut self, sequence: SequenceId) {
        self.inner.end(sequence);
    }
}
