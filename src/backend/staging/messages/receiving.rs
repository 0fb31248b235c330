//! Places for messages of others.

use super::Posted;
use super::letters::{Letter, piece_tag};
use super::matching::{Met, Offer, Place};
use super::postman::{Half, Postman, piece_len, pieces};
use crate::backend::{Delivery, Incoming, Room};
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use std::mem::replace;

/// A place for one.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) place: Place,
    pub(super) into: Dst<'static>,
    pub(super) deadline: Deadline,
    pub(super) posted: Posted,
    pub(super) is_ready: bool,
    pub(super) offer: Option<Offer>,
    /// That message was taken back, and not all that it was granted has been answered.
    pub(super) is_void: bool,
    /// How many pieces there was room for, have come, and are on the device.
    pub(super) asked: usize,
    pub(super) came: usize,
    pub(super) written: usize,
}

impl Receiving {
    /// How long the message is that it gets; 0 where that is not known.
    pub(super) fn len(&self) -> usize {
        self.offer.map_or(0, |offer| offer.len)
    }
}

impl Postman {
    pub(super) fn begin_receive(
        &mut self,
        message: &Incoming,
        into: Dst<'static>,
        posted: Posted,
    ) -> Result<()> {
        let id = self.next;
        self.next += 1;
        let Incoming { from, tag, dtype, deadline, .. } = *message;
        let place = Place { id, from, tag, dtype, most: into.len() };
        let (offer, is_void, asked, came, written) = (None, false, 0, 0, 0);
        let is_ready = false;
        let receiving = Receiving {
            place,
            into,
            deadline,
            posted,
            is_ready,
            offer,
            is_void,
            asked,
            came,
            written,
        };
        self.receives.insert(id, receiving);
        if self.over.is_some() {
            return Ok(());
        }
        match self.listen() {
            Err(error) => self.end_receive(id, Err(error)),
            Ok(()) => {
                let met = self.matching.post(place);
                self.met(met);
            }
        }
        Ok(())
    }

    pub(super) fn met(&mut self, met: impl IntoIterator<Item = Met>) {
        for met in met {
            match met {
                Met::Misfit(place, error) => self.end_receive(place.id, Err(error)),
                Met::Pair(place, offer) => {
                    if let Some(receiving) = self.receives.get_mut(&place.id) {
                        receiving.offer = Some(offer);
                    }
                    if offer.len == 0 {
                        self.end_receive(place.id, Ok(()));
                    }
                }
            }
        }
    }

    /// Gives halves to messages that are to come, in the order in which their places were posted.
    pub(super) fn grant(&mut self) -> Result<()> {
        let chunk = self.chunk;
        while let Some(half) = self.outward.iter().position(|half| *half == Half::Free) {
            let wants = |it: &&mut Receiving| {
                it.is_ready && !it.is_void && it.asked < pieces(it.len(), chunk)
            };
            let Some(it) = self.receives.values_mut().find(wants) else { return Ok(()) };
            let Some(Offer { from, number, len, .. }) = it.offer else { return Ok(()) };
            let (id, index, deadline) = (it.place.id, it.asked, it.deadline);
            let bytes = piece_len(len, chunk, index);
            it.asked += 1;
            let into = Room::Lent(self.desk.outward.half(half)?.slice(0, bytes));
            let (tag, dtype) = (Some(piece_tag(number)), DataType::U8);
            let piece = Incoming { from: Some(from), tag, dtype, into, deadline };
            self.outward[half] = Half::InEngine(id, index);
            let posted = self.engine()?.receive(piece, self.piece(half, false));
            if posted.is_err() {
                self.outward[half] = Half::Free;
            }
            posted?;
            self.say(from, Letter::Go { number })?;
        }
        Ok(())
    }

    /// Ends messages that are on the device.
    pub(super) fn after_copies_out(&mut self) -> Result<()> {
        for half in [0, 1] {
            let Half::OnDevice(id) = self.outward[half] else { continue };
            if !self.desk.outward.is_settled(half)? {
                continue;
            }
            self.outward[half] = Half::Free;
            let chunk = self.chunk;
            let is_whole = self.receives.get_mut(&id).is_some_and(|it| {
                it.written += 1;
                it.written == pieces(it.len(), chunk)
            });
            if is_whole {
                self.end_receive(id, Ok(()));
            }
        }
        Ok(())
    }

    /// A piece has come.
    pub(super) fn came(&mut self, half: usize, outcome: Result<Delivery>) -> Result<()> {
        let Half::InEngine(id, index) = replace(&mut self.outward[half], Half::Free) else {
            return Err(Error::internal("a piece has come for a half that waited for none"));
        };
        let delivery = outcome?;
        let Some(it) = self.receives.get_mut(&id).filter(|_| self.over.is_none()) else {
            return Ok(());
        };
        if delivery.bytes == 0 {
            return self.came_to_nothing(id);
        }
        let bytes = piece_len(it.len(), self.chunk, index);
        if delivery.bytes != bytes {
            let message = format!(
                "rank {} sent {} bytes of a message on a device where {bytes} were expected",
                delivery.peer, delivery.bytes
            );
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(delivery.peer));
        }
        let into = it.into.slice(index * self.chunk, bytes);
        it.came += 1;
        let from = self.desk.outward.half(half)?.as_src().slice(0, bytes);
        self.outward[half] = Half::OnDevice(id);
        self.desk.outward.unload(half, &[(from, into)])
    }

    /// The message was taken back before any of it came: the place waits for another, once nothing
    /// of this one is on its way.
    fn came_to_nothing(&mut self, id: u64) -> Result<()> {
        let Some(it) = self.receives.get_mut(&id) else { return Ok(()) };
        it.asked = it.asked.saturating_sub(1);
        it.is_void = it.asked > 0;
        if it.came > 0 {
            return Err(Error::internal("a message was taken back that had begun to come"));
        }
        if it.asked == 0 {
            it.offer = None;
            let met = self.matching.post(it.place);
            self.met(met);
        }
        Ok(())
    }

    pub(super) fn end_receive(&mut self, id: u64, outcome: Result<()>) {
        let Some(Receiving { posted, offer, .. }) = self.receives.remove(&id) else { return };
        let offer = offer.ok_or_else(|| Error::internal("a receive has ended without a message"));
        let delivery =
            |offer: Offer| Delivery { peer: offer.from, tag: offer.tag, bytes: offer.len };
        self.tell(posted, outcome.and_then(|()| offer.map(delivery)));
    }
}
