//! The closed forms of speculative decoding with a chain of drafts (Leviathan, Kalman, Matias: "Fast Inference from
//! Transformers via Speculative Decoding", 2023): what it gains if each draft token is accepted with the same probability.

/// Tokens that a round decides: `(1 − α^(γ+1)) / (1 − α)` for γ draft tokens that are accepted with probability α
/// each, if those before them were. One of them is the target's own.
pub fn tokens_per_round(acceptance: f64, draft: usize) -> f64 {
    let mut path = 1.0;
    let mut tokens = 1.0;
    for _ in 0..draft {
        path *= acceptance;
        tokens += path;
    }
    tokens
}

/// Draft tokens of a round that are accepted: one less than it decides.
pub fn accepted_per_round(acceptance: f64, draft: usize) -> f64 {
    tokens_per_round(acceptance, draft) - 1.0
}

/// The speedup where a pass over any number of rows takes as long as one over a single row, and a draft token `cost` of
/// that: what is usually quoted.
pub fn textbook_speedup(acceptance: f64, draft: usize, cost: f64) -> f64 {
    tokens_per_round(acceptance, draft) / (draft as f64 * cost + 1.0)
}

/// The speedup where a plain token takes `plain` seconds and a round with a draft `round` seconds.
pub fn speedup(acceptance: f64, draft: usize, plain: f64, round: f64) -> f64 {
    tokens_per_round(acceptance, draft) * plain / round
}

/// The acceptance from which on such rounds are faster than plain decoding; `None` if even certain drafts are not.
pub fn break_even(draft: usize, plain: f64, round: f64) -> Option<f64> {
    if speedup(1.0, draft, plain, round) < 1.0 {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if speedup(middle, draft, plain, round) < 1.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, within: f64) {
        assert!((a - b).abs() < within, "{a} is not {b}");
    }

    #[test]
    fn the_sums_are_the_closed_forms() {
        for alpha in [0.0f64, 0.3, 0.7, 0.95] {
            for gamma in 0..17 {
                let closed = (1.0 - alpha.powi(gamma as i32 + 1)) / (1.0 - alpha);
                close(tokens_per_round(alpha, gamma), closed, 1e-12);
                // Σ i·p^i·(1−p) + N·p^N
                let terms = (0..gamma)
                    .map(|i| i as f64 * alpha.powi(i as i32) * (1.0 - alpha))
                    .sum::<f64>();
                close(
                    accepted_per_round(alpha, gamma),
                    terms + gamma as f64 * alpha.powi(gamma as i32),
                    1e-12,
                );
            }
        }
        close(tokens_per_round(1.0, 8), 9.0, 1e-12);
        // Eight tokens at 0.95: 6.4 accepted.
        close(accepted_per_round(0.95, 8), 6.4, 0.01);
    }

    #[test]
    fn speedups_and_break_even() {
        close(textbook_speedup(0.8, 4, 0.1), 3.3616 / 1.4, 1e-9);
        close(speedup(0.8, 4, 1.0, 1.4), textbook_speedup(0.8, 4, 0.1), 1e-12);
        // One draft token: 1 + α must be what the round takes.
        close(break_even(1, 1.0, 1.3).unwrap(), 0.3, 1e-9);
        close(break_even(4, 1.0, 1.0).unwrap(), 0.0, 1e-9);
        assert_eq!(break_even(1, 1.0, 2.1), None);
        assert!(break_even(4, 1.0, 5.0).unwrap() > 0.999);
    }
}
