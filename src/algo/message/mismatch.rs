//! Errors for unexpected messages. The ranks have called different operations, or disagree about
//! the length of a message.

use super::exchange::{MessageExchange, MessageOperation};
use super::peer_history::{PastOperation, PeerHistory};
use crate::algo::mismatch_text::{CountMismatch, LabelMismatch, describe_against};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::kernel;
use crate::transport::collective_header::CollectiveHeader;
use crate::transport::{CountSpec, Descriptor};
use std::fmt;

/// The maximum number of past operations with a label for which this rank queries the peer's label.
const MAX_LABEL_QUERIES: usize = 8;

/// The number of unanswered label queries after which this rank sends no further query.
const MAX_UNANSWERED_QUERIES: usize = 2;

/// The sender of an unexpected message.
pub(super) struct MismatchedPeer<'a> {
    pub(super) rank: Rank,
    pub(super) name: &'a dyn fmt::Display,
    /// A function that queries a rank's labels of an operation
    /// ([`crate::transport::Endpoint::labels`]).
    pub(super) labels: &'a dyn Fn(Rank, u64) -> Vec<Label>,
}

impl MessageOperation<'_> {
    /// Copies the block that this rank sends to itself.
    ///
    /// # Errors
    /// `Mismatch` if the length of the block differs from the length that this rank expects.
    pub fn copy_own_block(&self, dst: Dst<'_>, own: Src<'_>) -> Result<()> {
        if dst.len() != own.len() {
            let me = self.endpoint.peer(self.rank());
            let (sent, expected) = (own.len() as u64, dst.len() as u64);
            let conflict = CountMismatch {
                sender: me,
                sent_bytes: sent,
                receiver: me,
                expected_bytes: expected,
            };
            return Err(conflict.to_error(&self.operation.descriptor, me));
        }
        kernel::copy(dst, own);
        Ok(())
    }
}

impl MessageExchange<'_> {
    /// Compares the operations that a peer has issued, according to this header, with the
    /// operations of this rank.
    ///
    /// If they differ, this rank queries the peer for its labels. Before the queries, it announces
    /// to all ranks that it is in the operation. The other ranks then also find the mismatch, even
    /// if this rank cannot query the peer, and a rank that can query reports the error.
    ///
    /// # Errors
    /// `Mismatch` if the operations differ.
    pub(super) fn check_agreement(&mut self, peer: Rank, header: &CollectiveHeader) -> Result<()> {
        if !self.history.has_different_history(header) {
            return Ok(());
        }
        self.announce_presence();
        let (name, labels) =
            (self.endpoint.peer(peer), |rank, sequence| self.endpoint.labels(rank, sequence));
        let other = MismatchedPeer { rank: peer, name, labels: &labels };
        let Some(difference) = self.history.describe_mismatch(&other, header) else {
            return Ok(());
        };
        let message =
            format!("ranks called different operations: {} {difference}", self.own_name());
        Err(Error::new(ErrorKind::Mismatch, message).with_culprit(peer))
    }

    /// Returns the error for a message with a header that differs from the expected header.
    pub(super) fn unexpected_header_error(
        &mut self,
        peer: Rank,
        header: &CollectiveHeader,
        expected: &CollectiveHeader,
    ) -> Error {
        if let Err(error) = self.check_agreement(peer, header) {
            return error;
        }
        let name = self.endpoint.peer(peer);
        let CollectiveHeader { stripe, stripes, len, .. } = *expected;
        let differs_in_length =
            CollectiveHeader { stripe, stripes, len, blame: None, ..*header } == *expected;
        if self.operation.descriptor.count_spec == CountSpec::Pairwise && differs_in_length {
            let to = self.endpoint.peer(self.endpoint.rank());
            let conflict = CountMismatch {
                sender: name,
                sent_bytes: header.len,
                receiver: to,
                expected_bytes: len,
            };
            return conflict.to_error(&self.operation.descriptor, name);
        }
        let message = format!(
            "{name} sent {header:?} where {} expected {expected:?}; all ranks must use the same version of the \
             library",
            self.own_name()
        );
        Error::new(ErrorKind::Internal, message).with_culprit(peer)
    }
}

