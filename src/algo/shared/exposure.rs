//! Exposure of callers' buffers for cross-memory attach (CMA): copies between two processes by the
//! system calls `process_vm_readv` and `process_vm_writev`. A rank publishes the addresses of its
//! buffers, and its peers read from these buffers or write to them. Large vectors are thus copied
//! once, instead of twice (into a data slot and out of it).
//!
//! - **Start and end.** A rank *exposes* its buffer with one step, and *ends the exposure* with a
//!   later step. It may overwrite the buffer, or return to its caller, after the ranks that read
//!   from the buffer have also published that later step. Between the two steps, it writes only to
//!   the ranges of the buffer that no other rank reads.
//! - **Support.** When a group is created, its ranks test whether they can read and write each
//!   other's memory. The result is the same on all ranks
//!   ([`GroupShape::has_cma`](crate::algo::row::GroupShape::has_cma)).
//! - **Inaccessible buffers.** Some buffers cannot be read by other processes, for instance those
//!   in the memory of some devices. There are two ways to detect this, and in both ways all ranks
//!   come to the same conclusion, because they decide from the control slots of all ranks:
//!   - If no rank overwrites exposed data during the exposure, the ranks try to copy. A rank whose
//!     copy fails reports this when it ends the exposure, and all ranks repeat the operation
//!     through data slots ([`ShmSequencer::close_exposure`]).
//!   - Otherwise the operation cannot be repeated. Each rank therefore first reads the first and
//!     the last byte of its own buffer by CMA, and publishes the result
//!     ([`ShmSequencer::expose_all`]). If this test fails on any rank, no rank reads from its
//!     peers.
//! - **Refused access.** The kernel may refuse an access although the ranks could access each
//!   other's memory when the group was created. [`super::refused_access`] describes how the ranks
//!   then complete the operation.
//! - **Writes.** If a rank writes to a range of a peer's memory, no other rank reads or writes that
//!   range before all ranks have ended the exposure. [`super::revocation`] describes how a rank
//!   whose operation fails revokes this access.
//! - **Validity.** Data that a rank has read is valid only if the owner of the buffer had not
//!   returned to its caller before the read. The reader knows this when it has seen the owner's
//!   step that ends the exposure. A rank whose operation fails marks the group as failed before it
//!   returns.

use super::arena_state::NO_ARENA_OFFER;
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

/// The time for which a rank that cannot read a peer's memory waits for the explanation: a report
/// that the peer is dead, or a failure of the group.
const FAILURE_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The value that a rank publishes instead of the address of a buffer that peers cannot read.
const UNREADABLE_ADDRESS: u64 = 0;

/// The buffers that another rank has exposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExposedBuffers {
    rank: Rank,
    send_address: u64,
    /// The factor for the elements of the send buffer. Only the operator `PREMUL_SUM` uses it.
    pub(super) factor: f64,
    recv_address: u64,
    /// The address in that rank's process at which the region of the domain is mapped.
    region_address: u64,
}

/// Returns the address of a buffer.
fn address(buffer: Src<'_>) -> u64 {
    buffer.as_ptr().addr() as u64
}

impl ExposedBuffers {
    /// Returns whether the rank has exposed a buffer that its peers can read.
    pub(super) fn is_readable(&self) -> bool {
        self.send_address != UNREADABLE_ADDRESS
    }

    fn cma_target(&self, offset: usize) -> cma::CmaTarget {
        let Self { rank, recv_address, region_address: region, .. } = *self;
        cma::CmaTarget {
            rank,
            address: recv_address.wrapping_add(offset as u64),
            region_address: region,
        }
    }
}

