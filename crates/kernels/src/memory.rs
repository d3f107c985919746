//! Aligned bytes, and slices that several threads write disjoint parts of.
use crate::packed::ALIGN;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    marker::PhantomData,
    ops::Range,
    ptr::NonNull,
};

/// Zeroed bytes at a multiple of 64. Pages that nobody has written yet take no memory.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes like a `Box<[u8]>`.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), ALIGN).expect("no allocation is larger than isize::MAX")
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
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
