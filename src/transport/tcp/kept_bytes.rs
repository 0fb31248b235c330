//! The bytes that an outgoing link has sent, and that the other host has not acknowledged. If the
//! connection breaks, the link sends them again on a new one.
//!
//! Each byte has a *position*: the number of bytes that were sent before it on the link. Short
//! pieces are copied. Long ones are *lent*: they stay in the memory of the sender, which ends the
//! loan by [`KeptBytes::end_loans`] before it changes that memory. The bytes that are not
//! acknowledged until then are copied.

use super::byte_queue::ByteQueue;
use crate::base::buffer::{Dst, Src};
use std::collections::VecDeque;

/// The number of copied bytes from which on acknowledged ones are removed.
const MIN_REVIEW_BYTES: usize = 16 << 10;
/// The number of pieces from which on acknowledged ones are removed.
const MIN_REVIEW_PIECES: usize = 64;

/// The last bytes of a link.
#[derive(Debug, Default)]
pub(super) struct KeptBytes {
    /// The pieces, in order. The last one ends at the position `sent`.
    pieces: VecDeque<KeptPiece>,
    /// The bytes of the copied pieces.
    copied: ByteQueue,
    /// The number of bytes that were sent.
    sent: u64,
    /// The number of bytes in the pieces.
    kept: usize,
    /// The numbers of copied bytes and of pieces that the last review has left.
    reviewed: (usize, usize),
}

#[derive(Debug)]
enum KeptPiece {
    Copied(usize),
    Lent(Src<'static>),
}

impl KeptPiece {
    fn len(&self) -> usize {
        match self {
            Self::Copied(len) => *len,
            Self::Lent(bytes) => bytes.len(),
        }
    }
}

impl KeptBytes {
    /// Copies bytes that were sent.
    pub(super) fn copy(&mut self, bytes: Src<'_>) {
        self.count(bytes.len());
        self.copied.push(bytes);
        match self.pieces.back_mut() {
            Some(KeptPiece::Copied(len)) => *len += bytes.len(),
            _ => self.pieces.push_back(KeptPiece::Copied(bytes.len())),
        }
    }

    /// Counts sent bytes that were acknowledged, as were all before them.
    pub(super) fn skip(&mut self, count: usize) {
        self.review(0);
        self.sent += count as u64;
    }

    /// Keeps a view of bytes that were sent.
    pub(super) fn lend(&mut self, bytes: Src<'static>) {
        self.count(bytes.len());
        self.pieces.push_back(KeptPiece::Lent(bytes));
    }

    fn count(&mut self, len: usize) {
        self.sent += len as u64;
        self.kept += len;
    }

    /// Returns the number of kept bytes.
    pub(super) fn len(&self) -> usize {
        self.kept
    }

    /// Returns true if so much is kept that the acknowledged bytes should be removed.
    pub(super) fn is_review_due(&self) -> bool {
        let (copied, pieces) = self.reviewed;
        self.copied.len() >= MIN_REVIEW_BYTES + 2 * copied
            || self.pieces.len() >= MIN_REVIEW_PIECES + 2 * pieces
    }

    /// Removes all bytes but the last `unacknowledged` ones.
    pub(super) fn review(&mut self, unacknowledged: usize) {
        let mut excess = self.kept.saturating_sub(unacknowledged);
        self.kept -= excess;
        while excess > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let taken = piece.len().min(excess);
            let is_over = taken == piece.len();
            match piece {
                KeptPiece::Copied(len) => {
                    *len -= taken;
                    self.copied.take(taken);
                }
                KeptPiece::Lent(bytes) => *bytes = bytes.slice(taken, bytes.len() - taken),
            }
            if is_over {
                self.pieces.pop_front();
            }
            excess -= taken;
        }
        self.copied.shrink(MIN_REVIEW_BYTES);
        self.reviewed = (self.copied.len(), self.pieces.len());
    }

