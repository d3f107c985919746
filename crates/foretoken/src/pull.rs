//! `foretoken pull` fetches models, `foretoken models` lists them.

use std::io::Write;

use foretoken::models::{Client, Entry, Event, KNOWN, KnownModel, Models, Pulled, Source, Unfinished};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::cli::{ModelsArgs, PullArgs};
use crate::inspect::printable;

/// Runs `foretoken pull`.
pub fn pull(args: &PullArgs) -> anyhow::Result<()> {
    let sources = args.sources()?;
    let models = Models::from_env()?;
    let client = Client::from_env()?;
    let mut first = None;
    for source in &sources {
        let bar = Bar::new(source);
        let pulled = models.pull(&client, source, &mut |event| bar.show(&event))?;
        bar.end(&pulled);
        first.get_or_insert(pulled.path);
    }
    if let Some(path) = first {
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    Ok(())
}

/// How far it is, on standard error.
struct Bar<'a> {
    source: &'a Source,
    bar: ProgressBar,
}

impl<'a> Bar<'a> {
    fn new(source: &'a Source) -> Self {
        let style = ProgressStyle::with_template(
            "{msg:<20} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
        );
        // Draws on standard error, and only if that is a terminal.
        let bar = ProgressBar::no_length().with_style(style.expect("it is well-formed"));
        let this = Self { source, bar };
        this.say(&format!("pulling {source}"));
        this
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| {
            // Nobody to read it is no fault.
            let _ = writeln!(std::io::stderr(), "{}: {line}", self.source.name());
        });
    }

    fn at(&self, doing: &'static str, bytes: u64, of: u64) {
        if self.bar.message() != doing {
            // Rates are those of what is being done.
            self.bar.reset();
            self.bar.set_message(doing);
            self.bar.set_position(bytes);
            self.bar.reset_eta();
        }
        self.bar.set_length(of);
        self.bar.set_position(bytes);
    }

    fn show(&self, event: &Event<'_>) {
        match event {
            Event::Waiting => self.say("waiting for another pull of it"),
            Event::Anew => {
                self.say("what an earlier download left cannot be gone on with: from the beginning")
            }
            Event::Have { bytes, of } => self.at("downloading", *bytes, *of),
            Event::Checking { bytes, of } => self.at("checking", *bytes, *of),
            Event::Again { error, pause } => {
                self.say(&crate::one_line(&anyhow::anyhow!(
                    "{error}; trying again in {} s",
                    pause.as_secs_f32()
                )));
            }
        }
    }

    fn end(&self, pulled: &Pulled) {
        self.bar.finish_and_clear();
        let size = DecimalBytes(pulled.bytes);
        let there = if pulled.was_there {
            "is there already, "
        } else {
            ""
        };
        let check = match (pulled.sha256, pulled.is_checked) {
            (Some(_), true) => "with the checksum it should have".to_string(),
            (Some(sha256), false) => {
                format!("nobody says which checksum it should have; its SHA-256 sum is {sha256}")
            }
            (None, _) => "as long as it should be; no checksum is known".to_string(),
        };
        self.say(&format!("{there}{size}, {check}"));
    }
}

/// Runs `foretoken models`.
pub fn models(args: &ModelsArgs) -> anyhow::Result<()> {
    let models = Models::from_env()?;
    let (entries, unfinished) = models.list()?;
    let listing = Listing {
        directory: models.path().display().to_string(),
        models: entries.iter().map(Row::from).collect(),
        unfinished: unfinished.into_iter().map(Rest::from).collect(),
        known: KNOWN.iter().map(Known::from).collect(),
    };
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(&listing)?)?;
    } else {
        stdout.write_all(listing.text().as_bytes())?;
    }
    Ok(())
}

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Listing {
    directory: String,
    models: Vec<Row>,
    unfinished: Vec<Rest>,
    /// All that have a name, pulled or not.
    known: Vec<Known>,
}

/// A model that is there.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    path: String,
    bytes: u64,
    architecture: Option<String>,
    /// Whether `foretoken run` knows the architecture.
    supported: bool,
    /// The type of most of its weights.
    weights: Option<&'static str>,
    /// Why its header cannot be read.
    error: Option<String>,
}

impl From<&Entry> for Row {
    fn from(entry: &Entry) -> Self {
        let header = entry.header.as_ref().ok();
        Self {
            name: entry.name.clone(),
            path: entry.path.display().to_string(),
            bytes: entry.bytes,
            architecture: header.map(|header| header.architecture.clone()),
            supported: header.is_some_and(|header| header.is_supported),
            weights: header.and_then(|header| header.weights),
            error: entry.header.as_ref().err().map(ToString::to_string),
        }
    }
}

/// What an interrupted download left.
#[derive(Debug, Serialize)]
struct Rest {
    name: String,
    bytes: u64,
}

impl From<Unfinished> for Rest {
    fn from(part: Unfinished) -> Self {
        Self {
            name: part.name,
            bytes: part.bytes,
        }
    }
}

#[derive(Debug, Serialize)]
struct Known {
    name: &'static str,
    title: &'static str,
    source: String,
    bytes: u64,
    sha256: &'static str,
    licence: &'static str,
}

impl From<&KnownModel> for Known {
    fn from(model: &KnownModel) -> Self {
        Self {
            name: model.name,
            title: model.title,
            source: format!("hf:{}/{}", model.repository, model.file),
            bytes: model.bytes,
            sha256: model.sha256,
            licence: model.licence,
        }
    }
}

impl Listing {
    fn text(&self) -> String {
        let mut text = format!("models in {}\n", self.directory);
        let mut line = |name: &str, bytes: u64, what: String| {
            let size = DecimalBytes(bytes).to_string();
            text += &format!("  {:<28} {size:>10}  {what}\n", printable(name));
        };
        for model in &self.models {
            let what = match (&model.error, &model.architecture) {
                (Some(error), _) => format!("cannot be read: {}", printable(error)),
                (None, architecture) => format!(
                    "{}, {}{}",
                    printable(architecture.as_deref().unwrap_or("-")),
                    model.weights.unwrap_or("no weights"),
                    if model.supported {
                        ""
                    } else {
                        " (foretoken cannot run it)"
                    }
                ),
            };
            line(&model.name, model.bytes, what);
        }
        for part in &self.unfinished {
            line(
                &part.name,
                part.bytes,
                "so far; pull it again to go on".to_string(),
            );
        }
        if self.models.is_empty() && self.unfinished.is_empty() {
            text += "  none\n";
        }
        let is_there = |known: &&Known| self.models.iter().any(|model| model.name == known.name);
        let (_, absent): (Vec<&Known>, Vec<&Known>) = self.known.iter().partition(is_there);
        if !absent.is_empty() {
            text += "foretoken pull NAME fetches\n";
        }
        for known in absent {
            let size = DecimalBytes(known.bytes).to_string();
            text += &format!(
                "  {:<28} {size:>10}  {}; {}\n",
                known.name, known.title, known.licence
            );
        }
        text
    }
}
