//! Views of foreign memory: a caller's buffer, or a data slot that several ranks share.
//!
//! The library passes such memory to its inner layers only as views. [`Src`] and [`Dst`] are an
//! address and a length in bytes, never a Rust reference. Another process may write the bytes at
//! any time, and a caller may pass one buffer as both input and output. Only `kernel` and the
//! transports read or write through views.
#![allow(
    unsafe_code,
    reason = "the constructors state the obligation, so that all code based on them is safe"
)]

use super::vector_copy::{StoreKind, move_bytes};
use std::marker::PhantomData;
use std::ops::Range;

/// The size of a word in bytes.
pub const WORD: usize = size_of::<u64>();

/// A view of bytes that may be read during `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Src<'a> {
    ptr: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

/// A view of bytes that may be written (and read) during `'a`. Several views may refer to the same
/// bytes: the copies of a `Dst`, and the [`Src`] that [`Dst::as_src`] returns. In-place operations
/// depend on this.
#[derive(Clone, Copy, Debug)]
pub struct Dst<'a> {
    ptr: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: a view is an address and a length. The obligation of its constructor, which makes its use
// sound, holds on every thread.
unsafe impl Send for Src<'_> {}
// SAFETY: as above.
unsafe impl Sync for Src<'_> {}
// SAFETY: as above.
unsafe impl Send for Dst<'_> {}
// SAFETY: as above.
unsafe impl Sync for Dst<'_> {}

