//! The operation descriptor: the arguments of an operation that all ranks must agree on. It is
//! encoded as three words, which appear in control slots, message headers and the flight recorder
//! (the list of the last operations for dumps):
//!
//! ```text
//! word 0  bit 0 is 1 | count spec tag, bits 1..7 | has label, bit 7 | kind, bits 8..16
//!         | dtype, bits 16..24 | operator, bits 24..32 | root + 1, bits 32..56
//!         | algorithm, bits 56..64
//! word 1  the counts, as the count spec encodes them
//! word 2  sequence number, bits 0..48 | part, bits 48..64
//! ```
//!
//! This module does not depend on the code that carries out operations.

use super::op_kind::OpKind;
use crate::base::dtype::DataType;
use crate::base::ids::Rank;
use crate::base::label::{Label, LabelSuffix};
use crate::base::op::ReduceOp;
use std::fmt;

/// The element counts of an operation that all ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountSpec {
    /// The count argument of the call, in elements.
    Count(u64),
    /// Several counts, equal on all ranks. A `_v` call has one count per rank. If a batch of calls
    /// became one operation, the operation has one count per call. The ranks exchange and compare
    /// only the sum and the fingerprint of the counts, each with a limited number of bits; see
    /// [`CountSpec::of_counts`].
    Counts {
        /// The sum of the counts, capped at [`CountSpec::MAX_TOTAL`].
        total: u64,
        /// A hash over all counts in their order, with [`CountSpec::FINGERPRINT_BITS`] bits.
        fingerprint: u64,
    },
    /// The ranks have no common counts. Each pair of ranks compares the counts that the two
    /// exchange.
    Pairwise,
    /// The operation transfers the lengths of byte strings, one word from each rank or for each
    /// rank. The next operation transfers the byte strings. No operation that a caller requests has
    /// this variant, so if one rank exchanges byte strings and another rank makes a call on
    /// buffers, the ranks detect a mismatch.
    Lengths,
    /// The operation exchanges records about an operator that the caller supplies. The ranks
    /// compare the records before the reduction with this operator.
    Operator,
    /// A call on a list of tensors, or the operations with which the ranks compare their lists. The
    /// ranks do not know the counts before this comparison.
    TensorList,
}

impl CountSpec {
    const TOTAL_BITS: u32 = 28;
    /// The number of bits of a fingerprint.
    pub const FINGERPRINT_BITS: u32 = 64 - Self::TOTAL_BITS;
    /// The largest sum that fits into the word. A larger sum is capped at this value.
    pub const MAX_TOTAL: u64 = (1 << Self::TOTAL_BITS) - 1;

    /// Encodes these counts, in this order, as a sum and a fingerprint.
    pub fn of_counts(counts: impl IntoIterator<Item = usize>) -> Self {
        let mut total = 0_u64;
        let mut hash = 0x9ae1_6a3b_2f90_404f_u64;
        for count in counts {
            total = total.saturating_add(count as u64);
            // This is the finaliser of MurmurHash3 (Appleby), applied to each count combined with
            // the previous hash.
            hash = (hash ^ count as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            hash ^= hash >> 33;
        }
        let fingerprint = hash >> Self::TOTAL_BITS;
        Self::Counts { total: total.min(Self::MAX_TOTAL), fingerprint }
    }

    /// Returns the tag of the variant, and the word with its counts.
    fn encode(self) -> (u64, u64) {
        match self {
            Self::Count(count) => (0, count),
            Self::Counts { total, fingerprint } => (1, fingerprint << Self::TOTAL_BITS | total),
            Self::Pairwise => (2, 0),
            Self::Lengths => (3, 0),
            Self::Operator => (4, 0),
            Self::TensorList => (5, 0),
        }
    }

    fn decode(tag: u64, word: u64) -> Option<Self> {
        match (tag, word) {
            (0, count) => Some(Self::Count(count)),
            (1, _) => {
                let (total, fingerprint) = (word & Self::MAX_TOTAL, word >> Self::TOTAL_BITS);
                Some(Self::Counts { total, fingerprint })
            }
            (2, 0) => Some(Self::Pairwise),
            (3, 0) => Some(Self::Lengths),
            (4, 0) => Some(Self::Operator),
            (5, 0) => Some(Self::TensorList),
            _ => None,
        }
    }
}

/// The arguments of one operation that all ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The kind of the operation.
    pub kind: OpKind,
    /// The element type; `None` if the operation has no elements.
    pub dtype: Option<DataType>,
    /// The reduction operator; `None` for other operations.
    pub op: Option<ReduceOp>,
    /// The root; `None` for an operation without a root.
    pub root: Option<Rank>,
    /// The element counts.
    pub count_spec: CountSpec,
    /// The sequence number of the operation in its group, from 1.
    pub sequence: u64,
    /// The number of the chosen algorithm among the algorithms of this operation, from 1. The
    /// number is 0 if no algorithm has been chosen.
    pub algorithm: u8,
    /// The number of the part, from 1, if a long operation is carried out in several parts one
    /// after another; 0 for the whole operation. The count spec always describes the whole
    /// operation.
    pub part: u16,
    /// The label of the call (a text from the caller). The encoded words contain only whether the
    /// call has a label. The call fingerprint contains a hash of the label, so the ranks still
    /// compare labels.
    pub label: Label,
}

