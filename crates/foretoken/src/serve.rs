//! `foretoken serve`: a model behind OpenAI's API.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use foretoken::gguf::Gguf;
use foretoken::spec::Source;
use foretoken::{CpuModel, Drafting, KvSize, Session, SessionOptions};
use foretoken_server::{ApiKey, Loaded, ServerOptions};
use sha2::{Digest, Sha256};
use tracing_subscriber::EnvFilter;

use crate::cli::{LogFormat, ServeArgs};

/// A file of keys is never longer.
const MOST_KEY_BYTES: u64 = 1 << 20;

/// Runs the command.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    log(args.log_format);
    let keys = keys(args)?;
    if !args.host.is_loopback() && keys.is_empty() {
        tracing::warn!("others on the network can reach this server, and no --api-key is asked of them");
    }
    let options = ServerOptions {
        address: SocketAddr::new(args.host, args.port),
        parallel: args.parallel as usize,
        queue: args.queue as usize,
        keys,
        hosts: args.allow_host.clone(),
        origins: args.cors_origin.clone(),
        timeout: args.timeout(),
    };
    let sequences = KvSize::Sequences(args.parallel as usize);
    let session = SessionOptions {
        drafting: args.drafting.drafting(),
        draft_model: args.draft.file()?,
        draft_vocab: args.draft.draft_vocab,
        // What requests hold is nobody's business.
        learn: false,
        corpus: args.drafting.draft_corpus.clone(),
        policy: args.drafting.policy(),
        loss_budget: f64::from(args.drafting.loss_budget),
        threads: Some(args.threads.count()),
        context: args.context.map(|n| n as usize),
        kv: Some(args.kv_memory.map_or(sequences, KvSize::Bytes)),
        max_stall: Some(Duration::from_millis(args.max_stall.into())),
        prefixes: args.prefixes as usize,
        ..SessionOptions::new(args.model.file()?)
    };
    let alias = args.alias.clone();
    let listening = |address| tracing::info!("listening on http://{address}; loading the model");
    Ok(foretoken_server::serve(
        options,
        move || load(&session, alias),
        listening,
    )?)
}

/// Loads the model, and says what it is.
fn load(options: &SessionOptions, alias: Option<String>) -> Result<Loaded<CpuModel>, Failure> {
    let session = Session::load(options).map_err(|error| Failure(error.into()))?;
    let report = session.load_report();
    let stem = options.model.file_stem().unwrap_or_default().to_string_lossy();
    let isa = session.compute().isa().name();
    let fingerprint = fingerprint(&options.model, session.tokenizer().fingerprint(), isa).map_err(Failure)?;
    let mut drafters = match options.drafting {
        Drafting::Auto => vec![Source::Suffix, Source::Recycling, Source::Prediction],
        Drafting::Suffix => vec![Source::Suffix],
        Drafting::Recycling => vec![Source::Recycling],
        Drafting::Model | Drafting::Mlp | Drafting::None => Vec::new(),
    };
    let network = session.draft_source();
    if options.policy.fixed.is_some() {
        // Exactly one drafts.
        drafters.truncate(usize::from(network.is_none()));
    }
    drafters.extend(network);
    if let Some(note) = session.draft_note() {
        tracing::warn!("{note}");
    }
    let cost = session.cost();
    let pass_seconds = cost.map_or_else(Vec::new, |cost| {
        let points = cost.points().iter();
        points
            .map(|point| (point.rows, cost.seconds(point.rows, 0)))
            .collect()
    });
    Ok(Loaded {
        prompts: session.prompts().clone(),
        name: alias.unwrap_or_else(|| stem.into_owned()),
        fingerprint,
        drafters,
        lossless: session.is_lossless(),
        load: [report.target, report.draft],
        pass_seconds,
        engine: session.into_engine(),
    })
}

/// Why the model could not be loaded.
#[derive(Debug)]
struct Failure(anyhow::Error);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for Failure {}

/// What decides which tokens an answer has: the model's tensors, its tokenizer, this version and the instruction set.
fn fingerprint(path: &Path, tokenizer: u64, isa: &str) -> anyhow::Result<String> {
    let gguf = Gguf::open(path)?;
    let mut hash = Sha256::new();
    for tensor in gguf.tensors() {
        hash.update(format!("{} {:?} {:?};", tensor.name, tensor.dims, tensor.ty));
        hash.update(&*gguf.map(tensor)?);
    }
    hash.update(tokenizer.to_le_bytes());
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(isa);
    let digest = hash.finalize();
    let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("fp_{hex}"))
}

/// The keys of the command line, the environment and the file.
fn keys(args: &ServeArgs) -> anyhow::Result<Vec<ApiKey>> {
    let mut keys: Vec<ApiKey> = args.api_key.iter().map(|key| ApiKey::new(key)).collect();
    let Some(path) = &args.api_key_file else {
        return Ok(keys);
    };
    let name = || path.display().to_string();
    if std::fs::metadata(path).with_context(name)?.len() > MOST_KEY_BYTES {
        bail!("{}: more than {MOST_KEY_BYTES} bytes of keys", name());
    }
    let text = std::fs::read_to_string(path).with_context(name)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let before = keys.len();
    keys.extend(lines.map(ApiKey::new));
    if keys.len() == before {
        // A server without keys is open: not by an empty file.
        bail!("{}: there is no key in it", name());
    }
    Ok(keys)
}

/// Writes log lines to standard error, as RUST_LOG says.
fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        .with_writer(std::io::stderr);
    let outcome = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(error) = outcome {
        let _ = writeln!(std::io::stderr(), "no log: {error}");
    }
}
