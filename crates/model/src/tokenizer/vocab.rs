//! The vocabulary that a file describes, checked.
//!
//! Keys and defaults follow llama.cpp, where the format comes from. Not here: how text becomes tokens.

use super::split::Rules;
use crate::LoadError;
use foretoken_gguf::{Array, Gguf};
use foretoken_spec::Token;
use std::borrow::Cow;
use std::collections::HashMap;

/// `tokenizer.ggml.token_type` of an entry. The discriminants are the format's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal = 1,
    Unknown = 2,
    /// Only found where special tokens are parsed; empty in generated text.
    Control = 3,
    /// Text that is always one token.
    UserDefined = 4,
    /// Padding of the vocabulary.
    Unused = 5,
    /// `<0x0A>`: one byte.
    Byte = 6,
}

/// Longest text of a special token, in bytes. Bounds the work of looking for them.
const SPECIAL_MAX: usize = 1024;
/// Bytes of the texts of all special tokens. Bounds the memory of the automaton that finds them.
const SPECIALS_MAX: usize = 4 << 20;

/// Names of tokens that end a generation. Those in bars have no other use, so they do even where a file
/// lists them as text; the others must be control tokens: `</s>` is a tag of HTML in some vocabularies.
const ENDS: [&str; 26] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    // Padding and borders of files in fill-in-the-middle training: what follows is another file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Names of the tokens before the text in front of a gap, before the text behind it, and before what fills it.
const GAP: [[&str; 5]; 3] = [
    [
        "<|fim_prefix|>",
        "<fim_prefix>",
        "<fim-prefix>",
        "<PRE>",
        "<｜fim▁begin｜>",
    ],
    [
        "<|fim_suffix|>",
        "<fim_suffix>",
        "<fim-suffix>",
        "<SUF>",
        "<｜fim▁hole｜>",
    ],
    [
        "<|fim_middle|>",
        "<fim_middle>",
        "<fim-middle>",
        "<MID>",
        "<｜fim▁end｜>",
    ],
];

/// The metadata of a tokenizer, not yet checked.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a> {
    pub model: &'a str,
    pub pre: Option<&'a str>,
    pub tokens: &'a [Vec<u8>],
    pub types: Option<Cow<'a, [i32]>>,
    pub scores: Option<&'a [f32]>,
    pub merges: Option<&'a [Vec<u8>]>,
    pub bos: Option<u64>,
    pub eos: Option<u64>,
    pub unknown: Option<u64>,
    /// Further ids that end a generation, with their keys.
    pub ends: Vec<(&'static str, u64)>,
    /// Ids of the tokens around a gap, in the order of `GAP`.
    pub gap: [Option<u64>; 3],
    pub add_bos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

impl<'a> Fields<'a> {
    /// Reads the keys. Only their types are checked.
    pub fn from_gguf(gguf: &'a Gguf) -> Result<Self, LoadError> {
        let wrong =
            |key: &str, wanted: &str| gguf.metadata_error(key, format!("is not an array of {wanted}"));
        let strings = |key: &str| match gguf.array(key)? {
            None => Ok(None),
            Some(Array::String(strings)) => Ok(Some(strings.as_slice())),
            Some(_) => Err(wrong(key, "strings")),
        };
        let (tokens, types, scores) = (
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.token_type",
            "tokenizer.ggml.scores",
        );
        let mut ends = Vec::new();
        for key in [
            "tokenizer.ggml.eot_token_id",
            "tokenizer.ggml.eom_token_id",
            "tokenizer.ggml.fim_pad_token_id",
            "tokenizer.ggml.fim_rep_token_id",
            "tokenizer.ggml.fim_sep_token_id",
        ] {
            ends.extend(gguf.uint(key)?.map(|id| (key, id)));
        }
        let mut gap = [None; 3];
        for (id, names) in gap.iter_mut().zip([
            ["fim_pre", "prefix"],
            ["fim_suf", "suffix"],
            ["fim_mid", "middle"],
        ]) {
            for name in names {
                *id = id.or(gguf.uint(&format!("tokenizer.ggml.{name}_token_id"))?);
            }
        }
        Ok(Self {
            model: gguf.require_string("tokenizer.ggml.model")?,
            pre: gguf.string("tokenizer.ggml.pre")?,
            tokens: strings(tokens)?.ok_or_else(|| gguf.metadata_error(tokens, "is missing"))?,
            types: match gguf.array(types)? {
                None => None,
                Some(Array::I32(types)) => Some(Cow::Borrowed(types)),
                Some(Array::U32(types)) => Some(
                    types
                        .iter()
                        .map(|&t| i32::try_from(t).unwrap_or(i32::MAX))
                        .collect(),
                ),
                Some(_) => return Err(wrong(types, "32-bit integers").into()),
            },
            scores: match gguf.array(scores)? {
                None => None,
                Some(Array::F32(scores)) => Some(scores),
                Some(_) => return Err(wrong(scores, "32-bit floats").into()),
            },
            merges: strings("tokenizer.ggml.merges")?,
            bos: gguf.uint("tokenizer.ggml.bos_token_id")?,
            eos: gguf.uint("tokenizer.ggml.eos_token_id")?,
            unknown: gguf.uint("tokenizer.ggml.unknown_token_id")?,
            ends,
            gap,
            add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?,
        })
    }
}

/// Many strings in one allocation.
#[derive(Debug, Default)]
struct Strings {
    data: Vec<u8>,
    ends: Vec<u32>,
}

impl Strings {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.push_with(|data| data.extend_from_slice(bytes))
    }

    fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), String> {
        write(&mut self.data);
        self.ends
            .push(u32::try_from(self.data.len()).map_err(|_| "the pieces are longer than 4 GiB")?);
        Ok(())
    }

    fn get(&self, index: usize) -> &[u8] {
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.data[start as usize..end as usize]
    }
}