/// The code for an absent data type or operator.
const NO_VALUE_CODE: u64 = 0xff;

/// The bit of the first word that is set if the call has a label.
const LABEL_BIT: u64 = 1 << 7;

/// The mask of the count spec's tag, after the first word was shifted right by one bit.
const COUNT_SPEC_MASK: u64 = 0x3f;

/// The position of the algorithm in the first word. The algorithm is the highest byte.
const ALGORITHM_SHIFT: u32 = u64::BITS - u8::BITS;

/// The number of bits of the part number, which are the highest bits of the third word. The
/// sequence number has the other bits of that word.
const PART_BITS: u32 = u16::BITS;

impl Descriptor {
    /// Returns the three words of the descriptor. The lowest bit of the first word is set, so that
    /// zeroed memory is no descriptor.
    pub fn encode(&self) -> [u64; 3] {
        self.encode_with(self.algorithm)
    }

    /// Returns the words of this descriptor, with `algorithm` in place of its own algorithm.
    pub fn encode_with(&self, algorithm: u8) -> [u64; 3] {
        let dtype = self.dtype.map_or(NO_VALUE_CODE, |dtype| dtype as u64);
        let op = self.op.map_or(NO_VALUE_CODE, |op| op as u64);
        let root = self.root.map_or(0, |root| root as u64 + 1);
        let (count_spec, count) = self.count_spec.encode();
        let first =
            1 | count_spec << 1 | (self.kind as u64) << 8 | dtype << 16 | op << 24 | root << 32;
        let first = first | u64::from(algorithm) << ALGORITHM_SHIFT | label_bit(&self.label);
        [first, count, self.order_key().rotate_right(PART_BITS)]
    }

    /// Returns the words of a later call that differs from an earlier call only in its sequence
    /// number and its label. `words` are the first two words of the earlier call, which must have
    /// no label and must not be a part of an operation.
    #[inline]
    pub fn encode_repeat(words: [u64; 2], sequence: u64, label: &Label) -> [u64; 3] {
        [words[0] | label_bit(label), words[1], (sequence << PART_BITS).rotate_right(PART_BITS)]
    }

    /// Returns whether the first word belongs to a call with a label.
    #[inline]
    pub fn is_labelled(first: u64) -> bool {
        first & LABEL_BIT != 0
    }

    /// Returns this descriptor without the text of its label. Other ranks get the same descriptor
    /// when they decode its words.
    #[must_use]
    pub fn without_label_text(&self) -> Self {
        Self { label: self.label.without_text(), ..*self }
    }

    /// Returns this descriptor with `label` in place of its own label. If `label` is `None`,
    /// returns this descriptor unchanged.
    #[must_use]
    pub fn with_label_text(self, label: Option<Label>) -> Self {
        Self { label: label.unwrap_or(self.label), ..self }
    }

    /// Returns the part of the descriptor that the ranks compare in addition to the call itself. It
    /// has no algorithm, because not all back ends choose one. Of a call on a list of tensors, it
    /// has only the sequence number and the label: this call compares everything else itself, and
    /// the group can continue after a difference.
    #[must_use]
    pub fn compared(&self) -> Self {
        let without_algorithm = Self { algorithm: 0, ..*self };
        match self.count_spec {
            CountSpec::TensorList => {
                let (kind, op, root) = (OpKind::Broadcast, None, None);
                Self { kind, op, root, ..without_algorithm }
            }
            _ => without_algorithm,
        }
    }

    /// Returns the words with 0 in place of the algorithm.
    #[inline]
    pub fn without_algorithm(words: &[u64; 3]) -> [u64; 3] {
        [words[0] & !(0xff << ALGORITHM_SHIFT), words[1], words[2]]
    }

    /// Returns the words with the arguments of the call, with 0 in place of the algorithm and
    /// without the mark of a label.
    pub fn arguments_from_words(words: &[u64; 3]) -> [u64; 2] {
        let [first, second, _] = Self::without_algorithm(words);
        [first & !LABEL_BIT, second]
    }

