//! The bootstrap exchange between the ranks of an inner group, over messages of the group. In each
//! phase, the first member collects the contributions and sends the list to the other members. The
//! ranks of different inner groups need not run the same phases.

use crate::backend::buffer_pool::PooledBuffer;
use crate::backend::linked_failures::renumber_outwards;
use crate::backend::{
    BootstrapExchange, Completion, Delivery, GroupFailureState, LARGEST_TAG, PointToPoint,
    RankLocation, ReceiveBuffer, ReceiveRequest, SendRequest,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The tag of the messages.
const MEMBER_TAG: u32 = LARGEST_TAG + 6;

/// The maximum length of an accepted message.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// The interval between two checks whether the creation of the group has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The bootstrap exchange of one inner group.
pub(super) struct InnerGroupExchange<'a> {
    /// The messages of the group.
    pub(super) engine: &'a dyn PointToPoint,
    /// The numbers in the group of the members.
    pub(super) members: &'a [Rank],
    /// The number of this rank in the inner group.
    pub(super) me: Rank,
    pub(super) deadline: &'a Deadline,
    /// The exchange of the group, to which failures are published.
    pub(super) group_exchange: &'a dyn BootstrapExchange,
    pub(super) failure_state: &'a dyn GroupFailureState,
    /// The locations of the ranks of the group.
    pub(super) locations: &'a [RankLocation],
}

/// A message in flight. It keeps the buffer of a send until the engine no longer uses it.
#[derive(Debug)]
struct MessageInFlight {
    _sent: Option<PooledBuffer>,
    outcome: Mutex<Option<Result<Vec<u8>>>>,
}

impl MessageInFlight {
    fn new(sent: Option<PooledBuffer>) -> Arc<Self> {
        Arc::new(Self { _sent: sent, outcome: Mutex::default() })
    }

    fn is_done(&self) -> bool {
        lock(&self.outcome).is_some()
    }

    fn take(&self) -> Option<Result<Vec<u8>>> {
        lock(&self.outcome).take()
    }
}

impl Completion for MessageInFlight {
    fn complete(&self, outcome: Result<Delivery>) {
        *lock(&self.outcome) = Some(outcome.map(|_| Vec::new()));
    }

    fn complete_allocated(&self, _: Delivery, bytes: Vec<u8>) {
        *lock(&self.outcome) = Some(Ok(bytes));
    }
}

impl InnerGroupExchange<'_> {
    fn send(&self, to: Rank, bytes: &[u8]) -> Result<Arc<MessageInFlight>> {
        let buffer = PooledBuffer::copy_of(bytes);
        let request = SendRequest {
            to: self.members[to],
            tag: MEMBER_TAG,
            dtype: DataType::U8,
            bytes: buffer.as_src(),
            deadline: *self.deadline,
            is_synchronous: false,
        };
        let sent = MessageInFlight::new(Some(buffer));
        self.engine.send(request, Arc::clone(&sent) as Arc<dyn Completion>)?;
        Ok(sent)
    }

    fn receive(&self, from: Rank) -> Result<Arc<MessageInFlight>> {
        let request = ReceiveRequest {
            from: Some(self.members[from]),
            tag: Some(MEMBER_TAG),
            dtype: DataType::U8,
            buffer: ReceiveBuffer::Allocated { max_bytes: MAX_MESSAGE_BYTES },
            deadline: *self.deadline,
        };
        let received = MessageInFlight::new(None);
        self.engine.receive(request, Arc::clone(&received) as Arc<dyn Completion>)?;
        Ok(received)
    }

    /// Waits for the messages with these members, and returns the received bytes.
    fn finish(
        &self,
        phase: &str,
        messages: &[(Rank, Arc<MessageInFlight>)],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let missing = || messages.iter().find(|(_, message)| !message.is_done());
        while let Some(&(peer, _)) = missing() {
            // This group's own failure names the ranks of the group, but an error of this exchange
            // names members.
            let failure = self.failure_state.failure().map(|error| self.renumber_inwards(error));
            if let Some(error) = failure.or_else(check_cancelled).or_else(|| self.peer_failure()) {
                return Err(error);
            }
            if self.deadline.has_passed() {
                return Err(self.timeout_error(phase, peer));
            }
            let limit = self.deadline.capped(CHECK_INTERVAL);
            self.engine.progress_until(&|| missing().is_none(), &limit);
        }
        let take = |(_, message): &(Rank, Arc<MessageInFlight>)| message.take();
        let taken: Option<Result<Vec<Vec<u8>>>> = messages.iter().map(take).collect();
        let taken = taken.ok_or_else(|| Error::internal("a message has no outcome"))?;
        taken.map_err(|error| self.renumber_inwards(error))
    }

    fn renumber_inwards(&self, error: Error) -> Error {
        error.renumber_culprit(|rank| self.members.iter().position(|&member| member == rank))
    }

    fn timeout_error(&self, phase: &str, peer: Rank) -> Error {
        let name = &self.locations[self.members[peer]].name;
        let message = format!(
            "{name} did not complete the phase \"{phase}\" of the creation of a two-level group \
             within {} ms",
            self.deadline.elapsed().as_millis()
        );
        Error::new(ErrorKind::Timeout, message).with_culprit(peer)
    }
}

