//! The offsets of buffers in their pages (`--offsets`).
//!
//! On some processors a copy is slow if source and destination have certain offsets. A benchmark
//! whose buffers begin at page boundaries does not show this.

use crate::ops::{BenchOp, ROOT};

/// The measured offsets in bytes.
const OFFSETS: [usize; 4] = [0, 16, 32, 64];

/// The offsets of the buffers of a cell in their pages, as indexes of [`OFFSETS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffsetPair {
    first: usize,
    second: usize,
}

/// The names of the pairs, by the indexes of both offsets.
const NAMES: [[&str; 4]; 4] = [
    ["offsets 0 and 0", "offsets 0 and 16", "offsets 0 and 32", "offsets 0 and 64"],
    ["offsets 16 and 0", "offsets 16 and 16", "offsets 16 and 32", "offsets 16 and 64"],
    ["offsets 32 and 0", "offsets 32 and 16", "offsets 32 and 32", "offsets 32 and 64"],
    ["offsets 64 and 0", "offsets 64 and 16", "offsets 64 and 32", "offsets 64 and 64"],
];

impl OffsetPair {
    /// Returns all pairs.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let indexes = 0..OFFSETS.len();
        indexes
            .clone()
            .flat_map(move |first| indexes.clone().map(move |second| Self { first, second }))
    }

    /// Returns whether the pair is measured for an operation: all pairs for messages, and the pairs
    /// in which one side is at a page boundary for collectives.
    pub(crate) fn is_measured(self, op: BenchOp) -> bool {
        op != BenchOp::Barrier && (op == BenchOp::SendRecv || self.first == 0 || self.second == 0)
    }

    /// Returns the pair with these offsets in bytes.
    pub(crate) fn from_bytes(first: usize, second: usize) -> Option<Self> {
        Self::all().find(|pair| pair.bytes() == (first, second))
    }

    /// Returns both offsets in bytes.
    pub(crate) fn bytes(self) -> (usize, usize) {
        (OFFSETS[self.first], OFFSETS[self.second])
    }

    /// Returns the name.
    pub(crate) fn name(self) -> &'static str {
        NAMES[self.first][self.second]
    }

    /// Returns the offsets of the first and the second buffer of a rank. In a ping-pong, the first
    /// buffers (the sources) have the first offset and the second buffers (the destinations) the
    /// second offset. In a collective, both buffers of rank 0 have the first offset, and the
    /// buffers of all other ranks the second offset.
    pub(crate) fn of_rank(self, op: BenchOp, rank: usize) -> (usize, usize) {
        let (first, second) = self.bytes();
        match op {
            BenchOp::SendRecv => (first, second),
            _ if rank == ROOT => (first, first),
            _ => (second, second),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_name_the_offsets() {
        for pair in OffsetPair::all() {
            let (first, second) = pair.bytes();
            assert_eq!(pair.name(), format!("offsets {first} and {second}"));
            assert_eq!(OffsetPair::from_bytes(first, second), Some(pair));
        }
        assert_eq!(OffsetPair::from_bytes(8, 0), None);
    }

    #[test]
    fn pairs_depend_on_the_operation() {
        let measured = |op| OffsetPair::all().filter(|pair| pair.is_measured(op)).count();
        assert_eq!(
            [BenchOp::SendRecv, BenchOp::AllReduce, BenchOp::Barrier].map(measured),
            [16, 7, 0]
        );
        let pair = OffsetPair::from_bytes(16, 0).unwrap();
        assert_eq!(pair.of_rank(BenchOp::SendRecv, 1), (16, 0));
        assert_eq!([0, 1].map(|rank| pair.of_rank(BenchOp::AllReduce, rank)), [(16, 16), (0, 0)]);
    }
}
