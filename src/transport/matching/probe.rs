//! Probes: the search for messages that no receive has matched. A *matched probe* (as `MPI_Mprobe`)
//! also removes its message from matching, so that no other receive or probe can find it. Its
//! caller then receives the message by number.
//!
//! The messages are in [`super::queues`]. A message that a matched probe has removed counts against
//! the limits as before. An eager message uses its sender's credit until it is received. An RTS
//! keeps its entry in the table of RTS frames.
//!
//! A waiting probe is not posted like a receive. It searches again whenever a message finds no
//! receive. As in MPI, a receive on another thread may take the message that a probe waits for.

use super::progress_owner::EngineCore;
use super::state::MatchingState;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::{Completion, PeerName, ProbeRequest, ProbedMessage, ReceiveRequest};
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
        self.with_state(|state| state.queues.begin_probe_wait());
        let found = RefCell::new(None);
        let is_over = || {
            let mut found = found.borrow_mut();
            if found.is_none() {
                *found = self.lock().state.find_message(request).transpose();
            }
            found.is_some()
        };
        self.progress_until(&is_over, limit);
        self.with_state(|state| state.queues.end_probe_wait());
        found.into_inner().transpose()
    }
}

impl MatchingState {
    /// Returns the first message that a receive with these arguments would take, if the message has
    /// arrived.
    pub(super) fn find_message(&mut self, request: &ProbeRequest) -> Result<Option<ProbedMessage>> {
        self.check_peer(request.from)?;
        let found = self.queues.probe(request);
        if found.is_some() {
            return Ok(found);
        }
        self.departure_error(request.from).map_or(Ok(None), Err)
    }

    /// See [`crate::transport::PointToPoint::receive_matched`].
    pub(super) fn receive_matched(
        &mut self,
        match_id: u64,
        message: ReceiveRequest,
        completion: Arc<dyn Completion>,
    ) -> Result<()> {
        self.check_postable(message.from)?;
        let receive = self.requests.add_receive(message, completion, true);
        let Some(found) = self.queues.take_probed(match_id) else {
            self.fail_withdrawn_receive(receive);
            return Ok(());
        };
        let name = self.peers.name(found.from);
        let receiving = self.requests.receive_mut(receive);
        if let Some(error) = receiving.and_then(|it| it.prepare_buffer(name, &found)) {
            self.requests.complete_receive(receive, Err(error));
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
        if let Some(message) = self.queues.take_probed(match_id) {
            self.on_message_arrived(match_id, message);
        }
    }

    /// Fails a receive for a message that a probe removed from matching, because the message no
    /// longer exists.
    pub(super) fn fail_withdrawn_receive(&mut self, receive: u64) {
        let Some(receiving) = self.requests.receive(receive) else { return };
        let ReceiveRequest { from, tag, .. } = receiving.message;
        let close_error = from.and_then(|from| {
            let link = self.peers.link(from);
            link.close_error.clone().or_else(|| link.send_close_error.clone())
        });
        let error = close_error
            .unwrap_or_else(|| withdrawn_error(from.map(|from| self.peers.name(from)), tag));
        let error = from.map_or(error.clone(), |from| error.with_culprit(from));
        self.requests.complete_receive(receive, Err(error));
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
