//! Where messages come from: a terminal with line editing and history, or lines of standard input.
//!
//! Not here: what they mean.

use std::cell::Cell;
use std::io::{BufRead, IsTerminal, Read, StdinLock, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Editor, Helper};

use crate::run::MAX_PROMPT_BYTES;

/// Entries that the history keeps.
const HISTORY: usize = 1000;
/// A Ctrl-C that comes so soon after an answer's own end was meant for the answer.
const LATE: Duration = Duration::from_secs(1);

/// Where messages come from.
pub enum Input {
    Terminal(Box<Terminal>),
    Lines(Lines),
}

/// What came of reading one line.
enum Line {
    Text(String),
    /// What was typed so far is not wanted.
    Dropped,
    End,
}

impl Input {
    /// The terminal, if standard input and output are one; with `history` it remembers earlier conversations' lines.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub fn new(history: bool) -> anyhow::Result<Self> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() && std::io::stdout().is_terminal() {
            return Ok(Self::Terminal(Box::new(Terminal::new(history)?)));
        }
        Ok(Self::Lines(Lines {
            stdin: stdin.lock(),
            number: 0,
        }))
    }

    /// Whether a person is there to mend what goes wrong.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// What is entered next, at least one character other than blanks; `None` at the end. `answered` is when the last answer
    /// ended by itself.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn next(&mut self, answered: Option<Instant>) -> anyhow::Result<Option<String>> {
        loop {
            let Some(message) = self.message(answered)? else {
                return Ok(None);
            };
            if !message.trim().is_empty() {
                if let Self::Terminal(terminal) = self {
                    terminal.remember(&message);
                }
                return Ok(Some(message));
            }
        }
    }

    /// The lines of a message: each but the last ends in a backslash, which is not part of it.
    fn message(&mut self, answered: Option<Instant>) -> anyhow::Result<Option<String>> {
        let mut lines: Vec<String> = Vec::new();
        loop {
            let line = match self {
                Self::Terminal(terminal) => terminal.line(lines.is_empty(), answered)?,
                Self::Lines(piped) => piped.line()?,
            };
            match line {
                Line::Text(mut line) => {
                    let goes_on = line.ends_with('\\');
                    if goes_on {
                        line.pop();
                    }
                    lines.push(line);
                    if !goes_on {
                        break;
                    }
                }
                Line::Dropped => lines.clear(),
                Line::End if lines.is_empty() => return Ok(None),
                Line::End => break,
            }
        }
        Ok(Some(lines.join("\n")))
    }

    /// Where the last line stands, if nobody sees it.
    pub fn place(&self) -> Option<String> {
        match self {
            Self::Terminal(_) => None,
            Self::Lines(lines) => Some(lines.place()),
        }
    }
}

/// Standard input, line by line.
pub struct Lines {
    stdin: StdinLock<'static>,
    number: usize,
}

impl Lines {
    fn line(&mut self) -> anyhow::Result<Line> {
        self.number += 1;
        let mut bytes = Vec::new();
        let mut limited = (&mut self.stdin).take(MAX_PROMPT_BYTES + 1);
        let read = limited.read_until(b'\n', &mut bytes);
        read.with_context(|| self.place())?;
        if bytes.is_empty() {
            return Ok(Line::End);
        }
        if bytes.len() as u64 > MAX_PROMPT_BYTES {
            bail!(
                "{}: a message of more than {} MiB",
                self.place(),
                MAX_PROMPT_BYTES >> 20
            );
        }
        let mut text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            anyhow::anyhow!("{}: not UTF-8 at byte {at}", self.place())
        })?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(Line::Text(text))
    }

    fn place(&self) -> String {
        format!("standard input, line {}", self.number)
    }
}

/// A terminal with line editing.
pub struct Terminal {
    editor: Editor<Typed, FileHistory>,
    /// Where the history is kept.
    history: Option<PathBuf>,
}

/// Sees what is being typed: an interrupt means another thing where that is nothing.
#[derive(Default)]
struct Typed {
    something: Cell<bool>,
}

impl Helper for Typed {}
impl Highlighter for Typed {}
impl Validator for Typed {}

impl Completer for Typed {
    type Candidate = String;
}

impl Hinter for Typed {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &rustyline::Context<'_>) -> Option<String> {
        self.something.set(!line.is_empty());
        None
    }
}

impl Terminal {
    fn new(history: bool) -> anyhow::Result<Self> {
        let config = rustyline::Config::builder()
            .max_history_size(HISTORY)
            .context("no history")?
            .build();
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Typed::default()));
        let mut this = Self {
            editor,
            history: None,
        };
        if history {
            this.open_history();
        }
        Ok(this)
    }

    /// Reads the history. It is no fault if there is none, and none that a conversation should fail for if it cannot be read; what
    /// cannot be read is not written either.
    fn open_history(&mut self) {
        let Some(directory) = foretoken::cache_directory() else {
            return;
        };
        let file = directory.join("history");
        let read = std::fs::create_dir_all(&directory)
            .map_err(ReadlineError::from)
            .and_then(|()| match file.exists() {
                true => self.editor.load_history(&file),
                false => Ok(()),
            });
        match read {
            Ok(()) => self.history = Some(file),
            Err(error) => no_history(&file, &error),
        }
    }

    fn remember(&mut self, message: &str) {
        let added = self.editor.add_history_entry(message);
        let Some(file) = &self.history else {
            return;
        };
        if let Err(error) = added.and_then(|_| self.editor.append_history(file)) {
            no_history(file, &error);
            self.history = None;
        }
    }

    fn line(&mut self, first: bool, answered: Option<Instant>) -> anyhow::Result<Line> {
        match self.editor.readline(if first { "> " } else { ". " }) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(ReadlineError::Interrupted) => {
                let typed = self.editor.helper().is_some_and(|typed| typed.something.get());
                if typed || !first {
                    return Ok(Line::Dropped);
                }
                if answered.is_some_and(|at| at.elapsed() < LATE) {
                    let _ = writeln!(std::io::stderr(), "(the answer had ended; Ctrl-C again leaves)");
                    return Ok(Line::Dropped);
                }
                Ok(Line::End)
            }
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }
}

fn no_history(file: &Path, error: &ReadlineError) {
    let _ = writeln!(
        std::io::stderr(),
        "note: no history is kept: {}: {error}",
        file.display()
    );
}
