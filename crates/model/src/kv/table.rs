//! The bookkeeping of the cache: pages with reference counts, sequences, and the rows of the last pass.
//!
//! What holds between any two calls:
//! - a page is referred to by as many sequences as its count says, and free if by none;
//! - only pages that hold committed positions are shared, and a sequence never writes to positions of a
//!   shared page that another one has committed;
//! - a sequence has pages for its committed positions, its reservation and its rows of the last pass.
use foretoken_kernels::attention::{PAGE, RowPath};
use foretoken_spec::{Batch, ModelError, OutOfPages, RowId, SequenceId, Token};
use std::collections::HashMap;
use std::ops::Range;

/// From, to.
type Copies = Vec<(u32, u32)>;

#[derive(Debug)]
pub(super) struct Table {
    pages: Pages,
    sequences: HashMap<SequenceId, Sequence>,
    opened: u64,
    pass: Vec<PassRow>,
    finished: bool,
}

#[derive(Debug)]
struct Pages {
    references: Vec<u32>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Sequence {
    pages: Vec<u32>,
    len: usize,
    /// Positions that pages are reserved for.
    reserved: usize,
    /// Whether rows of the last pass may be committed.
    pending: bool,
}

/// A row of the last pass.
#[derive(Clone, Copy, Debug)]
struct PassRow {
    sequence: SequenceId,
    parent: Option<RowId>,
    /// Rows of its sequence before it: its slot is that of position `committed + ordinal`.
    ordinal: usize,
    /// Ancestors within the pass: its position is `committed + depth`.
    depth: usize,
}

/// What a pass must know of its rows: sorted so that those of a sequence stand together, in their order.
#[derive(Debug, Default)]
pub(crate) struct PassPlan {
    rows: Vec<PlannedRow>,
    pages: Vec<u32>,
    tails: Vec<u32>,
}

/// One row of a pass.
#[derive(Clone, Debug)]
pub(crate) struct PlannedRow {
    /// Its index in the batch.
    pub(crate) row: RowId,
    /// Its token.
    pub(crate) token: Token,
    /// Its position in the sequence.
    pub(crate) position: usize,
    /// Where its key and value go.
    pub(crate) slot: u32,
    pages: Range<usize>,
    prefix: usize,
    tail: Range<usize>,
}

impl PassPlan {
    /// The rows in the order in which to compute them.
    pub(crate) fn rows(&self) -> &[PlannedRow] {
        &self.rows
    }

    /// Where each row's keys lie, in the order of [`rows`](Self::rows).
    pub(crate) fn paths(&self) -> Vec<RowPath<'_>> {
        let path = |row: &PlannedRow| RowPath {
            pages: &self.pages[row.pages.clone()],
            prefix: row.prefix,
            tail: &self.tails[row.tail.clone()],
        };
        self.rows.iter().map(path).collect()
    }
}

impl Pages {
    fn shared(&self, page: u32) -> bool {
        self.references[page as usize] > 1
    }

    /// The caller has looked that there are enough.
    fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        Some(page)
    }

    fn share(&mut self, page: u32) {
        self.references[page as usize] += 1;
    }

    fn give_back(&mut self, page: u32) {
        let references = &mut self.references[page as usize];
        *references -= 1;
        if *references == 0 {
            self.free.push(page);
        }
    }
}

impl Sequence {
    /// The page that the next position goes to, if another sequence has positions in it too.
    fn shared_last(&self, pages: &Pages) -> Option<usize> {
        let last = self.len / PAGE;
        (!self.len.is_multiple_of(PAGE) && pages.shared(self.pages[last])).then_some(last)
    }

    /// Pages to take before `rows` rows can be written, if it holds `held` pages then.
    fn missing(&self, held: usize, rows: usize, pages: &Pages) -> usize {
        let cover = self.len.saturating_add(rows).div_ceil(PAGE);
        let copy = rows > 0 && self.shared_last(pages).is_some();
        cover.saturating_sub(held) + usize::from(copy)
    }

    /// Takes them; says which page is to be copied.
    fn grow(&mut self, rows: usize, pages: &mut Pages, copies: &mut Copies) {
        if rows > 0
            && let Some(last) = self.shared_last(pages)
            && let Some(copy) = pages.take()
        {
            copies.push((self.pages[last], copy));
            pages.give_back(std::mem::replace(&mut self.pages[last], copy));
        }
        let cover = (self.len + rows).div_ceil(PAGE);
        while self.pages.len() < cover
            && let Some(page) = pages.take()
        {
            self.pages.push(page);
        }
    }

