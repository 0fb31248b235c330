//! The thread that carries the messages of a group: what has been posted, how far each message is,
//! and who has which half of the staging memory. [`super::sending`] and [`super::receiving`] are
//! the two ways, [`super::ending`] what does not arrive.
//!
//! Only this thread touches any of it. It never waits for another rank: it does what can be done,
//! and sleeps until it is told something, or until it is time to look at the device or at a
//! deadline.

use super::letters::{self, Letter};
use super::matching::{Matching, Offer};
use super::receiving::Receiving;
use super::sending::Sending;
use super::{Envelope, Inbox, LetterBox, News, Piece, Posted};
use crate::backend::lent::Lent;
use crate::backend::staging::desk::{Desk, Side};
use crate::backend::{Backend, Delivery, Fate, Incoming, Outgoing, PointToPoint, Room};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long it sleeps while the device copies, while it has to come to where memory is ready, while
/// somebody waits for a message, and while nobody does.
const COPYING: Duration = Duration::from_micros(20);
const COMING: Duration = Duration::from_micros(200);
pub(super) const WAITING: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(100);

/// How long a device has for copies that it has begun, once the group has failed.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Who has a half, by the number of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Free,
    /// The device copies.
    OnDevice(u64),
    /// The engine sends or receives this piece of it. What it tells of two halves may come in any
    /// order.
    InEngine(u64, usize),
}

#[derive(Debug)]
pub(super) struct Postman {
    pub(super) chunk: usize,
    pub(super) desk: Desk,
    pub(super) cpu: Arc<dyn Backend>,
    pub(super) fate: Arc<dyn Fate>,
    pub(super) inbox: Arc<Inbox>,
    /// A receive for letters is posted.
    pub(super) listens: bool,
    /// The number of the next message or place.
    pub(super) next: u64,
    pub(super) matching: Matching,
    pub(super) sends: BTreeMap<u64, Sending>,
    pub(super) receives: BTreeMap<u64, Receiving>,
    pub(super) inward: [Half; 2],
    pub(super) outward: [Half; 2],
    /// Why nothing goes on any more, and until when the device is waited for.
    pub(super) over: Option<(Error, Deadline)>,
    /// When it looked last who has left.
    pub(super) looked: Instant,
}

