//! Large memory, and slices that several threads write disjoint parts of.
use crate::packed::ALIGN;
use memmap2::{MmapMut, MmapRaw};
use std::{io, marker::PhantomData, ops::Range, sync::Arc};

/// What the system's large pages hold, where it has any: their usual size.
const LARGE_PAGE: usize = 2 << 20;
/// Bytes of a chunk at least.
const CHUNK: usize = 64 << 20;

/// Memory that matrices are packed into, one after the other. It comes in chunks of 64 MiB or more from the system, for
/// pages to be large: a pass reads all weights once, and with pages of 4 KiB looking up addresses takes its time. What
/// nobody has packed into yet takes no memory; a chunk is given back with the arena and the last matrix in it.
#[derive(Debug, Default)]
pub struct Arena {
    chunk: Option<Arc<MmapRaw>>,
    /// Where the free part of the chunk begins.
    free: usize,
}

impl Arena {
    /// An arena without memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `len` zeroed bytes, from a multiple of 64 on, and has them written.
    ///
    /// # Errors
    /// If the system has no such memory.
    pub(crate) fn fill(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> io::Result<ArenaBytes> {
        let chunk = match self.chunk.take() {
            Some(chunk) if chunk.len() - self.free >= len => chunk,
            _ => {
                let size = len.max(CHUNK).checked_add(LARGE_PAGE);
                let map = MmapMut::map_anon(size.ok_or(io::ErrorKind::OutOfMemory)?)?;
                // No harm where the system knows no larger pages.
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage);
                self.free = map.as_ptr().align_offset(LARGE_PAGE);
                Arc::new(MmapRaw::from(map))
            }
        };
        let range = self.free..self.free + len;
        self.free = range.end.next_multiple_of(ALIGN).min(chunk.len());
        self.chunk = Some(Arc::clone(&chunk));
        // SAFETY: within the map, and no other range that was handed out overlaps this one.
        write(unsafe { std::slice::from_raw_parts_mut(chunk.as_mut_ptr().add(range.start), len) });
        Ok(ArenaBytes { chunk, range })
    }
}

/// A part of an [`Arena`], written once.
#[derive(Debug)]
pub(crate) struct ArenaBytes {
    chunk: Arc<MmapRaw>,
    range: Range<usize>,
}

impl std::ops::Deref for ArenaBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: within the map; nobody writes a range after it was handed out.
        unsafe { std::slice::from_raw_parts(self.chunk.as_ptr().add(self.range.start), self.range.len()) }
    }
}

/// A mutable slice whose parts are handed to different threads.
#[derive(Debug)]
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out `&mut [T]` of parts that do not overlap, by the promise that `part` asks for.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as a `&mut [T]`.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// A part of the slice; panics if it does not lie within.
    ///
    /// # Safety
    /// Parts that live at the same time must not overlap.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the slice, and by the caller's promise nobody else has this part.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_and_outlive_the_arena() {
        let mut arena = Arena::new();
        let sizes = [1000, 0, 64, 2 * CHUNK, 3, CHUNK - 70, 100];
        let parts: Vec<_> = sizes
            .iter()
            .zip(1u8..)
            .map(|(&size, value)| {
                let part = arena.fill(size, |bytes| {
                    assert!(bytes.iter().all(|&b| b == 0));
                    bytes.fill(value);
                });
                part.unwrap()
            })
            .collect();
        drop(arena);
        for ((part, size), value) in parts.iter().zip(sizes).zip(1u8..) {
            assert_eq!(part.len(), size);
            assert!(part.iter().all(|&b| b == value));
            assert_eq!(part.as_ptr().align_offset(64), 0);
        }
        // The first ones share a chunk.
        assert!(Arc::ptr_eq(&parts[0].chunk, &parts[2].chunk));
        assert!(!Arc::ptr_eq(&parts[0].chunk, &parts[3].chunk));
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        assert!(Arena::new().fill(usize::MAX - 1, |_| ()).is_err());
        assert!(Arena::new().fill(1 << 60, |_| ()).is_err());
    }
}
