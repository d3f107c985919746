//! A model's vocabulary as llguidance reads it.

use std::sync::Arc;

use foretoken_model::{Special, Tokenizer};
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::CompileError;

/// What the tree of tokens can hold.
const MOST_TOKENS: u32 = 1 << 22;
const LONGEST_WORD: usize = 1000;

pub(crate) struct Tokens {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl Tokens {
    pub fn new(tokenizer: &Arc<Tokenizer>, vocab_size: usize) -> Result<Self, CompileError> {
        let refuse = |why: &str| CompileError::Refused(why.into());
        let ends: Vec<TokenId> = tokenizer.end_of_generation().to_vec();
        let ends: Vec<TokenId> = ends.into_iter().filter(|&t| (t as usize) < vocab_size).collect();
        let &end = ends
            .first()
            .ok_or_else(|| refuse("no token of the model ends a generation"))?;
        let size = u32::try_from(vocab_size).map_err(|_| refuse("the vocabulary is too large"))?;
        let words: Vec<Vec<u8>> = (0..size).map(|token| word(tokenizer, token, &ends)).collect();
        if size >= MOST_TOKENS || words.iter().any(|word| word.len() > LONGEST_WORD) {
            return Err(refuse("the vocabulary is too large, or a token of it too long"));
        }
        let info = TokRxInfo::new(size, end);
        Ok(Self {
            trie: TokTrie::from(&info, &words).with_eos_tokens(&ends),
            tokenizer: Arc::clone(tokenizer),
        })
    }
}

/// The bytes of a token's text. What stands for no text, or ends a generation, is marked as such, and no grammar asks for it.
fn word(tokenizer: &Tokenizer, token: TokenId, ends: &[TokenId]) -> Vec<u8> {
    match tokenizer.bytes(token) {
        _ if ends.contains(&token) => marked(token),
        [] => marked(token),
        bytes => bytes.to_vec(),
    }
}

fn marked(token: TokenId) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(format!("[{token}]").as_bytes());
    word
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        // What is no whole text, and what the tokenizer would put a space before, is cut by bytes: the longest tokens that fit.
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.map(|text| self.tokenizer.encode(text, Special::Text));
        let spells = |tokens: &Vec<TokenId>| {
            let spelled = tokens.iter().flat_map(|&token| self.tokenizer.bytes(token));
            spelled.eq(bytes)
        };
        tokens
            .filter(spells)
            .unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}
