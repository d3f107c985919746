//! What all answers of a conversation took together.

use std::time::Duration;

use foretoken::Stats;

/// Sums over answers.
#[derive(Debug, Default)]
pub struct Totals {
    answers: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    prompt: Duration,
    generated: usize,
    decode: Duration,
    rounds: usize,
    decided: usize,
    drafted: usize,
    accepted: usize,
}

impl Totals {
    /// Counts an answer.
    pub fn add(&mut self, stats: &Stats) {
        let spec = &stats.speculation;
        self.answers += 1;
        self.prompt_tokens += stats.prompt_tokens;
        self.cached_tokens += stats.cached_tokens;
        self.prompt += stats.prompt;
        self.generated += stats.generated;
        self.decode += stats.decode;
        self.rounds += spec.rounds;
        self.decided += spec.decided;
        self.drafted += spec.drafted;
        self.accepted += spec.accepted;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = |time: Duration| time.as_secs_f64();
        writeln!(f, "answers:  {}", self.answers)?;
        writeln!(
            f,
            "prompts:  {} tokens, {} of them from the cache; {:.3} s to first tokens",
            self.prompt_tokens,
            self.cached_tokens,
            seconds(self.prompt)
        )?;
        write!(f, "decoded:  {} tokens", self.generated)?;
        // The first token of each is its prompt's.
        let after = self.generated.saturating_sub(self.answers);
        if after > 0 && !self.decode.is_zero() {
            let (seconds, rate) = (seconds(self.decode), after as f64 / seconds(self.decode));
            write!(f, " in {seconds:.3} s ({rate:.1} per second)")?;
        }
        writeln!(f)?;
        if self.drafted == 0 {
            return writeln!(f, "drafts:   none");
        }
        writeln!(
            f,
            "drafts:   {} tokens, {} of them accepted ({:.1} %); {:.2} tokens a round",
            self.drafted,
            self.accepted,
            100.0 * self.accepted as f64 / self.drafted as f64,
            self.decided as f64 / self.rounds as f64
        )
    }
}
