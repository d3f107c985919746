//! Large memory, and slices that several threads write disjoint parts of.
use memmap2::MmapMut;
use std::{io, marker::PhantomData, ops::Range};

/// Zeroed bytes straight from the system, at the begin of a page. Pages that nobody has written yet take no
/// memory.
#[derive(Debug)]
pub(crate) struct PageBytes {
    map: MmapMut,
    len: usize,
}

impl PageBytes {
    /// # Errors
    /// If the system has no such memory.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        // The system refuses an empty map.
        let map = MmapMut::map_anon(len.max(1))?;
        // A pass reads all weights once: with pages of 4 KiB, looking up addresses is a good part of the time.
        // No harm where the system knows no larger ones.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map, len })
    }
}

impl std::ops::Deref for PageBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl std::ops::DerefMut for PageBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
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
