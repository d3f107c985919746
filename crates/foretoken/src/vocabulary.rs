//! The *draft vocabulary*: the tokens that a draft model may say. A draft model of few layers spends much of its pass in
//! its head, a row for each token of the vocabulary, although most text is made of a small part of them. A head of the
//! most frequent tokens costs less and loses the drafts of the others (Zhao et al. 2025, "FR-Spec", arXiv 2502.14856).
//!
//! Which tokens those are is a [`Ranking`] that is shipped for some tokenizers, the order of ids for all others (merges
//! are learned from the most frequent on), and what the requests of this user held, which is [`Learned`].
//!
//! Not here: the head ([`LoadOptions::head_tokens`](foretoken_model::LoadOptions::head_tokens)), and how a draft is made
//! of its logits.

mod learned;
mod ranking;

use foretoken_model::Tokenizer;
use foretoken_spec::Token;

pub(crate) use learned::Learned;
pub use learned::Seen;
pub use ranking::{Ranking, RankingError};

/// The size of a draft vocabulary where none is asked for; 0 is the whole vocabulary.
pub const DEFAULT_DRAFT_VOCAB: usize = 49_152;

/// Requests that the first token of a ranking counts as; by Zipf's law the one at rank r counts as an r-th of them. What
/// one request held so stands before what has rank 10,000.
const PRIOR: f64 = 10_000.0;

/// The tokens of a draft vocabulary of `n`, ascending, from a vocabulary of which `size` tokens can be drafted. `seen` is
/// how many requests held each token. `None` is the whole vocabulary: if `n` is 0 or not below `size`.
///
/// Tokens that end a generation and those of a single byte are always among them, also where that makes more than `n`;
/// control tokens and padding never.
pub fn draft_vocabulary(tokenizer: &Tokenizer, size: usize, n: usize, seen: &Seen) -> Option<Vec<Token>> {
    if n == 0 || n >= size {
        return None;
    }
    let ends = tokenizer.end_of_generation();
    let always = |&token: &Token| ends.binary_search(&token).is_ok() || tokenizer.bytes(token).len() == 1;
    let mut tokens: Vec<Token> = (0..size as Token).filter(always).collect();

    let ranked = ranked(tokenizer, size).into_iter().enumerate();
    let mut scored: Vec<(f64, Token)> = ranked
        .filter(|(_, token)| !always(token))
        .map(|(rank, token)| {
            let requests = seen.get(&token).copied().unwrap_or(0);
            (f64::from(requests) + PRIOR / (rank + 1) as f64, token)
        })
        .collect();
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let room = n.saturating_sub(tokens.len());
    tokens.extend(scored.iter().take(room).map(|&(_, token)| token));
    tokens.sort_unstable();
    Some(tokens)
}

/// All tokens below `size` that are text, likely ones first.
fn ranked(tokenizer: &Tokenizer, size: usize) -> Vec<Token> {
    let shipped = Ranking::shipped(tokenizer.vocabulary_fingerprint());
    let shipped = shipped.map_or(Vec::new(), |ranking| ranking.tokens);
    let mut new = vec![true; size];
    let tokens = shipped.into_iter().chain(0..size as Token);
    tokens
        .filter(|&token| new.get_mut(token as usize).is_some_and(std::mem::take))
        .filter(|&token| !tokenizer.bytes(token).is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_gguf::Gguf;
    use foretoken_model::testing::TinyModel;

    /// 256 bytes, 12 merges, and three control tokens, two of which end a generation.
    fn tokenizer() -> Tokenizer {
        let path = std::env::temp_dir().join(format!(
            "foretoken-vocabulary-{}-{:?}.gguf",
            std::process::id(),
            std::thread::current().id()
        ));
        TinyModel::llama().write(&path).unwrap();
        let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
        std::fs::remove_file(path).unwrap();
        tokenizer
    }

    #[test]
    fn what_is_shipped_belongs_to_real_vocabularies() {
        for (name, first) in [
            ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 151_643),
            ("smollm2-135m-instruct-q4_1.gguf", 49_152),
        ] {
            let Some(path) = foretoken_gguf::testing::real_model(name) else {
                continue;
            };
            let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
            let ranking = Ranking::shipped(tokenizer.vocabulary_fingerprint()).expect(name);
            assert!(ranking.tokens.iter().all(|&token| token < first), "{name}");
            // Frequent words of English are among the first.
            let the = tokenizer.encode(" the", foretoken_model::Special::Text);
            let place = ranking.tokens.iter().position(|token| the == [*token]);
            assert!(place.is_some_and(|place| place < 100), "{name}: {place:?}");
        }
    }

    #[test]
    fn the_most_frequent_tokens_and_those_that_are_always_in() {
        let tokenizer = tokenizer();
        let size = tokenizer.vocab_size();
        assert_eq!(size, 271);
        let bytes = 0..256;
        let check = |n: usize, seen: &[(Token, u32)], merges: &[Token]| {
            let seen = seen.iter().copied().collect();
            let tokens = draft_vocabulary(&tokenizer, size, n, &seen).expect("a part");
            let expected: Vec<Token> = bytes
                .clone()
                .chain(merges.iter().copied())
                .chain([268, 270])
                .collect();
            assert_eq!(tokens, expected, "{n} {seen:?}");
        };
        check(1, &[], &[]);
        check(258, &[], &[]);
        check(260, &[], &[256, 257]);
        // The merges stand at ranks 256 to 267, which count as 38.9 to 37.3 requests.
        check(260, &[(265, 1)], &[256, 257]);
        check(260, &[(265, 2)], &[256, 265]);
        check(260, &[(265, 2), (267, 9)], &[265, 267]);
        check(259, &[(265, 2), (267, 1)], &[265]);
        // Neither control tokens, nor what is no token at all.
        check(260, &[(269, 1000), (270, 1000), (5000, 1000)], &[256, 257]);
        for whole in [0, 271, 272, usize::MAX] {
            assert_eq!(draft_vocabulary(&tokenizer, size, whole, &Seen::new()), None);
        }
        // The target has no more than these.
        let tokens = draft_vocabulary(&tokenizer, 262, 260, &Seen::new()).unwrap();
        assert_eq!(tokens, (0..260).collect::<Vec<_>>());
    }
}