    /// Returns true if bytes are lent.
    pub(super) fn has_loans(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, KeptPiece::Lent(_)))
    }

    /// Copies the bytes that are lent.
    pub(super) fn end_loans(&mut self) {
        let first = self.pieces.iter().position(|piece| matches!(piece, KeptPiece::Lent(_)));
        if first.is_none() {
            return;
        }
        let bytes = self.copy_last(self.kept);
        (self.pieces, self.copied) = (VecDeque::new(), ByteQueue::default());
        self.copied.push(Src::from(bytes.as_slice()));
        self.pieces.push_back(KeptPiece::Copied(bytes.len()));
        self.reviewed = (bytes.len(), 1);
    }

    /// Returns the bytes from a position to the last one, which will be sent again, and keeps none.
    /// Returns `None` if some of them were not kept, or if the position is beyond the last byte.
    pub(super) fn rewind(&mut self, position: u64) -> Option<Vec<u8>> {
        let count = usize::try_from(self.sent.checked_sub(position)?).ok()?;
        let bytes = (count <= self.kept).then(|| self.copy_last(count))?;
        *self = Self { sent: position, ..Self::default() };
        Some(bytes)
    }

    /// Returns a copy of the last `count` bytes.
    fn copy_last(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let (mut skip, mut at, mut copied) = (self.kept - count, 0, 0);
        for piece in &self.pieces {
            let source = match piece {
                KeptPiece::Copied(len) => {
                    copied += len;
                    Src::from(&self.copied.bytes()[copied - len..copied])
                }
                KeptPiece::Lent(bytes) => *bytes,
            };
            let skipped = skip.min(source.len());
            skip -= skipped;
            let source = source.slice(skipped, source.len() - skipped);
            Dst::from(&mut bytes[at..at + source.len()]).copy_from(source);
            at += source.len();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Copy(usize),
        Lend(usize),
        Skip(usize),
        Review(usize),
        EndLoans,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3000_usize).prop_map(Step::Copy),
            4 => (0..3000_usize).prop_map(Step::Lend),
            1 => (0..9000_usize).prop_map(Step::Review),
            1 => (0..3000_usize).prop_map(Step::Skip),
            1 => Just(Step::EndLoans),
        ]
    }

    proptest! {
        #[test]
        fn kept_bytes_are_the_last_ones(
            steps in prop::collection::vec(step(), 1..80),
            back in 0..80_000_u64,
        ) {
            let all: &'static [u8] = (0..=255).cycle().take(1 << 18).collect::<Vec<u8>>().leak();
            let (mut kept, mut sent, mut first) = (KeptBytes::default(), 0, 0);
            for step in steps {
                match step {
                    Step::Copy(len) => {
                        let bytes = all[sent..sent + len].to_vec();
                        kept.copy(Src::from(bytes.as_slice()));
                        sent += len;
                    }
                    Step::Lend(len) => {
                        kept.lend(Src::from(&all[sent..sent + len]));
                        sent += len;
                    }
                    Step::Skip(len) => {
                        kept.skip(len);
                        sent += len;
                        first = sent;
                    }
                    Step::Review(unacknowledged) => {
                        kept.review(unacknowledged);
                        first = first.max(sent.saturating_sub(unacknowledged));
                    }
                    Step::EndLoans => {
                        kept.end_loans();
                        prop_assert!(!kept.has_loans());
                    }
                }
            }
            prop_assert_eq!(kept.rewind(sent as u64 + 1), None);
            let position = usize::try_from((sent as u64).saturating_sub(back)).unwrap();
            let expected = (position >= first).then(|| all[position..sent].to_vec());
            let end = if expected.is_some() { position } else { sent };
            prop_assert_eq!(kept.rewind(position as u64), expected);
            prop_assert_eq!(kept.rewind(end as u64), Some(Vec::new()));
        }
    }

    #[test]
    fn reviews_become_due_by_bytes_and_by_pieces() {
        let mut kept = KeptBytes::default();
        kept.copy(Src::from(&[0; MIN_REVIEW_BYTES - 1][..]));
        assert!(!kept.is_review_due());
        kept.copy(Src::from(&[0][..]));
        assert!(kept.is_review_due());
        kept.review(MIN_REVIEW_BYTES);
        assert!(!kept.is_review_due());
        for _ in 0..MIN_REVIEW_PIECES + 2 {
            kept.lend(Src::from(&[0; 1][..]));
        }
        assert!(kept.is_review_due());
        kept.review(0);
        assert!(!kept.is_review_due() && !kept.has_loans());
    }
}
