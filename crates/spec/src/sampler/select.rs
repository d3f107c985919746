//! Which tokens survive the filters, and which of those is drawn. Functions of one row of processed logits;
//! no state, and no sort of the vocabulary.
//!
//! Candidates are ordered by logit, descending, then by id, ascending; every filter keeps a prefix of that
//! order, so that all of them together do too. Not here: penalties and history.

use crate::noise::{self, Noise};
use crate::{LogitError, SamplerParams, Token, math};

/// Logits are scanned in blocks, whose maximum compilers compute with vectors.
const BLOCK: usize = 16;

/// Beyond so many nats below the best, a whole vocabulary weighs nothing.
const NEGLIGIBLE: f64 = 80.0;

/// A candidate: the logit's order-preserving bits above, the complement of its index below. The greatest is
/// the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ranked(u64);

impl Ranked {
    fn new(index: usize, logit: f32) -> Self {
        let bits = (logit + 0.0).to_bits(); // the sum makes -0 and 0 equal
        let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Self(u64::from(ordered) << 32 | u64::from(!(index as u32)))
    }

    pub(super) fn index(self) -> usize {
        !(self.0 as u32) as usize
    }

    pub(super) fn logit(self) -> f32 {
        let ordered = (self.0 >> 32) as u32;
        f32::from_bits(if ordered >> 31 == 1 {
            ordered & !(1 << 31)
        } else {
            !ordered
        })
    }
}

/// A candidate with its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drawn {
    pub(super) token: Token,
    /// Processed logit plus temperature times noise.
    pub(super) score: f64,
}

/// The candidates of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survivors {
    /// No filter is on.
    All,
    /// Those in the list that was filled.
    Listed,
}

/// A row of processed logits, none NaN or +inf, one at least above -inf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    logits: &'a [f32],
    /// The token of each logit; its index where absent.
    vocabulary: Option<&'a [Token]>,
    greatest: f32,
}

