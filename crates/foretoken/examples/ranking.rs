//! Counts the tokens of texts and writes them down, most frequent first: `cargo xtask ranking`.
//!
//! ```text
//! cargo run --release -p foretoken --example ranking -- --out FILE.ranking MODEL.gguf FILES-OR-DIRECTORIES…
//! ```
//!
//! Texts are of kinds (prose, and code by language), each of which has a fixed share of the ranking however much of it there
//! is: on most disks there is more code than prose, and more of one language than of the others. Paragraphs are counted
//! once, wherever else they stand, and a token at most eight times a file, so that a table of numbers is no language. The order
//! of ids, in which the tokenizer's own merges were learned, is a second ranking, and the two are joined.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, bail};
use clap::Parser;
use foretoken::gguf::Gguf;
use foretoken::{Ranking, Special, Token, Tokenizer};

/// Counts the tokens of texts and writes them down, most frequent first.
#[derive(Debug, Parser)]
struct Args {
    /// The file to write
    #[arg(long)]
    out: PathBuf,
    /// Tokens to keep
    #[arg(long, default_value_t = 32_768)]
    tokens: usize,
    /// A model with the tokenizer (GGUF)
    model: PathBuf,
    /// Texts, and directories of texts
    #[arg(required = true)]
    texts: Vec<PathBuf>,
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Prose,
    Python,
    Rust,
    C,
    Web,
    Other,
}

impl Kind {
    /// Percent of the ranking.
    fn share(self) -> f64 {
        match self {
            Self::Prose => 50.0,
            Self::Python => 15.0,
            Self::Rust | Self::C => 10.0,
            Self::Web => 8.0,
            Self::Other => 7.0,
        }
    }

    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let titles = ["README", "LICENSE", "COPYING", "NEWS", "copyright"];
        Some(match path.extension().and_then(|extension| extension.to_str()) {
            Some("md" | "markdown" | "txt" | "rst" | "pod") => Self::Prose,
            Some("py" | "pyi") => Self::Python,
            Some("rs") => Self::Rust,
            Some("c" | "h" | "cc" | "cpp" | "hpp" | "cxx" | "go" | "java") => Self::C,
            Some("js" | "mjs" | "ts" | "tsx" | "css" | "html") => Self::Web,
            Some("pl" | "pm" | "sh" | "toml" | "json" | "yaml" | "yml" | "sql" | "rb" | "lua") => Self::Other,
            _ if titles.iter().any(|title| name.starts_with(title)) => Self::Prose,
            _ => return None,
        })
    }
}

/// Most bytes of a file that are counted.
const MOST_BYTES: usize = 1 << 18;
/// Most bytes of files of one kind: of more, every so many-th file.
const MOST_BYTES_OF_KIND: u64 = 96 << 20;
/// Most occurrences that a file adds.
const MOST_PER_FILE: u32 = 8;
/// What the order of ids weighs against the texts.
const MERGES: f64 = 2.0;
/// Zipf's law as Mandelbrot has it: the first ranks are less apart.
const FIRST_RANKS: f64 = 50.0;

/// What was counted of one kind.
struct Counts {
    tokens: Vec<u64>,
    files: usize,
    bytes: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let gguf = Gguf::open(&args.model)?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let mut files: BTreeMap<Kind, Vec<(PathBuf, u64)>> = BTreeMap::new();
    for path in &args.texts {
        find(path, &mut files).with_context(|| path.display().to_string())?;
    }
    let mut counts: BTreeMap<Kind, Counts> = BTreeMap::new();
    let mut known = HashSet::new();
    for (&kind, files) in &mut files {
        files.sort();
        let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        let every = bytes.div_ceil(MOST_BYTES_OF_KIND).max(1) as usize;
        for (path, _) in files.iter().step_by(every) {
            // Not a text, or gone meanwhile.
            let Ok(text) = fs::read_to_string(path) else {
                continue;
            };
            let mut ends = (0..=text.len().min(MOST_BYTES)).rev();
            let end = ends.find(|&at| text.is_char_boundary(at));
            let text = &text[..end.unwrap_or(0)];
            for (kind, part) in [(kind, text), (Kind::Prose, &prose_in(kind, text))] {
                let counts = counts.entry(kind).or_insert_with(|| Counts {
                    tokens: vec![0; tokenizer.vocab_size()],
                    files: 0,
                    bytes: 0,
                });
                counts.add(&tokenizer, &new_paragraphs(kind, part, &mut known));
            }
        }
    }
    if counts.is_empty() {
        bail!("there is no text");
    }
    for (kind, counts) in &counts {
        eprintln!(
            "{kind:?}: {:.1} MB of {} files",
            counts.bytes as f64 / 1e6,
            counts.files
        );
    }
    let ranking = Ranking {
        vocabulary: tokenizer.vocabulary_fingerprint(),
        tokens: join(&tokenizer, &by_texts(&counts), args.tokens),
    };
    fs::write(&args.out, ranking.to_bytes()).with_context(|| args.out.display().to_string())?;
    eprintln!("{}: {} tokens", args.out.display(), ranking.tokens.len());
    Ok(())
}

