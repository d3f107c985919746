//! Prompt lookup: what stands in the sequence already is likely to be said again.
//!
//! The last n tokens, n from the longest allowed downwards, are looked for earlier in the same sequence
//! (Saxena: "Prompt Lookup Decoding", 2023); the tokens that followed their latest earlier place are drafted
//! as a chain. A chain that reaches the end of the history goes on with its own tokens, so that a repeated
//! period is drafted to any length. If the tree already holds another drafter's nodes, its likeliest leaf is
//! continued too.
//!
//! The index holds, for the hash of every n-gram, the place after its latest occurrence, and grows with the
//! tokens; a look-up checks the tokens themselves, so that neither a collision nor an edited history can do
//! more than propose nothing. State belongs to one sequence and ends with it.
//!
//! Not here: a store shared by sequences.

use std::collections::HashMap;

use crate::noise::mix;
use crate::{Committed, DraftError, Drafter, Node, NodeId, Request, SequenceId, Source, Token, TokenTree};

/// Matches are measured backwards up to so many tokens; longer ones count as this long. No n-gram is longer.
const LONGEST_MATCH: usize = 16;

/// No chain is longer than this, whatever the budget.
const LONGEST_CHAIN: usize = 512;

/// So many tokens of a chain are compared with what the sequence says, proposed or not.
const WATCHED: usize = 16;

/// What is known of acceptance before anything was seen, by match class; see [`Confidence`].
const PRIOR: [f32; CLASSES] = [0.3, 0.45, 0.55, 0.7, 0.85];
const CLASSES: usize = 5;

/// How many observations the prior counts for.
const PRIOR_WEIGHT: f32 = 4.0;

/// What remains of an observation's weight after the next one.
const DECAY: f32 = 31.0 / 32.0;

/// Settings of a [`LookupDrafter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupParams {
    /// The shortest n-gram to look for; 1 to 16.
    pub min_ngram: usize,
    /// The longest n-gram to look for, tried first; `min_ngram` to 16.
    pub max_ngram: usize,
    /// Most n-grams to keep for one sequence, 16 bytes and a hash table's overhead each. Beyond, tokens are
    /// no longer indexed.
    pub max_entries: usize,
    /// Tokens after which nothing is drafted.
    pub end_of_generation: Vec<Token>,
}

impl Default for LookupParams {
    fn default() -> Self {
        Self {
            min_ngram: 1,
            max_ngram: 3,
            max_entries: 1 << 20,
            end_of_generation: Vec::new(),
        }
    }
}

/// Drafts by repetition of the sequence's own tokens.
#[derive(Debug, Default)]
pub struct LookupDrafter {
    params: LookupParams,
    sequences: HashMap<SequenceId, Sequence>,
}

#[derive(Debug, Default)]
struct Sequence {
    index: Index,
    confidence: Confidence,
    /// The last chain from the root, proposed or not, to be compared with what comes.
    watched: Option<Chain>,
}

/// The places of n-grams.
#[derive(Debug, Default)]
struct Index {
    /// From the hash of an n-gram to the position after it.
    after: HashMap<u64, u32>,
    /// Positions below this are in `after`.
    indexed: usize,
    /// The tokens before `indexed`, to notice that the history was edited.
    tail: Vec<Token>,
}

/// A copy of what followed an n-gram.
#[derive(Debug)]
struct Chain {
    /// How many tokens before its first agree with the place that it was copied from.
    matched: usize,
    tokens: Vec<Token>,
}

/// Acceptance by match length, of this sequence: for each class of match lengths (1, 2, 3–4, 5–8, more) the
/// share of copied tokens that came true, of late observations more than of early ones, on top of a prior.
/// The match length of a chain's token counts the tokens of the chain before it.
#[derive(Debug, Default)]
struct Confidence {
    accepted: [f32; CLASSES],
    seen: [f32; CLASSES],
}

impl Confidence {
    fn class(matched: usize) -> usize {
        match matched {
            0 | 1 => 0,
            2 => 1,
            3 | 4 => 2,
            5..=8 => 3,
            _ => 4,
        }
    }

    fn of(&self, matched: usize) -> f32 {
        let class = Self::class(matched);
        (self.accepted[class] + PRIOR_WEIGHT * PRIOR[class]) / (self.seen[class] + PRIOR_WEIGHT)
    }

    fn record(&mut self, matched: usize, accepted: bool) {
        let class = Self::class(matched);
        self.accepted[class] = self.accepted[class] * DECAY + f32::from(u8::from(accepted));
        self.seen[class] = self.seen[class] * DECAY + 1.0;
    }
}

fn hash(ngram: &[Token]) -> u64 {
    ngram
        .iter()
        .fold(ngram.len() as u64, |h, &token| mix(h ^ mix(u64::from(token) + 1)))
}

/// The committed tokens and a path behind them.
#[derive(Clone, Copy)]
struct History<'a> {
    committed: &'a [Token],
    path: &'a [Token],
}

impl History<'_> {
    fn len(&self) -> usize {
        self.committed.len() + self.path.len()
    }

    fn at(&self, position: usize) -> Token {
        match position.checked_sub(self.committed.len()) {
            None => self.committed[position],
            Some(at) => self.path[at],
        }
    }
}