/// Tokens by piece; without those whose piece is empty.
pub(super) type Ids<'a> = HashMap<&'a str, Token>;

/// The entries of a vocabulary, by id.
#[derive(Debug)]
pub(super) struct Vocab {
    pieces: Strings,
    bytes: Strings,
    kinds: Vec<Kind>,
    pub bos: Option<Token>,
    pub eos: Option<Token>,
    pub unknown: Option<Token>,
    pub add_bos: bool,
    /// Ascending.
    pub end_of_generation: Vec<Token>,
    /// The tokens around a gap, in the order of [`GAP`], if there are all three.
    pub gap: Option<[Token; 3]>,
}

impl Vocab {
    /// Checks `fields`, and tells which piece is which token. `rules` are those of a byte-level vocabulary;
    /// without, it is SentencePiece's.
    pub fn new<'a>(fields: &Fields<'a>, rules: Option<&Rules>) -> Result<(Self, Ids<'a>), String> {
        let len = fields.tokens.len();
        if len == 0 {
            return Err("tokenizer.ggml.tokens is empty".to_owned());
        }
        if len > i32::MAX as usize {
            return Err(format!(
                "tokenizer.ggml.tokens has {len} entries; at most 2,147,483,647 are supported"
            ));
        }
        let mut kinds = match &fields.types {
            None => vec![Kind::Normal; len],
            Some(types) if types.len() == len => types.iter().map(|&t| kind_of(t)).collect(),
            Some(types) => return Err(lengths("token_type", types.len(), len)),
        };
        if let Some(scores) = fields.scores
            && scores.len() != len
        {
            return Err(lengths("scores", scores.len(), len));
        }

        let mut pieces = Strings::default();
        let mut ids = Ids::with_capacity(len);
        for (id, piece) in fields.tokens.iter().enumerate() {
            let piece =
                std::str::from_utf8(piece).map_err(|_| format!("the piece of token {id} is not UTF-8"))?;
            // Some files pad with empty pieces; these are no token of any text.
            if !piece.is_empty()
                && let Some(first) = ids.insert(piece, id as Token)
            {
                return Err(format!("tokens {first} and {id} are the same piece {piece:?}"));
            }
            pieces.push(piece.as_bytes())?;
        }

        let id = |key: &str, id: Option<u64>| match id {
            Some(id) if id >= len as u64 => Err(format!(
                "{key} {id} is out of range: the vocabulary has {len} entries"
            )),
            id => Ok(id.map(|id| id as Token)),
        };
        // SentencePiece has fixed ids where the file names none.
        let spm = |default: u64| Some(default).filter(|&id| rules.is_none() && id < len as u64);
        let bos = id("tokenizer.ggml.bos_token_id", fields.bos.or(spm(1)))?;
        let eos = id("tokenizer.ggml.eos_token_id", fields.eos.or(spm(2)))?;
        let unknown = id("tokenizer.ggml.unknown_token_id", fields.unknown.or(spm(0)))?;
        let add_bos = fields.add_bos.unwrap_or(rules.is_none_or(|rules| rules.add_bos));
        if add_bos && bos.is_none() {
            return Err("prompts start with a token, but tokenizer.ggml.bos_token_id is missing".to_owned());
        }

        let mut end_of_generation: Vec<Token> = eos.into_iter().collect();
        for &(key, end) in &fields.ends {
            end_of_generation.extend(id(key, Some(end))?);
        }
        for name in ENDS {
            let Some(&id) = ids.get(name) else { continue };
            if in_bars(name) {
                kinds[id as usize] = Kind::Control;
            }
            if kinds[id as usize] == Kind::Control {
                end_of_generation.push(id);
            }
        }
        end_of_generation.sort_unstable();
        end_of_generation.dedup();

        let mut gap = [None; 3];
        for ((token, given), names) in gap.iter_mut().zip(fields.gap).zip(GAP) {
            let named = || {
                let found = names
                    .iter()
                    .filter_map(|name| ids.get(name).map(|&id| (name, id)));
                let mut special =
                    found.filter(|(name, id)| in_bars(name) || kinds[*id as usize] == Kind::Control);
                special.next().map(|(_, id)| id)
            };
            *token = id("the token of a gap", given)?.or_else(named);
        }
        let gap = match gap {
            [Some(prefix), Some(suffix), Some(middle)] => Some([prefix, suffix, middle]),
            _ => None,
        };

        let mut bytes = Strings::default();
        let mut specials = 0;
        for (id, &kind) in kinds.iter().enumerate() {
            let piece = pieces.get(id);
            match kind {
                Kind::Unknown | Kind::Control | Kind::Unused => bytes.push(b"")?,
                Kind::UserDefined => bytes.push(piece)?,
                Kind::Byte => {
                    let byte = std::str::from_utf8(piece).ok().and_then(byte_of).ok_or_else(|| {
                        format!(
                            "the piece of byte token {id} is {:?}, not like \"<0x0A>\"",
                            show(piece)
                        )
                    })?;
                    bytes.push(&[byte])?;
                }
                Kind::Normal if rules.is_some() => {
                    bytes.push_with(|bytes| super::byte_level::decode(show(piece), bytes))?;
                }
                Kind::Normal => bytes.push(show(piece).replace(super::spm::SPACE, " ").as_bytes())?,
            }
            if matches!(kind, Kind::Unknown | Kind::Control | Kind::UserDefined) {
                if piece.len() > SPECIAL_MAX {
                    return Err(format!("special token {id} is longer than {SPECIAL_MAX} bytes"));
                }
                specials += piece.len();
                if specials > SPECIALS_MAX {
                    return Err(format!(
                        "the special tokens up to {id} are longer than {SPECIALS_MAX} bytes together"
                    ));
                }
            }
        }
        let vocab = Self {
            pieces,
            bytes,
            kinds,
            bos,
            eos,
            unknown,
            add_bos,
            end_of_generation,
            gap,
        };
        Ok((vocab, ids))
    }

    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Empty beyond the vocabulary.
    pub fn piece(&self, token: Token) -> &str {
        show(self.pieces.get(token as usize))
    }

    /// Empty beyond the vocabulary.
    pub fn bytes(&self, token: Token) -> &[u8] {
        self.bytes.get(token as usize)
    }

    /// Unused beyond the vocabulary.
    pub fn kind(&self, token: Token) -> Kind {
        self.kinds.get(token as usize).copied().unwrap_or(Kind::Unused)
    }

    /// All entries, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Token, &str, Kind)> {
        (0..self.len() as Token).map(|token| (token, self.piece(token), self.kind(token)))
    }
}

/// Whether a name is like `<|im_end|>`, which is nothing that people write.
pub(super) fn in_bars(name: &str) -> bool {
    name.starts_with("<|") || name.starts_with("<｜")
}

/// A piece, which has been checked to be UTF-8.
fn show(piece: &[u8]) -> &str {
    std::str::from_utf8(piece).unwrap_or_default()
}

fn lengths(key: &str, found: usize, tokens: usize) -> String {
    format!("tokenizer.ggml.{key} has {found} entries, but tokenizer.ggml.tokens {tokens}")
}

/// The kind with this number; those not in the format are never text, like unused ones.
fn kind_of(number: i32) -> Kind {
    match number {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        6 => Kind::Byte,
        _ => Kind::Unused,
    }
}

/// The byte that `<0x0A>` names.
fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
