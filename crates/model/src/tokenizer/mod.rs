//! Tokenizers from GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece (`llama`).
//!
//! The steps of [`Tokenizer::encode`], a module each:
//!
//! - `vocab`: what the file says: pieces, their kinds, merges or scores, special ids, all checked;
//! - `special`: cuts a text at its special tokens, longest first;
//! - `split`: cuts what is left into words, by the rules that `tokenizer.ggml.pre` names (BPE only);
//! - `byte_level` or `spm`: turns a word, or a whole text, into tokens.
//!
//! Ids equal those of llama.cpp, with deliberate exceptions. Ordinary text never becomes a control token,
//! not even where merges would spell one. Where llama.cpp approximates the split expression of a model, the
//! model's own is used; `split` says where. And `</s>` and the like stay text where the file says that they
//! are, as in vocabularies that have it as a tag of HTML.
//!
//! Not here: chat templates, streaming of incomplete UTF-8, Unigram, WordPiece.

mod byte_level;
mod draft;
mod special;
mod split;
mod spm;
mod vocab;

use crate::LoadError;
use foretoken_gguf::Gguf;
use foretoken_spec::Token;
use sha2::{Digest, Sha256};
use std::ops::Range;
use vocab::{Fields, Kind, Vocab};

/// What to do with the text of special tokens in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` becomes the control token: templates and raw prompts.
    Parse,
    /// It stays text: what a user wrote. User-defined tokens, which are text themselves, are still found.
    Text,
}

/// A tokenizer.
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    special: special::Matcher,
    fingerprint: u64,
}

