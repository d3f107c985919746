//! Suffix drafting: what followed the same words before is likely to follow them again.
//!
//! A suffix automaton over the prompt and the answer so far knows every earlier occurrence of the text's end, and
//! how often each token came next (as suffix trees do in Oliaro et al., "SuffixDecoding", 2024, and automata in Hu et al., "SAM
//! Decoding", 2024). A token's probability mixes the contexts from the longest to the shortest: the counts of a context
//! are trusted the more the longer it is and the more often it occurred, and what trust is left goes to the next shorter
//! one. A tree grows best-first from these probabilities.
//!
//! A *corpus*, other texts that the answer may repeat, is one more source of contexts. It never changes, and all sequences
//! share it; what they say stays with each of them.

mod automaton;

use std::collections::HashMap;
use std::sync::Arc;

use super::grow::{Guesser, grow};
use crate::{DraftError, Drafter, Proposal, Request, SequenceId, Source, Token};
use automaton::{Automaton, Cursor};

/// Contexts that a prediction mixes at most.
const CONTEXTS: usize = 8;
/// What is left of a prediction's trust is not worth another context below this.
const NEGLIGIBLE: f32 = 0.02;

/// How many unseen occurrences a context of this length is worth: it is right with probability
/// `count / (count + doubt)` where it was always right before.
fn doubt(len: u32) -> f32 {
    4.0 / (len as f32).powf(1.4)
}

/// Texts that all sequences may draft from.
#[derive(Debug, Default)]
pub struct Corpus(Automaton);

impl Corpus {
    /// Most tokens of a corpus: each takes about 100 bytes.
    pub const MOST_TOKENS: usize = 4 << 20;

    /// Indexes texts; no repetition reaches from one into the next. What is beyond
    /// [`MOST_TOKENS`](Self::MOST_TOKENS) is left out.
    pub fn new<'t>(texts: impl IntoIterator<Item = &'t [Token]>) -> Self {
        let mut automaton = Automaton::default();
        for text in texts {
            let room = Self::MOST_TOKENS.saturating_sub(automaton.len());
            text.iter().take(room).for_each(|&token| automaton.push(token));
            if automaton.len() < Self::MOST_TOKENS && !text.is_empty() {
                automaton.push(SEPARATOR);
            }
        }
        Self(automaton)
    }

    /// Tokens that were indexed, one after each text included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing to draft from.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Stands between texts; no vocabulary has it.
const SEPARATOR: Token = Token::MAX;

/// Drafts by repetition of the sequence's own tokens and of a corpus.
#[derive(Debug, Default)]
pub struct SuffixDrafter {
    corpus: Option<Arc<Corpus>>,
    end_of_generation: Vec<Token>,
    sequences: HashMap<SequenceId, Sequence>,
}

#[derive(Debug, Default)]
struct Sequence {
    automaton: Automaton,
    /// The last tokens of it, to notice that the history was edited.
    tail: Vec<Token>,
    /// Where the corpus knows the text's end from.
    corpus: Option<Cursor>,
}

/// Tokens by which an edited history is noticed.
const TAIL: usize = 16;

impl Sequence {
    /// Takes in the tokens that it does not know yet.
    fn extend(&mut self, tokens: &[Token], corpus: Option<&Corpus>) {
        let known = self.automaton.len();
        if known > tokens.len() || !tokens[..known].ends_with(&self.tail) {
            *self = Self::default();
        }
        for &token in &tokens[self.automaton.len()..] {
            self.automaton.push(token);
            if let Some(Corpus(corpus)) = corpus {
                let cursor = self.corpus.unwrap_or(Cursor::EMPTY);
                self.corpus = Some(corpus.advance(cursor, token));
            }
        }
        self.tail.clear();
        self.tail
            .extend_from_slice(&tokens[tokens.len() - TAIL.min(tokens.len())..]);
    }
}

/// The texts that guesses come from, each with where it knows the end from.
struct Texts<'a>(Vec<&'a Automaton>);

impl Guesser for Texts<'_> {
    type Place = Vec<Cursor>;

    fn advance(&self, place: &Vec<Cursor>, token: Token) -> Vec<Cursor> {
        let texts = self.0.iter().zip(place);
        texts.map(|(text, &cursor)| text.advance(cursor, token)).collect()
    }

    fn guess(&self, place: &Vec<Cursor>, guesses: &mut Vec<Proposal>) {
        let texts = self.0.iter().zip(place);
        let mut contexts: Vec<_> = texts
            .flat_map(|(text, &cursor)| text.contexts(cursor).take(CONTEXTS))
            .filter(|context| context.total > 0)
            .collect();
        contexts.sort_by_key(|context| std::cmp::Reverse(context.len));
        let mut left = 1.0;
        for context in contexts.iter().take(CONTEXTS) {
            let (total, doubt) = (context.total as f32, doubt(context.len));
            for edge in context.edges.iter().filter(|edge| edge.token != SEPARATOR) {
                let confidence = left * edge.count as f32 / (total + doubt);
                match guesses.iter_mut().find(|guess| guess.token == edge.token) {
                    Some(guess) => guess.confidence += confidence,
                    None => guesses.push(Proposal {
                        token: edge.token,
                        confidence,
                    }),
                }
            }
            left *= doubt / (total + doubt);
            if left < NEGLIGIBLE {
                break;
            }
        }
        guesses.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    }
}

impl SuffixDrafter {
    /// A drafter from the sequences' own text alone. It proposes none of the tokens in `end_of_generation`.
    pub fn new(end_of_generation: Vec<Token>) -> Self {
        Self {
            end_of_generation,
            ..Self::default()
        }
    }

    /// Drafts from these texts too.
    pub fn with_corpus(mut self, corpus: Arc<Corpus>) -> Self {
        self.corpus = Some(corpus);
        self
    }
}

impl Drafter for SuffixDrafter {
    fn name(&self) -> &str {
        "suffix"
    }

    fn begin(&mut self, sequence: SequenceId, _prompt: &[Token]) -> Result<(), DraftError> {
        self.sequences.insert(sequence, Sequence::default());
        Ok(())
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        for request in requests {
            let sequence = self.sequences.entry(request.sequence).or_default();
            sequence.extend(request.tokens, self.corpus.as_deref());
            let mut texts = vec![&sequence.automaton];
            let mut place = vec![sequence.automaton.end()];
            if let (Some(corpus), Some(cursor)) = (&self.corpus, sequence.corpus) {
                texts.push(&corpus.0);
                place.push(cursor);
            }
            grow(
                &Texts(texts),
                Source::Suffix,
                &self.end_of_generation,
                place,
                request,
            );
        }
        Ok(())
    }

    fn end(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}
