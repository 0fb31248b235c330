//! Buffers that are read, and written, where they lie: a rank says where its buffers are, and the
//! others copy out of the memory of its process what they need, or into it what is for it, so that
//! large vectors are moved once and not in and out of slots.
//!
//! * A rank *exposes* its buffer with a step, and *closes* it with a later one: it may write there,
//!   or return to its caller, once those who read have published that. Between the two it writes
//!   only what nobody else reads.
//! * Not all memory can be read by others: that of some devices cannot, though its process may.
//!   Where what is sent is not written meanwhile, whoever finds that says so when it closes, and
//!   the operation goes through slots. Else a rank looks at the ends of its buffer in the same way
//!   before it exposes it, and nobody reads where that fails. Everybody comes to the same
//!   conclusion, from the lines of all.
//! * Whether the ranks of a group can read each other's memory, and write it, was tried when they
//!   met, and is the same for all ([`Shape::attached`](crate::algo::select::Shape)).
//! * What a rank writes to another's memory, nobody else writes or reads before all have closed.
//!   How a rank that gives up gets its memory back is in [`super::revocation`].
//! * What was read counts only once the reader has seen the owner's closing step, or knows
//!   otherwise that the owner had not returned before: a rank that gives up fails the group before
//!   it returns.

use super::arena_access::NO_ARENA_OFFER;
use super::sequencer::ShmSequencer;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::cma;
use crate::transport::rank_progress::RemoteWritePurpose;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::time::Duration;

/// How long a rank whose memory cannot be read has to be known as dead, or to have failed the
/// group.
const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// In place of an address: nobody can read there.
const UNREADABLE_ADDRESS: u64 = 0;

/// The buffers of another rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExposedBuffers {
    rank: Rank,
    send_address: u64,
    /// What the elements of that are to be multiplied by, where the operator wants that.
    pub(super) factor: f64,
    recv_address: u64,
    /// Where its process has the region.
    region_address: u64,
}

/// Where a buffer lies.
fn address(buffer: Src<'_>) -> u64 {
    buffer.as_ptr().addr() as u64
}

impl ExposedBuffers {
    fn cma_target(&self, offset: usize) -> cma::CmaTarget {
        let Self { rank, recv_address, region_address: region, .. } = *self;
        cma::CmaTarget {
            rank,
            address: recv_address.wrapping_add(offset as u64),
            region_address: region,
        }
    }
}

/// Whether memory was read or written; false where it cannot be.
fn check_reachable(outcome: Result<()>) -> Result<bool> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::System => {
            crate::log!(LogLevel::Debug, "what is sent goes through slots: {error}");
            Ok(false)
        }
        outcome => outcome.map(|()| true),
    }
}

