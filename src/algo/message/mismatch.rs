//! Errors for unexpected messages: ranks called different operations, or disagree about the length
//! of a message.

use super::exchange::{MessageExchange, MessageOperation};
use super::peer_history::MismatchedPeer;
use crate::algo::count_mismatch::CountMismatch;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::CountSpec;
use crate::transport::collective_header::CollectiveHeader;

impl MessageOperation<'_> {
    /// Copies this rank's block for itself.
    ///
    /// # Errors
    /// `Mismatch` if its length differs from the length that this rank expects.
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
    /// Compares the calls of a peer with the calls of this rank.
    ///
    /// Before this rank queries the peer for labels, it announces its presence in the operation to
    /// all ranks. These ranks then find the mismatch, too. A rank that cannot query waits for the
    /// report of a rank that can.
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

    /// Returns the error for a message that is not the expected one.
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
