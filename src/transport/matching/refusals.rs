//! Refused messages: messages that a receive matched by sender and tag but could not take, because
//! of their type or their length. The receive ends with the error, and the message stays for the
//! next receive.
//!
//! The receiver also tells the sender, by a `Refused` frame: an eager send ends before the receiver
//! looks at the message, so the sender would not learn of the difference. The next message call of
//! the sender returns the error, and has no other effect. A receive into a buffer of the engine
//! tells the sender nothing: the limit of such a receive is no statement about the message.

use super::frame::{MessageFrame, Refusal};
use super::link::QueuedItem;
use super::posted::is_internal_tag;
use super::state::MatchingState;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{MessageEnvelope, PeerName, ReceiveBuffer, ReceiveRequest, RefusedMessage};

impl Refusal {
    fn error_at_sender(&self, receiver: &PeerName) -> Error {
        let Self { tag, dtype, len, wanted, capacity } = self;
        let message = format!(
            "{receiver} refused the earlier message with tag {tag} ({dtype}, {len} bytes): its receive is for {wanted} and has room for {capacity} bytes"
        );
        Error::new(ErrorKind::Mismatch, message).with_culprit(receiver.rank)
    }
}

impl MatchingState {
    /// Ends a receive that could not take a message, with the reason. If the reason is a
    /// difference between the message and the receive, tells the sender.
    pub(super) fn end_refused_receive(
        &mut self,
        receive: u64,
        reason: Error,
        request: &ReceiveRequest,
        message: &MessageEnvelope,
    ) {
        if reason.kind() == ErrorKind::Mismatch {
            self.refuse(message, request);
        }
        self.requests.complete_receive(receive, Err(reason));
    }

    fn refuse(&mut self, message: &MessageEnvelope, request: &ReceiveRequest) {
        let (from, own) = (message.from, self.peers.rank());
        // This rank knows of its own messages from the error of the receive.
        if from == own || matches!(request.buffer, ReceiveBuffer::Allocated { .. }) {
            return;
        }
        let refusal = Refusal {
            tag: message.tag,
            dtype: message.dtype,
            len: message.bytes as u64,
            wanted: request.dtype,
            capacity: request.buffer.max_bytes() as u64,
        };
        let refused = &mut self.refused.by_this_rank;
        let known = refused.iter_mut().find(|known| known.message.from == from);
        if known.as_ref().is_some_and(|known| known.message == *message) {
            // Another receive has refused the same message, or an equal one, before.
            return;
        }
        let text = refusal.error_at_sender(self.peers.name(own)).message().to_owned();
        let refusal_of_sender = RefusedMessage { message: *message, text };
        match known {
            Some(known) => *known = refusal_of_sender,
            None => refused.push(refusal_of_sender),
        }
        self.peers.queue_item(from, QueuedItem::Control(MessageFrame::Refused(refusal)));
        self.flush_peer(from);
    }

    /// Handles the report of a receiver that it has refused a message of this rank.
    pub(super) fn on_refused(&mut self, receiver: Rank, refusal: Refusal) {
        let error = refusal.error_at_sender(self.peers.name(receiver));
        self.refused.unreported.get_or_insert(error);
    }

    /// Returns the error of a refused message of this rank, once. The library's own messages, which
    /// have internal tags, leave the error to the next message of the program.
    pub(super) fn take_refusal(&mut self, tag: Option<u32>) -> Result<()> {
        if tag.is_some_and(is_internal_tag) {
            return Ok(());
        }
        match self.refused.unreported.take() {
            Some(error) => {
                self.refused.is_reported = true;
                Err(error)
            }
            None => Ok(()),
        }
    }
}
