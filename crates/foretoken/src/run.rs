//! `foretoken run`: prompt in, answer out.
//!
//! Text goes to standard output as it becomes certain; everything else goes to standard error.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use foretoken::spec::Token;
use foretoken::{GenerationRequest, Loading, Message, Sampler, Session, SessionOptions};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{RunArgs, usage_error};
use crate::interrupt::Interrupt;
use crate::output::{self, Output};
use crate::report;
use crate::trace::Trace;

/// More than any context holds.
pub const MAX_PROMPT_BYTES: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let prompt = read_prompt(args)?;
    let seed = seed(args.sampling.seed)?;
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
    let mut request = GenerationRequest {
        grammar,
        prompt: encode(&session, args, prompt)?,
        sampler: args.sampling.params(),
        key: Sampler::key(seed, 0),
        max_tokens: usize::try_from(args.predict).ok(),
        stops: args.stop.clone(),
        ..GenerationRequest::default()
    };

    let output = (!args.json).then(|| Output::new(args.show_draft, &session));
    let mut trace = args.trace.as_deref().map(Trace::create).transpose()?;
    let mut broken = None;
    let cancel = interrupt.start(session.draft_cancel());
    request.cancel = cancel.clone();
    let generation = session.generate(request, |progress| {
        let traced = match (&mut trace, &progress.round) {
            (Some(trace), Some(round)) => trace.write(None, round),
            _ => Ok(()),
        };
        let shown = traced.and_then(|()| match &output {
            Some(shown) => Ok(output::print(&shown.render(progress))?),
            None => Ok(()),
        });
        if let Err(error) = shown {
            broken.get_or_insert(error);
            cancel.cancel();
        }
    })?;
    if let Some(error) = broken {
        return Err(error);
    }
    if let Some(trace) = trace {
        trace.finish()?;
    }
    let report = report::Report {
        model: &args.model,
        draft: &args.draft,
        drafting: &args.drafting,
        sampling: &args.sampling,
        seed,
        session: &session,
        generation: &generation,
    };
    if args.json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&report.json())?)?;
    } else {
        // A last newline, where a person reads.
        output::print("\n")?;
        // Nobody to read it is no fault.
        let _ = write!(std::io::stderr(), "{}", report.text());
    }
    Ok(())
}

/// The seed that was given, or one that the system draws.
pub fn seed(given: Option<u64>) -> anyhow::Result<u64> {
    match given {
        Some(seed) => Ok(seed),
        None => Ok(getrandom::u32()
            .context("the system gave no random number for a seed")?
            .into()),
    }
}

/// Loads what the options name, and shows on a terminal how far it is.
pub fn load(options: &SessionOptions) -> anyhow::Result<Session> {
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
    let session = session?;
    if let Some(note) = session.draft_note() {
        let _ = writeln!(std::io::stderr(), "note: {note}");
    }
    Ok(session)
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

/// The text of a source that errors call `name`.
pub fn read_text(source: impl Read, name: &str) -> anyhow::Result<String> {
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

/// The largest memory that this process held, mapped files included; `None` where the system does not say.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
