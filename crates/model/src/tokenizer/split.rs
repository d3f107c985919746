//! Cutting a text into the words within which byte-level BPE merges: the rules that `tokenizer.ggml.pre`
//! names.
//!
//! The expressions are those the models were trained with, with one change. Where one ends in
//! `\s+(?!\S)|\s+` (a run of white space leaves its last character to the word that follows), the table
//! has `\s+` and [`Splitter`] leaves that character itself. So no look-ahead is needed, and the `regex`
//! crate cuts any text in linear time.
//!
//! llama.cpp approximates some: in `tekken` and `gpt-4o` it takes every letter beyond ASCII for both upper and
//! lower case, and no mark for a letter; in `deepseek-llm` and `deepseek-coder` it takes white space beyond
//! ASCII out of the CJK range. The models' own expressions are used here.

use regex::Regex;

/// What a value of `tokenizer.ggml.pre` means.
#[derive(Debug)]
pub(super) struct Rules {
    /// Values with this meaning; the first is the usual one.
    names: &'static [&'static str],
    /// Each cuts the parts that the one before left, into its matches and what stands between them.
    steps: &'static [Step],
    /// A word that is a token as a whole is that token, whatever the merges would make of it.
    pub whole_words: bool,
    /// Whether prompts start with a token where the file does not say.
    pub add_bos: bool,
}

impl Rules {
    pub fn name(&self) -> &'static str {
        self.names[0]
    }
}

#[derive(Debug)]
enum Step {
    /// The matches of an expression.
    Matches(&'static str),
    /// Likewise, and a run of white space leaves its last character to what follows.
    Words(&'static str),
    /// Likewise, but not a run that ends in a line break, which is a word of its own.
    WordsAndLines(&'static str),
}
use Step::{Matches, Words, WordsAndLines};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str =
    r"'(?i-u:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"'(?i-u:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str = r"'(?i-u:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'(?i-u:s|t|re|ve|m|ll|d))?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'(?i-u:s|t|re|ve|m|ll|d))?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const SEED: &str =
    r"'(?i-u:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+";
const BAILING: &str =
    r"'(?i-u:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const PUNCTUATION: &str = r"[\p{P}$+<=>^~|]+";
const DEEPSEEK_3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// Letters with case, as of the tables that the model was made with.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";

/// Rules of merges alone: no whole words, no token in front.
const fn rules(names: &'static [&'static str], steps: &'static [Step]) -> Rules {
    Rules {
        names,
        steps,
        whole_words: false,
        add_bos: false,
    }
}

static KNOWN: [Rules; 18] = [
    rules(
        &["default"],
        &[
            Matches(PUNCTUATION),
            Words(GPT2),
            Matches(r"\p{N}+"),
            Matches(r"[0-9][0-9][0-9]"),
        ],
    ),
    rules(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-es",
            "jina-v2-de",
            "roberta-bpe",
        ],
        &[Words(GPT2)],
    ),
    Rules {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        steps: &[WordsAndLines(LLAMA3)],
        whole_words: true,
        add_bos: true,
    },
    rules(&["dbrx", "smaug-bpe"], &[WordsAndLines(LLAMA3)]),
    rules(&["chatglm-bpe", "glm4"], &[WordsAndLines(LLAMA3)]),
    rules(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "hunyuan",
            "kormo",
            "f2llmv2",
            "solar-open",
            "grok-2",
        ],
        &[WordsAndLines(QWEN2)],
    ),
    rules(&["qwen35"], &[WordsAndLines(QWEN35)]),
    rules(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[Matches(r"\p{N}"), Words(GPT2)],
    ),
    rules(
        &["deepseek-llm"],
        &[
            Matches(r"[\r\n]"),
            Matches(DEEPSEEK_LETTERS),
            Matches(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"),
            Matches(r"\s+$"),
            Matches(DEEPSEEK_CJK),
            Matches(r"\p{N}+"),
        ],
    ),
    rules(
        &["deepseek-coder"],
        &[
            Matches(r"[\r\n]"),
            Matches(r"\s?\p{L}+"),
            Matches(r"\s?\p{P}+"),
            Matches(DEEPSEEK_CJK),
            Matches(r"\p{N}"),
        ],
    ),
    rules(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[
            Matches(r"\p{N}{1,3}"),
            Matches(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"),
            WordsAndLines(DEEPSEEK_3),
        ],
    ),
    rules(
        &["falcon"],
        &[
            Matches(r"[\p{P}$+<=>^~|`]+"),
            Words(GPT2),
            Matches(r"[0-9][0-9][0-9]"),
        ],
    ),
    rules(&["bloom", "poro-chat", "gpt3-finnish"], &[Matches(BLOOM)]),
    rules(&["viking"], &[Matches(BLOOM), Matches(r"\p{N}")]),
    Rules {
        names: &["tekken"],
        steps: &[WordsAndLines(TEKKEN)],
        whole_words: true,
        add_bos: true,
    },
    rules(
        &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        &[WordsAndLines(GPT4O)],
    ),
    rules(&["seed-coder"], &[WordsAndLines(SEED)]),
    rules(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[WordsAndLines(BAILING)],
    ),
];

/// The rules with this name.
pub(super) fn find(name: Option<&str>) -> Result<&'static Rules, String> {
    let known = || {
        KNOWN
            .iter()
            .flat_map(|rules| rules.names)
            .copied()
            .collect::<Vec<_>>()
            .join(", ")
    };
    let Some(name) = name else {
        return Err(format!(
            "tokenizer.ggml.pre is missing, so how the model splits words is not known; convert the model anew \
             or set it to one of: {}",
            known()
        ));
    };
    KNOWN
        .iter()
        .find(|rules| rules.names.contains(&name))
        .ok_or_else(|| format!("tokenizer.ggml.pre {name:?} is not supported; known: {}", known()))
}

/// Compiled [`Rules`].
#[derive(Debug)]
pub(super) struct Splitter {
    steps: Vec<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    expression: Regex,
    spaces: Spaces,
}

/// Which matches of white space leave their last character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spaces {
    None,
    NoLineEnds,
    All,
}

