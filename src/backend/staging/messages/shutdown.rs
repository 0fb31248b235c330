//! The end of staged messages that are not transferred. The reasons are timeouts, ranks that have
//! left, a failure of the group, and the close of the group.

use super::control::StagingControlMessage;
use super::worker_state::{
    HalfState, MESSAGE_POLL_INTERVAL, StagingReceive, StagingSend, StagingWorker,
};
use crate::backend::staging::buffers::{DRAIN_WAIT, undrained_error};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl StagingWorker {
    /// Ends all messages that have no match yet, with this error.
    pub(super) fn end_unmatched(&mut self, error: &Error) {
        let sends = self.sends.iter().filter(|(_, it)| it.granted == 0);
        let sends: Vec<u64> = sends.map(|(&number, _)| number).collect();
        let receives = self.receives.iter().filter(|(_, it)| it.rts.is_none());
        let receives: Vec<u64> = receives.map(|(&id, _)| id).collect();
        sends.into_iter().for_each(|number| self.end_send(number, Err(error.clone())));
        for id in receives {
            self.matcher.cancel_receive(id);
            self.end_receive(id, Err(error.clone()));
        }
    }

    /// Ends the messages whose deadline has passed or whose peer has left. If a CTS was already
    /// sent for such a message, the group fails.
    pub(super) fn expire(&mut self) {
        if self.shutdown.is_some() {
            return;
        }
        let departed = match self.last_departure_check.elapsed() >= MESSAGE_POLL_INTERVAL {
            true => self.departed_peers(),
            false => BTreeMap::new(),
        };
        // After the match, the departure of the peer is not checked here, because the sends and
        // receives of the pieces report it.
        let end_reason = |peer: Option<Rank>, deadline: &Deadline| {
            let left = peer.and_then(|peer| departed.get(&peer).cloned());
            left.or_else(|| deadline.has_passed().then(|| match_timeout(deadline)))
        };
        let send_error = |it: &StagingSend| {
            end_reason(Some(it.message.to).filter(|_| it.granted == 0), &it.message.deadline)
        };
        let receive_error = |it: &StagingReceive| {
            end_reason(it.criteria.from.filter(|_| it.rts.is_none()), &it.deadline)
        };
        let sends = self.sends.iter().filter_map(|(&id, it)| Some((id, send_error(it)?)));
        let sends: Vec<(u64, Error)> = sends.collect();
        let receives = self.receives.iter().filter_map(|(&id, it)| Some((id, receive_error(it)?)));
        let receives: Vec<(u64, Error)> = receives.collect();
        sends.into_iter().for_each(|(number, error)| self.cancel_send(number, error));
        receives.into_iter().for_each(|(id, error)| self.cancel_receive(id, error));
    }

    /// Returns the ranks that messages wait for and that have left the group, each with the error.
    fn departed_peers(&mut self) -> BTreeMap<Rank, Error> {
        self.last_departure_check = Instant::now();
        let of_sends = self.sends.values().map(|it| it.message.to);
        let of_receives = self.receives.values().filter_map(|it| it.criteria.from);
        let peers: BTreeSet<Rank> = of_sends.chain(of_receives).collect();
        let Ok(engine) = self.host.point_to_point() else { return BTreeMap::new() };
        let found =
            peers.into_iter().filter_map(|peer| Some((peer, engine.departure_error(peer)?)));
        let found: BTreeMap<Rank, Error> = found.collect();
        // A rank may have sent control messages before it left. Therefore, departures are reported
        // only after all control messages in the inbox have been handled.
        match self.has_control_receive && self.inbox.lock_events().is_empty() {
            true => found,
            false => BTreeMap::new(),
        }
    }

    fn cancel_send(&mut self, number: u64, error: Error) {
        let Some(it) = self.sends.get(&number) else { return };
        if it.granted > 0 {
            return self.fail(&error.context("the message in device memory was partly sent"));
        }
        // An error is ignored: if this control message is lost, the receiver later sends a CTS and
        // gets an empty piece as answer.
        drop(self.send_control(it.message.to, StagingControlMessage::Cancel { number }));
        self.end_send(number, Err(error));
    }

    fn cancel_receive(&mut self, id: u64, error: Error) {
        let Some(it) = self.receives.get(&id) else { return };
        if it.granted > 0 {
            return self.fail(&error.context("the message in device memory was partly received"));
        }
        let rts = it.rts;
        self.matcher.cancel_receive(id);
        self.end_receive(id, Err(error));
        // The matched message remains for the next receive.
        if let Some(rts) = rts {
            let outcomes = self.matcher.add_rts(rts);
            self.handle_matches(outcomes);
        }
    }

    /// Ends all messages if the group has failed or is closing. Each message ends when the device
    /// does not use its buffer any more, or at the limit [`DRAIN_WAIT`].
    pub(super) fn check_shutdown(&mut self) {
        if self.shutdown.is_none() {
            let failure = self.host.failure_state.failure().or_else(|| {
                let message = "this rank has left the group";
                let is_left = self.inbox.is_closing.load(Ordering::Acquire);
                is_left.then(|| Error::new(ErrorKind::Aborted, message))
            });
            let Some(failure) = failure else { return };
            self.shutdown = Some((failure, Deadline::after(DRAIN_WAIT)));
        }
        let Some((error, limit)) = self.shutdown.clone() else { return };
        let is_late = limit.has_passed();
        let error = match is_late {
            true => undrained_error(error),
            false => error,
        };
        let is_used = |halves: &[HalfState; 2], id: u64| {
            halves.iter().any(|half| match *half {
                HalfState::Copying(user) => user == id,
                // In this state, only the matching engine uses the half. It accesses staging
                // memory, not the caller's buffer.
                HalfState::InMessage(..) | HalfState::Free => false,
            })
        };
        let unused = |halves: [HalfState; 2], ids: Vec<u64>| -> Vec<u64> {
            ids.into_iter().filter(|&id| is_late || !is_used(&halves, id)).collect()
        };
        for number in unused(self.from_device, self.sends.keys().copied().collect()) {
            self.end_send(number, Err(error.clone()));
        }
        for id in unused(self.to_device, self.receives.keys().copied().collect()) {
            self.end_receive(id, Err(error.clone()));
        }
    }
}

/// Returns the error for a message that no rank matched before its deadline.
fn match_timeout(deadline: &Deadline) -> Error {
    let waited = deadline.elapsed().as_millis();
    Error::new(ErrorKind::Timeout, format!("not matched within {waited} ms"))
}