/// How a text without special tokens becomes tokens.
enum Model {
    ByteLevel(Box<byte_level::ByteLevel>),
    Spm(Box<spm::Spm>),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("kind", &self.kind())
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer that the file describes.
    ///
    /// # Errors
    /// Another tokenizer model than `gpt2` and `llama`, an unknown or missing `tokenizer.ggml.pre`, arrays
    /// of different lengths, duplicate pieces, merges of unknown pieces, special ids out of range.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, LoadError> {
        Self::from_fields(&Fields::from_gguf(gguf)?).map_err(LoadError::Tokenizer)
    }

    fn from_fields(fields: &Fields) -> Result<Self, String> {
        let (model_name, rules) = match fields.model {
            "gpt2" => ("gpt2", Some(split::find(fields.pre)?)),
            "llama" => ("llama", None),
            other => {
                return Err(format!(
                    "tokenizer.ggml.model {other:?} is not supported; known: gpt2, llama"
                ));
            }
        };
        let (vocab, ids) = Vocab::new(fields, rules)?;
        let model = match rules {
            Some(rules) => {
                Model::ByteLevel(Box::new(byte_level::ByteLevel::new(fields, &vocab, &ids, rules)?))
            }
            None => Model::Spm(Box::new(spm::Spm::new(fields, &vocab)?)),
        };
        let special = special::Matcher::new(&vocab)?;
        let fingerprint = fingerprint(fields, &vocab, model_name);
        Ok(Self {
            vocab,
            model,
            special,
            fingerprint,
        })
    }

    /// Tokens of a text. No token is added in front; see [`bos`](Self::bos).
    pub fn encode(&self, text: &str, special: Special) -> Vec<Token> {
        match special {
            Special::Parse => self.encode_literal(text, &[], &[]),
            // One range over the whole text, which may be empty.
            Special::Text => self.encode_literal(text, std::slice::from_ref(&(0..text.len())), &[]),
        }
    }

    /// Like [`encode`](Self::encode) with [`Special::Parse`], except that no control token is made of a text
    /// that overlaps one of the `literal` ranges: ascending, disjoint, in bytes of `text`. User-defined tokens
    /// that are [`markup`](Self::markup) count as control tokens.
    pub(crate) fn encode_literal(
        &self,
        text: &str,
        literal: &[Range<usize>],
        markup: &[Token],
    ) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let mut after_special = true;
        for fragment in self.special.cut(text, literal, markup) {
            match fragment {
                special::Fragment::Token(token, _) => {
                    tokens.push(token);
                    after_special = true;
                }
                special::Fragment::Text(range) => {
                    let first = tokens.len();
                    self.encode_text(&text[range], after_special, &mut tokens);
                    self.spell_out(markup, first, &mut tokens);
                    after_special = false;
                }
            }
        }
        tokens
    }

    fn encode_text(&self, text: &str, after_special: bool, tokens: &mut Vec<Token>) {
        match &self.model {
            Model::ByteLevel(model) => model.encode(text, tokens),
            Model::Spm(model) => model.encode(text, after_special, tokens),
        }
    }

    /// Replaces markup that was joined from text, from index `first` on, by its characters. They are never
    /// markup themselves, which is longer.
    fn spell_out(&self, markup: &[Token], first: usize, tokens: &mut Vec<Token>) {
        let is_markup = |token: &Token| markup.binary_search(token).is_ok();
        if !tokens[first..].iter().any(is_markup) {
            return;
        }
        for token in tokens.split_off(first) {
            if is_markup(&token) {
                for c in self.piece(token).chars() {
                    self.encode_text(c.encode_utf8(&mut [0; 4]), false, tokens);
                }
            } else {
                tokens.push(token);
            }
        }
    }

    /// User-defined tokens that a template uses like control tokens, ascending. `own` is text with ranges in
    /// it; what lies outside of them is the template's.
    pub(crate) fn markup(&self, own: &[(&str, &[Range<usize>])]) -> Vec<Token> {
        self.special.markup(own)
    }

    /// The control tokens, `markup` included, that [`encode_literal`](Self::encode_literal) would parse.
    pub(crate) fn control_tokens(
        &self,
        text: &str,
        literal: &[Range<usize>],
        markup: &[Token],
    ) -> Vec<(Token, Range<usize>)> {
        let cut = self.special.cut(text, literal, markup);
        cut.into_iter()
            .filter_map(|fragment| match fragment {
                special::Fragment::Token(token, range)
                    if self.vocab.kind(token) != Kind::UserDefined
                        || markup.binary_search(&token).is_ok() =>
                {
                    Some((token, range))
                }
                _ => None,
            })
            .collect()
    }

    /// Whether white space is part of the text of a control token.
    pub(crate) fn control_has_space(&self) -> bool {
        self.special.control_has_space
    }

    /// The token that a prompt starts with, if the file wants one.
    pub fn bos(&self) -> Option<Token> {
        self.vocab.bos.filter(|_| self.vocab.add_bos)
    }

    /// The text that chat templates know as `bos_token`.
    pub(crate) fn bos_piece(&self) -> &str {
        self.vocab.bos.map_or("", |token| self.piece(token))
    }

    /// The text that chat templates know as `eos_token`.
    pub(crate) fn eos_piece(&self) -> &str {
        self.vocab.eos.map_or("", |token| self.piece(token))
    }

    /// Tokens that end a generation, ascending: those that the metadata names as end of sequence, turn or
    /// message, and those with a name that is used for nothing else, such as `<|im_end|>`.
    pub fn end_of_generation(&self) -> &[Token] {
        &self.vocab.end_of_generation
    }

    /// The tokens of a text with a gap that the model is to fill; `None` if it was not made for that. Text never becomes a
    /// control token.
    pub(crate) fn encode_gap(&self, prefix: &str, suffix: &str) -> Option<Vec<Token>> {
        let [before, behind, middle] = self.vocab.gap?;
        let mut tokens: Vec<Token> = self.bos().into_iter().collect();
        tokens.push(before);
        tokens.extend(self.encode(prefix, Special::Text));
        tokens.push(behind);
        tokens.extend(self.encode(suffix, Special::Text));
        tokens.push(middle);
        Some(tokens)
    }

    /// The bytes that a token stands for in generated text; empty for control tokens, padding, and ids
    /// beyond the vocabulary. Not always UTF-8.
    pub fn bytes(&self, token: Token) -> &[u8] {
        self.vocab.bytes(token)
    }

    /// The token's name in the vocabulary, for people: `<|im_end|>`, `Ġthe`. Empty beyond the vocabulary.
    pub fn piece(&self, token: Token) -> &str {
        self.vocab.piece(token)
    }

    /// Entries of the vocabulary, padding included.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The most bytes of text that one token can stand for.
    pub fn max_token_bytes(&self) -> usize {
        // An unknown token may stand for any character.
        let pieces = self.vocab.iter().map(|(_, piece, _)| piece.len());
        pieces.fold(char::MAX.len_utf8(), usize::max)
    }

    /// Entries that only pad the vocabulary: no text holds them, and no model should say them.
    pub fn padding(&self) -> impl Iterator<Item = Token> + '_ {
        (0..self.vocab.len() as Token).filter(|&token| self.vocab.kind(token) == Kind::Unused)
    }

    /// Whether a draft model with tokenizer `draft` can serve this one.
    ///
    /// Both must split text in the same way, and each id that both have must be the same piece. Allowed to
    /// differ are ids that are special (control, unknown, unused) in both, since a draft that proposes one
    /// loses no more than the proposal; but not those that end a generation, or that start a prompt. Beyond
    /// the smaller size, only padding and special tokens may follow.
    ///
    /// # Errors
    /// A sentence that names the first token that differs: its id and both pieces.
    pub fn check_draft(&self, draft: &Tokenizer) -> Result<(), String> {
        draft::check(self, draft)
    }

    /// A hash of everything that decides ids, equal on every machine.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// A hash of which id is which ordinary token (text or a byte), equal on every machine. Unlike
    /// [`fingerprint`](Self::fingerprint) it is the same for files that differ in special tokens, padding and how text
    /// is cut alone: what is known of how often tokens are used holds for all of these.
    pub fn vocabulary_fingerprint(&self) -> u64 {
        let ordinary = self.vocab.iter().filter(|(_, piece, kind)| {
            matches!(kind, Kind::Normal | Kind::Byte) && !draft::is_padding(piece)
        });
        let mut hash = Sha256::new();
        for (token, piece, _) in ordinary {
            hash.update(token.to_le_bytes());
            hash.update((piece.len() as u64).to_le_bytes());
            hash.update(piece);
        }
        first_bytes(hash)
    }

    /// `gpt2/qwen2`, `llama`.
    fn kind(&self) -> String {
        match &self.model {
            Model::ByteLevel(model) => format!("gpt2/{}", model.rules().name()),
            Model::Spm(_) => "llama".to_owned(),
        }
    }
}

/// The first 8 bytes of SHA-256 over everything that decides ids; each part is preceded by its length.
fn fingerprint(fields: &Fields, vocab: &Vocab, model: &str) -> u64 {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(model.as_bytes());
    part(fields.pre.unwrap_or_default().as_bytes());
    part(&[
        u8::from(fields.add_space_prefix.unwrap_or(true)),
        u8::from(vocab.add_bos),
    ]);
    for id in [vocab.bos, vocab.eos, vocab.unknown] {
        part(&id.map_or(u64::MAX, u64::from).to_le_bytes());
    }
    for (id, piece) in fields.tokens.iter().enumerate() {
        part(piece);
        part(&[vocab.kind(id as Token) as u8]);
    }
    for score in fields.scores.unwrap_or_default() {
        part(&score.to_bits().to_le_bytes());
    }
    for merge in fields.merges.unwrap_or_default() {
        part(merge);
    }
    first_bytes(hash)
}

fn first_bytes(hash: Sha256) -> u64 {
    let digest = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
