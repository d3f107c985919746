//! Where a slot's keys and values lie in the pages of a layer.
//!
//! Keys are transposed within a page, `[page][kv_head][head_dim][PAGE]`, so that eight positions fill a
//! vector and a score is one chain of fused multiply-adds over the head, without a sum across lanes.
//! Values are `[page][kv_head][PAGE][head_dim]`.
use super::PAGE;
use crate::Isa;
use crate::vector::lanes::{Lanes, dispatch};
use crate::vector::to_f16_lanes;

/// The stored keys and values of one layer, f16 bits, whole pages. A slot is `page * PAGE + offset`.
#[derive(Clone, Copy, Debug)]
pub struct KvPages<'a> {
    /// Keys.
    pub keys: &'a [u16],
    /// Values.
    pub values: &'a [u16],
}

/// How the pages of one layer are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl KvLayout {
    /// Elements of a page, of the keys as of the values.
    pub fn page_len(self) -> usize {
        self.kv_heads * self.head_page_len()
    }

    /// Elements of one head's part of a page.
    pub(super) fn head_page_len(self) -> usize {
        PAGE * self.head_dim
    }

    /// Where one head's part of a page begins.
    pub(super) fn head_page(self, page: usize, kv_head: usize) -> usize {
        page * self.page_len() + kv_head * self.head_page_len()
    }

    /// Rounds a key and a value, `[kv_heads][head_dim]` each, to f16 and stores them in a slot.
    ///
    /// # Panics
    /// If the slot or the lengths do not fit.
    pub fn write(
        self,
        isa: Isa,
        keys: &mut [u16],
        values: &mut [u16],
        slot: u32,
        key: &[f32],
        value: &[f32],
    ) {
        assert!(
            key.len() == self.kv_heads * self.head_dim && value.len() == key.len(),
            "[kv_heads][head_dim]"
        );
        let layout = self;
        dispatch!(
            isa,
            write_lanes,
            layout: KvLayout,
            keys: &mut [u16],
            values: &mut [u16],
            slot: u32,
            key: &[f32],
            value: &[f32],
        )
    }

    /// Copies the keys and values of one slot to another.
    ///
    /// # Panics
    /// If a slot is outside.
    pub fn copy_slot(self, keys: &mut [u16], values: &mut [u16], from: u32, to: u32) {
        let ((from_page, from_at), (to_page, to_at)) = (place(from), place(to));
        for kv_head in 0..self.kv_heads {
            let (from, to) = (
                self.head_page(from_page, kv_head),
                self.head_page(to_page, kv_head),
            );
            for d in 0..self.head_dim {
                keys[to + d * PAGE + to_at] = keys[from + d * PAGE + from_at];
            }
            let from = from + from_at * self.head_dim;
            values.copy_within(from..from + self.head_dim, to + to_at * self.head_dim);
        }
    }

    /// Copies a whole page.
    ///
    /// # Panics
    /// If a page is outside.
    pub fn copy_page(self, keys: &mut [u16], values: &mut [u16], from: u32, to: u32) {
        let n = self.page_len();
        for side in [keys, values] {
            side.copy_within(from as usize * n..(from as usize + 1) * n, to as usize * n);
        }
    }
}

/// Page and offset of a slot.
pub(super) fn place(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE, slot as usize % PAGE)
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn write_lanes<L: Lanes>(
    l: L,
    layout: KvLayout,
    keys: &mut [u16],
    values: &mut [u16],
    slot: u32,
    key: &[f32],
    value: &[f32],
) {
    let (page, at) = place(slot);
    let head_dim = layout.head_dim;
    for (kv_head, (key, value)) in key
        .chunks_exact(head_dim)
        .zip(value.chunks_exact(head_dim))
        .enumerate()
    {
        let base = layout.head_page(page, kv_head);
        to_f16_lanes(l, value, &mut values[base + at * head_dim..][..head_dim]);
        let page = &mut keys[base..][..layout.head_page_len()];
        let mut halves = [0; 32];
        for (chunk, key) in key.chunks(halves.len()).enumerate() {
            to_f16_lanes(l, key, &mut halves[..key.len()]);
            for (i, &half) in halves[..key.len()].iter().enumerate() {
                page[(chunk * halves.len() + i) * PAGE + at] = half;
            }
        }
    }
}
