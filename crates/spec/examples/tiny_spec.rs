//! Speculative decoding in one page: `cargo run -p foretoken-spec --example tiny_spec`.
//!
//! The target model predicts the next letter from the last five, the draft model from the last two. Both
//! have counted the same nursery rhyme; only the target is asked what to say. The draft is drawn with the
//! target's own noise, so that it is often the very letter that the target draws, at any temperature.

use std::collections::HashMap;

use foretoken_spec::drafters::ModelDrafter;
use foretoken_spec::testing::Counters;
use foretoken_spec::{
    Batch, Budget, Cancel, Capabilities, Committed, Drafter, Flow, ModelError, ModelInfo, OutOfPages, Output,
    Request, Row, RowId, Sampler, SamplerParams, Scores, SequenceId, Sources, TargetModel, Token, TokenTree,
    Verdict, verify,
};

const RHYME: &str = "This is the farmer sowing the corn, that kept the cock that crowed in the morn, that \
    waked the priest all shaven and shorn, that married the man all tattered and torn, that kissed the maiden \
    all forlorn, that milked the cow with the crumpled horn, that tossed the dog, that worried the cat, that \
    killed the rat, that ate the malt that lay in the house that Jack built.\n";

/// A model that has counted which letter follows the last `order` ones. Tokens are bytes.
struct Letters {
    info: ModelInfo,
    order: usize,
    sequences: HashMap<SequenceId, Vec<Token>>,
    last_batch: Batch,
}

impl Letters {
    fn new(order: usize) -> Self {
        let capabilities = Capabilities {
            trees: true,
            hidden: false,
            row_invariant: true,
        };
        let info = ModelInfo {
            vocab_size: 128,
            hidden_size: 0,
            context_length: 1000,
            end_of_generation: vec![],
            capabilities,
        };
        Self {
            info,
            order,
            sequences: HashMap::new(),
            last_batch: Batch::default(),
        }
    }

    /// The row of logits at the end of a path: the logarithm of a count plus a little.
    fn logits(&self, path: &[Token], logits: &mut [f32]) {
        let mut counts = [0.01f32; 128];
        let known = &path[path.len() - self.order.min(path.len())..];
        for window in RHYME.repeat(2).as_bytes().windows(known.len() + 1) {
            if window
                .iter()
                .zip(known)
                .all(|(&byte, &token)| Token::from(byte) == token)
            {
                counts[usize::from(window[known.len()])] += 1.0;
            }
        }
        logits
            .iter_mut()
            .zip(counts)
            .for_each(|(logit, count)| *logit = count.ln());
    }

    /// The committed tokens of a row's sequence, then its ancestors in the batch, then itself.
    fn path(&self, batch: &Batch, row: RowId) -> Vec<Token> {
        let row = batch.rows()[row as usize];
        let mut path = row
            .parent
            .map_or_else(|| self.sequences[&row.sequence].clone(), |p| self.path(batch, p));
        path.push(row.token);
        path
    }
}

impl TargetModel for Letters {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn open(&mut self) -> SequenceId {
        let id = SequenceId(self.sequences.len() as u64);
        self.sequences.insert(id, Vec::new());
        id
    }
    fn len(&self, sequence: SequenceId) -> usize {
        self.sequences[&sequence].len()
    }
    fn reserve(&mut self, _: SequenceId, _: usize) -> Result<(), OutOfPages> {
        Ok(())
    }
    fn forward(&mut self, batch: &Batch, scores: &mut Scores, _: &Cancel) -> Result<(), ModelError> {
        scores.prepare(batch, self.info.vocab_size, 0);
        let asked = (0..batch.len() as RowId).filter(|&row| batch.rows()[row as usize].output.logits());
        for (row, logits) in asked.zip(scores.logits_buffer().chunks_mut(self.info.vocab_size)) {
            self.logits(&self.path(batch, row), logits);
        }
        self.last_batch = batch.clone();
        Ok(())
    }
    fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) {
        let tokens = rows.iter().map(|&row| self.last_batch.rows()[row as usize].token);
        self.sequences.entry(sequence).or_default().extend(tokens);
    }
    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.sequences.entry(sequence).or_default().truncate(len);
    }
    fn share(&mut self, sequence: SequenceId, from: SequenceId, len: usize) {
        let shared = self.sequences[&from].iter().copied().take(len).collect();
        self.sequences.insert(sequence, shared);
    }
    fn release(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}