impl<'a> Src<'a> {
    /// Returns a view of `len` bytes at `ptr`. If `len` is 0, the pointer may be anything.
    ///
    /// # Safety
    /// The bytes must stay readable during `'a`. Other processes may write them at the same time.
    /// Such reads return arbitrary bytes, so a protocol must define when the bytes are final.
    pub const unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, lifetime: PhantomData }
    }

    /// Returns the empty view.
    pub const fn empty() -> Self {
        Self { ptr: std::ptr::dangling(), len: 0, lifetime: PhantomData }
    }

    /// Returns the address of the first byte.
    pub const fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns whether the view is empty.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the view of `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If these bytes are not within the view.
    #[must_use]
    pub fn slice(self, offset: usize, len: usize) -> Self {
        check_range(self.len, offset, len);
        Self { ptr: self.ptr.wrapping_add(offset), len, lifetime: PhantomData }
    }

    /// Returns the view of a range of bytes, as [`Self::slice`].
    ///
    /// # Panics
    /// If these bytes are not within the view.
    #[must_use]
    pub fn range(self, range: &Range<usize>) -> Self {
        self.slice(range.start, range.len())
    }

    /// Returns the same bytes as a part of this view, or `None` if they are not within it.
    pub fn find(self, bytes: Src<'_>) -> Option<Self> {
        let offset = bytes.ptr.addr().checked_sub(self.ptr.addr())?;
        (offset <= self.len && bytes.len <= self.len - offset)
            .then(|| self.slice(offset, bytes.len))
    }

    /// Returns a view of the same bytes without the limit of its lifetime.
    ///
    /// # Safety
    /// The bytes must stay readable as long as the result is used.
    pub const unsafe fn without_lifetime(self) -> Src<'static> {
        Src { ptr: self.ptr, len: self.len, lifetime: PhantomData }
    }

    /// Returns the word at byte `at`, little endian. Bytes after the end of the view count as zero.
    #[inline]
    pub fn word(self, at: usize) -> u64 {
        let left = self.len.saturating_sub(at);
        match left {
            WORD.. => u64::from_le_bytes(self.read_array(at)),
            0 => 0,
            1..=3 => {
                // The three reads below cover 1, 2 or 3 bytes. If there are fewer than three bytes,
                // some reads have the same byte.
                let byte =
                    |i: usize| u64::from(u8::from_le_bytes(self.read_array(at + i))) << (8 * i);
                byte(0) | byte(left / 2) | byte(left - 1)
            }
            4.. => {
                let half =
                    |i: usize| u64::from(u32::from_le_bytes(self.read_array(at + i))) << (8 * i);
                half(0) | half(left - 4)
            }
        }
    }

    /// Returns `LEN` bytes from `at` on.
    #[inline]
    fn read_array<const LEN: usize>(self, at: usize) -> [u8; LEN] {
        check_range(self.len, at, LEN);
        // SAFETY: the bytes are in the range, and valid by the obligation of the constructor; bytes
        // have no alignment.
        unsafe { self.ptr.wrapping_add(at).cast::<[u8; LEN]>().read() }
    }
}

impl<'a> Dst<'a> {
    /// Returns a view of `len` bytes at `ptr`. If `len` is 0, the pointer may be anything.
    ///
    /// # Safety
    /// The bytes must stay writable during `'a`, and no reference to them may be used during `'a`.
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, lifetime: PhantomData }
    }

    /// Returns the empty view.
    pub const fn empty() -> Self {
        Self { ptr: std::ptr::dangling_mut(), len: 0, lifetime: PhantomData }
    }

    /// Returns the address of the first byte.
    pub const fn as_mut_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// Returns a view of the same bytes for reading.
    pub const fn as_src(self) -> Src<'a> {
        Src { ptr: self.ptr.cast_const(), len: self.len, lifetime: PhantomData }
    }

    /// Copies `src` to this view. The two may overlap in any way.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from(self, src: Src<'_>) {
        self.check_len_of(src);
        // A short copy takes a few loads and stores. The general copy is a call of memmove, which
        // selects a method at run time.
        match self.len {
            0 => {}
            // SAFETY: both views are valid for their length, by the obligation of their
            // constructors, and the length is in the range.
            len @ 4..=8 => unsafe { copy_ends::<4>(src.ptr, self.ptr, len) },
            // SAFETY: as above.
            len @ 9..=16 => unsafe { copy_ends::<8>(src.ptr, self.ptr, len) },
            // SAFETY: as above.
            len @ 17..=32 => unsafe { copy_ends::<16>(src.ptr, self.ptr, len) },
            // SAFETY: as above.
            len @ 33..=64 => unsafe { copy_ends::<32>(src.ptr, self.ptr, len) },
            // SAFETY: as above, and the lengths are equal.
            len => unsafe { move_bytes(self.ptr, src.ptr, len, StoreKind::Cached) },
        }
    }

    /// Copies `src` to this view past the cache, for bytes that no cache will keep. The two may
    /// overlap in any way.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_past_cache(self, src: Src<'_>) {
        self.check_len_of(src);
        // SAFETY: both views are valid for their length, by the obligation of their constructors,
        // and the lengths are equal.
        unsafe { move_bytes(self.ptr, src.ptr, self.len, StoreKind::NonTemporal) };
    }

    /// Panics if `src` has another length than this view.
    fn check_len_of(self, src: Src<'_>) {
        assert!(
            self.len == src.len,
            "a source of {} bytes for a destination of {}",
            src.len,
            self.len
        );
    }

    /// Fills the view with zeros.
    pub fn fill_zero(self) {
        // SAFETY: the view is valid for its length, by the obligation of its constructor, and bytes
        // have no alignment.
        unsafe { self.ptr.write_bytes(0, self.len) };
    }

    /// Writes a word, little endian, from byte `at` on. Bytes that would be after the end of the
    /// view are dropped.
    #[inline]
    pub fn set_word(self, at: usize, word: u64) {
        let left = self.len.saturating_sub(at);
        let from = |i: usize| (word >> (8 * i)).to_le_bytes();
        match left {
            0 => {}
            1..=3 => [0, left / 2, left - 1]
                .into_iter()
                .for_each(|i| self.write_array(at + i, [from(i)[0]])),
            4..=7 => [0, left - 4].into_iter().for_each(|i| {
                self.write_array::<4>(at + i, std::array::from_fn(|byte| from(i)[byte]))
            }),
            _ => self.write_array(at, word.to_le_bytes()),
        }
    }

    /// Writes `bytes` from `at` on.
    #[inline]
    fn write_array<const LEN: usize>(self, at: usize, bytes: [u8; LEN]) {
        check_range(self.len, at, LEN);
        // SAFETY: the bytes are in the range, and valid by the obligation of the constructor; bytes
        // have no alignment.
        unsafe { self.ptr.wrapping_add(at).cast::<[u8; LEN]>().write(bytes) };
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns whether the view is empty.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the view of `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If these bytes are not within the view.
    #[must_use]
    pub fn slice(self, offset: usize, len: usize) -> Self {
        check_range(self.len, offset, len);
        Self { ptr: self.ptr.wrapping_add(offset), len, lifetime: PhantomData }
    }

    /// Returns the view of a range of bytes, as [`Self::slice`].
    ///
    /// # Panics
    /// If these bytes are not within the view.
    #[must_use]
    pub fn range(self, range: &Range<usize>) -> Self {
        self.slice(range.start, range.len())
    }
}