impl<'a> Row<'a> {
    /// Checks the logits and finds the greatest.
    pub(super) fn new(logits: &'a [f32], vocabulary: Option<&'a [Token]>) -> Result<Self, LogitError> {
        let mut lanes = [f32::NEG_INFINITY; BLOCK];
        let mut finite = true;
        let mut blocks = logits.chunks_exact(BLOCK);
        for block in &mut blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                *lane = if x > *lane { x } else { *lane };
                finite &= x < f32::INFINITY; // false for NaN
            }
        }
        for &x in blocks.remainder() {
            lanes[0] = if x > lanes[0] { x } else { lanes[0] };
            finite &= x < f32::INFINITY;
        }
        let greatest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        if finite && greatest > f32::NEG_INFINITY {
            return Ok(Self {
                logits,
                vocabulary,
                greatest,
            });
        }
        let token = logits
            .iter()
            .position(|x| x.is_nan() || *x == f32::INFINITY)
            .unwrap_or(0) as Token;
        Err(LogitError::NotFinite { token })
    }

    /// The token of a logit.
    pub(super) fn token(&self, index: usize) -> Token {
        self.vocabulary.map_or(index as Token, |v| v[index])
    }

    /// The index of the greatest logit, of several the lowest.
    pub(super) fn argmax(&self) -> usize {
        self.logits
            .iter()
            .position(|&x| x == self.greatest)
            .expect("the greatest is one of them")
    }

    /// Shows `visit` the logits above a floor, in order of index; it returns the new floor.
    fn scan(&self, mut floor: f32, mut visit: impl FnMut(usize, f32) -> f32) {
        for (at, block) in self.logits.chunks(BLOCK).enumerate() {
            if block
                .iter()
                .fold(f32::NEG_INFINITY, |a, &x| if x > a { x } else { a })
                <= floor
            {
                continue;
            }
            for (i, &x) in block.iter().enumerate() {
                if x > floor {
                    floor = visit(at * BLOCK + i, x);
                }
            }
        }
    }

    /// Fills `ranked` with the `k` best, best first. Tokens at -inf are never among them.
    pub(super) fn best(&self, k: usize, ranked: &mut Vec<Ranked>) {
        ranked.clear();
        if k == 0 {
            return;
        }
        let room = k.saturating_mul(2).max(64);
        let mut floor = f32::NEG_INFINITY;
        self.scan(floor, |index, logit| {
            ranked.push(Ranked::new(index, logit));
            if ranked.len() == room {
                // Later ids lose ties, so that the k-th best is a floor that must be passed, not met.
                floor = ranked.select_nth_unstable_by(k - 1, |a, b| b.cmp(a)).1.logit();
                ranked.truncate(k);
            }
            floor
        });
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        ranked.truncate(k);
    }

    /// How far a logit lies above the best, in nats: never above 0.
    fn gap(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.greatest)
    }

    /// The probability of a logit relative to the best.
    fn weight(&self, logit: f32) -> f64 {
        f64::from(math::exp(logit - self.greatest))
    }

    /// Fills `ranked` with the tokens at most `reach` nats below the best, in order of id.
    fn within(&self, reach: f64, ranked: &mut Vec<Ranked>) {
        ranked.clear();
        // Below every logit that may pass the exact test, whatever the rounding.
        let floor = ((f64::from(self.greatest) - reach) as f32)
            .next_down()
            .next_down();
        self.scan(floor, |index, logit| {
            if self.gap(logit) >= -reach {
                ranked.push(Ranked::new(index, logit));
            }
            floor
        });
    }

    /// The weight of the whole row: f64 sums in lanes, in order of id.
    fn total_weight(&self) -> f64 {
        const LANES: usize = 8;
        let mut lanes = [0f64; LANES];
        let mut blocks = self.logits.chunks_exact(LANES);
        for block in &mut blocks {
            for (lane, &x) in lanes.iter_mut().zip(block) {
                *lane += self.weight(x);
            }
        }
        blocks
            .remainder()
            .iter()
            .fold(lanes.iter().sum(), |sum, &x| sum + self.weight(x))
    }

    /// How many of the best make up `share` of `total`, if those listed suffice. Sums are f64, in
    /// descending order.
    fn nucleus(&self, ranked: &[Ranked], share: f32, total: f64) -> Option<usize> {
        let wanted = f64::from(share) * total;
        let mut sum = 0.0;
        let at = ranked.iter().position(|r| {
            sum += self.weight(r.logit());
            sum >= wanted
        })?;
        Some(at + 1)
    }

    /// Applies top-k, top-p and min-p.
    fn survivors(&self, params: &SamplerParams, ranked: &mut Vec<Ranked>) -> Survivors {
        // The best always survives, even of parameters that nobody validated.
        let reach = match f64::from(params.min_p) {
            share if share > 0.0 => (-math::ln(share)).max(0.0),
            _ => f64::INFINITY,
        };
        if (1..self.logits.len()).contains(&params.top_k) {
            self.best(params.top_k, ranked);
            if params.top_p < 1.0 {
                let total = ranked.iter().map(|r| self.weight(r.logit())).sum();
                let keep = self.nucleus(ranked, params.top_p, total);
                ranked.truncate(keep.unwrap_or(ranked.len()));
            }
            let keep = ranked.partition_point(|r| self.gap(r.logit()) >= -reach);
            ranked.truncate(keep);
            return Survivors::Listed;
        }
        if params.top_p < 1.0 {
            // The nucleus usually lies near the best: look there first, and further down only if need be.
            let total = self.total_weight();
            let deepest = reach.min(NEGLIGIBLE);
            let mut depth = deepest.min(5.0);
            loop {
                self.within(depth, ranked);
                ranked.sort_unstable_by(|a, b| b.cmp(a));
                let keep = self.nucleus(ranked, params.top_p, total);
                ranked.truncate(keep.unwrap_or(ranked.len()));
                if keep.is_some() || depth == deepest {
                    return Survivors::Listed;
                }
                depth = (depth * 2.0).min(deepest);
            }
        }
        if reach.is_finite() {
            self.within(reach, ranked);
            return Survivors::Listed;
        }
        Survivors::All
    }

    /// Fills `drawn` with the `m` ≥ 1 best survivors by logit plus temperature times noise, best first;
    /// ties go to the lower id.
    pub(super) fn draw(
        &self,
        params: &SamplerParams,
        noise: Noise,
        m: usize,
        ranked: &mut Vec<Ranked>,
        drawn: &mut Vec<Drawn>,
    ) {
        drawn.clear();
        let mut lead = Lead {
            noise,
            temperature: f64::from(params.temperature),
            m,
            threshold: f64::NEG_INFINITY,
            drawn,
        };
        match self.survivors(params, ranked) {
            Survivors::Listed => {
                ranked
                    .iter()
                    .for_each(|r| lead.offer(self.token(r.index()), r.logit()));
            }
            Survivors::All => {
                for (at, block) in self.logits.chunks(BLOCK).enumerate() {
                    let first = at * BLOCK;
                    let Some(limit) = lead.limit(greatest_of(block)) else {
                        continue;
                    };
                    let ids = first as Token..(first + block.len()) as Token;
                    let hopeful = match self.vocabulary {
                        None => ids.fold(false, |any, id| any | (noise.bits(id) <= limit)),
                        Some(v) => v[first..][..block.len()]
                            .iter()
                            .any(|&id| noise.bits(id) <= limit),
                    };
                    if hopeful {
                        let logits = block.iter().enumerate();
                        logits.for_each(|(i, &logit)| lead.offer(self.token(first + i), logit));
                    }
                }
            }
        }
    }
}