impl ShmSequencer<'_> {
    /// Publishes the coming step with the place of what this rank sends, and its factor, and waits
    /// for those of all; false where one of them cannot be read, here or elsewhere. Another buffer,
    /// that will be exposed later, is looked at too.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn expose_all(&mut self, operation: &Operation<'_>, later: Src<'_>) -> Result<bool> {
        let is_readable = cma::are_readable(operation.send, later);
        let send_address = if is_readable { address(operation.send) } else { UNREADABLE_ADDRESS };
        self.publish_addresses(send_address, operation)?;
        if self.has_arena_offers(operation)? {
            return self.expose_all(operation, later);
        }
        self.await_all()?;
        let mut all = send_address != UNREADABLE_ADDRESS;
        for rank in self.others() {
            all &= self.await_exposed(rank)?.send_address != UNREADABLE_ADDRESS;
        }
        Ok(all)
    }

    /// Publishes the coming step with the place of what this rank sends, which nothing is written
    /// to before the step in which all [close with what they read](Steps::close_tried).
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn expose_sent(&mut self, operation: &Operation<'_>) -> Result<()> {
        self.publish_addresses(address(operation.send), operation)?;
        if self.has_arena_offers(operation)? { self.expose_sent(operation) } else { Ok(()) }
    }

    /// Publishes the coming step with the place of what this rank has of the result, which can be
    /// read.
    ///
    /// # Errors
    /// As [`ShmSequencer::publish`].
    pub(super) fn expose_result(&mut self, operation: &Operation<'_>) -> Result<()> {
        self.publish_addresses(address(operation.recv.as_src()), operation)
    }

    fn publish_addresses(&mut self, send_address: u64, operation: &Operation<'_>) -> Result<()> {
        let recv_address = address(operation.recv.as_src());
        let words = [
            send_address,
            operation.factor.to_bits(),
            recv_address,
            self.domain().region().address(),
        ];
        let [send_address, factor, recv_address, region_address] = words.map(u64::to_le_bytes);
        self.publish(
            [NO_ARENA_OFFER, send_address, factor, recv_address, region_address].as_flattened(),
        )
    }

    /// What a rank exposed with the current step.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_rank`].
    pub(super) fn await_exposed(&mut self, rank: Rank) -> Result<ExposedBuffers> {
        self.await_rank(rank)?;
        let mut words = [NO_ARENA_OFFER; 5];
        self.payload(rank, words.as_flattened_mut());
        let [_, send_address, factor, recv_address, region_address] = words.map(u64::from_le_bytes);
        Ok(ExposedBuffers {
            rank,
            send_address,
            factor: f64::from_bits(factor),
            recv_address,
            region_address,
        })
    }

    /// Copies what lies at `offset` in what a rank has exposed as sent.
    ///
    /// # Errors
    /// Why the group has failed; `System` where the memory cannot be read for another reason, which
    /// fails it.
    pub(super) fn cma_read(
        &self,
        from: ExposedBuffers,
        offset: usize,
        into: Dst<'_>,
    ) -> Result<()> {
        cma::cma_read(self.domain(), from.rank, from.send_address.wrapping_add(offset as u64), into)
            .map_err(|error| self.unreachable_memory_error(from.rank, error))
    }

    /// Copies to `offset` in what a rank receives.
    ///
    /// # Errors
    /// Why the group has failed; `System` where the memory cannot be written for another reason,
    /// which fails it.
    pub(super) fn cma_write(&self, src: Src<'_>, to: ExposedBuffers, offset: usize) -> Result<()> {
        cma::cma_write(self.domain(), RemoteWritePurpose::Collective, to.cma_target(offset), src)
            .map_err(|error| self.unreachable_memory_error(to.rank, error))
    }

    /// The same; false where the memory cannot be read.
    ///
    /// # Errors
    /// Why the group has failed.
    pub(super) fn try_cma_read(
        &self,
        from: ExposedBuffers,
        offset: usize,
        into: Dst<'_>,
    ) -> Result<bool> {
        check_reachable(cma::cma_read(
            self.domain(),
            from.rank,
            from.send_address.wrapping_add(offset as u64),
            into,
        ))
    }

    /// As [`ShmSequencer::cma_write`]; false where the memory cannot be written.
    ///
    /// # Errors
    /// Why the group has failed.
    pub(super) fn try_cma_write(
        &self,
        src: Src<'_>,
        to: ExposedBuffers,
        offset: usize,
    ) -> Result<bool> {
        check_reachable(cma::cma_write(
            self.domain(),
            RemoteWritePurpose::Collective,
            to.cma_target(offset),
            src,
        ))
    }

    /// The same to several ranks, once each has exposed its buffers.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_exposed`].
    pub(super) fn try_cma_write_all(
        &mut self,
        ranks: impl Iterator<Item = Rank>,
        src: Src<'_>,
        offset: usize,
    ) -> Result<bool> {
        for rank in ranks {
            let peer_buffers = self.await_exposed(rank)?;
            if !self.try_cma_write(src, peer_buffers, offset)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// [Closes](Steps::close) what was exposed as sent, of which this rank could read, or write
    /// where it goes, everything or not; whether all could.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn close_exposure_if_all(&mut self, is_complete: bool) -> Result<bool> {
        self.publish([NO_ARENA_OFFER, u64::from(is_complete).to_le_bytes()].as_flattened())?;
        self.await_all()?;
        Ok(is_complete
            && self.others().all(|rank| {
                let mut words = [NO_ARENA_OFFER; 2];
                self.payload(rank, words.as_flattened_mut());
                words[1] != NO_ARENA_OFFER
            }))
    }

    /// Publishes the coming step, and waits until everybody has: nobody reads or writes what was
    /// exposed any more.
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn close_exposure(&mut self) -> Result<()> {
        self.publish(&[])?;
        self.await_all()
    }

    /// Why memory cannot be read or written, if the group has not failed: mostly because of a death
    /// that is known in a moment.
    #[cold]
    fn unreachable_memory_error(&self, rank: Rank, error: Error) -> Error {
        if error.kind() != ErrorKind::System {
            return error;
        }
        let domain = self.domain();
        let bell = domain.region().doorbell(self.rank());
        let never = || None::<()>;
        let halted = || domain.failure();
        match wait_until(
            bell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(FAILURE_REPORT_TIMEOUT),
            halted,
            never,
        ) {
            Err(WaitInterrupt::Aborted(reason)) => reason,
            Ok(()) | Err(WaitInterrupt::Deadline) => {
                self.fail(error.with_culprit(self.peer(rank).rank))
            }
        }
    }
}
