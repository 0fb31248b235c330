//! A short text in shared memory, stored in atomic words. A load during a store returns arbitrary
//! characters, but at most the capacity. The structure that contains the text must therefore order
//! loads and stores (see [`AbortRecord`](super::AbortRecord)).

use crate::base::sync::{AtomicU64, Ordering};

/// A text of at most `8 * WORDS` bytes. A zeroed text is empty.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SharedText<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Default for SharedText<WORDS> {
    fn default() -> Self {
        Self { len: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const WORDS: usize> SharedText<WORDS> {
    /// Stores a text. A longer text is truncated at a character boundary.
    pub(super) fn store(&self, text: &str) {
        let text = truncate_utf8(text, 8 * WORDS).as_bytes();
        self.len.store(text.len() as u64, Ordering::Relaxed);
        for (cell, bytes) in self.words.iter().zip(text.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Loads the text.
    pub(super) fn load(&self) -> String {
        let len = usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(0).min(8 * WORDS);
        let words = self.words[..len.div_ceil(8)].iter();
        let mut bytes: Vec<u8> =
            words.flat_map(|cell| cell.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
impl<const WORDS: usize> SharedText<WORDS> {
    /// Stores an invalid length and an invalid character, as a faulty rank may do.
    pub(super) fn corrupt(&self) {
        self.len.store(u64::MAX, Ordering::Relaxed);
        self.words[0].store(u64::MAX, Ordering::Relaxed);
    }
}

/// Returns the longest prefix of `text` of at most `limit` bytes that ends at a character boundary.
pub(super) fn truncate_utf8(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