impl Splitter {
    pub fn new(rules: &Rules) -> Result<Self, String> {
        let compile = |step: &Step| {
            let (expression, spaces) = match *step {
                Matches(expression) => (expression, Spaces::None),
                WordsAndLines(expression) => (expression, Spaces::NoLineEnds),
                Words(expression) => (expression, Spaces::All),
            };
            let expression = Regex::new(expression).map_err(|error| error.to_string())?;
            Ok::<_, String>(Compiled { expression, spaces })
        };
        Ok(Self {
            steps: rules.steps.iter().map(compile).collect::<Result<_, _>>()?,
        })
    }

    /// Calls `word` with the words of `text`, in order; together they are the text.
    pub fn split<'t>(&self, text: &'t str, mut word: impl FnMut(&'t str)) {
        split(&self.steps, text, &mut word);
    }
}

fn split<'t>(steps: &[Compiled], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    let Some((step, rest)) = steps.split_first() else {
        if !text.is_empty() {
            word(text);
        }
        return;
    };
    let mut start = 0;
    while let Some(found) = step.expression.find_at(text, start) {
        let end = found.end() - step.left_over(found.as_str(), found.end() == text.len());
        split(rest, &text[start..found.start()], word);
        split(rest, &text[found.start()..end], word);
        start = end;
    }
    split(rest, &text[start..], word);
}

impl Compiled {
    /// Bytes at the end of a match that belong to what follows.
    fn left_over(&self, found: &str, at_end: bool) -> usize {
        let Some(last) = found.chars().next_back() else {
            return 0;
        };
        let whole = match self.spaces {
            Spaces::None => true,
            Spaces::NoLineEnds => matches!(last, '\r' | '\n'),
            Spaces::All => false,
        };
        if whole || at_end || found.len() == last.len_utf8() || !found.chars().all(char::is_whitespace) {
            return 0;
        }
        last.len_utf8()
    }
}

#[cfg(test)]
mod tests;