/// Writes `wanted` tokens after the prompt, drafting up to `length` a round.
fn write(prompt: &str, wanted: usize, length: usize) -> (Vec<Token>, Counters) {
    let mut target = Letters::new(5);
    let mut drafter = ModelDrafter::new(Letters::new(2), target.info().vocab_size);
    let mut tokens: Vec<Token> = prompt.bytes().map(Token::from).collect();
    let mut sampler = Sampler::new(SamplerParams::default(), Sampler::key(7, 0), &tokens);
    let (mut tree, mut batch, mut scores) = (TokenTree::default(), Batch::default(), Scores::default());
    let mut counters = Counters::default();
    let sequence = target.open();
    let end = tokens.len() + wanted;
    drafter
        .begin(sequence, &tokens)
        .expect("a letter model never fails");

    while tokens.len() < end {
        // 1. The drafter grows a tree behind the last token: here, a chain.
        tree.clear();
        let sampler_state = sampler.snapshot();
        let request = Request {
            sequence,
            tokens: &tokens,
            hidden: None,
            sampler: &sampler_state,
            budget: Budget {
                max_nodes: length,
                max_depth: length,
                max_branches: 4,
                sources: Sources::ALL,
                max_read: usize::MAX,
                min_path_probability: 0.3,
                min_confidence: 0.0,
            },
            position_limit: end,
            grammar: None,
            deadline: None,
            tree: &mut tree,
        };
        drafter.draft(&mut [request]).expect("a letter model never fails");

        // 2. The target scores every row in one pass: the tokens it has not seen, then the tree.
        batch.clear();
        let mut root = None;
        for &token in &tokens[target.len(sequence)..] {
            root = Some(batch.push(Row {
                sequence,
                token,
                parent: root,
                output: Output::Logits,
            }));
        }
        let first = batch.len() as RowId;
        for node in tree.nodes() {
            let parent = node.parent.map_or(root, |parent| Some(first + parent));
            batch.push(Row {
                sequence,
                token: node.token,
                parent,
                output: Output::Logits,
            });
        }
        target
            .forward(&batch, &mut scores, &Cancel::default())
            .expect("a letter model never fails");

        // 3. The verifier walks down the tree, as far as it holds what the target itself draws.
        let mut room = end - tokens.len();
        let cut = |_| {
            room -= 1;
            if room == 0 { Flow::Stop } else { Flow::Continue }
        };
        let row_of = |node: Option<u32>| node.map_or(first - 1, |node| first + node);
        let logits = |node| scores.logits(row_of(node)).expect("every row asked for them");
        let verdict = verify(&tree, &mut sampler, logits, cut).expect("logarithms of positive counts");
        counters.record(&tree, &verdict);

        // 4. The cache keeps the accepted path; the drafter hears what became of its tree.
        let path: Vec<RowId> = (0..first)
            .chain(verdict.accepted.iter().map(|node| first + node))
            .collect();
        target.commit(sequence, &path);
        tokens.extend(&verdict.tokens);
        let Verdict {
            tokens: gained,
            accepted,
            ..
        } = verdict;
        drafter.observe(
            sequence,
            &Committed {
                tokens: gained,
                accepted,
                rows: Vec::new(),
            },
        );
    }
    (tokens, counters)
}

fn main() {
    let (plain, alone) = write("This is the ", 300, 0);
    let (drafted, helped) = write("This is the ", 300, 6);
    let text: String = drafted
        .iter()
        .filter_map(|&token| char::from_u32(token))
        .collect();
    println!("{text}\n");
    println!("same tokens: {}", if plain == drafted { "yes" } else { "no" });
    println!(
        "passes of the target: {} without drafts, {} with",
        alone.rounds, helped.rounds
    );
    println!(
        "drafted {}, accepted {} ({:.0} %), {:.2} tokens per pass",
        helped.drafted,
        helped.accepted,
        100.0 * helped.acceptance_rate().unwrap_or(0.0),
        helped.tokens_per_round().unwrap_or(0.0),
    );
    assert_eq!(plain, drafted);
}
