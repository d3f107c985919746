//! `foretoken run`: prompt in, answer out.
//!
//! Text goes to standard output as it becomes certain; everything else goes to standard error.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anstyle::{AnsiColor, Style};
use anyhow::{Context, bail};
use clap::error::ErrorKind;
use foretoken::spec::Token;
use foretoken::{
    Cancel, GenerationRequest, Loading, Message, Progress, Sampler, Session, SessionOptions, Tokenizer,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{RunArgs, usage_error};
use crate::report;
use crate::trace::Trace;

/// More than any context holds.
const MAX_PROMPT_BYTES: u64 = 64 << 20;

/// What shells report of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Runs the command.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let prompt = read_prompt(args)?;
    let seed = match args.sampling.seed {
        Some(seed) => seed,
        None => getrandom::u32()
            .context("the system gave no random number for a seed")?
            .into(),
    };
    let options = SessionOptions {
        drafting: args.drafting.drafting(),
        draft_model: args.draft.file()?,
        draft_vocab: args.draft.draft_vocab,
        corpus: args.drafting.draft_corpus.clone(),
        policy: args.drafting.policy(),
        loss_budget: f64::from(args.drafting.loss_budget),
        threads: Some(args.threads.count()),
        context: args.context.map(|n| n as usize),
        force_accept: args.force_accept.map(f64::from),
        ..SessionOptions::new(args.model.file()?)
    };
    let interrupt = Interrupt::install()?;
    let mut session = load(&options)?;
    let grammar = match &args.json_schema {
        Some(path) => {
            let grammar = session.grammars()?.json_schema(&read_schema(path)?);
            Some(grammar.with_context(|| path.display().to_string())?)
        }
        None => None,
    };
    let request = GenerationRequest {
        grammar,
        prompt: encode(&session, args, prompt)?,
        sampler: args.sampler(),
        key: Sampler::key(seed, 0),
        max_tokens: usize::try_from(args.predict).ok(),
        stops: args.stop.clone(),
        cancel: interrupt.cancel.clone(),
        ..GenerationRequest::default()
    };

    let output = Output::new(args, &session);
    let mut trace = args.trace.as_deref().map(Trace::create).transpose()?;
    let mut broken = None;
    interrupt.start(session.draft_cancel());
    let generation = session.generate(request, |progress| {
        let traced = match (&mut trace, &progress.round) {
            (Some(trace), Some(round)) => trace.write(None, round),
            _ => Ok(()),
        };
        if let Err(error) = traced.and_then(|()| Ok(output.show(progress)?)) {
            broken.get_or_insert(error);
            interrupt.cancel.cancel();
        }
    })?;
    if let Some(error) = broken {
        return Err(error);
    }
    if let Some(trace) = trace {
        trace.finish()?;
    }
    output.end()?;
    let report = report::Report {
        args,
        seed,
        session: &session,
        generation: &generation,
    };
    if args.json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&report.json())?)?;
    } else {
        // Nobody to read it is no fault.
        let _ = write!(std::io::stderr(), "{}", report.text());
    }
    Ok(())
}

/// Ctrl-C: once ends the generation with its statistics, twice the process.
struct Interrupt {
    cancel: Cancel,
    /// What else to stop; empty until there is a generation.
    generation: Arc<OnceLock<Option<Cancel>>>,
}

impl Interrupt {
    fn install() -> anyhow::Result<Self> {
        let this = Self {
            cancel: Cancel::default(),
            generation: Arc::default(),
        };
        let (cancel, generation) = (this.cancel.clone(), this.generation.clone());
        ctrlc::set_handler(move || match generation.get() {
            Some(draft) if !cancel.is_cancelled() => {
                cancel.cancel();
                draft.iter().for_each(Cancel::cancel);
            }
            // Before the generation there is nothing to report, and whoever asks twice does not want it.
            _ => {
                let _ = writeln!(std::io::stderr(), "interrupted");
                std::process::exit(INTERRUPTED)
            }
        })
        .context("cannot handle Ctrl-C")?;
        Ok(this)
    }

    /// From here on there is something to report.
    fn start(&self, draft: Option<Cancel>) {
        self.generation.set(draft).expect("a process generates once");
    }
}

fn load(options: &SessionOptions) -> anyhow::Result<Session> {
    let style = ProgressStyle::with_template("{msg:<20} {wide_bar} {bytes}/{total_bytes}")
        .expect("it is well-formed");
    let mut bar: Option<(Loading, ProgressBar)> = None;
    let mut progress = |part, done, total| {
        if bar.as_ref().is_none_or(|(of, _)| *of != part) {
            // Draws on standard error, and only if that is a terminal.
            let new = ProgressBar::new(total)
                .with_style(style.clone())
                .with_message(match part {
                    Loading::Target => "loading the model",
                    Loading::Draft => "loading the draft",
                });
            if let Some((_, old)) = bar.replace((part, new)) {
                old.finish_and_clear();
            }
        }
        let (_, bar) = bar.as_ref().expect("just made");
        bar.set_length(total);
        bar.set_position(done);
    };
    let session = Session::load_with_progress(options, &mut progress);
    if let Some((_, bar)) = bar {
        bar.finish_and_clear();
    }
    Ok(session?)
}