    /// Pages that committed positions and the reservation need. Those beyond are its own alone.
    fn kept(&self) -> usize {
        self.len.max(self.reserved).div_ceil(PAGE).min(self.pages.len())
    }

    /// Gives back the others.
    fn shrink(&mut self, pages: &mut Pages) {
        for page in self.pages.drain(self.kept()..) {
            pages.give_back(page);
        }
    }

    fn slot(&self, at: usize) -> u32 {
        self.pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32
    }
}

impl Table {
    /// All pages free. There are fewer than 2³² slots.
    pub(super) fn new(pages: usize) -> Self {
        let free = (0..pages as u32).rev().collect();
        Self {
            pages: Pages {
                references: vec![0; pages],
                free,
            },
            sequences: HashMap::new(),
            opened: 0,
            pass: Vec::new(),
            finished: false,
        }
    }

    pub(super) fn open(&mut self) -> SequenceId {
        let id = SequenceId(self.opened);
        self.opened += 1;
        self.sequences.insert(id, Sequence::default());
        id
    }

    pub(super) fn len(&self, sequence: SequenceId) -> usize {
        self.sequences.get(&sequence).map_or(0, |s| s.len)
    }

    pub(super) fn pages(&self) -> foretoken_spec::Pages {
        foretoken_spec::Pages {
            total: self.pages.references.len(),
            free: self.pages.free.len(),
        }
    }

    fn check(needed: usize, free: usize) -> Result<(), OutOfPages> {
        if needed <= free {
            Ok(())
        } else {
            Err(OutOfPages { needed, free })
        }
    }

    pub(super) fn reserve(&mut self, sequence: SequenceId, rows: usize) -> Result<Copies, OutOfPages> {
        let mut copies = Copies::new();
        if let Some(s) = self.sequences.get(&sequence) {
            Self::check(s.missing(s.pages.len(), rows, &self.pages), self.pages.free.len())?;
        }
        if let Some(s) = self.sequences.get_mut(&sequence) {
            s.grow(rows, &mut self.pages, &mut copies);
            s.reserved = s.len + rows;
            if !s.pending {
                s.shrink(&mut self.pages);
            }
        }
        Ok(copies)
    }

    pub(super) fn begin_pass(
        &mut self,
        batch: &Batch,
        context_length: usize,
    ) -> Result<(PassPlan, Copies), ModelError> {
        let mut rows: Vec<PassRow> = Vec::with_capacity(batch.len());
        // Sequences in the order of their first rows, with the number of their rows.
        let mut counts: Vec<(SequenceId, usize)> = Vec::new();
        let mut group_of = HashMap::new();
        for row in batch.rows() {
            let id = row.sequence;
            let sequence = self.sequences.get(&id).ok_or(ModelError::UnknownSequence(id))?;
            let depth = row.parent.map_or(0, |parent| rows[parent as usize].depth + 1);
            let position = sequence.len + depth;
            if position >= context_length {
                return Err(ModelError::ContextFull {
                    position,
                    context_length,
                });
            }
            let group = *group_of.entry(id).or_insert_with(|| {
                counts.push((id, 0));
                counts.len() - 1
            });
            rows.push(PassRow {
                sequence: id,
                parent: row.parent,
                ordinal: counts[group].1,
                depth,
            });
            counts[group].1 += 1;
        }
        let missing = counts.iter().map(|(id, rows)| {
            let sequence = &self.sequences[id];
            sequence.missing(sequence.kept(), *rows, &self.pages)
        });
        let given_back = self.sequences.values().map(|s| s.pages.len() - s.kept());
        Self::check(missing.sum(), self.pages.free.len() + given_back.sum::<usize>())?;
        self.end_last_pass();

        let mut copies = Copies::new();
        let mut plan = PassPlan::default();
        let mut pages_of = Vec::with_capacity(counts.len());
        for (id, rows) in &counts {
            if let Some(s) = self.sequences.get_mut(id) {
                s.grow(*rows, &mut self.pages, &mut copies);
                s.reserved = 0;
                s.pending = true;
                pages_of.push(plan.pages.len()..plan.pages.len() + s.pages.len());
                plan.pages.extend_from_slice(&s.pages);
            }
        }
        let mut order: Vec<RowId> = (0..rows.len() as RowId).collect();
        order.sort_by_key(|&row| group_of[&rows[row as usize].sequence]);
        self.plan_rows(
            batch,
            &rows,
            &order,
            |id| pages_of[group_of[&id]].clone(),
            &mut plan,
        );
        self.pass = rows;
        Ok((plan, copies))
    }

