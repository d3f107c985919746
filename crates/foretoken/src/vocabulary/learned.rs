//! In how many requests tokens were seen, kept on disk: ids and numbers, without any order of the text.
//!
//! A file belongs to a vocabulary. It is small, and forgets: what is seen seldom goes first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use foretoken_spec::Token;
use serde::{Deserialize, Serialize};

use crate::cache;

/// How many requests held each token.
pub type Seen = BTreeMap<Token, u32>;

/// Most tokens that are kept.
const MOST_TOKENS: usize = 1 << 15;
/// Where a token has been seen more often, all numbers are halved.
const MOST_REQUESTS: u32 = 1 << 12;
/// No file of ours is larger.
const MOST_BYTES: u64 = 1 << 20;

/// What stands in a file.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    vocabulary: u64,
    /// Tokens and in how many requests each was seen.
    seen: Vec<(Token, u32)>,
}

/// What was learned of one vocabulary.
#[derive(Debug)]
pub(crate) struct Learned {
    vocabulary: u64,
    /// `None` where nothing can be kept.
    file: Option<PathBuf>,
}

impl Learned {
    /// In the user's cache directory.
    pub fn new(vocabulary: u64) -> Self {
        let name = format!("tokens/{vocabulary:016x}.json");
        let file = cache::directory().map(|directory| directory.join(name));
        Self { vocabulary, file }
    }

    /// What is on disk; nothing if that makes no sense.
    pub fn seen(&self) -> Seen {
        self.read().unwrap_or_default()
    }

    fn read(&self) -> Option<Seen> {
        let file = self.file.as_ref()?;
        let stored: Stored = serde_json::from_slice(&cache::read(file, MOST_BYTES).ok()?).ok()?;
        let sound = |&(_, requests): &(Token, u32)| (1..=MOST_REQUESTS).contains(&requests);
        let whole = stored.vocabulary == self.vocabulary
            && stored.seen.len() <= MOST_TOKENS
            && stored.seen.iter().all(sound);
        whole.then(|| stored.seen.into_iter().collect())
    }

    /// Counts the tokens of one request, each once. That they cannot be kept is no error; what another process counts at
    /// the same moment may be lost.
    pub fn add(&self, tokens: &[Token]) {
        let Some(file) = &self.file else { return };
        let mut seen = self.seen();
        count(&mut seen, tokens);
        let stored = Stored {
            vocabulary: self.vocabulary,
            seen: seen.into_iter().collect(),
        };
        // The next request tries again.
        let _ = serde_json::to_vec(&stored)
            .map_err(std::io::Error::from)
            .and_then(|text| cache::write(file, &text));
    }
}

/// Adds one request, and forgets what is too much.
fn count(seen: &mut Seen, tokens: &[Token]) {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    tokens.dedup();
    for &token in &tokens {
        *seen.entry(token).or_default() += 1;
    }
    if seen.values().any(|&requests| requests > MOST_REQUESTS) {
        seen.values_mut().for_each(|requests| *requests /= 2);
        seen.retain(|_, requests| *requests > 0);
    }
    if seen.len() > MOST_TOKENS {
        let is_new = |token: &Token| tokens.binary_search(token).is_ok();
        let mut entries: Vec<(Token, u32)> =
            seen.iter().map(|(&token, &requests)| (token, requests)).collect();
        entries.sort_by_key(|(token, requests)| Reverse((*requests, is_new(token))));
        *seen = entries.into_iter().take(MOST_TOKENS).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_learned_is_found_again_and_nonsense_is_not() {
        let directory = std::env::temp_dir().join(format!("foretoken-learned-{}", std::process::id()));
        let file = directory.join("a/b.json");
        let learned = Learned {
            vocabulary: u64::MAX,
            file: Some(file.clone()),
        };
        assert_eq!(learned.seen(), Seen::new());
        learned.add(&[7, 5, 7]);
        learned.add(&[7]);
        let seen = Seen::from([(5, 1), (7, 2)]);
        assert_eq!(learned.seen(), seen);
        let other = Learned {
            vocabulary: 1,
            file: Some(file.clone()),
        };
        assert_eq!(other.seen(), Seen::new());
        for broken in [
            "".to_owned(),
            "{".to_owned(),
            r#"{"vocabulary":1,"seen":[[1,0]]}"#.to_owned(),
            r#"{"vocabulary":1,"seen":[[1,4097]]}"#.to_owned(),
            r#"{"vocabulary":1,"seen":[[-1,5]]}"#.to_owned(),
            format!(
                r#"{{"vocabulary":1,"seen":[[1,1]{}]}}"#,
                ",[2,1]".repeat(MOST_TOKENS)
            ),
            format!(
                r#"{{"vocabulary":1,"seen":[[1,1]]}}{}"#,
                " ".repeat(MOST_BYTES as usize)
            ),
        ] {
            fs::write(&file, &broken).unwrap();
            assert_eq!(other.seen(), Seen::new(), "{}", &broken[..broken.len().min(80)]);
        }
        // Nonsense is replaced.
        other.add(&[3]);
        assert_eq!(other.seen(), Seen::from([(3, 1)]));
        fs::remove_dir_all(directory).unwrap();
        Learned {
            vocabulary: 1,
            file: None,
        }
        .add(&[3]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut seen: Seen = (0..MOST_TOKENS as Token).map(|token| (token, 1)).collect();
        seen.insert(9, 3);
        count(&mut seen, &[1_000_000, 1_000_001, 4]);
        assert_eq!(seen.len(), MOST_TOKENS);
        assert_eq!(
            (seen.get(&9), seen.get(&4), seen.get(&1_000_001)),
            (Some(&3), Some(&2), Some(&1))
        );

        let mut seen = Seen::from([(1, MOST_REQUESTS), (2, 1), (3, 10)]);
        count(&mut seen, &[1]);
        assert_eq!(seen, Seen::from([(1, MOST_REQUESTS / 2), (3, 5)]));

        let many: Vec<Token> = (0..2 * MOST_TOKENS as Token).collect();
        let mut seen = Seen::new();
        count(&mut seen, &many);
        assert_eq!(seen.len(), MOST_TOKENS);
    }
}
