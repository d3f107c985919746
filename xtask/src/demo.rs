//! `cargo xtask demo`: one answer, decoded plainly and with speculation, side by side.
//!
//! It uses the command line as any user would, so that everything shown can be typed again.
use crate::{command, models};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Text that the answer repeats in good part: what suffix drafts live on.
const COPY: &str = "Copy this text word for word:

The lighthouse keeper wakes before dawn. She climbs the ninety-two steps to the lamp room and puts out the lamp. \
She cleans the glass, winds the clock and writes the weather into the log. At noon she walks to the harbour to buy \
bread and to ask for letters. In the evening she climbs the ninety-two steps to the lamp room again and lights the \
lamp. The ships that pass at night never learn her name, but every captain knows the light, and every captain sleeps \
better for it.";

/// An edit: most of the file comes back unchanged, and a small model foresees the rest as well.
const EDIT: &str = "Rename the function `total` to `sum_for_currency` and return the whole file.

```python
def total(rows, currency):
    result = 0.0
    for row in rows:
        if row.currency == currency:
            result += row.amount
    return result

def report(rows):
    currencies = sorted({row.currency for row in rows})
    for currency in currencies:
        print(currency, total(rows, currency))
```";

/// What drafts beside the text itself.
enum Draft {
    Model(&'static models::Model),
    /// A speculator that comes with the project: its path there.
    Speculator(&'static str),
}

impl Draft {
    fn path(&self, dir: &Path) -> PathBuf {
        match self {
            Self::Model(model) => model.path(dir),
            Self::Speculator(path) => command::root().join(path),
        }
    }
}

struct Scene {
    target: &'static models::Model,
    draft: Draft,
    drafts: &'static str,
    prompt: &'static str,
    tokens: u32,
    /// Timed runs of each kind, alternating; the fastest counts.
    repeats: u32,
}

static SMALL: Scene = Scene {
    target: &models::SMOLLM2,
    draft: Draft::Speculator("assets/smollm2-135m-instruct-mlp.gguf"),
    drafts: "auto: a speculator of 4 MB reads the model's last state and guesses on, what followed the same words before is another guess",
    prompt: COPY,
    tokens: 160,
    repeats: 3,
};

static QWEN: Scene = Scene {
    target: &models::QWEN_1_5B,
    draft: Draft::Model(&models::QWEN_0_5B),
    drafts: "auto: a smaller model of the same family guesses where that pays, the text itself elsewhere",
    prompt: EDIT,
    tokens: 160,
    repeats: 1,
};

/// Builds, fetches, runs and compares.
pub fn run(qwen: bool) -> Result<()> {
    let scene = if qwen { &QWEN } else { &SMALL };
    let draft = match scene.draft {
        Draft::Model(model) => Some(model),
        Draft::Speculator(_) => None,
    };
    let dir = models::ensure([scene.target].into_iter().chain(draft))?;
    eprintln!("building foretoken (release); the first time takes a few minutes");
    command::run(command::cargo("build").args(["--release", "--package", "foretoken"]))?;
    scene.play(&dir)
}

/// What one run of `foretoken run --json` reports, as far as it is shown here.
struct Run {
    tokens: Vec<u64>,
    tokens_per_second: f64,
    rounds: u64,
    accepted: u64,
    drafted: u64,
    off_reason: Option<String>,
}

impl Scene {
    fn play(&self, dir: &Path) -> Result<()> {
        let style = Style::detect();
        style.say(
            "",
            &format!("{}, greedy, on this machine's processor", self.target.title),
        );
        println!("{}\n", style.dim(&indented(self.prompt)));

        style.say("1", "without speculation");
        self.stream(dir, false)?;
        style.say("2", &format!("with speculation ({})", self.drafts));
        println!("{}\n", style.legend());
        self.stream(dir, true)?;

        eprint!("{}", style.dim("Timing both once more, without the display …"));
        let (mut plain, mut speculative) = (self.measure(dir, false)?, self.measure(dir, true)?);
        for _ in 1..self.repeats {
            plain.faster(self.measure(dir, false)?)?;
            speculative.faster(self.measure(dir, true)?)?;
        }
        eprintln!();

        style.say("3", "the two compared");
        let ratio = speculative.tokens_per_second / plain.tokens_per_second;
        let differs = plain
            .tokens
            .iter()
            .zip(&speculative.tokens)
            .position(|(a, b)| a != b);
        let same = plain.tokens == speculative.tokens;
        println!("  without speculation  {:7.1} tokens/s", plain.tokens_per_second);
        println!(
            "  with speculation     {:7.1} tokens/s",
            speculative.tokens_per_second
        );
        println!("  speed                {ratio:7.2} times");
        println!(
            "  same tokens          {:>7}",
            if same { style.good("yes") } else { style.bad("NO") }
        );
        println!();
        println!("{}", speculative.explain(ratio));
        println!("Try it with a prompt of yours:\n\n  {}\n", self.typed(dir));
        match differs {
            _ if same => Ok(()),
            Some(at) => {
                bail!("the answers differ from token {at} on; this is a bug in foretoken, please report it")
            }
            None => bail!(
                "the answers have {} and {} tokens; this is a bug in foretoken, please report it",
                plain.tokens.len(),
                speculative.tokens.len()
            ),
        }
    }

    /// Shows the answer as it comes. Colours of drafts are the command line's matter.
    fn stream(&self, dir: &Path, speculative: bool) -> Result<()> {
        let mut foretoken = self.command(dir, speculative)?;
        if speculative {
            foretoken.arg("--show-draft");
        }
        foretoken
            .stdin(Stdio::null())
            .stdout(Stdio::inherit())
            .stderr(Stdio::piped());
        let output = foretoken
            .spawn()
            .context("cannot run foretoken")?
            .wait_with_output()?;
        command::check(&foretoken, output)?;
        println!();
        Ok(())
    }

    fn measure(&self, dir: &Path, speculative: bool) -> Result<Run> {
        let json = command::capture(self.command(dir, speculative)?.arg("--json"))?;
        Run::parse(&json)
    }

    fn command(&self, dir: &Path, speculative: bool) -> Result<Command> {
        let mut command = Command::new(command::foretoken()?);
        command.arg("run").arg("-m").arg(self.target.path(dir));
        command.args(["-p", self.prompt, "-n", &self.tokens.to_string(), "--temp", "0"]);
        if speculative {
            command.arg("-d").arg(self.draft.path(dir));
        } else {
            command.args(["--drafter", "none"]);
        }
        Ok(command)
    }

    /// The command for people.
    fn typed(&self, dir: &Path) -> String {
        format!(
            "target/release/foretoken run -m {} -d {} --show-draft -p '…'",
            self.target.path(dir).display(),
            self.draft.path(dir).display()
        )
    }
}

impl Run {
    fn parse(json: &[u8]) -> Result<Self> {
        let json: Value = serde_json::from_slice(json).context("foretoken run --json printed no JSON")?;
        let number = |pointer: &str| {
            json.pointer(pointer)
                .and_then(Value::as_f64)
                .with_context(|| format!("foretoken run --json printed no number at {pointer}"))
        };
        let tokens: Option<Vec<u64>> = json
            .get("tokens")
            .and_then(Value::as_array)
            .and_then(|ids| ids.iter().map(Value::as_u64).collect());
        let tokens = tokens.context("foretoken run --json printed no tokens")?;
        ensure!(!tokens.is_empty(), "the model answered nothing");
        Ok(Self {
            tokens,
            tokens_per_second: number("/timings/decode_tps")?,
            rounds: number("/speculation/rounds")? as u64,
            accepted: number("/speculation/accepted")? as u64,
            drafted: number("/speculation/drafted")? as u64,
            off_reason: json
                .pointer("/speculation/off_reason")
                .and_then(Value::as_str)
                .map(str::to_owned),
        })
    }

    /// Keeps the faster of two runs, which must agree.
    fn faster(&mut self, other: Run) -> Result<()> {
        ensure!(
            self.tokens == other.tokens,
            "the same run gave other tokens the second time; please report this bug"
        );
        if other.tokens_per_second > self.tokens_per_second {
            *self = other;
        }
        Ok(())
    }

    /// What happened, in a sentence or two.
    fn explain(&self, ratio: f64) -> String {
        if let Some(reason) = &self.off_reason {
            return format!("Speculation was off: {reason}.\n");
        }
        let total = self.tokens.len();
        let mut text = format!(
            "Of {total} tokens, {} were guessed ahead and confirmed ({} guesses were checked); the model ran {} times\n\
             instead of {total}. A wrong guess costs time and never changes the answer.\n",
            self.accepted, self.drafted, self.rounds
        );
        if ratio < 1.0 {
            text += "On this machine, in this run, checking the guesses took longer than it saved.\n";
        }
        text
    }
}

/// Indents by two and breaks lines of prose between words; code, whose lines are short, stays as it is.
fn indented(text: &str) -> String {
    const WIDTH: usize = 84;
    let mut out = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split_inclusive(' ') {
            let len = word.chars().count();
            if width > 0 && width + len > WIDTH {
                out.push('\n');
                width = 0;
            }
            if width == 0 {
                out.push_str("  ");
            }
            out.push_str(word);
            width += len;
        }
        out.push('\n');
    }
    out.trim_end().to_owned()
}

/// Colours, where they are seen and wanted (<https://no-color.org>).
struct Style {
    colour: bool,
}

impl Style {
    fn detect() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colour: std::io::stdout().is_terminal() && !unwanted && !dumb,
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    /// How `--show-draft` marks tokens.
    fn legend(&self) -> String {
        let (accepted, rejected) = match self.colour {
            true => (
                self.paint("4;32", "confirmed guesses"),
                self.paint("9;31", "wrong guesses"),
            ),
            false => ("[confirmed guesses]".to_owned(), "~~wrong guesses~~".to_owned()),
        };
        format!("  {accepted}, {rejected}, and the model's own tokens")
    }