    fn plan_rows(
        &self,
        batch: &Batch,
        rows: &[PassRow],
        order: &[RowId],
        pages: impl Fn(SequenceId) -> Range<usize>,
        plan: &mut PassPlan,
    ) {
        let mut planned_at = vec![0; rows.len()];
        for &row in order {
            let PassRow {
                sequence: id,
                parent,
                ordinal,
                depth,
            } = rows[row as usize];
            let sequence = &self.sequences[&id];
            let slot = sequence.slot(sequence.len + ordinal);
            // How much of the path to the parent is in place, and what is not.
            let (before, tail) = match parent {
                None => (sequence.len, 0..0),
                Some(parent) => {
                    let parent: &PlannedRow = &plan.rows[planned_at[parent as usize]];
                    (parent.prefix, parent.tail.clone())
                }
            };
            let (prefix, tail) = if tail.is_empty() && ordinal == depth {
                (before + 1, 0..0)
            } else if tail.end == plan.tails.len() && !tail.is_empty() {
                plan.tails.push(slot);
                (before, tail.start..plan.tails.len())
            } else {
                let start = plan.tails.len();
                plan.tails.extend_from_within(tail);
                plan.tails.push(slot);
                (before, start..plan.tails.len())
            };
            planned_at[row as usize] = plan.rows.len();
            plan.rows.push(PlannedRow {
                row,
                token: batch.rows()[row as usize].token,
                position: sequence.len + depth,
                slot,
                pages: pages(id),
                prefix,
                tail,
            });
        }
    }

    /// Drops the rows of the last pass that were not committed.
    fn end_last_pass(&mut self) {
        self.finished = false;
        for row in std::mem::take(&mut self.pass) {
            if let Some(s) = self.sequences.get_mut(&row.sequence)
                && std::mem::take(&mut s.pending)
            {
                s.shrink(&mut self.pages);
            }
        }
    }

    pub(super) fn finish_pass(&mut self) {
        self.finished = true;
    }

    /// The slots to copy, in this order.
    pub(super) fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) -> Copies {
        let mut copies = Copies::new();
        let Some(s) = self
            .sequences
            .get_mut(&sequence)
            .filter(|s| s.pending && self.finished)
        else {
            return copies;
        };
        let mut last = None;
        let mut kept = 0;
        for &id in rows {
            let Some(row) = self.pass.get(id as usize) else {
                break;
            };
            if row.sequence != sequence || row.parent != last {
                break;
            }
            // A row stands behind all its ancestors, so no copy overwrites what a later one reads.
            if row.ordinal != kept {
                copies.push((s.slot(s.len + row.ordinal), s.slot(s.len + kept)));
            }
            last = Some(id);
            kept += 1;
        }
        s.len += kept;
        s.pending = false;
        s.shrink(&mut self.pages);
        copies
    }

    pub(super) fn truncate(&mut self, sequence: SequenceId, len: usize) {
        if let Some(s) = self.sequences.get_mut(&sequence)
            && len <= s.len
        {
            *s = Sequence {
                pages: std::mem::take(&mut s.pages),
                len,
                reserved: 0,
                pending: false,
            };
            s.shrink(&mut self.pages);
        }
    }

    pub(super) fn share(&mut self, sequence: SequenceId, from: SequenceId, len: usize) {
        let Some(donor) = self.sequences.get(&from).filter(|_| from != sequence) else {
            return self.truncate(sequence, if from == sequence { len } else { 0 });
        };
        let len = len.min(donor.len);
        let shared = Sequence {
            pages: donor.pages[..len.div_ceil(PAGE)].to_vec(),
            len,
            ..Sequence::default()
        };
        if let Some(s) = self.sequences.get_mut(&sequence) {
            shared.pages.iter().for_each(|&page| self.pages.share(page));
            let before = std::mem::replace(s, shared);
            before
                .pages
                .into_iter()
                .for_each(|page| self.pages.give_back(page));
        }
    }

    /// The slot of a position that the sequence has a page for.
    #[cfg(test)]
    pub(super) fn slot(&self, sequence: SequenceId, position: usize) -> u32 {
        self.sequences[&sequence].slot(position)
    }

    #[cfg(test)]
    pub(super) fn pages_of(&self, sequence: SequenceId) -> &[u32] {
        &self.sequences[&sequence].pages
    }

    #[cfg(test)]
    pub(super) fn references(&self, page: u32) -> u32 {
        self.pages.references[page as usize]
    }

    pub(super) fn release(&mut self, sequence: SequenceId) {
        if let Some(s) = self.sequences.remove(&sequence) {
            s.pages.into_iter().for_each(|page| self.pages.give_back(page));
        }
    }
}
