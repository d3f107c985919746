//! The text of an answer as it is shown: drafts marked, if that was asked for, and on a terminal control characters escaped, which
//! would steer it. A pipe or a file gets the text as it is.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

use anstyle::{AnsiColor, Style};
use foretoken::{Progress, Session, Tokenizer};

/// How answers are shown.
pub struct Output {
    /// Standard output is a terminal.
    terminal: bool,
    marks: Option<Marks>,
}

/// `--show-draft`.
struct Marks {
    styles: bool,
    tokenizer: Arc<Tokenizer>,
}

/// What became of a draft token.
#[derive(Clone, Copy, Debug)]
enum Mark {
    Accepted,
    Rejected,
}

impl Output {
    /// With marks, it says on standard error what they mean.
    pub fn new(show_draft: bool, session: &Session) -> Self {
        let marks = show_draft.then(|| Marks {
            // Respects NO_COLOR and whether standard output is a terminal.
            styles: anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never,
            tokenizer: session.tokenizer().clone(),
        });
        if let Some(marks) = &marks {
            let (accepted, rejected) = (
                marks.marked(Mark::Accepted, "accepted"),
                marks.marked(Mark::Rejected, "rejected"),
            );
            let _ = writeln!(
                anstream::stderr(),
                "drafts: {accepted} {rejected}; the rest is the target's own"
            );
        }
        Self {
            terminal: std::io::stdout().is_terminal(),
            marks,
        }
    }

    /// What a round adds.
    pub fn render(&self, progress: &Progress) -> String {
        let Some(marks) = &self.marks else {
            return progress
                .text
                .iter()
                .map(|fragment| self.visible(&fragment.text))
                .collect();
        };
        let mut fragments = progress.text.iter().map(|fragment| match fragment.source {
            Some(_) => marks.marked(Mark::Accepted, &self.visible(&fragment.text)),
            None => self.visible(&fragment.text).into_owned(),
        });
        // Rejected tokens stood where the target's own last token stands now: before it.
        let last = progress.text.last();
        let is_own = last.is_some_and(|fragment| fragment.source.is_none());
        let before = progress.text.len() - usize::from(is_own);
        let mut text: String = fragments.by_ref().take(before).collect();
        if !progress.rejected.is_empty() {
            let tokens = progress.rejected.iter();
            let bytes: Vec<u8> = tokens
                .flat_map(|&token| marks.tokenizer.bytes(token))
                .copied()
                .collect();
            text += &marks.marked(Mark::Rejected, &self.visible(&String::from_utf8_lossy(&bytes)));
        }
        text.extend(fragments);
        text
    }

    fn visible<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.terminal {
            true => escape(text),
            false => Cow::Borrowed(text),
        }
    }
}

impl Marks {
    fn marked(&self, mark: Mark, text: &str) -> String {
        if self.styles {
            return format!("{style}{text}{style:#}", style = mark.style());
        }
        let (open, close) = mark.brackets();
        format!("{open}{text}{close}")
    }
}

impl Mark {
    fn style(self) -> Style {
        match self {
            Self::Accepted => Style::new().fg_color(Some(AnsiColor::Green.into())).underline(),
            Self::Rejected => Style::new().fg_color(Some(AnsiColor::Red.into())).strikethrough(),
        }
    }

    /// What stands around the text where there are no styles.
    fn brackets(self) -> (&'static str, &'static str) {
        match self {
            Self::Accepted => ("[", "]"),
            Self::Rejected => ("~~", "~~"),
        }
    }
}

/// Puts text on standard output, at once.
pub fn print(text: &str) -> std::io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The text with control characters, other than newlines and tabs, written out: what others wrote must not steer a terminal.
pub fn escape(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match steers(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn only_what_steers_a_terminal_is_escaped() {
        let check = |text: &str, want: &str| assert_eq!(escape(text), want);
        check("one\n\ttwo", "one\n\ttwo");
        check("a\u{1b}[2Jb\r\u{7}", "a\\u{1b}[2Jb\\r\\u{7}");
        check("\u{9b}1m naïve 你好", "\\u{9b}1m naïve 你好");
    }
}