    /// Returns the name of the call that the operation belongs to. Only a call on byte strings has
    /// another name than its operation.
    pub fn call_name(&self) -> &'static str {
        match self.count_spec {
            CountSpec::Lengths => self.kind.bytes_name(),
            _ => self.kind.name(),
        }
    }

    /// Returns the order key. It is greater for a later operation and, within one operation, for a
    /// later part.
    pub fn order_key(&self) -> u64 {
        self.sequence << PART_BITS | u64::from(self.part)
    }

    /// Returns the order key of the operation with this sequence number.
    pub fn order_key_of_sequence(sequence: u64) -> u64 {
        sequence << PART_BITS
    }

    /// Returns the sequence number of an order key.
    pub fn sequence_from_order_key(order_key: u64) -> u64 {
        order_key >> PART_BITS
    }

    /// Returns the order key from the last of the three words.
    pub fn order_key_from_word(word: u64) -> u64 {
        word.rotate_left(PART_BITS)
    }

    /// Returns whether a word is the first word of a descriptor.
    pub fn is_first_word(word: u64) -> bool {
        word & 1 == 1
    }

    /// Decodes a descriptor; the inverse of [`Descriptor::encode`]. Returns `None` for invalid
    /// words.
    pub fn decode(words: [u64; 3]) -> Option<Self> {
        let byte = |shift: u32| usize::try_from((words[0] >> shift) & 0xff).unwrap_or(usize::MAX);
        if !Self::is_first_word(words[0]) {
            return None;
        }
        let root = usize::try_from(words[0] >> 32 & 0xff_ffff).ok()?;
        Some(Self {
            kind: OpKind::ALL.get(byte(8)).copied()?,
            dtype: DataType::ALL.get(byte(16)).copied(),
            op: ReduceOp::ALL.get(byte(24)).copied(),
            root: root.checked_sub(1),
            count_spec: CountSpec::decode(words[0] >> 1 & COUNT_SPEC_MASK, words[1])?,
            sequence: Self::sequence_from_order_key(Self::order_key_from_word(words[2])),
            algorithm: u8::try_from(byte(ALGORITHM_SHIFT)).ok()?,
            part: u16::try_from(words[2] >> (u64::BITS - PART_BITS)).ok()?,
            label: if Self::is_labelled(words[0]) { Label::UNKNOWN } else { Label::NONE },
        })
    }
}

/// Returns the label bit of the first word.
#[inline]
fn label_bit(label: &Label) -> u64 {
    if label.is_none() { 0 } else { LABEL_BIT }
}

impl fmt::Display for Descriptor {
    /// Formats the descriptor, for example `all_reduce #57 "layer3.weight" (f32, SUM, count 1000)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}{}", self.kind.name(), self.sequence, LabelSuffix(self.label))?;
        let mut parts = Vec::new();
        parts.extend(self.dtype.map(|dtype| dtype.to_string()));
        parts.extend(self.op.map(|op| op.to_string()));
        parts.extend(self.root.map(|root| format!("root {root}")));
        match self.count_spec {
            CountSpec::Count(count) if self.dtype.is_some() => parts.push(format!("count {count}")),
            CountSpec::Counts { total, fingerprint } => {
                let more = if total == CountSpec::MAX_TOTAL { " or more" } else { "" };
                parts.push(format!("counts #{fingerprint:09x}, in all {total}{more}"));
            }
            CountSpec::Lengths => parts.push("lengths of byte strings".to_owned()),
            CountSpec::Operator => parts.push("of a reduction with a caller's operator".to_owned()),
            CountSpec::TensorList => parts.push("list of tensors".to_owned()),
            CountSpec::Count(_) | CountSpec::Pairwise => {}
        }
        if self.part > 0 {
            parts.push(format!("part {}", self.part));
        }
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_count_specs() -> [CountSpec; 8] {
        [
            CountSpec::Count(u64::MAX),
            CountSpec::Count(0),
            CountSpec::of_counts([3, 0, 5]),
            CountSpec::of_counts([usize::MAX, 1]),
            CountSpec::Pairwise,
            CountSpec::Lengths,
            CountSpec::Operator,
            CountSpec::TensorList,
        ]
    }

