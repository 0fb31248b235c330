//! The call fingerprint: a hash chained over all operations that a rank has issued in a group. Two
//! ranks that issued the same operations in the same order have equal fingerprints.

use crate::base::ids::{GroupId, WorldSize};
use crate::base::label::Label;

/// Returns the fingerprint of a group of `size` ranks before its first operation.
pub(super) fn seed(group_id: GroupId, size: WorldSize) -> u64 {
    group_id.0.iter().fold(size as u64, |hash, &byte| mix_word(hash, u64::from(byte)))
}

/// Extends the fingerprint by one operation. `words` is the encoded descriptor of the operation.
#[inline]
pub(super) fn extend(hash: u64, words: &[u64; 3], label: &Label) -> u64 {
    let hash = words.iter().fold(hash, |hash, &word| mix_word(hash, word));
    if label.is_none() { hash } else { mix_word(hash, label.hash()) }
}

/// Returns a hash of one operation. `words` is the encoded descriptor of the operation.
#[inline]
pub fn hash_operation(words: &[u64; 3], label: &Label) -> u64 {
    extend(0, words, label)
}

/// Mixes one word into a fingerprint. The function multiplies two 64-bit values to 128 bits and
/// combines the two halves by XOR, so that every input bit affects the whole result.
fn mix_word(hash: u64, word: u64) -> u64 {
    let product =
        u128::from(hash ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xd1b5_4a32_d192_ed03);
    let (low, high) = (product & u128::from(u64::MAX), product >> 64);
    // Both halves fit in 64 bits.
    u64::try_from(low ^ high).unwrap_or(0).rotate_left(23) ^ word
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn fingerprint_depends_on_the_label_order() {
        let [none, a, b] = ["", "a", "b"].map(|text| Label::new(text).unwrap());
        let hash = |labels: [Label; 2]| {
            labels.iter().fold(7, |hash, label| extend(hash, &[1, 2, 3], label))
        };
        let mut seen = HashSet::new();
        for first in [none, a, b] {
            for second in [none, a, b] {
                assert!(seen.insert(hash([first, second])));
            }
        }
    }

    #[test]
    fn similar_words_give_different_fingerprints() {
        let mut seen = HashSet::new();
        for hash in 0..64 {
            for word in 0..64 {
                assert!(seen.insert(mix_word(hash, word << 8)), "{hash} {word}");
            }
        }
    }
}
