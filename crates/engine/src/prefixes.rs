//! Tokens that sequences begin with alike: computed once.
//!
//! What an ended sequence leaves in the cache stays, up to a number of sequences and until its pages are needed; the least
//! recently used goes first. A sequence that begins takes over what one of these, or one that is still being generated,
//! holds of the same tokens. Where an older sequence is about to compute them, it waits for that.
//!
//! Not here: pages ([`TargetModel::share`] counts who refers to them).

use std::collections::VecDeque;

use foretoken_spec::{SequenceId, TargetModel, Token};

use crate::Engine;
use crate::sequence::Sequence;

/// To wait for an older sequence's tokens, so many must be alike.
const WORTH_WAITING: usize = 16;

/// What ended sequences left, the least recently used first.
#[derive(Debug, Default)]
pub(crate) struct Prefixes(VecDeque<Prefix>);

#[derive(Debug)]
struct Prefix {
    handle: SequenceId,
    tokens: Vec<Token>,
}

impl Prefixes {
    /// Keeps what an ended sequence holds of its tokens, `most` sequences in all.
    pub fn keep<M: TargetModel>(
        &mut self,
        model: &mut M,
        handle: SequenceId,
        mut tokens: Vec<Token>,
        most: usize,
    ) {
        // Rows and reservations that will not be committed.
        model.truncate(handle, model.len(handle));
        tokens.truncate(model.len(handle));
        if tokens.is_empty() || most == 0 {
            return model.release(handle);
        }
        if let Some(longer) = self.0.iter().find(|kept| kept.tokens.starts_with(&tokens)) {
            let longer = longer.handle;
            self.touch(longer);
            return model.release(handle);
        }
        self.0.retain(|kept| {
            let contained = tokens.starts_with(&kept.tokens);
            if contained {
                model.release(kept.handle);
            }
            !contained
        });
        self.0.push_back(Prefix { handle, tokens });
        while self.0.len() > most {
            self.evict(model);
        }
    }

    /// Gives up the least recently used; `false` if there is none.
    pub fn evict<M: TargetModel>(&mut self, model: &mut M) -> bool {
        let Some(prefix) = self.0.pop_front() else {
            return false;
        };
        model.release(prefix.handle);
        true
    }

    /// Says that one was used.
    fn touch(&mut self, handle: SequenceId) {
        if let Some(at) = self.0.iter().position(|prefix| prefix.handle == handle)
            && let Some(prefix) = self.0.remove(at)
        {
            self.0.push_back(prefix);
        }
    }
}

impl<M: TargetModel> Engine<M> {
    /// Gives sequences that have not computed anything yet what others hold of the same tokens, and lets them wait for what
    /// an older one is about to compute.
    pub(crate) fn share_prefixes(&mut self) {
        for at in 0..self.active.len() {
            let sequence = &self.active[at];
            if !sequence.looking || sequence.parked {
                continue;
            }
            let (handle, held) = (sequence.handle, self.model.len(sequence.handle));
            // The last token is evaluated in any case: the next is drawn from its row.
            let wanted = &sequence.tokens[..sequence.tokens.len() - 1];
            let others = self.active.iter().filter(|other| other.handle != handle);
            let others = others.map(|other| (other.handle, &other.tokens[..self.model.len(other.handle)]));
            let kept = self.prefixes.0.iter().map(|kept| (kept.handle, &kept.tokens[..]));
            let found = others
                .chain(kept)
                .map(|(from, tokens)| (common(wanted, tokens), from));
            let best = found.max_by_key(|(len, _)| *len).filter(|(len, _)| *len > held);
            let held = best.map_or(held, |(len, _)| len);
            let pending = |of: &Sequence| of.tokens.len() - self.model.len(of.handle);
            let mut reading = self.active[..at]
                .iter()
                .filter(|older| !older.parked && !older.is_decoding());
            let oldest = reading.clone().next().map(|oldest| oldest.id);
            let waits = reading.any(|older| {
                // One that gets no rows before this sequence would is not worth waiting for.
                let computes = Some(older.id) == oldest || pending(older) <= pending(sequence);
                computes && common(wanted, &older.tokens) >= held + WORTH_WAITING
            });
            let sequence = &mut self.active[at];
            sequence.turn.waits = waits;
            let Some((len, from)) = best.filter(|_| !waits) else {
                continue;
            };
            if !sequence.is_decoding() {
                sequence.stats.cached_tokens = len;
            }
            self.model.share(handle, from, len);
            self.prefixes.touch(from);
        }
    }

    /// Gives up what ended sequences left in the cache.
    pub fn forget_prefixes(&mut self) {
        while self.prefixes.evict(&mut self.model) {}
    }
}

/// How many tokens both begin with.
fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
