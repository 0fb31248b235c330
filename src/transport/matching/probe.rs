//! Probes: looking for messages that no receive has taken, and receiving one that a probe took out
//! of matching.
//!
//! A probe sees the messages in [`State::unexpected`], in the order in which a receive would take
//! them. A probe that takes one moves it to [`State::matched`], where neither receives nor other
//! probes find it. Its memory stays counted as before: a whole message costs its sender credit
//! until it is received, and an offer keeps its place among the sender's offers. The message leaves
//! `matched` when it is received, when the caller returns it to matching, or when its sender
//! withdraws it or leaves.
//!
//! A probe that waits is not posted: it looks again whenever [`State::has_news`]. As in MPI, a
//! receive on another thread may take the message that a probe waits for.

use super::attendance::Core;
use super::state::State;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::{Completion, Envelope, Incoming, PeerName, ProbeRequest, ProbedMessage};
use std::cell::RefCell;
use std::sync::Arc;

impl Core {
    /// See [`crate::transport::PointToPoint::probe`].
    pub(super) fn probe(
        &self,
        request: &ProbeRequest,
        limit: &Deadline,
    ) -> Result<Option<ProbedMessage>> {
        let first = self.with(|state| {
            state.go_on();
            state.find_message(request)
        })?;
        if first.is_some() || limit.has_passed() {
            return Ok(first);
        }
        self.with(|state| state.probing += 1);
        let found = RefCell::new(None);
        let is_over = || {
            let mut found = found.borrow_mut();
            if found.is_none() {
                *found = self.lock().state.find_message(request).transpose();
            }
            found.is_some()
        };
        self.attend(&is_over, limit);
        self.with(|state| state.probing -= 1);
        found.into_inner().transpose()
    }
}

impl State {
    /// The first message that a receive with these arguments would take, if it is there.
    pub(super) fn find_message(&mut self, request: &ProbeRequest) -> Result<Option<ProbedMessage>> {
        let ProbeRequest { from, tag, takes } = *request;
        self.check_peer(from)?;
        let Some((arrival, found)) = self.unexpected.first((from, tag)) else {
            return self.nobody_left(from).map_or(Ok(None), Err);
        };
        let (from, tag, dtype, bytes) = (found.from, found.tag, found.dtype, found.len);
        let envelope = Envelope { from, tag, dtype, bytes };
        if !takes {
            return Ok(Some(ProbedMessage { envelope, matched: None }));
        }
        self.matched.extend(self.unexpected.remove(arrival).map(|message| (arrival, message)));
        Ok(Some(ProbedMessage { envelope, matched: Some(arrival) }))
    }

    /// See [`crate::transport::PointToPoint::receive_matched`].
    pub(super) fn receive_matched(
        &mut self,
        matched: u64,
        message: Incoming,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        self.check(message.from)?;
        let receive = self.keep_receive(message, done, true);
        let Some(found) = self.matched.remove(&matched) else {
            self.end_withdrawn(receive);
            return Ok(());
        };
        let refusal = self
            .receives
            .get_mut(&receive)
            .and_then(|receiving| receiving.refuses(&self.links[found.from].name, &found));
        if let Some(error) = refusal {
            self.end_receive(receive, Err(error));
            self.arrived(matched, found);
        } else if self.consume(found, receive) {
            self.begin_receive(receive);
        } else {
            self.end_withdrawn(receive);
        }
        Ok(())
    }

    /// See [`crate::transport::PointToPoint::release_matched`].
    pub(super) fn release_matched(&mut self, matched: u64) {
        if let Some(message) = self.matched.remove(&matched) {
            self.arrived(matched, message);
        }
    }

    /// Ends the receive of a message that a probe took and that is not there any more.
    pub(super) fn end_withdrawn(&mut self, receive: u64) {
        let Some(receiving) = self.receives.get(&receive) else { return };
        let Incoming { from, tag, .. } = receiving.message;
        let gone = from.and_then(|from| {
            let link = &self.links[from];
            link.closed.clone().or_else(|| link.out_closed.clone())
        });
        let error = gone.unwrap_or_else(|| withdrawn(from.map(|from| self.name(from)), tag));
        let error = from.map_or(error.clone(), |from| error.with_culprit(from));
        self.end_receive(receive, Err(error));
    }

    /// A message that was not received does not exist any more.
    pub(super) fn forget_message(&mut self, arrival: u64) {
        self.unexpected.remove(arrival);
        self.matched.remove(&arrival);
    }

    /// Has the probes that wait look again.
    pub(super) fn note_news(&mut self) {
        self.has_news |= self.probing > 0;
    }
}

fn withdrawn(from: Option<&PeerName>, tag: Option<u32>) -> Error {
    let from = from.map(|name| format!(" of {name}")).unwrap_or_default();
    let tag = tag.map(|tag| format!(" with tag {tag}")).unwrap_or_default();
    let message = format!(
        "the message{from}{tag} is not there any more: its sender withdrew it, since its deadline passed or the sender left"
    );
    Error::new(ErrorKind::Aborted, message)
}
