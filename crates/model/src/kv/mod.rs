//! The paged KV cache: keys (after rope) and values in f16, in pages that sequences share.
//!
//! Two halves that know nothing of each other: [`table`] says which slot belongs to which position of which
//! sequence, and [`store`] holds the numbers. This file joins them.
//!
//! A sequence's committed positions lie in its pages in order. The rows of a pass lie behind them in the
//! order of the batch, so a chain is in place at once; of a tree, [`KvCache::commit`] moves the accepted
//! path into place, bits as they are.
//!
//! Not here: attention itself, and sharing by content (prefix caching).
mod store;
mod table;
#[cfg(test)]
mod tests;

use foretoken_kernels::Isa;
use foretoken_kernels::attention::{KvLayout, KvPages, PAGE};
use foretoken_spec::{Batch, ModelError, OutOfPages, Pages, RowId, SequenceId};
use store::Store;
pub(crate) use store::TooLarge;
pub(crate) use table::PassPlan;
use table::Table;

/// Pages beyond what the positions asked for take: room for the rows of a tree that are not positions, and
/// for the copy of a shared page. Memory that is not used is not touched.
const SPARE_PAGES: usize = 4;

/// Keys and values of all sequences of a model.
#[derive(Debug)]
pub(crate) struct KvCache {
    table: Table,
    store: Store,
}

impl KvCache {
    /// A cache for `positions` positions, over all sequences, of a model with `layers` layers.
    pub(crate) fn new(isa: Isa, layers: usize, layout: KvLayout, positions: usize) -> Result<Self, TooLarge> {
        let pages = positions.div_ceil(PAGE).saturating_add(SPARE_PAGES);
        Ok(Self {
            store: Store::new(isa, layers, layout, pages)?,
            table: Table::new(pages),
        })
    }

    /// Opens an empty sequence.
    pub(crate) fn open(&mut self) -> SequenceId {
        self.table.open()
    }

    /// Committed positions of a sequence; 0 if it is not open.
    pub(crate) fn len(&self, sequence: SequenceId) -> usize {
        self.table.len(sequence)
    }

    /// Pages, and those that belong to no sequence.
    pub(crate) fn pages(&self) -> Pages {
        self.table.pages()
    }

    /// Secures pages for `rows` rows beyond the committed ones, in place of what was reserved before. They
    /// stay the sequence's until its next pass is over; a fork in between may make one more necessary. An
    /// unknown sequence needs nothing.
    pub(crate) fn reserve(&mut self, sequence: SequenceId, rows: usize) -> Result<(), OutOfPages> {
        let copies = self.table.reserve(sequence, rows)?;
        self.store.copy_pages(&copies);
        Ok(())
    }

    /// Gives every row of a batch a position and a slot. Rows of the pass before that were not committed
    /// are gone. An error changes nothing.
    ///
    /// The pass goes on with [`write`](Self::write) for each layer and slot, [`layer`](Self::layer), and
    /// [`finish_pass`](Self::finish_pass), without which nothing can be committed.
    pub(crate) fn begin_pass(
        &mut self,
        batch: &Batch,
        context_length: usize,
    ) -> Result<PassPlan, ModelError> {
        let (plan, copies) = self.table.begin_pass(batch, context_length)?;
        self.store.copy_pages(&copies);
        Ok(plan)
    }

    /// Stores a row's key and value, `[kv_heads][head_dim]` each, rounded to f16.
    ///
    /// # Panics
    /// If layer, slot or lengths are not those of the cache.
    pub(crate) fn write(&mut self, layer: usize, slot: u32, key: &[f32], value: &[f32]) {
        self.store.write(layer, slot, key, value);
    }

    /// The keys and values of a layer, for attention.
    ///
    /// # Panics
    /// If there is no such layer.
    pub(crate) fn layer(&self, layer: usize) -> KvPages<'_> {
        self.store.layer(layer)
    }

    /// Says that all rows of the pass are written, in all layers.
    pub(crate) fn finish_pass(&mut self) {
        self.table.finish_pass();
    }

    /// Keeps rows of the finished pass that form a path, up to the first that does not continue it, and
    /// drops the sequence's others.
    pub(crate) fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) {
        for (from, to) in self.table.commit(sequence, rows) {
            self.store.copy_slot(from, to);
        }
    }

    /// Forgets all but the first `len` committed positions.
    pub(crate) fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.table.truncate(sequence, len);
    }

    /// Replaces what a sequence holds by the first `len` committed positions of another, or all that it has. Their pages are
    /// shared until one of the two writes to them. An unknown sequence has none.
    pub(crate) fn share(&mut self, sequence: SequenceId, from: SequenceId, len: usize) {
        self.table.share(sequence, from, len);
    }

    /// Closes a sequence and gives its pages back.
    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.table.release(sequence);
    }
}
