//! What is said where a message is not the one that must come: ranks called different operations,
//! or disagree about how much goes between them.

use super::exchange::{Call, Exchange};
use super::lane::OtherSide;
use crate::algo::conflict::Conflict;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::kernel;
use crate::transport::Extent;
use crate::transport::frame::Header;

impl Call<'_> {
    /// Copies what this rank has for itself.
    ///
    /// # Errors
    /// `Mismatch` where that is not as much as it expects.
    pub fn keep_own(&self, place: Dst<'_>, own: Src<'_>) -> Result<()> {
        if place.len() != own.len() {
            let me = self.endpoint.peer(self.rank());
            let (sent, expected) = (own.len() as u64, place.len() as u64);
            let conflict = Conflict { from: me, sent, to: me, expected };
            return Err(conflict.error(&self.operation.descriptor, me));
        }
        kernel::copy(place, own);
        Ok(())
    }
}

impl Exchange<'_> {
    /// Compares the calls of a peer with the calls of this rank.
    ///
    /// Before this rank asks the peer for labels, it announces to all ranks that it is in the
    /// operation. By that they find the mismatch, too. A rank that cannot ask waits for the report
    /// of a rank that can.
    pub(super) fn agree(&mut self, peer: Rank, header: &Header) -> Result<()> {
        if !self.lane.differs(header) {
            return Ok(());
        }
        self.announce();
        let (name, labels) =
            (self.endpoint.peer(peer), |rank, sequence| self.endpoint.labels(rank, sequence));
        let other = OtherSide { rank: peer, name, labels: &labels };
        let Some(difference) = self.lane.disagreement(&other, header) else { return Ok(()) };
        let message = format!("ranks called different operations: {} {difference}", self.me());
        Err(Error::new(ErrorKind::Mismatch, message).with_culprit(peer))
    }

    /// A message that is not the one that must come.
    pub(super) fn unexpected(&mut self, peer: Rank, header: &Header, expected: &Header) -> Error {
        if let Err(error) = self.agree(peer, header) {
            return error;
        }
        let name = self.endpoint.peer(peer);
        let Header { stripe, stripes, len, .. } = *expected;
        let differs_in_length =
            Header { stripe, stripes, len, excuse: None, ..*header } == *expected;
        if self.operation.descriptor.extent == Extent::Pairwise && differs_in_length {
            let to = self.endpoint.peer(self.endpoint.rank());
            let conflict = Conflict { from: name, sent: header.len, to, expected: len };
            return conflict.error(&self.operation.descriptor, name);
        }
        let message = format!(
            "{name} sent {header:?} where {} expected {expected:?}; all ranks must use the same version of the \
             library",
            self.me()
        );
        Error::new(ErrorKind::Internal, message).with_culprit(peer)
    }
}
