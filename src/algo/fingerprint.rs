//! The call fingerprint: a hash chained over all operations that a rank has issued in a group. Two
//! ranks that issued the same operations in the same order have equal fingerprints.

use crate::base::ids::{GroupId, WorldSize};
use crate::base::label::Label;
use crate::transport::Descriptor;

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

/// A hash of the arguments of a call: of everything in its descriptor but the algorithm, the
/// sequence number and the label. Repeated calls have the same value, so the fast path does not
/// compute it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentsHash(u64);

impl ArgumentsHash {
    /// Returns the hash for an encoded descriptor.
    pub fn of(words: &[u64; 3]) -> Self {
        let [first, second] = Descriptor::arguments_from_words(words);
        Self(mix_word(mix_word(0, first), second))
    }

    /// Returns the hash of a call with these arguments. `last_word` is the last word of its encoded
    /// descriptor, which has the sequence number.
    #[inline]
    pub fn of_call(self, last_word: u64, label: &Label) -> u64 {
        let hash = mix_word(self.0, last_word);
        if label.is_none() { hash } else { mix_label(hash, label) }
    }
}

/// Mixes a label into a hash. The function is not inlined, so that it needs no registers in calls
/// without a label.
#[cold]
#[inline(never)]
fn mix_label(hash: u64, label: &Label) -> u64 {
    mix_word(hash, label.hash())
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
    use crate::base::dtype::DataType;
    use crate::base::op::ReduceOp;
    use crate::transport::{CountSpec, OpKind};
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
    fn hash_of_a_call_depends_on_each_word_and_the_label() {
        let label = Label::new("a").unwrap();
        let mut seen = HashSet::new();
        for words in [[1, 2, 3], [3, 2, 3], [1, 3, 3], [1, 2, 4]] {
            for label in [&Label::NONE, &label] {
                assert!(seen.insert(ArgumentsHash::of(&words).of_call(words[2], label)));
            }
        }
    }

    #[test]
    fn arguments_have_no_algorithm_sequence_number_and_label() {
        let call = |sequence, label| Descriptor {
            kind: OpKind::Reduce,
            dtype: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            root: Some(1),
            count_spec: CountSpec::Count(5),
            sequence,
            algorithm: 0,
            part: 0,
            label,
        };
        let plain = call(1, Label::NONE);
        let hash = |call: Descriptor| ArgumentsHash::of(&call.encode());
        assert_eq!(hash(plain), hash(Descriptor { algorithm: 9, ..plain }));
        assert_eq!(hash(plain), hash(call(7, Label::new("a").unwrap())));
        assert_ne!(hash(plain), hash(Descriptor { root: Some(2), ..plain }));
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