impl PeerHistory {
    /// Returns the error text that describes the first known difference between the calls of two
    /// ranks. Depending on what this rank remembers, the text names the two different calls, or the
    /// last operation in which the two ranks agreed. Returns `None` if the ranks agree
    /// ([`PeerHistory::has_different_history`]).
    pub(super) fn describe_mismatch(
        &self,
        other: &MismatchedPeer<'_>,
        header: &CollectiveHeader,
    ) -> Option<String> {
        if !self.has_different_history(header) {
            return None;
        }
        let theirs = header.descriptor;
        let ours = self.operation_at(&theirs);
        let current = self.past_operations.back().map(|past| past.descriptor);
        let name = other.name;
        let describe = |one: &Descriptor, other| describe_against(one, other, self.algorithm_name);
        let describe_own =
            |ours: Option<Descriptor>| ours.map_or("nothing".to_owned(), |d| d.to_string());
        let labelled = |theirs: Descriptor| match theirs.label.is_none() {
            true => theirs,
            false => {
                theirs.with_label_text((other.labels)(other.rank, theirs.sequence).first().copied())
            }
        };
        match ours {
            Some(past) if past.descriptor.without_label_text() != theirs => {
                let (ours, theirs) = (past.descriptor, labelled(theirs));
                let (own_call, peer_call) = (describe(&ours, &theirs), describe(&theirs, &ours));
                Some(format!("called {own_call}, but {name} called {peer_call}"))
            }
            Some(past) => self.describe_label_mismatch(past, other).or_else(|| {
                // The labels may differ if the peer's label could not be queried.
                let but_label = if theirs.label.is_none() { "" } else { "its label or " };
                Some(format!(
                    "and {name} agree on {}, but not on {but_label}the calls before it, after #{}",
                    past.descriptor,
                    Descriptor::sequence_from_order_key(self.peers[other.rank].last_seen_moment)
                ))
            }),
            None => Some(format!(
                "called {}, but {name} called {}",
                describe_own(current),
                labelled(theirs)
            )),
        }
    }

    /// Finds the oldest operation to which the peer gave a different label, and describes it. The
    /// search covers the newest [`MAX_LABEL_QUERIES`] operations with a label that are not newer
    /// than `last`.
    fn describe_label_mismatch(
        &self,
        last: &PastOperation,
        MismatchedPeer { rank, name, labels }: &MismatchedPeer<'_>,
    ) -> Option<String> {
        let is_asked = |past: &&PastOperation| {
            let it = past.descriptor;
            !it.label.is_none() && it.part <= 1 && it.order_key() <= last.descriptor.order_key()
        };
        let queried: Vec<&PastOperation> =
            self.past_operations.iter().rev().filter(is_asked).take(MAX_LABEL_QUERIES).collect();
        let mut unanswered = 0;
        for past in queried.into_iter().rev() {
            let ours = past.descriptor;
            let theirs = labels(*rank, ours.sequence);
            let Some(&label) = theirs.first() else {
                // Each unanswered query takes its full timeout.
                unanswered += 1;
                if unanswered == MAX_UNANSWERED_QUERIES {
                    break;
                }
                continue;
            };
            if label == ours.label {
                continue;
            }
            let calls = LabelMismatch::find(&labels(self.rank, ours.sequence), &theirs);
            // For an operation older than `last`, this rank knows the peer's label but not the
            // peer's call.
            let theirs = match ours.order_key() == last.descriptor.order_key() {
                true => Descriptor { label, ..ours }.to_string(),
                false => format!("#{} {label}", ours.sequence),
            };
            return Some(format!("called {ours}, but {name} called {theirs}{calls}"));
        }
        None
    }
}
