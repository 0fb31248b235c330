//! Probes: a probe finds a message for which no receive is posted (`dist_probe`). The caller can
//! then receive exactly this message (`dist_recv_message`).
//!
//! A probe runs on the caller's thread. It has no work and no entry in the flight recorder. A
//! [`MatchedMessage`] holds only a weak reference to its group. If the group ends, its engine
//! discards the message like any other message that was not received.

use crate::api::collective::call_options::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::{BlockedCallGuard, Need, PublishedNeeds};
use crate::api::work::callbacks;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::{
    Completion, MessageTraffic, PointToPoint, ProbedMessage, ReceiveBuffer, ReceiveRequest,
};
use crate::wait::slow_wait::SlowWaitWatch;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use crate::transport::{Delivery, MessageEnvelope, ProbeRequest};

/// State of [`MatchedMessage`]: no call receives the message.
const UNCLAIMED: u8 = 0;
/// State of [`MatchedMessage`]: a call has claimed the message and is about to receive it.
const CLAIMED: u8 = 1;
/// State of [`MatchedMessage`]: the message was received or released. The engine no longer has it
/// under its number.
const TAKEN: u8 = 2;

/// A message that a probe has matched (as MPI's `Mprobe`), so that no receive can match it. If this
/// object is dropped before a receive was posted, the engine offers the message to receives again.
#[derive(Debug)]
pub struct MatchedMessage {
    group: Weak<Group>,
    envelope: MessageEnvelope,
    /// The number under which the engine keeps the message.
    matched_id: u64,
    /// [`UNCLAIMED`], [`CLAIMED`] or [`TAKEN`].
    claim: AtomicU8,
}

/// A message that a probe has found.
#[derive(Debug)]
pub struct FoundMessage {
    /// The sender, the tag, the type and the length.
    pub envelope: MessageEnvelope,
    /// The matched message, if the request asked for a match.
    pub message: Option<Arc<MatchedMessage>>,
}

/// Formats a probe for log and error texts: `probe for a message of rank 3, tag 7`.
struct ProbeTitle<'a>(&'a ProbeRequest);

impl fmt::Display for ProbeTitle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.from {
            Some(rank) => write!(f, "probe for a message of rank {rank}")?,
            None => f.write_str("probe for a message of any rank")?,
        }
        match self.0.tag {
            Some(tag) => write!(f, ", tag {tag}"),
            None => f.write_str(", any tag"),
        }
    }
}

impl Group {
    /// Finds a message that a receive with the same peer and tag would match. If `is_blocking` is
    /// true, waits for such a message until the deadline. Otherwise returns `None` if there is no
    /// such message.
    ///
    /// # Errors
    /// `InvalidArgument`; `Unsupported`; `Timeout`; `PeerFailed` if the sender has left and all its
    /// messages were received; the group's failure.
    pub fn probe(
        self: &Arc<Self>,
        request: &ProbeRequest,
        is_blocking: bool,
        options: &CallOptions,
    ) -> Result<Option<FoundMessage>> {
        let engine = self.check_message(request.from, request.tag, options);
        let engine = engine.context(|| ProbeTitle(request))?;
        let found = if is_blocking {
            callbacks::reject_blocking_in_callback("a blocking probe")?;
            self.wait_for_message(engine, request, &self.deadline(options))
        } else {
            engine.probe(request, &Deadline::after_ms(0))
        };
        let found = found.map_err(|error| {
            let error =
                error.context(format_args!("{} on {}", ProbeTitle(request), self.describe_rank()));
            self.record_returned_error(&error);
            error
        })?;
        Ok(found.map(|probed| {
            let (envelope, group) = (probed.envelope, Arc::downgrade(self));
            let to_message = |matched| {
                let claim = AtomicU8::new(UNCLAIMED);
                Arc::new(MatchedMessage { group, envelope, matched_id: matched, claim })
            };
            FoundMessage { envelope, message: probed.match_id.map(to_message) }
        }))
    }

    /// Returns what a probe needs that found no message. `traffic` was read before the probe.
    fn needs_of_probe(&self, request: &ProbeRequest, traffic: &MessageTraffic) -> PublishedNeeds {
        let others = (0..self.size()).filter(|&rank| rank != self.rank());
        let need = match request.from {
            Some(rank) => Need::message_of(rank, traffic),
            None => Need::message_of_any(others, traffic),
        };
        let needs = need.into_iter().collect();
        PublishedNeeds { title: ProbeTitle(request).to_string(), needs, joining: None }
    }

