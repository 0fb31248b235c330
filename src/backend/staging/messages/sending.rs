//! Messages of this rank's, on their way to others.

use super::letters::{Letter, piece_tag};
use super::postman::{Half, Postman, piece_len, pieces};
use super::{Envelope, Posted};
use crate::backend::lent::Lent;
use crate::backend::{Delivery, Outgoing};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use std::mem::replace;
use std::sync::Arc;

/// A message of this rank's.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) message: Outgoing,
    pub(super) posted: Posted,
    pub(super) is_ready: bool,
    /// How many pieces the receiver has room for, were left to the device, given to the engine, and
    /// have gone.
    pub(super) granted: usize,
    pub(super) loaded: usize,
    pub(super) given: usize,
    pub(super) sent: usize,
}

impl Postman {
    pub(super) fn begin_send(&mut self, message: Outgoing, posted: Posted) -> Result<()> {
        let number = self.next;
        self.next += 1;
        let Outgoing { to, tag, dtype, bytes, .. } = message;
        let (granted, loaded, given, sent, is_ready) = (0, 0, 0, 0, false);
        let sending = Sending { message, posted, is_ready, granted, loaded, given, sent };
        self.sends.insert(number, sending);
        if self.over.is_some() {
            return Ok(());
        }
        let offer = Letter::Offer { number, tag, dtype, len: bytes.len() as u64 };
        match self.listen().and_then(|()| self.say(to, offer)) {
            Err(error) => self.end_send(number, Err(error)),
            // There is nothing to wait for.
            Ok(()) if bytes.is_empty() => self.end_send(number, Ok(())),
            Ok(()) => {}
        }
        Ok(())
    }

    pub(super) fn give_nothing(&self, to: Rank, number: u64) -> Result<()> {
        let lent = Lent::copy_of(&[]);
        let (tag, dtype, bytes) = (piece_tag(number), DataType::U8, lent.bytes());
        let deadline = Deadline::never();
        let piece = Outgoing { to, tag, dtype, bytes, deadline, synchronous: false };
        self.engine()?.send(piece, Arc::new(Envelope { _letter: lent }))
    }

    /// Gives halves to pieces that somebody waits for, and leaves them to the device.
    pub(super) fn load(&mut self) -> Result<()> {
        let chunk = self.chunk;
        while let Some(half) = self.inward.iter().position(|half| *half == Half::Free) {
            let wants = |(_, it): &(&u64, &mut Sending)| it.is_ready && it.granted > it.loaded;
            let Some((&number, it)) = self.sends.iter_mut().find(wants) else { return Ok(()) };
            let all = it.message.bytes;
            let len = piece_len(all.len(), chunk, it.loaded);
            let from = all.slice(it.loaded * chunk, len);
            it.loaded += 1;
            let into = self.desk.inward.half(half)?.slice(0, len);
            self.inward[half] = Half::OnDevice(number);
            self.desk.inward.load(half, &[(from, into)])?;
        }
        Ok(())
    }

    /// Sends what the device has brought, in order.
    pub(super) fn after_copies_in(&mut self) -> Result<()> {
        // Of one message the older piece first: the stream has one order, and of two halves at most
        // one is older.
        for half in self.older_first() {
            let Half::OnDevice(number) = self.inward[half] else { continue };
            if !self.desk.inward.is_settled(half)? {
                return Ok(());
            }
            self.inward[half] = Half::Free;
            let Some(it) = self.sends.get_mut(&number).filter(|_| self.over.is_none()) else {
                continue;
            };
            let Outgoing { to, bytes, deadline, .. } = it.message;
            let index = it.given;
            let len = piece_len(bytes.len(), self.chunk, index);
            it.given += 1;
            let bytes = self.desk.inward.half(half)?.as_src().slice(0, len);
            let (tag, dtype) = (piece_tag(number), DataType::U8);
            self.engine()?.send(
                Outgoing { to, tag, dtype, bytes, deadline, synchronous: false },
                self.piece(half, true),
            )?;
            self.inward[half] = Half::InEngine(number, index);
        }
        Ok(())
    }

    fn older_first(&self) -> [usize; 2] {
        self.desk.inward.in_order()
    }

    /// A piece has gone.
    pub(super) fn sent(&mut self, half: usize, outcome: Result<Delivery>) -> Result<()> {
        let Half::InEngine(number, _) = replace(&mut self.inward[half], Half::Free) else {
            return Err(Error::internal("a piece has gone from a half that had none"));
        };
        let Some(it) = self.sends.get_mut(&number) else { return Ok(()) };
        it.sent += 1;
        let is_whole = it.sent == pieces(it.message.bytes.len(), self.chunk);
        // In the middle of a message nobody can go on.
        outcome?;
        if is_whole {
            self.end_send(number, Ok(()));
        }
        Ok(())
    }

    pub(super) fn end_send(&mut self, number: u64, outcome: Result<()>) {
        let Some(Sending { message, posted, .. }) = self.sends.remove(&number) else { return };
        let Outgoing { to, tag, bytes, .. } = message;
        let delivery = Delivery { peer: to, tag, bytes: bytes.len() };
        self.tell(posted, outcome.map(|()| delivery));
    }
}