/// Adds the files at or below a path.
fn find(path: &Path, files: &mut BTreeMap<Kind, Vec<(PathBuf, u64)>>) -> io::Result<()> {
    let about = fs::symlink_metadata(path)?;
    if about.is_dir() {
        for entry in fs::read_dir(path)? {
            find(&entry?.path(), files)?;
        }
    } else if about.is_file()
        && let Some(kind) = Kind::of(path)
    {
        let bytes = about.len().min(MOST_BYTES as u64);
        files.entry(kind).or_default().push((path.to_owned(), bytes));
    }
    Ok(())
}

/// The prose in a source file: comments that are documentation, without what marks them.
fn prose_in(kind: Kind, text: &str) -> String {
    let comment = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        Some(format!("{}\n", text.strip_prefix(' ').unwrap_or(text)))
    };
    match kind {
        Kind::Rust => text.lines().filter_map(comment).collect(),
        Kind::Python => {
            let docstrings = text.split("\"\"\"").skip(1).step_by(2);
            let lines = docstrings.flat_map(|text| text.lines().chain([""]));
            lines.map(|line| format!("{}\n", line.trim_start())).collect()
        }
        _ => String::new(),
    }
}

/// The paragraphs that were not there before; lines of prose are joined, as nobody breaks them who writes into a chat.
fn new_paragraphs(kind: Kind, text: &str, known: &mut HashSet<u64>) -> String {
    let is_new = |paragraph: &&str| {
        let mut hasher = DefaultHasher::new();
        (kind, paragraph.trim()).hash(&mut hasher);
        !paragraph.trim().is_empty() && known.insert(hasher.finish())
    };
    let mut new = String::new();
    for paragraph in text.split("\n\n").filter(is_new) {
        for line in paragraph.lines() {
            let goes_on =
                kind == Kind::Prose && line.starts_with(char::is_alphabetic) && !new.ends_with("\n\n");
            if goes_on && new.ends_with('\n') {
                new.pop();
                new.push(' ');
            }
            new.push_str(line);
            new.push('\n');
        }
        new.push('\n');
    }
    new
}

impl Counts {
    fn add(&mut self, tokenizer: &Tokenizer, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut of_file: BTreeMap<Token, u32> = BTreeMap::new();
        for token in tokenizer.encode(text, Special::Text) {
            *of_file.entry(token).or_default() += 1;
        }
        for (token, count) in of_file {
            self.tokens[token as usize] += u64::from(count.min(MOST_PER_FILE));
        }
        self.files += 1;
        self.bytes += text.len();
    }
}

/// The tokens that the texts hold, most frequent first, where each kind counts by its share.
fn by_texts(counts: &BTreeMap<Kind, Counts>) -> Vec<Token> {
    let size = counts
        .values()
        .map(|counts| counts.tokens.len())
        .max()
        .unwrap_or(0);
    let mut shares = vec![0.0; size];
    for (kind, counts) in counts {
        let total: u64 = counts.tokens.iter().sum();
        let weight = kind.share() / total.max(1) as f64;
        let tokens = shares.iter_mut().zip(&counts.tokens);
        tokens.for_each(|(share, &count)| *share += weight * count as f64);
    }
    let mut tokens: Vec<Token> = (0..size as Token)
        .filter(|&token| shares[token as usize] > 0.0)
        .collect();
    tokens.sort_by(|&a, &b| shares[b as usize].total_cmp(&shares[a as usize]));
    tokens
}

/// Joins the ranking of the texts with the order of ids, in which merges were learned: that was over far more text, of
/// every subject. Both are taken for Zipf's law.
fn join(tokenizer: &Tokenizer, by_texts: &[Token], most: usize) -> Vec<Token> {
    let zipf = |rank: usize| 1.0 / (FIRST_RANKS + rank as f64);
    let mut scores: Vec<f64> = (0..tokenizer.vocab_size()).map(|id| MERGES * zipf(id)).collect();
    for (rank, &token) in by_texts.iter().enumerate() {
        scores[token as usize] += zipf(rank);
    }
    let mut tokens: Vec<Token> = (0..tokenizer.vocab_size() as Token)
        .filter(|&token| !tokenizer.bytes(token).is_empty())
        .collect();
    tokens.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    tokens.truncate(most);
    tokens
}
