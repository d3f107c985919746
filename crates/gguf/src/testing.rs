//! Where tests find real models.

use std::io::Write;
use std::path::PathBuf;

/// The path of a model file in `$FORETOKEN_MODELS`, or in its default place. `None`, with a word on standard
/// error about what is left out, if it is not there.
pub fn real_model(name: &str) -> Option<PathBuf> {
    let directory = match std::env::var_os("FORETOKEN_MODELS").filter(|dir| !dir.is_empty()) {
        Some(directory) => directory.into(),
        None => std::env::home_dir()?.join(".cache/foretoken/models"),
    };
    let path = directory.join(name);
    if path.is_file() {
        return Some(path);
    }
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not eprintln, which the test harness swallows when a test passes.
    let _ = writeln!(
        std::io::stderr(),
        "LEFT OUT: {test}: {} is not here; `cargo xtask models --all` fetches it",
        path.display()
    );
    None
}