    #[test]
    fn descriptor_round_trips_through_words() {
        let mut all = Vec::new();
        for kind in OpKind::ALL {
            assert_eq!(OpKind::ALL[kind as usize], kind);
            for (root, count_spec) in [None, Some(0), Some(65_535)]
                .into_iter()
                .flat_map(|r| sample_count_specs().map(|e| (r, e)))
            {
                let whole = Descriptor {
                    kind,
                    dtype: Some(DataType::F8E5M2),
                    op: Some(ReduceOp::PremulSum),
                    root,
                    count_spec,
                    sequence: 1 << 47,
                    algorithm: 255,
                    part: u16::MAX,
                    label: Label::UNKNOWN,
                };
                all.push(whole);
                let (dtype, op, sequence, algorithm, part) = (None, None, 0, 0, 0);
                all.push(Descriptor { dtype, op, sequence, algorithm, part, ..whole });
                all.push(Descriptor { label: Label::NONE, ..whole });
            }
        }
        for descriptor in all {
            assert_eq!(Descriptor::decode(descriptor.encode()), Some(descriptor));
        }
        for count_spec in sample_count_specs() {
            let mut others = sample_count_specs().into_iter().filter(|&other| other != count_spec);
            assert!(others.all(|other| other.encode() != count_spec.encode()));
        }
        assert_eq!(CountSpec::decode(3, 1), None);
        assert_eq!(Descriptor::decode([0; 3]), None);
        assert_eq!(Descriptor::decode([u64::MAX; 3]), None);
    }

    #[test]
    fn words_contain_only_whether_there_is_a_label() {
        let unlabelled = Descriptor {
            kind: OpKind::Barrier,
            dtype: None,
            op: None,
            root: None,
            count_spec: CountSpec::Count(0),
            sequence: 7,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        };
        let [a, b] = ["a", "b"].map(|text| Label::new(text).unwrap());
        let labelled = Descriptor { label: a, ..unlabelled };
        let words = labelled.encode();
        assert_eq!(Descriptor { label: b, ..unlabelled }.encode(), words);
        let [first, second, _] = unlabelled.encode();
        assert_ne!([first, second, words[2]], words);
        assert_eq!(Descriptor::arguments_from_words(&words), [first, second]);
        assert!(Descriptor::is_labelled(words[0]));
        assert_eq!(Descriptor::encode_repeat([first, second], 7, &a), words);
        let known = Descriptor::decode(words).unwrap();
        assert_eq!(
            (known, known.to_string().as_str()),
            (labelled.without_label_text(), "barrier #7 \"?\"")
        );
        assert_eq!(known.with_label_text(Some(a)), labelled);
        assert_eq!(
            (known.with_label_text(None), labelled.to_string().as_str()),
            (known, "barrier #7 \"a\"")
        );
    }

    #[test]
    fn lists_of_tensors_are_compared_by_the_call_itself() {
        let broadcast = Descriptor {
            kind: OpKind::Broadcast,
            dtype: None,
            op: None,
            root: Some(1),
            count_spec: CountSpec::TensorList,
            sequence: 7,
            algorithm: 2,
            part: 0,
            label: Label::NONE,
        };
        let (kind, op, root) = (OpKind::AllReduce, Some(ReduceOp::Sum), None);
        let reduction = Descriptor { kind, op, root, ..broadcast };
        assert_eq!(broadcast.compared(), reduction.compared());
        assert_ne!(broadcast.compared(), Descriptor { sequence: 8, ..broadcast }.compared());
        let count_spec = CountSpec::Count(3);
        let [one, other] = [broadcast, reduction].map(|it| Descriptor { count_spec, ..it });
        assert_eq!(one.compared(), Descriptor { algorithm: 0, ..one });
        assert_ne!(one.compared(), other.compared());
    }

    #[test]
    fn count_fingerprint_covers_values_order_and_length() {
        let lists: [&[usize]; 7] = [&[3, 5], &[5, 3], &[8, 0], &[8], &[0, 8], &[3, 5, 0], &[4, 4]];
        for (i, one) in lists.iter().enumerate() {
            for other in &lists[..i] {
                let of = |list: &[usize]| CountSpec::of_counts(list.iter().copied());
                assert_ne!(of(one), of(other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn descriptor_display_text_is_readable() {
        let descriptor = Descriptor {
            kind: OpKind::AllGatherV,
            dtype: Some(DataType::F32),
            op: None,
            root: None,
            count_spec: CountSpec::of_counts([3, 5]),
            sequence: 7,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        };
        let text = descriptor.to_string();
        assert!(text.starts_with("all_gather_v #7 (f32, counts #"), "{text}");
        assert!(text.ends_with(", in all 8)"), "{text}");
        let plain = Descriptor {
            kind: OpKind::GatherV,
            root: Some(2),
            count_spec: CountSpec::Pairwise,
            ..descriptor
        };
        assert_eq!(plain.to_string(), "gather_v #7 (f32, root 2)");
        let lengths = Descriptor { count_spec: CountSpec::Lengths, ..plain };
        assert_eq!(lengths.to_string(), "gather_v #7 (f32, root 2, lengths of byte strings)");
    }
}