    fn good(&self, text: &str) -> String {
        self.paint("1;32", text)
    }

    fn bad(&self, text: &str) -> String {
        self.paint("1;31", text)
    }

    fn say(&self, number: &str, title: &str) {
        let number = if number.is_empty() {
            String::new()
        } else {
            format!("{number}. ")
        };
        println!("{}\n", self.paint("1", &format!("{number}{title}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(tokens: &[u64], decode_tps: f64) -> Vec<u8> {
        serde_json::json!({
            "tokens": tokens,
            "timings": { "decode_tps": decode_tps },
            "speculation": { "rounds": 3, "accepted": 5, "drafted": 8, "off_reason": null },
        })
        .to_string()
        .into_bytes()
    }

    #[test]
    fn runs_are_parsed_and_compared() {
        let mut run = Run::parse(&json(&[1, 2, 3], 10.0)).unwrap();
        run.faster(Run::parse(&json(&[1, 2, 3], 20.0)).unwrap()).unwrap();
        run.faster(Run::parse(&json(&[1, 2, 3], 15.0)).unwrap()).unwrap();
        assert_eq!(run.tokens_per_second, 20.0);
        assert!(run.faster(Run::parse(&json(&[1, 2, 4], 30.0)).unwrap()).is_err());
        assert!(run.explain(1.5).contains("5 were guessed ahead") && !run.explain(1.5).contains("longer"));
        assert!(run.explain(0.9).contains("longer than it saved"));
        run.off_reason = Some("drafts do not pay".to_owned());
        assert_eq!(run.explain(1.0), "Speculation was off: drafts do not pay.\n");
    }

    #[test]
    fn prompts_are_indented_and_broken() {
        assert_eq!(indented("a b\n\n    c\n"), "  a b\n\n      c");
        let prose = "word ".repeat(40);
        let lines = indented(&prose);
        assert_eq!(lines.split_whitespace().count(), 40);
        assert!(
            lines.lines().count() > 1
                && lines
                    .lines()
                    .all(|line| line.starts_with("  ") && line.len() <= 86)
        );
    }

    #[test]
    fn incomplete_reports_are_refused() {
        for (json, expected) in [
            (&b"nonsense"[..], "printed no JSON"),
            (br#"{"tokens": [1]}"#, "no number at /timings/decode_tps"),
            (br#"{"tokens": ["a"]}"#, "printed no tokens"),
            (br#"{"tokens": []}"#, "answered nothing"),
        ] {
            let error = Run::parse(json).err().expect("a refusal").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