    fn wait_for_message(
        &self,
        engine: &dyn PointToPoint,
        request: &ProbeRequest,
        deadline: &Deadline,
    ) -> Result<Option<ProbedMessage>> {
        let mut watch = SlowWaitWatch::default();
        let blocked_call = BlockedCallGuard::control(Arc::as_ptr(&self.queue).addr(), deadline);
        loop {
            let log_wait = |waited| {
                let (title, caller) = (ProbeTitle(request), self.describe_rank());
                crate::log!(LogLevel::Warn, "{title} on {caller} has waited {waited}");
            };
            let interval = watch.check(log_wait);
            let traffic = blocked_call.is_blocked().then(|| engine.traffic(0));
            let interval = interval.into_iter().chain(traffic.as_ref().map(|_| PUBLISH_INTERVAL));
            let slice = interval.min().map_or(*deadline, |interval| deadline.capped(interval));
            if let Some(found) = engine.probe(request, &slice)? {
                return Ok(Some(found));
            }
            if let Some(traffic) = traffic {
                blocked_call.publish(self.needs_of_probe(request, &traffic));
            }
            if deadline.has_passed() {
                return Err(probe_timeout_error(request.from, deadline));
            }
        }
    }
}

/// The interval at which a blocked probe publishes its needs.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(200);

fn probe_timeout_error(from: Option<Rank>, deadline: &Deadline) -> Error {
    let (elapsed, allowed) = (deadline.elapsed().as_millis(), deadline.timeout().as_millis());
    let message = format!("no message arrived within {elapsed} ms (allowed: {allowed} ms)");
    let error = Error::new(ErrorKind::Timeout, message);
    match from {
        Some(rank) => error.with_culprit(rank),
        None => error,
    }
}

impl MatchedMessage {
    /// Returns the group of the message.
    ///
    /// # Errors
    /// `InvalidHandle` if the group has ended.
    pub(super) fn group(&self) -> Result<Arc<Group>> {
        self.group.upgrade().ok_or_else(|| {
            let message = "the group of the message was released, and the message with it";
            Error::new(ErrorKind::InvalidHandle, message)
        })
    }

    /// Returns the sender, the tag, the type and the length.
    pub(super) fn envelope(&self) -> &MessageEnvelope {
        &self.envelope
    }

    /// Claims the message, so that no other call can receive it.
    ///
    /// # Errors
    /// `InvalidHandle` if another call receives the message.
    pub(super) fn claim(&self) -> Result<()> {
        let exchange =
            self.claim.compare_exchange(UNCLAIMED, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
        exchange.map(drop).map_err(|_| {
            let message = "another call already receives the message";
            Error::new(ErrorKind::InvalidHandle, message)
        })
    }

    /// Checks that the message has this type and fits into a buffer of `room` bytes.
    pub(super) fn check_fit(&self, dtype: DataType, room: usize) -> Result<()> {
        let MessageEnvelope { from, dtype: sent, bytes, .. } = self.envelope;
        let problem = if dtype != sent {
            format!("has type {sent}, but the receive expects {dtype}")
        } else if bytes > room {
            format!("has {bytes} bytes, but the receive buffer holds {room}")
        } else {
            return Ok(());
        };
        let message =
            format!("the message {problem}; nothing was written, and its handle stays valid");
        Err(Error::new(ErrorKind::Mismatch, message).with_culprit(from))
    }

    /// Releases the claim after a receive has failed. Returns whether the message can still be
    /// received.
    pub fn release_claim(&self) -> bool {
        self.claim.compare_exchange(CLAIMED, UNCLAIMED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns whether the group still exists.
    pub fn has_group(&self) -> bool {
        self.group.strong_count() > 0
    }

    /// Gives the message back to the engine, which offers it to receives again. Does nothing if a
    /// call has claimed the message.
    pub fn release(&self) {
        if self.claim.swap(TAKEN, Ordering::AcqRel) == UNCLAIMED {
            self.return_to_matching();
        }
    }

    fn return_to_matching(&self) {
        let Some(group) = self.group.upgrade() else { return };
        if let Ok(engine) = group.messaging_engine() {
            engine.release_matched(self.matched_id);
        }
        Group::release(group);
    }

    /// Posts the receive to the engine. If the engine is out of memory, the message stays claimed,
    /// so that the caller can release the claim.
    pub(super) fn post_receive(
        &self,
        engine: &dyn PointToPoint,
        into: Dst<'static>,
        dtype: DataType,
        deadline: Deadline,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let MessageEnvelope { from, tag, .. } = self.envelope;
        let (from, tag, into) = (Some(from), Some(tag), ReceiveBuffer::Borrowed(into));
        self.claim.store(TAKEN, Ordering::Release);
        let message = ReceiveRequest { from, tag, dtype, buffer: into, deadline };
        engine.receive_matched(self.matched_id, message, done).inspect_err(|error| {
            if error.kind() == ErrorKind::OutOfMemory {
                self.claim.store(CLAIMED, Ordering::Release);
            }
        })
    }
}

impl Drop for MatchedMessage {
    fn drop(&mut self) {
        if *self.claim.get_mut() != TAKEN {
            self.return_to_matching();
        }
    }
}
