//! How messages end that do not arrive: time, ranks that leave, the failure of the group, leaving
//! it.

use super::letters::Letter;
use super::postman::{GRACE, Half, Postman, WAITING};
use super::receiving::Receiving;
use super::sending::Sending;
use super::unmatched;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Postman {
    /// Ends what has met no other rank's.
    pub(super) fn end_unmet(&mut self, error: &Error) {
        let sends = self.sends.iter().filter(|(_, it)| it.granted == 0);
        let sends: Vec<u64> = sends.map(|(&number, _)| number).collect();
        let receives = self.receives.iter().filter(|(_, it)| it.offer.is_none());
        let receives: Vec<u64> = receives.map(|(&id, _)| id).collect();
        sends.into_iter().for_each(|number| self.end_send(number, Err(error.clone())));
        for id in receives {
            self.matching.cancel(id);
            self.end_receive(id, Err(error.clone()));
        }
    }

    /// Ends messages whose time has passed, or whose other rank has left. In the middle of one
    /// nobody can go on.
    pub(super) fn expire(&mut self) {
        if self.over.is_some() {
            return;
        }
        let departed = match self.looked.elapsed() >= WAITING {
            true => self.departed(),
            false => BTreeMap::new(),
        };
        // Of one that has begun the engine knows more.
        let why = |peer: Option<Rank>, deadline: &Deadline| {
            let left = peer.and_then(|peer| departed.get(&peer).cloned());
            left.or_else(|| deadline.has_passed().then(|| unmatched(deadline)))
        };
        let of_send = |it: &Sending| {
            why(Some(it.message.to).filter(|_| it.granted == 0), &it.message.deadline)
        };
        let of_receive =
            |it: &Receiving| why(it.place.from.filter(|_| it.offer.is_none()), &it.deadline);
        let sends = self.sends.iter().filter_map(|(&id, it)| Some((id, of_send(it)?)));
        let sends: Vec<(u64, Error)> = sends.collect();
        let receives = self.receives.iter().filter_map(|(&id, it)| Some((id, of_receive(it)?)));
        let receives: Vec<(u64, Error)> = receives.collect();
        sends.into_iter().for_each(|(number, error)| self.give_up_send(number, error));
        receives.into_iter().for_each(|(id, error)| self.give_up_receive(id, error));
    }

    /// The ranks that messages wait for and that have left.
    fn departed(&mut self) -> BTreeMap<Rank, Error> {
        self.looked = Instant::now();
        let of_sends = self.sends.values().map(|it| it.message.to);
        let of_receives = self.receives.values().filter_map(|it| it.place.from);
        let peers: BTreeSet<Rank> = of_sends.chain(of_receives).collect();
        let Ok(engine) = self.engine() else { return BTreeMap::new() };
        let found = peers.into_iter().filter_map(|peer| Some((peer, engine.departed(peer)?)));
        let found: BTreeMap<Rank, Error> = found.collect();
        // What they said before is read first.
        match self.listens && self.inbox.lock().is_empty() {
            true => found,
            false => BTreeMap::new(),
        }
    }

    fn give_up_send(&mut self, number: u64, error: Error) {
        let Some(it) = self.sends.get(&number) else { return };
        if it.granted > 0 {
            return self.fail(&error.context("a message on a device that has begun to go"));
        }
        // Where it does not come, the receiver learns it when it takes the message.
        drop(self.say(it.message.to, Letter::Gone { number }));
        self.end_send(number, Err(error));
    }

    fn give_up_receive(&mut self, id: u64, error: Error) {
        let Some(it) = self.receives.get(&id) else { return };
        if it.asked > 0 {
            return self.fail(&error.context("a message on a device that has begun to come"));
        }
        let offer = it.offer;
        self.matching.cancel(id);
        self.end_receive(id, Err(error));
        // It stays for the next.
        if let Some(offer) = offer {
            let met = self.matching.offer(offer);
            self.met(met);
        }
    }

    /// Ends everything once the group has failed or is left, as soon as nobody uses its memory any
    /// more.
    pub(super) fn look_for_the_end(&mut self) {
        if self.over.is_none() {
            let failure = self.fate.failure().or_else(|| {
                let message = "this rank has left the group";
                let is_left = self.inbox.closing.load(Ordering::Acquire);
                is_left.then(|| Error::new(ErrorKind::Aborted, message))
            });
            let Some(failure) = failure else { return };
            self.over = Some((failure, Deadline::after(GRACE)));
        }
        let Some((error, limit)) = self.over.clone() else { return };
        let is_late = limit.has_passed();
        let error = match is_late {
            true => {
                error.context("the device has not ended its copies, and may still use the buffers")
            }
            false => error,
        };
        let is_used = |halves: &[Half; 2], id: u64| {
            halves.iter().any(|half| match *half {
                Half::OnDevice(user) => user == id,
                // That is staging memory, and the engine gives it back.
                Half::InEngine(..) | Half::Free => false,
            })
        };
        let unused = |halves: [Half; 2], ids: Vec<u64>| -> Vec<u64> {
            ids.into_iter().filter(|&id| is_late || !is_used(&halves, id)).collect()
        };
        for number in unused(self.inward, self.sends.keys().copied().collect()) {
            self.end_send(number, Err(error.clone()));
        }
        for id in unused(self.outward, self.receives.keys().copied().collect()) {
            self.end_receive(id, Err(error.clone()));
        }
    }
}
