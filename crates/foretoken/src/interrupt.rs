//! Ctrl-C: once ends the generation that is under way, with what it has said so far; twice, or with none under way, the process.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use foretoken::Cancel;

/// What shells report of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// The process's handler of SIGINT.
pub struct Interrupt {
    /// What to stop; empty while nothing is generated.
    running: Arc<Mutex<Vec<Cancel>>>,
}

impl Interrupt {
    /// Handles SIGINT from here on.
    pub fn install() -> anyhow::Result<Self> {
        let running = Arc::<Mutex<Vec<Cancel>>>::default();
        let this = Self {
            running: Arc::clone(&running),
        };
        ctrlc::set_handler(move || {
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            // Where nothing was said there is nothing to keep, and whoever asks twice does not want it.
            if running.is_empty() || running.iter().any(Cancel::is_cancelled) {
                let _ = writeln!(std::io::stderr(), "interrupted");
                std::process::exit(INTERRUPTED)
            }
            running.iter().for_each(Cancel::cancel);
        })
        .context("cannot handle Ctrl-C")?;
        Ok(this)
    }

    /// From here on it stops a generation: the one with the cancellation that is returned. `draft` is the draft model's.
    pub fn start(&self, draft: Option<Cancel>) -> Cancel {
        draft.iter().for_each(Cancel::reset);
        let cancel = Cancel::default();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = draft.into_iter().chain([cancel.clone()]).collect();
        cancel
    }

    /// The generation is over.
    pub fn end(&self) {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
