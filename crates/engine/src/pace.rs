//! How much of the prompts goes into a round.
//!
//! A pass that reads a prompt makes everybody else wait: sequences that decode beside it, and requests that come meanwhile.
//! So its rows are bounded by what the cost model says of its time. Of the rows that there are, half go to the oldest prompt,
//! so that it comes to an end, and the rest to the shortest, so that a short one need not wait for a long one.

use std::time::Duration;

use foretoken_spec::{CostModel, PassTime, TargetModel};

use crate::Engine;

/// A prompt gets so many rows even if they take too long: without any it would never end.
const LEAST_ROWS: usize = 4;

/// Bounds the time of passes that read prompts.
#[derive(Clone, Debug)]
pub struct PromptPace {
    cost: CostModel,
    max_stall: Duration,
}

impl PromptPace {
    /// Keeps passes below `max_stall`, for a model with these costs. It follows what passes with prompts really take.
    pub fn new(cost: CostModel, max_stall: Duration) -> Self {
        Self { cost, max_stall }
    }

    /// How long others may wait for one thing.
    pub(crate) fn max_stall(&self) -> Duration {
        self.max_stall
    }

    pub(crate) fn observe(&mut self, pass: &PassTime) {
        self.cost.observe(pass.rows, pass.context, pass.seconds);
    }

    /// Rows of prompts that may go beside `others`, `most` of them at most, after so many positions.
    fn rows(&self, others: usize, most: usize, context: usize) -> usize {
        let fits = |rows: usize| self.cost.seconds(others + rows, context) <= self.max_stall.as_secs_f64();
        // The greatest that fits; more rows never take less.
        let (mut low, mut high) = (0, most + 1);
        while low + 1 < high {
            let middle = (low + high) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low.max(LEAST_ROWS.min(most))
    }
}

impl<M: TargetModel> Engine<M> {
    /// For each sequence, how many of its pending tokens it may evaluate in this round, where these are more than one.
    pub(crate) fn prompt_rows(&self) -> Vec<usize> {
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
                pace.rows(others.count(), most, self.model.len(self.active[oldest].handle))
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
                pace(millis).rows(others, most, 0),
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
        // A machine of half the speed.
        let mut slow = pace(251);
        for _ in 0..100 {
            slow.observe(&PassTime {
                rows: 10,
                context: 0,
                seconds: 0.25,
            });
        }
        assert!(
            (9..=11).contains(&slow.rows(0, 256, 0)),
            "{}",
            slow.rows(0, 256, 0)
        );
    }
}