impl ShmSequencer<'_> {
    /// Publishes the next step with the address of this rank's send buffer and this rank's factor,
    /// and waits for the steps of all ranks. Returns false if the buffer of any rank is not
    /// readable. This rank tests its send buffer and `later`, a buffer that it will expose with a
    /// later step.
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
            all &= self.await_exposed(rank)?.is_readable();
        }
        Ok(all)
    }

    /// Publishes the next step with the addresses of this rank's buffers. No rank may write to the
    /// send buffer before the step in which all ranks [end the
    /// exposure](Self::close_exposure).
    ///
    /// # Errors
    /// As [`ShmSequencer::await_all`].
    pub(super) fn expose_sent(&mut self, operation: &Operation<'_>) -> Result<()> {
        self.publish_addresses(address(operation.send), operation)?;
        if self.has_arena_offers(operation)? { self.expose_sent(operation) } else { Ok(()) }
    }

    /// Publishes the next step with the address of this rank's receive buffer, in which the peers
    /// read this rank's slice of the result. The buffer must be readable by the peers. If the slice
    /// is not complete, exposes nothing.
    ///
    /// # Errors
    /// As [`ShmSequencer::publish`].
    pub(super) fn expose_result(
        &mut self,
        operation: &Operation<'_>,
        is_complete: bool,
    ) -> Result<()> {
        let result = address(operation.recv.as_src());
        self.publish_addresses(if is_complete { result } else { UNREADABLE_ADDRESS }, operation)
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

    /// Waits until a rank has published the current step, and returns the buffers that it exposes
    /// with this step.
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

    fn read_peer(&self, from: ExposedBuffers, offset: usize, into: Dst<'_>) -> Result<()> {
        let address = from.send_address.wrapping_add(offset as u64);
        cma::cma_read(self.domain(), from.rank, address, into)
    }

    fn write_peer(&self, src: Src<'_>, to: ExposedBuffers, offset: usize) -> Result<()> {
        let purpose = RemoteWritePurpose::Collective;
        cma::cma_write(self.domain(), purpose, to.cma_target(offset), src)
    }

    /// Copies `into.len()` bytes from `offset` in a rank's exposed send buffer. Returns false if
    /// the kernel refuses the access.
    ///
    /// # Errors
    /// The failure of the group, if the group has failed. Otherwise `System` if the memory cannot
    /// be read for another reason; this error also fails the group.
    pub(super) fn cma_read(
        &self,
        from: ExposedBuffers,
        offset: usize,
        into: Dst<'_>,
    ) -> Result<bool> {
        self.check_permitted(from.rank, self.read_peer(from, offset, into))
    }

    /// Copies `src` to `offset` in a rank's exposed receive buffer. Returns false if the kernel
    /// refuses the access.
    ///
    /// # Errors
    /// The failure of the group, if the group has failed. Otherwise `System` if the memory cannot
    /// be written for another reason; this error also fails the group.
    pub(super) fn cma_write(
        &self,
        src: Src<'_>,
        to: ExposedBuffers,
        offset: usize,
    ) -> Result<bool> {
        self.check_permitted(to.rank, self.write_peer(src, to, offset))
    }

    /// Converts the outcome of an access that must succeed if the kernel permits it.
    fn check_permitted(&self, rank: Rank, outcome: Result<()>) -> Result<bool> {
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if cma::is_refused(&error) => {
                self.record_refusal(rank, &error);
                Ok(false)
            }
            Err(error) => Err(self.unreachable_memory_error(rank, error)),
        }
    }

    /// Converts the outcome of an access to a peer's memory: true if the access succeeded, false if
    /// the memory is not accessible, and an error if the group has failed.
    fn check_reachable(&self, rank: Rank, outcome: Result<()>) -> Result<bool> {
        match outcome {
            Err(error) if cma::is_refused(&error) => self.record_refusal(rank, &error),
            Err(error) if error.kind() == ErrorKind::System => crate::log!(
                LogLevel::Debug,
                "cannot access a peer's memory; the data goes through data slots: {error}"
            ),
            outcome => return outcome.map(|()| true),
        }
        Ok(false)
    }

    /// Copies as [`ShmSequencer::cma_read`], but returns false if the memory cannot be read.
    ///
    /// # Errors
    /// The failure of the group.
    pub(super) fn try_cma_read(
        &self,
        from: ExposedBuffers,
        offset: usize,
        into: Dst<'_>,
    ) -> Result<bool> {
        self.check_reachable(from.rank, self.read_peer(from, offset, into))
    }

    /// Copies as [`ShmSequencer::cma_write`], but returns false if the memory cannot be written.
    ///
    /// # Errors
    /// The failure of the group.
    pub(super) fn try_cma_write(
        &self,
        src: Src<'_>,
        to: ExposedBuffers,
        offset: usize,
    ) -> Result<bool> {
        self.check_reachable(to.rank, self.write_peer(src, to, offset))
    }

    /// Copies `src` to `offset` in the receive buffers of several ranks. For each rank, waits until
    /// it has exposed its buffers. Returns false if the memory of a rank cannot be written.
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

    /// Returns the error for memory that cannot be read or written. The usual cause is the death of
    /// a rank. If neither the group has failed nor the death is known yet, this function therefore
    /// waits up to [`FAILURE_REPORT_TIMEOUT`] for either, and fails the group with that reason.
    #[cold]
    fn unreachable_memory_error(&self, rank: Rank, error: Error) -> Error {
        if error.kind() != ErrorKind::System {
            return error;
        }
        let domain = self.domain();
        let doorbell = domain.region().doorbell(self.rank());
        let never = || None::<()>;
        let halted = || domain.failure().or_else(|| self.departure_error(rank));
        match wait_until(
            doorbell,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(FAILURE_REPORT_TIMEOUT),
            halted,
            never,
        ) {
            Err(WaitInterrupt::Aborted(reason)) => self.fail(reason),
            Ok(()) | Err(WaitInterrupt::Deadline) => {
                self.fail(error.with_culprit(self.peer(rank).rank))
            }
        }
    }
}
