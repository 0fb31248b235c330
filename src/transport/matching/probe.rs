//! Probes: search for messages that no receive has matched, and receive a message that a probe has
//! removed from matching.
//!
//! A probe sees the messages in [`MatchingState::unexpected`], in the order in which a receive
//! would take them. A matched probe moves its message to [`MatchingState::probed_messages`], where
//! neither receives nor other probes find it. The message's memory stays counted as before: an
//! eager message uses its sender's credit until it is received, and an RTS keeps its place among
//! the sender's RTS frames. The message leaves `probed_messages` when it is received, when the
//! caller releases it to matching, or when its sender cancels it or leaves.
//!
//! A waiting probe is not posted: it searches again whenever [`MatchingState::has_new_message`] is
//! set. As in MPI, a receive on another thread may take the message that a probe waits for.

use super::progress_owner::EngineCore;
use super::state::MatchingState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::{
    Completion, MessageEnvelope, PeerName, ProbeRequest, ProbedMessage, ReceiveRequest,
};
use std::cell::RefCell;
use std::sync::Arc;

impl EngineCore {
    /// See [`crate::transport::PointToPoint::probe`].
    pub(super) fn probe(
        &self,
        request: &ProbeRequest,
        limit: &Deadline,
    ) -> Result<Option<ProbedMessage>> {
        let first = self.with_state(|state| {
            state.progress_and_expire();
            state.find_message(request)
        })?;
        if first.is_some() || limit.has_passed() {
            return Ok(first);
        }
        self.with_state(|state| state.waiting_probes += 1);
        let found = RefCell::new(None);
        let is_over = || {
            let mut found = found.borrow_mut();
            if found.is_none() {
                *found = self.lock().state.find_message(request).transpose();
            }
            found.is_some()
        };
        self.progress_until(&is_over, limit);
        self.with_state(|state| state.waiting_probes -= 1);
        found.into_inner().transpose()
    }
}

impl MatchingState {
    /// Returns the first message that a receive with these arguments would take, if one is there.
    pub(super) fn find_message(&mut self, request: &ProbeRequest) -> Result<Option<ProbedMessage>> {
        let ProbeRequest { from, tag, is_matched_probe: takes } = *request;
        self.check_peer(from)?;
        let Some((arrival, found)) = self.unexpected.first((from, tag)) else {
            return self.departure_error(from).map_or(Ok(None), Err);
        };
        let (from, tag, dtype, bytes) = (found.from, found.tag, found.dtype, found.len);
        let envelope = MessageEnvelope { from, tag, dtype, bytes };
        if !takes {
            return Ok(Some(ProbedMessage { envelope, match_id: None }));
        }
        self.probed_messages
            .extend(self.unexpected.remove(arrival).map(|message| (arrival, message)));
        Ok(Some(ProbedMessage { envelope, match_id: Some(arrival) }))
    }

    /// See [`crate::transport::PointToPoint::receive_matched`].
    pub(super) fn receive_matched(
        &mut self,
        match_id: u64,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        self.check_postable(message.from)?;
        let receive = self.store_receive(message, completion, true);
        let Some(found) = self.probed_messages.remove(&match_id) else {
            self.fail_withdrawn_receive(receive);
            return Ok(());
        };
        let refusal = self
            .receives
            .get_mut(&receive)
            .and_then(|receiving| receiving.prepare_buffer(&self.links[found.from].name, &found));
        if let Some(error) = refusal {
            self.complete_receive(receive, Err(error));
            self.on_message_arrived(match_id, found);
        } else if self.deliver_to_receive(found, receive) {
            self.start_receive_timer(receive);
        } else {
            self.fail_withdrawn_receive(receive);
        }
        Ok(())
    }

    /// See [`crate::transport::PointToPoint::release_matched`].
    pub(super) fn release_matched(&mut self, match_id: u64) {
        if let Some(message) = self.probed_messages.remove(&match_id) {
            self.on_message_arrived(match_id, message);
        }
    }

    /// Fails the receive of a message that a probe removed from matching and that no longer exists.
    pub(super) fn fail_withdrawn_receive(&mut self, receive: u64) {
        let Some(receiving) = self.receives.get(&receive) else { return };
        let ReceiveRequest { from, tag, .. } = receiving.message;
        let close_error = from.and_then(|from| {
            let link = &self.links[from];
            link.close_error.clone().or_else(|| link.send_close_error.clone())
        });
        let error = close_error
            .unwrap_or_else(|| withdrawn_error(from.map(|from| self.peer_name(from)), tag));
        let error = from.map_or(error.clone(), |from| error.with_culprit(from));
        self.complete_receive(receive, Err(error));
    }

    /// Removes a message that was not received and no longer exists.
    pub(super) fn discard_message(&mut self, arrival: u64) {
        self.unexpected.remove(arrival);
        self.probed_messages.remove(&arrival);
    }

    /// Makes the waiting probes search again.
    pub(super) fn wake_probes(&mut self) {
        self.has_new_message |= self.waiting_probes > 0;
    }
}

fn withdrawn_error(from: Option<&PeerName>, tag: Option<u32>) -> Error {
    let from = from.map(|name| format!(" of {name}")).unwrap_or_default();
    let tag = tag.map(|tag| format!(" with tag {tag}")).unwrap_or_default();
    let message = format!(
        "the message{from}{tag} is no longer available: its sender cancelled it, because its deadline passed or the \
         sender left"
    );
    Error::new(ErrorKind::Aborted, message)
}