impl Index {
    /// Takes in the committed tokens. An n-gram is entered once a token follows it, so that the latest
    /// place of the last n-gram is an earlier one.
    fn extend(&mut self, params: &LookupParams, tokens: &[Token]) {
        let unchanged = self.indexed <= tokens.len() && tokens[..self.indexed].ends_with(&self.tail);
        if !unchanged {
            *self = Self::default();
        }
        for position in self.indexed.max(1)..tokens.len() {
            for n in params.min_ngram..=params.max_ngram.min(position) {
                let key = hash(&tokens[position - n..position]);
                if self.after.len() < params.max_entries || self.after.contains_key(&key) {
                    self.after.insert(key, position as u32);
                }
            }
        }
        self.indexed = tokens.len();
        self.tail = tokens[tokens.len() - params.max_ngram.min(tokens.len())..].to_vec();
    }

    /// Up to `length` tokens that followed the history's last n-gram at its latest earlier place.
    fn find(&self, params: &LookupParams, history: History<'_>, length: usize) -> Option<Chain> {
        let end = history.len();
        for n in (params.min_ngram..=params.max_ngram.min(end)).rev() {
            let ngram: Vec<Token> = (end - n..end).map(|i| history.at(i)).collect();
            let Some(&after) = self.after.get(&hash(&ngram)) else {
                continue;
            };
            let after = after as usize;
            if after >= history.committed.len() {
                continue;
            }
            let same = |back: &usize| history.at(after - back) == history.at(end - back);
            let matched = (1..=after.min(LONGEST_MATCH)).take_while(same).count();
            if matched < n {
                continue;
            }
            let mut tokens: Vec<Token> = Vec::with_capacity(length);
            for i in 0..length {
                let copied = tokens.get((after + i).wrapping_sub(end)).copied();
                tokens.push(copied.unwrap_or_else(|| history.at(after + i)));
            }
            return Some(Chain { matched, tokens });
        }
        None
    }
}

/// Appends a chain below `leaf`, as far as the budget goes.
fn append(
    request: &mut Request<'_>,
    params: &LookupParams,
    confidence: &Confidence,
    chain: &Chain,
    leaf: Option<NodeId>,
    added: &mut usize,
) {
    let tree: &mut TokenTree = request.tree;
    let leaf_depth = leaf.map_or(0, |leaf| tree.depth(leaf));
    let mut probability = leaf.map_or(1.0, |leaf| tree.path_probability(leaf));
    let mut parent = leaf;
    for (at, &token) in chain.tokens.iter().enumerate() {
        let confidence = confidence.of(chain.matched + at);
        let depth = leaf_depth + at;
        let over = *added >= request.budget.max_nodes
            || depth >= request.budget.max_depth
            || probability < request.budget.min_path_probability
            || confidence < request.budget.min_confidence
            || request.tokens.len() + depth >= request.position_limit;
        if over {
            return;
        }
        let before = tree.len();
        let node = tree.push(Node {
            token,
            parent,
            confidence,
            source: Source::Lookup,
            rank: 0,
        });
        *added += tree.len() - before;
        probability *= tree.nodes()[node as usize].confidence;
        parent = Some(node);
        if params.end_of_generation.contains(&token) {
            return;
        }
    }
}

/// The most probable node without children, and the tokens on the way to it.
fn likeliest_leaf(tree: &TokenTree) -> Option<(NodeId, Vec<Token>)> {
    let leaves = (0..tree.len() as NodeId).filter(|&node| tree.children(Some(node)).next().is_none());
    let leaf = leaves.max_by(|&a, &b| tree.path_probability(a).total_cmp(&tree.path_probability(b)))?;
    Some((leaf, tree.path(leaf)))
}

impl LookupDrafter {
    /// A drafter with these settings; out-of-range ones become the nearest allowed.
    pub fn new(mut params: LookupParams) -> Self {
        params.min_ngram = params.min_ngram.clamp(1, LONGEST_MATCH);
        params.max_ngram = params.max_ngram.clamp(params.min_ngram, LONGEST_MATCH);
        Self {
            params,
            sequences: HashMap::new(),
        }
    }
}

impl Drafter for LookupDrafter {
    fn name(&self) -> &str {
        "lookup"
    }

    fn begin(&mut self, sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        self.sequences.insert(sequence, Sequence::default());
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let Sequence {
                index,
                confidence,
                watched,
            } = self.sequences.entry(request.sequence).or_default();
            index.extend(&self.params, request.tokens);
            let ahead = request.position_limit.saturating_sub(request.tokens.len());
            let most = request.budget.max_depth.min(ahead).min(LONGEST_CHAIN);
            let leaf = likeliest_leaf(request.tree);
            let mut added = 0;
            let committed = request.tokens;
            *watched = index.find(&self.params, History { committed, path: &[] }, most.max(WATCHED));
            if let Some(chain) = watched {
                append(request, &self.params, confidence, chain, None, &mut added);
            }
            let Some((leaf, path)) = leaf else { continue };
            let ended = path
                .last()
                .is_some_and(|token| self.params.end_of_generation.contains(token));
            let length = most.saturating_sub(path.len());
            if ended || length == 0 {
                continue;
            }
            if let Some(chain) = index.find(
                &self.params,
                History {
                    committed,
                    path: &path,
                },
                length,
            ) {
                append(request, &self.params, confidence, &chain, Some(leaf), &mut added);
            }
        }
        Ok(())
    }

    fn observe(&mut self, sequence: SequenceId, committed: &Committed) {
        let Some(Sequence {
            confidence, watched, ..
        }) = self.sequences.get_mut(&sequence)
        else {
            return;
        };
        let Some(chain) = watched.take() else { return };
        for (at, (copied, said)) in chain.tokens.iter().zip(&committed.tokens).enumerate() {
            confidence.record(chain.matched + at, copied == said);
            if copied != said {
                break;
            }
        }
    }

    fn end(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