impl<'a> From<&'a [u8]> for Src<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), lifetime: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for Dst<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), lifetime: PhantomData }
    }
}

impl<'a> From<&'a mut [f64]> for Dst<'a> {
    fn from(numbers: &'a mut [f64]) -> Self {
        Self { ptr: numbers.as_mut_ptr().cast(), len: size_of_val(numbers), lifetime: PhantomData }
    }
}

impl<'a> From<&'a mut [f32]> for Dst<'a> {
    fn from(numbers: &'a mut [f32]) -> Self {
        Self { ptr: numbers.as_mut_ptr().cast(), len: size_of_val(numbers), lifetime: PhantomData }
    }
}

/// Copies `CHUNK` to `2 * CHUNK` bytes: the first `CHUNK` bytes, and the last `CHUNK` bytes, which
/// may overlap the first.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes, and `len` is from `CHUNK` to `2 *
/// CHUNK`.
#[inline]
unsafe fn copy_ends<const CHUNK: usize>(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!((CHUNK..=2 * CHUNK).contains(&len));
    let tail_offset = len - CHUNK;
    // Both chunks are read before either is written, since the memory may overlap.
    //
    // SAFETY: these are the first `CHUNK` of `len` readable bytes; bytes have no alignment.
    let first = unsafe { from.cast::<[u8; CHUNK]>().read() };
    // SAFETY: these are the last `CHUNK` of the readable bytes.
    let last = unsafe { from.wrapping_add(tail_offset).cast::<[u8; CHUNK]>().read() };
    // SAFETY: these are the first `CHUNK` of `len` writable bytes.
    unsafe { to.cast::<[u8; CHUNK]>().write(first) };
    // SAFETY: these are the last `CHUNK` of the writable bytes.
    unsafe { to.wrapping_add(tail_offset).cast::<[u8; CHUNK]>().write(last) };
}

fn check_range(view_len: usize, offset: usize, len: usize) {
    let end = offset.checked_add(len);
    assert!(
        end.is_some_and(|end| end <= view_len),
        "bytes {offset}+{len} lie outside a view of {view_len} bytes"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_outside_the_view_panics() {
        let bytes = [1u8, 2, 3, 4];
        let view = Src::from(&bytes[..]);
        assert_eq!(view.slice(1, 3).len(), 3);
        assert_eq!(view.slice(4, 0).len(), 0);
        assert!(std::panic::catch_unwind(|| view.slice(2, 3)).is_err());
        assert!(std::panic::catch_unwind(|| view.slice(usize::MAX, 2)).is_err());
    }

    #[test]
    fn copies_of_every_length_are_correct_when_overlapping() {
        for len in 0..=130 {
            for shift in [0, 1, 5, 33, 200] {
                for forwards in [true, false] {
                    let mut bytes: Vec<u8> = (0..=250).cycle().take(400).collect();
                    let before = bytes.clone();
                    let (from, to) = if forwards { (20 + shift, 20) } else { (20, 20 + shift) };
                    let all = Dst::from(&mut bytes[..]);
                    all.slice(to, len).copy_from(all.as_src().slice(from, len));
                    let mut expected = before.clone();
                    expected.copy_within(from..from + len, to);
                    assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
                }
            }
        }
    }
    #[test]
    fn word_access_is_clipped_to_the_view() {
        let bytes: Vec<u8> = (1..=20).collect();
        for len in 0..=20 {
            let (view, mut copy) = (Src::from(&bytes[..len]), vec![0; 20]);
            for at in (0..len + 9).step_by(WORD) {
                let left = len.saturating_sub(at).min(WORD);
                let mut expected = [0; WORD];
                expected[..left].copy_from_slice(&bytes[at.min(len)..][..left]);
                assert_eq!(view.word(at).to_le_bytes(), expected, "{len} bytes, from {at}");
                expected[left..].fill(255);
                Dst::from(&mut copy[..len]).set_word(at, u64::from_le_bytes(expected));
            }
            assert_eq!(copy[..len], bytes[..len]);
            assert!(copy[len..].iter().all(|&byte| byte == 0));
        }
    }
}