/// The prompt's text, from wherever it was given.
fn read_prompt(args: &RunArgs) -> anyhow::Result<String> {
    if let Some(text) = &args.prompt.prompt {
        return Ok(text.clone());
    }
    let mut text = match &args.prompt.file {
        Some(path) => {
            let name = path.display().to_string();
            let file = std::fs::File::open(path).with_context(|| name.clone())?;
            read_text(file, &name)?
        }
        None if std::io::stdin().is_terminal() => usage_error(
            "run",
            ErrorKind::MissingRequiredArgument,
            "no prompt: give -p TEXT or -f FILE, or pipe it into standard input",
        ),
        None => read_text(std::io::stdin(), "standard input")?,
    };
    // The newline that ends a text file is no part of what its author says; a raw prompt is left alone.
    if !args.prompt.raw && text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The schema in a file.
fn read_schema(path: &Path) -> anyhow::Result<serde_json::Value> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).with_context(|| name.clone())?;
    let text = read_text(file, &name)?;
    serde_json::from_str(&text).with_context(|| format!("{name}: not JSON"))
}

fn read_text(source: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    source
        .take(MAX_PROMPT_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| name.to_string())?;
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        bail!("{name}: a prompt of more than {} MiB", MAX_PROMPT_BYTES >> 20);
    }
    String::from_utf8(bytes)
        .map_err(|e| anyhow::anyhow!("{name}: not UTF-8 at byte {}", e.utf8_error().valid_up_to()))
}

fn encode(session: &Session, args: &RunArgs, prompt: String) -> anyhow::Result<Vec<Token>> {
    if args.prompt.raw {
        return Ok(session.raw(&prompt)?);
    }
    let message = |role: &str, content: String| Message::new(role, content);
    let system = args
        .prompt
        .system
        .iter()
        .map(|text| message("system", text.clone()));
    if !session.prompts().has_template() {
        if args.prompt.system.is_some() {
            bail!(
                "{}: --system needs a chat template, and the model has none",
                args.model
            );
        }
        let tokens = session.plain(&prompt)?;
        let _ = writeln!(
            std::io::stderr(),
            "note: the model has no chat template; it gets the prompt as it is"
        );
        return Ok(tokens);
    }
    let messages: Vec<Message> = system.chain([message("user", prompt)]).collect();
    Ok(session.chat(&messages)?)
}

/// How a token is shown with `--show-draft`.
#[derive(Clone, Copy)]
enum Mark {
    Accepted,
    Rejected,
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

/// Where the text goes.
enum Output {
    /// `--json`: nowhere yet.
    Silent,
    Plain,
    Marked {
        styles: bool,
        tokenizer: Arc<Tokenizer>,
    },
}

impl Output {
    fn new(args: &RunArgs, session: &Session) -> Self {
        if args.json {
            return Self::Silent;
        }
        if !args.show_draft {
            return Self::Plain;
        }
        // Respects NO_COLOR and whether standard output is a terminal.
        let styles = anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
        let output = Self::Marked {
            styles,
            tokenizer: session.tokenizer().clone(),
        };
        let (accepted, rejected) = (
            output.marked(Mark::Accepted, "accepted"),
            output.marked(Mark::Rejected, "rejected"),
        );
        let _ = writeln!(
            anstream::stderr(),
            "drafts: {accepted} {rejected}; the rest is the target's own"
        );
        output
    }

    fn show(&self, progress: &Progress) -> std::io::Result<()> {
        let mut text = String::new();
        match self {
            Self::Silent => return Ok(()),
            Self::Plain => text.extend(progress.text.iter().map(|fragment| fragment.text.as_str())),
            Self::Marked { tokenizer, .. } => {
                let mut fragments = progress.text.iter().map(|fragment| match fragment.source {
                    Some(_) => self.marked(Mark::Accepted, &fragment.text),
                    None => fragment.text.clone(),
                });
                // Rejected tokens stood where the target's own last token stands now: before it.
                let own = progress
                    .text
                    .last()
                    .is_some_and(|fragment| fragment.source.is_none());
                let before = progress.text.len() - usize::from(own);
                text.extend(fragments.by_ref().take(before));
                if !progress.rejected.is_empty() {
                    let bytes: Vec<u8> = progress
                        .rejected
                        .iter()
                        .flat_map(|&token| tokenizer.bytes(token))
                        .copied()
                        .collect();
                    text.push_str(&self.marked(Mark::Rejected, &String::from_utf8_lossy(&bytes)));
                }
                text.extend(fragments);
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    fn marked(&self, mark: Mark, text: &str) -> String {
        match self {
            Self::Marked { styles: true, .. } => format!("{style}{text}{style:#}", style = mark.style()),
            _ => {
                let (open, close) = mark.brackets();
                format!("{open}{text}{close}")
            }
        }
    }

    /// A last newline, where a person reads.
    fn end(&self) -> std::io::Result<()> {
        match self {
            Self::Silent => Ok(()),
            _ => writeln!(std::io::stdout()),
        }
    }
}

/// The largest memory that this process held, mapped files included; `None` where the system does not say.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
