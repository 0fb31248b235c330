//! The labels (texts from the caller) of one rank's last operations, in the memory that the ranks
//! of a domain share.
//!
//! The owner stores a label when it enters an operation with a label. For an operation without a
//! label, the owner stores nothing. Other ranks load a label only to explain a mismatch or to
//! describe the owner's activity.
//!
//! The operation with sequence number n uses entry n modulo [`CTRL_SLOT_COUNT`], so a later
//! operation may overwrite the entry while another rank reads it. The entry therefore has the
//! sequence number of its operation. What a rank has read is valid if it found the expected
//! sequence number both before and after the read.
//!
//! If several calls of a batch became one operation, the owner also stores the labels of all these
//! calls, in a list.

use super::ctrl_slot::CTRL_SLOT_COUNT;
use crate::base::label::{LABEL_WORDS, Label};
use crate::base::sequence_stamp::SequenceStamp;
use crate::base::sync::{AtomicU64, Ordering};

/// The maximum number of stored labels per list. The call fingerprint, which ranks compare, covers
/// all labels.
pub const MAX_LISTED_LABELS: usize = 30;

/// The number of lists per rank: operation n uses list n modulo 4.
const LIST_COUNT: usize = 4;

/// The number of entries: operation n uses entry n modulo 64.
#[allow(clippy::cast_possible_truncation, reason = "64")]
const ENTRY_COUNT: usize = CTRL_SLOT_COUNT as usize;

/// The labels of one rank. The rank is the only writer, and all ranks may read. A zeroed table has
/// no labels.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct LabelTable {
    entries: [LabelEntry; ENTRY_COUNT],
    lists: [LabelList; LIST_COUNT],
}

/// The label of one operation.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct LabelEntry {
    /// The sequence number of the operation; 0 while the owner writes the entry.
    sequence: SequenceStamp,
    words: [AtomicU64; LABEL_WORDS],
}

/// The labels of the calls that became one operation.
#[derive(Debug)]
#[repr(C)]
struct LabelList {
    /// The sequence number of the operation; 0 while the owner writes the list.
    sequence: SequenceStamp,
    count: AtomicU64,
    words: [[AtomicU64; LABEL_WORDS]; MAX_LISTED_LABELS],
}

impl LabelTable {
    /// Stores the label of an operation that the owner enters.
    #[inline]
    pub fn publish(&self, sequence: u64, label: &Label) {
        self.entries[index(sequence, ENTRY_COUNT)].publish(sequence, label);
    }

    /// Stores the labels of the calls that became the operation that the owner enters.
    pub fn publish_list(&self, sequence: u64, labels: &[Label]) {
        let list = &self.lists[index(sequence, LIST_COUNT)];
        list.sequence.begin_write(0);
        list.count.store(labels.len().min(MAX_LISTED_LABELS) as u64, Ordering::Relaxed);
        for (words, label) in list.words.iter().zip(labels) {
            store(words, label);
        }
        list.sequence.end_write(sequence);
    }

    /// Returns the label of an operation, or `None` if the operation has no label or a later
    /// operation uses its entry.
    pub fn get(&self, sequence: u64) -> Option<Label> {
        self.entries[index(sequence, ENTRY_COUNT)].get(sequence)
    }

    /// Returns the label of an operation. If several calls became this operation, their labels
    /// follow. Returns an empty list if the operation has no label.
    pub fn labels_of(&self, sequence: u64) -> Vec<Label> {
        self.get(sequence).into_iter().chain(self.list(sequence)).collect()
    }

    /// Returns the labels of the calls that became an operation, at most the first
    /// [`MAX_LISTED_LABELS`]. Returns an empty list if the operation has no list, or if a later
    /// operation uses its list.
    pub fn list(&self, sequence: u64) -> Vec<Label> {
        let list = &self.lists[index(sequence, LIST_COUNT)];
        if sequence == 0 || list.sequence.begin_read() != sequence {
            return Vec::new();
        }
        let count =
            usize::try_from(list.count.load(Ordering::Relaxed)).unwrap_or(MAX_LISTED_LABELS);
        let labels: Option<Vec<Label>> = list.words.iter().take(count).map(load).collect();
        let is_consistent = list.sequence.is_unchanged(sequence);
        labels.filter(|_| is_consistent).unwrap_or_default()
    }
}

impl LabelEntry {
    /// Stores the label of an operation that the owner enters.
    #[inline]
    pub(super) fn publish(&self, sequence: u64, label: &Label) {
        self.sequence.begin_write(0);
        store(&self.words, label);
        self.sequence.end_write(sequence);
    }

    /// Returns the label of an operation, or `None` if the entry has another operation's label.
    pub(super) fn get(&self, sequence: u64) -> Option<Label> {
        if sequence == 0 || self.sequence.begin_read() != sequence {
            return None;
        }
        load(&self.words).filter(|_| self.sequence.is_unchanged(sequence))
    }
}

#[inline]
fn index(sequence: u64, len: usize) -> usize {
    usize::try_from(sequence % (len as u64)).unwrap_or(0)
}

#[inline]
fn store(cells: &[AtomicU64; LABEL_WORDS], label: &Label) {
    for (cell, &word) in cells.iter().zip(label.words()) {
        cell.store(word, Ordering::Relaxed);
    }
}

fn load(cells: &[AtomicU64; LABEL_WORDS]) -> Option<Label> {
    Label::from_words(std::array::from_fn(|i| cells[i].load(Ordering::Relaxed)))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn table() -> LabelTable {
        let words = || std::array::from_fn(|_| AtomicU64::new(0));
        LabelTable {
            entries: std::array::from_fn(|_| LabelEntry::default()),
            lists: std::array::from_fn(|_| LabelList {
                sequence: SequenceStamp::default(),
                count: AtomicU64::new(0),
                words: std::array::from_fn(|_| words()),
            }),
        }
    }

    fn label(number: u64) -> Label {
        Label::new(&format!("bucket {number}")).unwrap()
    }

    #[test]
    fn the_last_64_operations_have_labels() {
        let table = table();
        assert_eq!((table.get(0), table.get(1)), (None, None));
        (1..=100).filter(|it| it % 2 == 0).for_each(|it| table.publish(it, &label(it)));
        for sequence in 1..=200 {
            let expected = (37..=100).contains(&sequence) && sequence % 2 == 0;
            assert_eq!(table.get(sequence), expected.then(|| label(sequence)), "{sequence}");
        }
    }

    #[test]
    fn label_lists_are_truncated_and_reused() {
        let table = table();
        assert_eq!((table.list(0), table.list(1)), (vec![], vec![]));
        let labels: Vec<Label> = (0..40).map(label).collect();
        for sequence in 1..=5 {
            table.publish_list(sequence, &labels[usize::try_from(sequence).unwrap()..]);
        }
        assert!(table.list(1).is_empty());
        assert_eq!(table.list(5), labels[5..5 + MAX_LISTED_LABELS]);
        table.publish_list(6, &labels[..2]);
        assert_eq!(table.list(6), labels[..2]);
    }

    #[test]
    fn invalid_label_bytes_are_ignored() {
        let table = table();
        table.publish(1, &label(1));
        table.publish_list(1, &[label(1), label(2)]);
        table.entries[1].words[0].store(u64::MAX, Ordering::Relaxed);
        table.lists[1].words[1][0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!((table.get(1), table.list(1)), (None, vec![]));
        table.lists[1].words[1][0].store(0x61, Ordering::Relaxed);
        table.lists[1].words[1][1].store(0, Ordering::Relaxed);
        table.lists[1].count.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(table.list(1).len(), MAX_LISTED_LABELS);
    }
}