/// The greatest of some numbers.
fn greatest_of(logits: &[f32]) -> f32 {
    logits
        .iter()
        .fold(f32::NEG_INFINITY, |a, &x| if x > a { x } else { a })
}

/// The `m` best candidates so far by score.
struct Lead<'a> {
    noise: Noise,
    temperature: f64,
    m: usize,
    /// The m-th best score, once there are m.
    threshold: f64,
    /// Best first.
    drawn: &'a mut Vec<Drawn>,
}

impl Lead<'_> {
    /// Takes in a candidate. One whose noise cannot lift it among the best, by the bound of its hash, costs
    /// no logarithm.
    fn offer(&mut self, token: Token, logit: f32) {
        let logit = f64::from(logit);
        let bits = self.noise.bits(token);
        let bound = logit + self.temperature * noise::gumbel_bound(bits);
        if bound < self.threshold || logit == f64::NEG_INFINITY {
            return;
        }
        let score = logit + self.temperature * noise::gumbel(bits);
        let before = |d: &Drawn| d.score > score || d.score == score && d.token < token;
        let at = self.drawn.partition_point(before);
        if at < self.m {
            self.drawn.truncate(self.m - 1);
            self.drawn.insert(at, Drawn { token, score });
            if self.drawn.len() == self.m {
                self.threshold = self.drawn[self.m - 1].score;
            }
        }
    }

    /// Hash bits above this cannot lift any of a group of logits, of which this is the greatest, among the
    /// best; `None` if no bits can. See [`noise::gumbel_bound`]: so many leading zeros are needed at least.
    fn limit(&self, greatest: f32) -> Option<u64> {
        let needed =
            (self.threshold - f64::from(greatest)) / (self.temperature * std::f64::consts::LN_2) - 1.0;
        // A millionth covers all rounding.
        match (needed - 1e-6).ceil() {
            zeros if zeros > 52.0 => None,
            zeros if zeros >= 1.0 => Some(u64::MAX >> zeros as u32),
            _ => Some(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, by sorting everything.
    fn reference(params: &SamplerParams, logits: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..logits.len())
            .filter(|&i| logits[i] > f32::NEG_INFINITY)
            .collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if params.top_k > 0 {
            order.truncate(params.top_k);
        }
        let weight = |i: usize| f64::from(logits[i] - logits[order[0]]).exp();
        let total: f64 = order.iter().map(|&i| weight(i)).sum();
        let mut kept = Vec::new();
        let mut sum = 0.0;
        for &i in &order {
            let full = params.top_p < 1.0 && sum >= f64::from(params.top_p) * total;
            if full || weight(i) < f64::from(params.min_p) {
                break;
            }
            sum += weight(i);
            kept.push(i);
        }
        kept
    }

    proptest! {
        #[test]
        fn filters_equal_their_definition(
            // Multiples of 1/8 make ties common and keep sums away from thresholds' rounding.
            eighths in prop::collection::vec(prop_oneof![9 => (-160i32..160).prop_map(Some), 1 => Just(None)], 1..300),
            top_k in prop_oneof![Just(0usize), 1usize..320],
            top_p in prop_oneof![Just(1.0f32), 0.01f32..0.999],
            min_p in prop_oneof![Just(0.0f32), 0.001f32..0.9],
        ) {
            let logits: Vec<f32> =
                eighths.iter().map(|x| x.map_or(f32::NEG_INFINITY, |x| x as f32 / 8.0)).collect();
            let Ok(row) = Row::new(&logits, None) else { return Ok(()) };
            let params = SamplerParams { top_k, top_p, min_p, ..Default::default() };
            let mut ranked = Vec::new();
            let kept: Vec<usize> = match row.survivors(&params, &mut ranked) {
                Survivors::All => (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect(),
                Survivors::Listed => ranked.iter().map(|r| r.index()).collect(),
            };
            let sorted = |mut v: Vec<usize>| { v.sort_unstable(); v };
            prop_assert_eq!(sorted(kept), sorted(reference(&params, &logits)));
        }

        #[test]
        fn draws_equal_the_sort_of_all_scores(
            logits in prop::collection::vec(-20f32..20.0, 1..400), key: u64, temperature in (0.01f32..3.0).prop_map(f64::from), m in 1usize..9,
        ) {
            let noise = Noise::at(key, 3);
            let candidates = || logits.iter().enumerate().map(|(i, &x)| (i as Token, x));
            let mut all: Vec<Drawn> = candidates()
                .map(|(token, x)| Drawn { token, score: f64::from(x) + temperature * noise.gumbel(token) })
                .collect();
            all.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.token.cmp(&b.token)));
            all.truncate(m);
            let mut drawn = Vec::new();
            let params = SamplerParams {
                temperature: temperature as f32, top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default()
            };
            Row::new(&logits, None).unwrap().draw(&params, noise, m, &mut Vec::new(), &mut drawn);
            prop_assert_eq!(drawn, all);
        }

        #[test]
        fn ranks_keep_logit_and_index(index in 0usize..1 << 32, a: f32, b: f32) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let ranked = Ranked::new(index, a);
            prop_assert_eq!((ranked.index(), ranked.logit()), (index, a + 0.0));
            if a != b {
                prop_assert_eq!(Ranked::new(index, a) > Ranked::new(index / 2, b), a > b);
            }
        }
    }

    #[test]
    fn ties_at_the_border_go_to_the_lowest_ids() {
        let mut ranked = Vec::new();
        Row::new(&[0.0; 1000], None).unwrap().best(5, &mut ranked);
        assert_eq!(
            ranked.iter().map(|r| r.index()).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4]
        );
    }

    fn greatest(logits: &[f32]) -> Result<f32, LogitError> {
        Row::new(logits, None).map(|row| row.greatest)
    }

    #[test]
    fn a_logit_that_is_no_number_is_named() {
        let check = |length: usize, at: usize, value: f32| {
            let mut logits = vec![0.5; length];
            logits[at] = value;
            assert_eq!(
                greatest(&logits),
                Err(LogitError::NotFinite { token: at as Token })
            );
        };
        for at in [0, 1, 15, 16, 31, 32, 36] {
            check(37, at, f32::NAN);
            check(37, at, -f32::NAN);
            check(37, at, f32::INFINITY);
        }
        assert_eq!(
            greatest(&[f32::NEG_INFINITY; 20]),
            Err(LogitError::NotFinite { token: 0 })
        );
        assert_eq!(greatest(&[]), Err(LogitError::NotFinite { token: 0 }));
        assert_eq!(greatest(&[f32::NEG_INFINITY, -3.0]), Ok(-3.0));
    }
}