impl BootstrapExchange for InnerGroupExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        contribution: &[u8],
        check_cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let size = self.members.len();
        if size == 1 {
            return Ok(vec![contribution.to_vec()]);
        }
        let malformed = || {
            Error::new(
                ErrorKind::Mismatch,
                format!("the ranks of a two-level group are not in the same phase (\"{phase}\")"),
            )
        };
        if self.me != 0 {
            let sent = self.send(0, &encode_list(phase, &[contribution]))?;
            let messages = [(0, self.receive(0)?), (0, sent)];
            let received = self.finish(phase, &messages, check_cancelled)?;
            return decode_list(phase, size, &received[0]).ok_or_else(malformed);
        }
        let others = || 1..size;
        let receives: Vec<_> =
            others().map(|from| Ok((from, self.receive(from)?))).collect::<Result<_>>()?;
        let mut list = vec![contribution.to_vec()];
        for bytes in self.finish(phase, &receives, check_cancelled)? {
            list.extend(decode_list(phase, 1, &bytes).ok_or_else(malformed)?);
        }
        let whole: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
        let whole = encode_list(phase, &whole);
        let sends: Vec<_> =
            others().map(|to| Ok((to, self.send(to, &whole)?))).collect::<Result<_>>()?;
        self.finish(phase, &sends, check_cancelled)?;
        Ok(list)
    }

    fn publish_failure(&self, reason: &Error) {
        let reason = renumber_outwards(reason.clone(), self.members);
        self.group_exchange.publish_failure(&reason);
        self.failure_state.fail(&reason);
    }

    fn peer_failure(&self) -> Option<Error> {
        self.group_exchange.peer_failure().map(|error| self.renumber_inwards(error))
    }
}

/// Encodes the name of a phase and a list of contributions, each with its length.
fn encode_list(phase: &str, list: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in std::iter::once(phase.as_bytes()).chain(list.iter().copied()) {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

/// Decodes a list of `count` contributions to a phase. Returns `None` for other bytes.
fn decode_list(phase: &str, count: usize, mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut next_part = || {
        let (len, rest) = bytes.split_at_checked(8)?;
        let len = usize::try_from(u64::from_le_bytes(len.try_into().ok()?)).ok()?;
        let (part, rest) = rest.split_at_checked(len)?;
        bytes = rest;
        Some(part.to_vec())
    };
    let is_phase = next_part()? == phase.as_bytes();
    let list: Vec<Vec<u8>> = (0..count).map(|_| next_part()).collect::<Option<_>>()?;
    (is_phase && bytes.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_round_trip_and_reject_bad_bytes() {
        let bytes = encode_list("card", &[b"one", b"", b"three"]);
        let list = decode_list("card", 3, &bytes).unwrap();
        assert_eq!(list, [&b"one"[..], b"", b"three"]);
        for (phase, count, bytes) in [
            ("met", 3, &bytes[..]),
            ("card", 2, &bytes),
            ("card", 4, &bytes),
            ("card", 3, &bytes[..bytes.len() - 1]),
            ("card", 3, &[0xff; 40]),
            ("card", 0, &[]),
        ] {
            assert_eq!(decode_list(phase, count, bytes), None, "{phase} {count}");
        }
    }
}
