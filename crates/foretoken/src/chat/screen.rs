//! An answer as it grows, and on a terminal a dim line below it that tells what it costs so far.
//!
//! The line is redrawn in place, and taken away where the text needs its row. Where the text ends the terminal remembers; but near the
//! right edge terminals differ in what they remember, so nothing is drawn there, and for that the column is counted here too. A
//! character that a terminal shows wider or narrower than Unicode says can therefore be misplaced on the screen.
//!
//! Not here: what of the text is shown ([`crate::output`]).

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use foretoken::Progress;
use foretoken::spec::Source;
use unicode_width::UnicodeWidthChar;

use crate::output::print;

/// The line is redrawn no sooner than this.
const REDRAW: Duration = Duration::from_millis(100);
/// A rate over a shorter time would be noise.
const FIRST_RATE: Duration = Duration::from_millis(200);

/// Where an answer is shown.
pub struct Screen {
    /// Of the terminal; `None` where there is none, or a dumb one.
    line: Option<StatusLine>,
    so_far: SoFar,
}

impl Screen {
    /// Standard output and error; the line is shown if both are terminals.
    pub fn new() -> Self {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let able = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
        Self {
            line: (terminal && able).then(StatusLine::default),
            so_far: SoFar::default(),
        }
    }

    /// An answer to a prompt of so many tokens begins, at the left edge.
    pub fn begin(&mut self, prompt: usize) {
        self.so_far = SoFar::default();
        if let Some(line) = &mut self.line {
            *line = StatusLine::default();
            line.draw(&format!("reading {prompt} tokens"));
        }
    }

    /// Shows what a round adds, of which `text` is what is to be seen.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn add(&mut self, text: &str, progress: &Progress) -> std::io::Result<()> {
        self.so_far.count(progress);
        let Some(line) = &mut self.line else {
            return print(text);
        };
        line.make_room(text);
        print(text)?;
        line.redraw(&self.so_far);
        Ok(())
    }

    /// The answer is over: a newline, if there `is_answer`, and on a terminal what it took.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn end(&mut self, is_answer: bool) -> std::io::Result<()> {
        let Some(line) = &mut self.line else {
            return print(if is_answer { "\n" } else { "" });
        };
        if line.column > 0 {
            print("\n")?;
        }
        // The line, and what a terminal shows of a Ctrl-C.
        put("\r\x1b[J");
        if self.so_far.tokens > 0 {
            line.leave(&self.so_far.to_string());
        }
        Ok(())
    }
}

/// What an answer took so far.
#[derive(Debug, Default)]
struct SoFar {
    tokens: usize,
    /// When the first tokens came, and the last; and how many of them came first.
    times: Option<(Instant, Instant, usize)>,
    rounds: usize,
    decided: usize,
    drafted: usize,
    accepted: BTreeMap<Source, usize>,
}

impl SoFar {
    fn count(&mut self, progress: &Progress) {
        let now = Instant::now();
        self.tokens += progress.tokens.len();
        let (_, last, _) = self.times.get_or_insert((now, now, progress.tokens.len()));
        *last = now;
        for token in &progress.tokens {
            if let Some(source) = token.source {
                *self.accepted.entry(source).or_default() += 1;
            }
        }
        if let Some(round) = &progress.round {
            self.rounds += 1;
            self.decided += round.tokens;
            self.drafted += round.rows - 1;
        }
    }
}

impl std::fmt::Display for SoFar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {}",
            self.tokens,
            if self.tokens == 1 { "token" } else { "tokens" }
        )?;
        if let Some((first, last, before)) = self.times
            && last - first >= FIRST_RATE
        {
            let rate = (self.tokens - before) as f64 / (last - first).as_secs_f64();
            write!(f, ", {rate:.1} tokens/s")?;
        }
        if self.drafted > 0 {
            write!(f, ", {:.2} a round", self.decided as f64 / self.rounds as f64)?;
            let accepted: usize = self.accepted.values().sum();
            write!(f, ", accepted {accepted} of {}", self.drafted)?;
            for (at, (source, count)) in self.accepted.iter().enumerate() {
                let before = if at == 0 { ": " } else { ", " };
                write!(f, "{before}{} {count}", source.name())?;
            }
        }
        Ok(())
    }
}

/// The line below the text, on standard error.
#[derive(Debug, Default)]
struct StatusLine {
    /// Where the text's next character goes.
    column: usize,
    /// When it was drawn, if it is there now.
    drawn: Option<Instant>,
}

impl StatusLine {
    fn columns() -> usize {
        let (_, columns) = console::Term::stderr().size();
        columns.into()
    }

    /// Takes the line away if the text would come into its row.
    fn make_room(&mut self, text: &str) {
        let text = anstream::adapter::strip_str(text).to_string();
        let (column, wraps) = advance(self.column, &text, Self::columns());
        if wraps {
            self.clear();
        }
        self.column = column;
    }

    fn clear(&mut self) {
        if self.drawn.take().is_some() {
            put("\x1b[J");
        }
    }

    fn redraw(&mut self, so_far: &SoFar) {
        let now = Instant::now();
        if self.drawn.is_none_or(|drawn| now - drawn >= REDRAW) {
            self.draw(&so_far.to_string());
        }
    }

    fn draw(&mut self, text: &str) {
        let columns = Self::columns();
        // Past the last column a cursor waits, and is not restored everywhere.
        if self.column + 1 >= columns {
            return;
        }
        let text: String = text.chars().take(columns - 1).collect();
        // A row further, scrolling if need be, and back; from there to the next row's beginning and back again.
        put(&format!("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[K{}\x1b8", dim(&text)));
        self.drawn = Some(Instant::now());
    }

    /// A last time, to stay.
    fn leave(&mut self, text: &str) {
        put(&format!("{}\n", dim(text)));
    }
}

/// Where the cursor is after a text without control sequences, and whether the text left its row or filled it.
fn advance(mut column: usize, text: &str, columns: usize) -> (usize, bool) {
    let mut wraps = false;
    for c in text.chars() {
        let width = match c {
            '\n' => {
                wraps = true;
                column = 0;
                continue;
            }
            '\t' => (8 - column % 8).min(columns.saturating_sub(column + 1)),
            c => c.width().unwrap_or(0),
        };
        if column + width > columns {
            wraps = true;
            column = 0;
        }
        column += width;
        wraps |= column + 1 >= columns;
    }
    (column, wraps)
}

fn dim(text: &str) -> String {
    let styles = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    match styles {
        true => format!("{style}{text}{style:#}", style = anstyle::Style::new().dimmed()),
        false => text.to_string(),
    }
}

/// Nobody to read it is no fault.
fn put(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::advance;

    #[test]
    fn the_column_follows_the_text() {
        let check = |from: usize, text: &str, want: (usize, bool)| {
            assert_eq!(advance(from, text, 10), want, "{text:?} from {from}");
        };
        check(0, "", (0, false));
        check(3, "abc", (6, false));
        check(3, "abcde", (8, false));
        // In the last column but one a character may come, but no line be drawn; behind it, it waits to wrap.
        check(3, "abcdef", (9, true));
        check(3, "abcdefg", (10, true));
        check(10, "a", (1, true));
        check(3, "a\nbc", (2, true));
        check(0, "\ta", (9, true));
        check(1, "a\t", (8, false));
        // Two columns each; one of them does not fit the last.
        check(0, "你好", (4, false));
        check(7, "你好", (2, true));
        check(0, "e\u{301}", (1, false));
    }
}
