//! Puts: this rank writes the back halves of its own messages to the memory of their receivers by
//! CMA (cross-memory attach, `process_vm_writev`). A receiver requests a put as a part of a split
//! transfer (see [`super::split_transfer`]). A put ends with a report that tells the receiver how
//! many bytes were written.
//!
//! This file also has [`wait_for_writers`]: after a failure, a rank waits until no peer writes to
//! its memory.

use super::outstanding::OutstandingReceive;
use super::requests::Requests;
use super::rts_table::front_len;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::rank_progress::RemoteWritePurpose;
use crate::transport::{ReceiveBuffer, SharedDomain, arena, cma, cma_bounce};
use crate::wait::poll_backoff::PollBackoff;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The number of bytes per write call. Between two calls, this rank polls its streams.
const PUT_CHUNK_BYTES: usize = 1 << 20;

/// The shortest message for which a split transfer saves more time than its two additional frames
/// cost.
pub(super) const MIN_SPLIT_BYTES: usize = 64 << 10;

/// How long a receiver waits, after its group has failed, for peers that are writing to its memory.
const WRITER_GRACE: Duration = Duration::from_millis(100);
/// How long the receiver sleeps between two checks of these peers, at most.
const MAX_WRITER_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The back half of a message that this rank writes to the receiver's memory.
#[derive(Clone, Copy, Debug)]
struct ActivePut {
    peer: Rank,
    /// The number of the send.
    number: u64,
    target: cma::CmaTarget,
    /// The offset in the whole message of the first byte that is not written yet.
    done: usize,
}

/// The result of a step of a put.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PutStep {
    /// The number of bytes written.
    pub(super) written: usize,
    /// The report to the receiver, if the put has ended.
    pub(super) report: Option<PutReport>,
}

/// The report that a sender has written `len` bytes of a back half and will write no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct PutReport {
    pub(super) peer: Rank,
    pub(super) number: u64,
    pub(super) len: usize,
}

/// The puts of one engine.
#[derive(Debug)]
pub(super) struct Puts {
    domain: Arc<dyn SharedDomain>,
    active: VecDeque<ActivePut>,
    /// Whether this process can write by CMA.
    can_write: bool,
    /// The ranks of the domain to whose memory the kernel has refused a write.
    refusing_ranks: BTreeSet<Rank>,
}

impl Puts {
    /// Creates the state without a put.
    pub(super) fn new(domain: Arc<dyn SharedDomain>) -> Self {
        let can_write = cma::can_cma_write();
        Self { domain, active: VecDeque::new(), can_write, refusing_ranks: BTreeSet::new() }
    }

    /// Returns whether this process can write to the memory of a rank of the domain by CMA.
    pub(super) fn can_write(&self, rank: Rank) -> bool {
        self.can_write && !self.refusing_ranks.contains(&rank)
    }

    /// Returns whether the sender of an accepted message may be asked to write the back half. Call
    /// this only if the sender's caller is known to wait for the message, because only a waiting
    /// thread writes at once. Returns false if the kernel copies slowly from `source`, the address
    /// in the sender's process.
    pub(super) fn can_split(&self, receiving: &OutstandingReceive, source: u64) -> bool {
        let ReceiveBuffer::Borrowed(into) = receiving.message.buffer else { return false };
        self.can_write
            && into.len() >= MIN_SPLIT_BYTES
            && !cma_bounce::is_slow_pair(into.as_mut_ptr().addr(), source)
    }

    /// Adds the put of the back half of a message of `len` bytes.
    pub(super) fn add(&mut self, peer: Rank, number: u64, target: cma::CmaTarget, len: usize) {
        self.active.push_back(ActivePut { peer, number, target, done: front_len(len) });
    }

    /// Writes the next chunk of one put.
    ///
    /// # Errors
    /// The failure of the domain, if it has failed. An error of the write itself is no error of
    /// this function: the put ends, and the receiver reads the rest.
    pub(super) fn write_chunk(&mut self, requests: &Requests) -> Result<PutStep> {
        let Some(mut put) = self.active.pop_front() else { return Ok(PutStep::default()) };
        let ActivePut { peer, number, target, done } = put;
        let Some(sending) = requests.send(number) else { return Ok(PutStep::default()) };
        let bytes = sending.message.bytes;
        let front = front_len(bytes.len());
        let part = bytes.slice(done, (bytes.len() - done).min(PUT_CHUNK_BYTES));
        let address = target.address.wrapping_add(done as u64);
        let to = cma::CmaTarget { address, ..target };
        match cma::cma_write(self.domain.as_ref(), RemoteWritePurpose::Message, to, part) {
            Ok(()) => put.done += part.len(),
            Err(error) if error.kind() != ErrorKind::System => return Err(error),
            Err(error) => {
                if cma::is_refused(&error) {
                    self.refusing_ranks.insert(target.rank);
                    cma::log_refusal(self.domain.peer(target.rank), &error);
                }
                crate::log!(
                    LogLevel::Debug,
                    "cannot write the rest of a message; the receiver reads it: {error}"
                );
                let report = Some(PutReport { peer, number, len: done - front });
                return Ok(PutStep { written: 0, report });
            }
        }
        let mut report = None;
        if put.done < bytes.len() {
            self.active.push_back(put);
        } else {
            report = Some(PutReport { peer, number, len: bytes.len() - front });
        }
        Ok(PutStep { written: part.len(), report })
    }

    /// Drops the puts that satisfy a condition on the peer.
    pub(super) fn drop_puts(&mut self, is_dropped: impl Fn(Rank) -> bool) {
        self.active.retain(|put| !is_dropped(put.peer));
    }

    /// Returns whether there is a put in progress.
    pub(super) fn has_runnable(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns whether there is a put for which no caller waits.
    pub(super) fn has_unawaited(&self, requests: &Requests) -> bool {
        let is_awaited = |put: &ActivePut| {
            requests.send(put.number).is_some_and(|it| it.completion.is_awaited())
        };
        !self.active.iter().all(is_awaited)
    }

    /// Forbids or permits writes by CMA.
    #[cfg(any(test, fuzzing))]
    pub(super) fn set_can_write(&mut self, can_write: bool) {
        self.can_write = can_write;
    }
}

/// Waits until no rank of the domain writes to the receive buffers of this rank. Called after the
/// group has failed. If a rank may still write after [`WRITER_GRACE`], returns an error that names
/// the rank.
pub(super) fn wait_for_writers(domain: &dyn SharedDomain) -> Option<Error> {
    let limit = Deadline::after(WRITER_GRACE);
    let mut poller = PollBackoff::new(MAX_WRITER_POLL_INTERVAL);
    let writes = |rank: &Rank| {
        domain.region().progress(*rank).is_writing_remotely(RemoteWritePurpose::Message)
            && !arena::has_process_ended(domain.peer(*rank).pid)
    };
    let others = || (0..domain.size()).filter(|&rank| rank != domain.rank());
    while let Some(rank) = others().find(writes) {
        if limit.has_passed() {
            let peer = domain.peer(rank);
            let what = "was stopped while it wrote to the buffer of a receive, and may still write to it until \
                        the process ends";
            let error = Error::new(ErrorKind::PeerFailed, format!("{peer} {what}"));
            return Some(error.with_culprit(peer.rank));
        }
        poller.wait_before_retry(&limit);
    }
    None
}
