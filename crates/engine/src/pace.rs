//! How much of the prompts goes into a round.
//!
//! A round that reads a prompt makes everybody else wait: sequences that decode beside it, and requests that come meanwhile.
//! So a draft model takes no part in it (a speculator, whose steps are short, does), and the pass has as many rows as the cost model says fit in what other drafts left
//! of its time. Of these rows half go to the oldest prompt, so that it comes to an end, and the rest to the shortest, so that
//! a short one need not wait for a long one.

use std::time::Duration;

use foretoken_spec::{CostModel, PassTime, TargetModel};

use crate::Engine;

/// A prompt gets so many rows even if they take too long: without any it would never end.
const LEAST_ROWS: usize = 4;

/// Bounds the time of rounds that read prompts.
#[derive(Clone, Debug)]
pub struct PromptPace {
    cost: CostModel,
    max_stall: Duration,
}

impl PromptPace {
    /// Keeps rounds below `max_stall`, for a model with these costs. It follows what passes with prompts really take.
    pub fn new(cost: CostModel, max_stall: Duration) -> Self {
        Self { cost, max_stall }
    }

    /// How long the drafts of other rounds may take, in which a draft model may read what it missed.
    pub(crate) fn draft_time(&self) -> Duration {
        self.max_stall / 2
    }

    pub(crate) fn observe(&mut self, pass: &PassTime) {
        self.cost.observe(pass.rows, pass.context, pass.seconds);
    }

    /// Rows of prompts that may go beside `others`, `most` of them at most, after so many positions, in a round that has
    /// `spent` a part of its time.
    fn rows(&self, spent: Duration, others: usize, most: usize, context: usize) -> usize {
        let left = self.max_stall.saturating_sub(spent).as_secs_f64();
        let rows = self.cost.rows_within(left, others, most, context);
        rows.max(LEAST_ROWS.min(most))
    }
}

impl<M: TargetModel> Engine<M> {
    /// What each sequence may evaluate of its prompt, before anything was drafted: its memory is secured for so many rows.
    pub(crate) fn planned_prompt_rows(&self) -> Vec<usize> {
        self.prompt_rows(Duration::ZERO)
    }

    /// Cuts the chunks of prompts to what drafts have left of a round's time.
    pub(crate) fn trim_prompts(&mut self, spent: Duration) {
        if self.options.pace.is_none() {
            return;
        }
        let rows = self.prompt_rows(spent);
        for (sequence, rows) in self.active.iter_mut().zip(rows) {
            let turn = &mut sequence.turn;
            if turn.chunk > 1 && rows < turn.chunk {
                turn.chunk = rows;
                turn.draws = false;
            }
        }
    }

    /// For each sequence, how many of its pending tokens it may evaluate in this round, where these are more than one.
    fn prompt_rows(&self, spent: Duration) -> Vec<usize> {
        let most = self.options.prompt_rows.max(1);
        let mut shares = vec![0; self.active.len()];
        let pending = |at: usize| self.active[at].tokens.len() - self.model.len(self.active[at].handle);
        let mut reading: Vec<usize> = (0..self.active.len())
            .filter(|&at| !self.active[at].parked && !self.active[at].turn.waits && pending(at) > 1)
            .collect();
        let Some(&oldest) = reading.first() else {
            return shares;
        };
        let mut left = match &self.options.pace {
            Some(pace) => {
                let others = (0..self.active.len()).filter(|&at| !self.active[at].parked && pending(at) == 1);
                let others = others.map(|at| 1 + self.active[at].turn.tree.len()).sum();
                pace.rows(spent, others, most, self.model.len(self.active[oldest].handle))
            }
            None => most,
        };
        let mut give = |at: usize, rows: usize| {
            let rows = rows.min(pending(at) - shares[at]);
            shares[at] += rows;
            rows
        };
        left -= give(oldest, left.div_ceil(2));
        reading.sort_by_key(|&at| (pending(at), at));
        for at in reading {
            left -= give(at, left);
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_spec::CostPoint;

    #[test]
    fn a_pass_stays_below_the_longest_stall() {
        let point = |rows, seconds| CostPoint { rows, seconds };
        let cost = CostModel::new(vec![point(1, 0.05), point(8, 0.1), point(16, 0.2)]);
        let pace = |millis| PromptPace::new(cost.clone(), Duration::from_millis(millis));
        let check = |millis, others, most, expected| {
            assert_eq!(
                pace(millis).rows(Duration::ZERO, others, most, 0),
                expected,
                "{millis} ms, {others}, {most}"
            );
        };
        check(251, 0, 256, 20);
        check(251, 4, 256, 16);
        check(251, 0, 10, 10);
        // Never none.
        check(20, 0, 256, LEAST_ROWS);
        check(20, 0, 2, 2);
        // Drafts took a part.
        let spent = |millis, others| pace(251).rows(Duration::from_millis(millis), others, 256, 0);
        assert_eq!(spent(50, 4), 12);
        assert_eq!((spent(240, 0), spent(900, 0)), (LEAST_ROWS, LEAST_ROWS));
        // A machine of half the speed.
        let mut slow = pace(251);
        for _ in 0..100 {
            slow.observe(&PassTime {
                rows: 10,
                context: 0,
                seconds: 0.25,
            });
        }
        let rows = slow.rows(Duration::ZERO, 0, 256, 0);
        assert!((9..=11).contains(&rows), "{rows}");
    }
}
