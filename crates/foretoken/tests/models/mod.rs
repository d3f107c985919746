//! Where the real models are.

use std::io::Write;
use std::path::PathBuf;

/// The path of a model file in `$FORETOKEN_MODELS`, or in its default place. `None`, with a word on standard
/// error about what is left out, if it is not there.
pub fn find(name: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("FORETOKEN_MODELS")
        .filter(|directory| !directory.is_empty())
        .map(PathBuf::from)
        .or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(PathBuf::from(home).join(".cache/foretoken/models"))
        });
    let path = directory.map(|directory| directory.join(name));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        // Not eprintln, which the test harness swallows when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: {name} is not there; `cargo xtask models` fetches it"
        );
    }
    found
}