impl Postman {
    pub(super) fn new(
        chunk: usize,
        desk: Desk,
        (cpu, fate): (Arc<dyn Backend>, Arc<dyn Fate>),
        inbox: Arc<Inbox>,
    ) -> Self {
        Self {
            chunk,
            desk,
            cpu,
            fate,
            inbox,
            listens: false,
            next: 1,
            matching: Matching::default(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            inward: [Half::Free; 2],
            outward: [Half::Free; 2],
            over: None,
            looked: Instant::now(),
        }
    }

    /// Carries messages until the group is left.
    pub(super) fn work(mut self) {
        loop {
            let news = std::mem::take(&mut *self.inbox.lock());
            for one in news {
                if let Err(error) = self.hear(one) {
                    self.fail(&error);
                }
            }
            if let Err(error) = self.go_on() {
                self.fail(&error);
            }
            self.expire();
            self.look_for_the_end();
            if self.inbox.closing.load(Ordering::Acquire) && self.is_through() {
                return;
            }
            let has_news = || {
                let is_news = !self.inbox.lock().is_empty();
                let is_left = self.inbox.closing.load(Ordering::Acquire) && self.over.is_none();
                (is_news || is_left).then_some(())
            };
            self.inbox.bell.doze(self.nap(), || true, has_news);
        }
    }

    /// Whether nothing is left to be done, after the end.
    fn is_through(&self) -> bool {
        let Some((_, limit)) = &self.over else { return false };
        let is_empty = self.sends.is_empty() && self.receives.is_empty();
        let is_free = self.inward.iter().chain(&self.outward).all(|half| *half == Half::Free);
        is_empty && (is_free || limit.has_passed())
    }

    pub(super) fn engine(&self) -> Result<&dyn PointToPoint> {
        self.cpu.messages().ok_or_else(|| Error::internal("the host part has no messages"))
    }

    /// How long nothing may have to be done.
    fn nap(&self) -> Duration {
        let copies = |half: &Half| matches!(half, Half::OnDevice(_));
        let awaits_device = self.sends.values().any(|it| it.granted > it.loaded && !it.is_ready)
            || self.receives.values().any(|it| it.offer.is_some() && !it.is_ready);
        match self.sends.is_empty() && self.receives.is_empty() {
            _ if self.inward.iter().chain(&self.outward).any(copies) => COPYING,
            // Once all is over it is the engine that is waited for.
            true if self.over.is_some() && !self.is_through() => COMING,
            _ if awaits_device => COMING,
            true => IDLE,
            false => WAITING,
        }
    }

    /// Fails the group, on all its ranks.
    pub(super) fn fail(&self, error: &Error) {
        self.fate.fail(error);
    }

    fn hear(&mut self, news: News) -> Result<()> {
        match news {
            News::Send(message, posted) => self.begin_send(message, posted),
            News::Receive(message, into, posted) => self.begin_receive(&message, into, posted),
            News::Letter(Ok((from, bytes))) => {
                self.listens = false;
                if self.over.is_none() {
                    self.listen()?;
                    self.read(from, &bytes)?;
                }
                Ok(())
            }
            News::Letter(Err(error)) => {
                // Nobody is left who could send one, or the group has failed.
                self.listens = false;
                self.end_unmet(&error);
                Ok(())
            }
            News::Sent(half, outcome) => self.sent(half, outcome),
            News::Came(half, outcome) => self.came(half, outcome),
        }
    }

    /// Has the next letter of any rank received.
    pub(super) fn listen(&mut self) -> Result<()> {
        if replace(&mut self.listens, true) {
            return Ok(());
        }
        let into = Room::Grows { most: letters::BYTES };
        let (tag, dtype, deadline) = (Some(letters::TAG), DataType::U8, Deadline::never());
        let letters = Incoming { from: None, tag, dtype, into, deadline };
        self.engine()?.receive(letters, Arc::new(LetterBox(Arc::clone(&self.inbox))))
    }

    pub(super) fn say(&self, to: Rank, letter: Letter) -> Result<()> {
        let lent = Lent::copy_of(&letter.encode());
        let (tag, dtype, bytes) = (letters::TAG, DataType::U8, lent.bytes());
        let deadline = Deadline::never();
        let letter = Outgoing { to, tag, dtype, bytes, deadline, synchronous: false };
        self.engine()?.send(letter, Arc::new(Envelope { _letter: lent }))
    }

    fn read(&mut self, from: Rank, bytes: &[u8]) -> Result<()> {
        let unreadable = || {
            let message = format!("rank {from} said something of a message that cannot be read");
            Error::new(ErrorKind::Mismatch, message).with_culprit(from)
        };
        match Letter::decode(bytes).ok_or_else(unreadable)? {
            Letter::Offer { number, tag, dtype, len } => {
                let len = usize::try_from(len).map_err(|_| unreadable())?;
                let met = self.matching.offer(Offer { from, number, tag, dtype, len });
                self.met(met);
            }
            Letter::Gone { number } => self.matching.withdraw(from, number),
            Letter::Go { number } => match self.sends.get_mut(&number) {
                Some(sending) if sending.message.to == from => sending.granted += 1,
                Some(_) => return Err(unreadable()),
                // Its time had passed: nothing comes, and whoever waits for it learns that by a
                // piece without bytes.
                None => self.give_nothing(from, number)?,
            },
        }
        Ok(())
    }

    /// Does what can be done.
    fn go_on(&mut self) -> Result<()> {
        // First what makes halves free.
        let (brought, taken) = (self.after_copies_in(), self.after_copies_out());
        brought.and(taken)?;
        if self.over.is_none() {
            self.look_whether_ready()?;
            self.grant()?;
            self.load()?;
        }
        Ok(())
    }

    /// The device may have come to where memory is ready.
    fn look_whether_ready(&mut self) -> Result<()> {
        for sending in self.sends.values_mut().filter(|it| it.granted > 0 && !it.is_ready) {
            sending.is_ready = sending.posted.ready.is_over()?;
        }
        for receiving in self.receives.values_mut().filter(|it| it.offer.is_some() && !it.is_ready)
        {
            receiving.is_ready = receiving.posted.ready.is_over()?;
        }
        Ok(())
    }

    pub(super) fn piece(&self, half: usize, is_outgoing: bool) -> Arc<Piece> {
        Arc::new(Piece { inbox: Arc::clone(&self.inbox), half, is_outgoing })
    }

    pub(super) fn tell(&self, posted: Posted, outcome: Result<Delivery>) {
        posted.end(outcome);
        // Those who wait for a message do so in the engine.
        self.cpu.messages().into_iter().for_each(PointToPoint::rouse);
    }
}

/// How many pieces a message has.
pub(super) fn pieces(len: usize, chunk: usize) -> usize {
    len.div_ceil(chunk)
}

/// How long a piece of it is.
pub(super) fn piece_len(len: usize, chunk: usize, piece: usize) -> usize {
    len.saturating_sub(piece * chunk).min(chunk)
}

impl Drop for Postman {
    /// What the engine still has of the staging memory stays.
    fn drop(&mut self) {
        let is_lent = |half: &Half| matches!(half, Half::InEngine(..));
        let leave = |halves: &[Half; 2], side: &mut Side| {
            if halves.iter().any(is_lent) {
                side.leave_memory();
            }
        };
        leave(&self.inward, &mut self.desk.inward);
        leave(&self.outward, &mut self.desk.outward);
        self.tell_unread();
    }
}

impl Postman {
    /// Messages that came after the end.
    fn tell_unread(&mut self) {
        let unread = std::mem::take(&mut *self.inbox.lock());
        let error = Error::new(ErrorKind::Aborted, "this rank has left the group");
        for news in unread {
            if let News::Send(_, posted) | News::Receive(_, _, posted) = news {
                self.tell(posted, Err(error.clone()));
            }
        }
    }
}
