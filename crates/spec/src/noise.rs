//! Gumbel noise as a function of (key, position, token id) alone.
//!
//! A token drawn as the argmax of logit plus Gumbel noise follows the softmax of the logits. With the noise
//! fixed per position and token, whoever has the key draws the same token from the same logits, and a draft
//! model that draws with the target's noise agrees with it almost as often as any coupling allows (Daliri,
//! Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).
//!
//! The hash is counter-based: no state, any position and token in any order. It is the output function of
//! SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014), which steps a
//! counter by an odd constant and mixes it. A position chooses the counter's start by two more rounds of the
//! same mixer; a token id is the step. Every operation is exact or basic IEEE arithmetic, so that all
//! platforms see the same noise.
//!
//! Not here: which tokens take part, and temperature; see [`sampler`](crate::sampler).

use std::f64::consts::LN_2;

use crate::{Token, math};

/// 2^64 divided by the golden ratio, made odd: SplitMix64's step.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The fractional part of √2 times 2^64, made odd: the step from position to position.
const POSITION_STEP: u64 = 0x6a09_e667_f3bc_c909;

/// More than the rounding errors of [`Noise::gumbel`] and of the bound itself.
const BOUND_SLACK: f64 = 1e-9;

/// SplitMix64's mixer: a bijection in which each input bit flips each output bit about half the time.
#[inline]
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of choice `choice` of a request seeded with `seed`.
pub fn key(seed: u64, choice: u64) -> u64 {
    mix(mix(seed.wrapping_add(STEP)).wrapping_add(choice.wrapping_mul(STEP)))
}

/// The noise of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise(u64);

impl Noise {
    /// The noise with which the token at absolute index `position` is drawn; a prompt's first token has
    /// position 0.
    pub fn at(key: u64, position: u64) -> Self {
        Self(mix(
            mix(key.wrapping_add(STEP)).wrapping_add(position.wrapping_mul(POSITION_STEP))
        ))
    }

    /// 64 uniformly distributed bits for a token.
    #[inline]
    pub fn bits(self, token: Token) -> u64 {
        mix(self.0.wrapping_add((u64::from(token) + 1).wrapping_mul(STEP)))
    }

    /// A token's noise, standard Gumbel: −ln(−ln U). It lies between −3.7 and 36.8.
    pub fn gumbel(self, token: Token) -> f64 {
        gumbel(self.bits(token))
    }
}

/// The Gumbel noise of 64 hash bits: −ln(−ln U), where 1−U = (k + ½)/2^52 and k is the upper 52 bits, so
/// that U is exact and strictly between 0 and 1.
pub(crate) fn gumbel(bits: u64) -> f64 {
    let complement = ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
    -math::ln(-math::ln(1.0 - complement))
}

/// At least [`gumbel`] of the same bits, without a logarithm. With W = 1−U, −ln U ≥ W, so that the noise is
/// at most −ln W; and W ≥ 2^-(z+1), where z is the number of leading zeros among its 52 bits.
#[inline]
pub(crate) fn gumbel_bound(bits: u64) -> f64 {
    let zeros = (bits | 0xfff).leading_zeros();
    f64::from(zeros + 1) * LN_2 + BOUND_SLACK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's statistic of counts that should be equal.
    fn chi_square(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts
            .iter()
            .map(|&c| (c as f64 - expected).powi(2) / expected)
            .sum()
    }

    /// Fails where 255 degrees of freedom (mean 255, deviation 22.6) are more than five deviations off.
    fn check_uniform(what: &str, values: impl Iterator<Item = u64>) {
        let mut counts = [0u64; 256];
        values.for_each(|v| counts[v as usize & 255] += 1);
        let statistic = chi_square(&counts);
        assert!(
            (142.0..368.0).contains(&statistic),
            "{what}: chi-square {statistic} of 255"
        );
    }

    #[test]
    fn bytes_are_uniform_and_neighbours_independent() {
        let ids = || (0..200_000u32).map(|id| (id % 997, u64::from(id / 997)));
        for key in [0, 1, u64::MAX, key(42, 0), key(42, 1)] {
            let bits = |position: u64, id: u32| Noise::at(key, position).bits(id);
            for shift in [0, 12, 32, 56] {
                check_uniform("byte", ids().map(|(id, p)| bits(p, id) >> shift));
                check_uniform(
                    "next id",
                    ids().map(|(id, p)| (bits(p, id) ^ bits(p, id + 1)) >> shift),
                );
                check_uniform(
                    "next position",
                    ids().map(|(id, p)| (bits(p, id) ^ bits(p + 1, id)) >> shift),
                );
                check_uniform(
                    "diagonal",
                    ids().map(|(id, p)| (bits(p, id + 1) ^ bits(p + 1, id)) >> shift),
                );
                check_uniform(
                    "next key",
                    ids().map(|(id, p)| (bits(p, id) ^ Noise::at(key ^ 1, p).bits(id)) >> shift),
                );
            }
            // The top nibbles of neighbours, jointly.
            check_uniform(
                "pairs of ids",
                ids().map(|(id, p)| bits(p, id) >> 60 << 4 | bits(p, id + 1) >> 60),
            );
            check_uniform(
                "pairs of positions",
                ids().map(|(id, p)| bits(p, id) >> 60 << 4 | bits(p + 1, id) >> 60),
            );
        }
    }

    #[test]
    fn keys_of_choices_and_seeds_differ() {
        let keys: std::collections::HashSet<u64> = (0..100)
            .flat_map(|seed| (0..100).map(move |choice| key(seed, choice)))
            .collect();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn gumbel_has_its_moments() {
        let n = 400_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..n {
            let g = Noise::at(7, u64::from(i) / 1000).gumbel(i % 1000);
            sum += g;
            squares += g * g;
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.577_216).abs() < 0.01, "mean {mean}");
        assert!(
            (variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.02,
            "variance {variance}"
        );
    }

    #[test]
    fn gumbel_is_finite_and_below_its_bound() {
        let extremes = (0..64).flat_map(|s| [u64::MAX >> s, u64::MAX << s, 1 << s, !(1 << s), (1 << s) - 1]);
        let hashed = (0..100_000).map(|id| Noise::at(3, 9).bits(id));
        for bits in extremes.chain(hashed) {
            let g = gumbel(bits);
            assert!(g > -3.7 && g < 36.8, "{bits:#x}: {g}");
            assert!(g <= gumbel_bound(bits), "{bits:#x}: {g} > {}", gumbel_bound(bits));
        }
    }

    /// Recorded values, from an independent computation: a change of the noise changes every sampled text.
    #[test]
    fn noise_is_pinned() {
        assert_eq!(key(0, 0), 0x48218226ff3cd4bf);
        let noise = Noise::at(key(42, 0), 17);
        assert_eq!(noise.bits(1234), 0x492937b658859ba1);
        assert!((noise.gumbel(1234) - 1.0889446857936895).abs() < 1e-14);
    }
}
