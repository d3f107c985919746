//! The numbers of the cache: per layer one buffer of keys and one of values.
use foretoken_kernels::Isa;
use foretoken_kernels::attention::{KvLayout, KvPages, PAGE};

/// A cache that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a KV cache of {pages} pages of {PAGE} positions takes more memory than there is")]
pub(crate) struct TooLarge {
    /// Pages asked for.
    pub(crate) pages: usize,
}

#[derive(Debug)]
pub(super) struct Store {
    isa: Isa,
    layout: KvLayout,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    keys: Vec<u16>,
    values: Vec<u16>,
}

impl Store {
    /// Zeroed memory, which the system maps only when it is touched.
    pub(super) fn new(isa: Isa, layers: usize, layout: KvLayout, pages: usize) -> Result<Self, TooLarge> {
        let too_large = TooLarge { pages };
        let len = PAGE
            .checked_mul(layout.kv_heads)
            .and_then(|n| n.checked_mul(layout.head_dim)?.checked_mul(pages))
            .ok_or(too_large)?;
        let bytes = layers
            .checked_mul(4)
            .and_then(|n| n.checked_mul(len))
            .ok_or(too_large)?;
        if pages > u32::MAX as usize / PAGE {
            return Err(too_large);
        }
        // Asks for the whole at once and gives it back: a refusal here is an error, one below an abort.
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| too_large)?;
        let layers = (0..layers)
            .map(|_| Layer {
                keys: vec![0; len],
                values: vec![0; len],
            })
            .collect();
        Ok(Self { isa, layout, layers })
    }

    pub(super) fn write(&mut self, layer: usize, slot: u32, key: &[f32], value: &[f32]) {
        let Layer { keys, values } = &mut self.layers[layer];
        self.layout.write(self.isa, keys, values, slot, key, value);
    }

    pub(super) fn layer(&self, layer: usize) -> KvPages<'_> {
        let Layer { keys, values } = &self.layers[layer];
        KvPages { keys, values }
    }

    pub(super) fn copy_slot(&mut self, from: u32, to: u32) {
        for Layer { keys, values } in &mut self.layers {
            self.layout.copy_slot(keys, values, from, to);
        }
    }

    pub(super) fn copy_pages(&mut self, copies: &[(u32, u32)]) {
        for &(from, to) in copies {
            for Layer { keys, values } in &mut self.layers {
                self.layout.copy_page(keys, values, from, to);
            }
        }
    }
}
