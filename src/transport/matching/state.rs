//! The state of an engine, and how messages and receives come together in it.
//!
//! Everything here happens under the engine's lock. What has ended is collected in `ended`, and
//! told once the lock has been released.

use super::desk::{Desk, Places};
use super::frame::Frame;
use super::limits::{Limits, MAX_OUTSTANDING};
use super::link::{Item, Link};
use super::outstanding::{Ended, ReceiveStage, Receiving, SendStage, Sending, hold};
use super::posted::{Posted, Wanted};
use super::sharing::Writing;
use super::transfer::{PATIENCE, Reading};
use super::unexpected::{Body, Message, Unexpected};
use super::wire::{Lanes, Wire};
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank};
use crate::base::sync::AtomicU64;
use crate::transport::ring::{Reader, Writer};
use crate::transport::{
    Completion, Delivery, Endpoint, Incoming, Outgoing, PeerName, Region, Room, SharedDomain,
    attach,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A deadline beyond this needs no clock.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timed {
    Send(u64),
    Receive(u64),
    /// Of a link.
    Parting(Rank),
}

/// Everything under the engine's lock.
#[derive(Debug)]
pub(super) struct State {
    pub(super) rank: Rank,
    pub(super) domain: Arc<dyn SharedDomain>,
    pub(super) endpoint: Option<Arc<dyn Endpoint>>,
    pub(super) limits: Limits,
    pub(super) links: Vec<Link>,
    /// The other ranks of the domain.
    pub(super) neighbours: Vec<Rank>,
    pub(super) sends: HashMap<u64, Sending>,
    pub(super) receives: HashMap<u64, Receiving>,
    pub(super) posted: Posted,
    pub(super) unexpected: Unexpected,
    /// Messages that probes took out of matching, by their arrival.
    pub(super) matched: HashMap<u64, Message>,
    /// The number of probes that wait for a message.
    pub(super) probing: usize,
    /// Something has changed for probes that wait.
    pub(super) has_news: bool,
    /// Buffers of others that are being read.
    pub(super) readings: VecDeque<Reading>,
    /// Those that have been asked for first.
    pub(super) asked: Vec<Reading>,
    /// Those whose front has been read, and whose back the sender writes.
    pub(super) half_read: Vec<Reading>,
    /// Backs of messages that this rank writes.
    pub(super) writings: VecDeque<Writing>,
    /// Whether it does.
    pub(super) may_write: bool,
    /// How long those have to answer.
    pub(super) patience: Duration,
    pub(super) timers: BTreeSet<(Instant, Timed)>,
    /// Links with something to send.
    pub(super) pending: Vec<Rank>,
    /// Whom this rank's lane has served last.
    pub(super) lane_user: Option<Rank>,
    /// Links whose streams may go on.
    pub(super) ready: Vec<Rank>,
    /// Places on the desk that are free.
    pub(super) places: Places,
    pub(super) ended: Vec<Ended>,
    pub(super) failed: Option<Error>,
    /// How many bytes have come and gone: whether there is any progress.
    pub(super) moved: u64,
    /// There was more in a ring than a turn takes.
    pub(super) has_rest: bool,
    /// Bytes of whole messages that are held for receives to come.
    pub(super) buffered: usize,
    /// What others find where the desk says that this process's mark lies.
    mark: Box<Nonce>,
    last_number: u64,
    /// What a fence is made by.
    pub(super) fence: AtomicU64,
}

impl State {
    /// The state of a rank that nothing has reached yet.
    pub(super) fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        mark: Nonce,
    ) -> Result<Self> {
        let me = domain.rank();
        let rank = domain.peer(me).rank;
        let near: HashMap<Rank, Rank> =
            (0..domain.size()).map(|local| (domain.peer(local).rank, local)).collect();
        let size = endpoint.as_ref().map_or(domain.size(), |endpoint| endpoint.size());
        let link = |peer: Rank| -> Result<Link> {
            if peer == rank {
                return Ok(Link::new(domain.peer(me).clone(), Wire::Own));
            }
            if let Some(&local) = near.get(&peer) {
                let (out, into) = (Writer::new(me, local), Reader::new(local, me));
                let wire = Wire::Rings { peer: local, out, into, lanes: Lanes::between(me, local) };
                return Ok(Link::new(domain.peer(local).clone(), wire));
            }
            let endpoint = endpoint.clone().ok_or_else(|| {
                Error::internal(format!("rank {peer} is on another node, and nothing leads there"))
            })?;
            let name = endpoint.peer(peer).clone();
            Ok(Link::new(name, Wire::Streams { endpoint, peer, stage: Vec::new(), used: 0 }))
        };
        let links = (0..size).map(link).collect::<Result<_>>()?;
        let mut neighbours: Vec<Rank> = near.into_keys().filter(|&peer| peer != rank).collect();
        neighbours.sort_unstable();
        Ok(Self {
            rank,
            limits: Limits::new(size, endpoint.is_none().then(|| domain.region().geometry())),
            links,
            neighbours,
            sends: HashMap::new(),
            receives: HashMap::new(),
            posted: Posted::default(),
            unexpected: Unexpected::default(),
            matched: HashMap::new(),
            probing: 0,
            has_news: false,
            readings: VecDeque::new(),
            asked: Vec::new(),
            half_read: Vec::new(),
            writings: VecDeque::new(),
            may_write: attach::may_write(),
            patience: PATIENCE,
            timers: BTreeSet::new(),
            pending: Vec::new(),
            lane_user: None,
            ready: Vec::new(),
            places: Places::default(),
            ended: Vec::new(),
            failed: None,
            moved: 0,
            has_rest: false,
            buffered: 0,
            mark: Box::new(mark),
            last_number: 0,
            fence: AtomicU64::new(0),
            domain,
            endpoint,
        })
    }

    /// Tells the others where they find a mark in this process's memory, which they may read.
    pub(super) fn show_mark(&self) {
        let address = u64::try_from(self.mark.0.as_ptr().addr()).unwrap_or(0);
        self.desk().show_mark(address, super::transfer::words(&self.mark));
    }

    pub(super) fn region(&self) -> &Region {
        self.domain.region()
    }

    /// This rank's desk.
    pub(super) fn desk(&self) -> Desk<'_> {
        self.region().desk(self.domain.rank())
    }

    pub(super) fn name(&self, peer: Rank) -> &PeerName {
        &self.links[peer].name
    }

    /// A number that was not used before; they grow.
    pub(super) fn fresh(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Whether a number was ever given out.
    pub(super) fn was_given(&self, number: u64) -> bool {
        (1..=self.last_number).contains(&number)
    }

    /// Refuses what cannot be posted.
    pub(super) fn check(&self, peer: Option<Rank>) -> Result<()> {
        self.check_peer(peer)?;
        self.check_room(1)
    }

    /// Refuses a rank that does not exist, and everything once the group has failed.
    pub(super) fn check_peer(&self, peer: Option<Rank>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let size = self.links.len();
        if let Some(peer) = peer.filter(|&peer| peer >= size) {
            let message = format!("there is no rank {peer}: the group has {size} ranks");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// Refuses to post more than may be outstanding.
    pub(super) fn check_room(&self, more: usize) -> Result<()> {
        if self.sends.len() + self.receives.len() + more > MAX_OUTSTANDING {
            let message = format!(
                "{MAX_OUTSTANDING} messages of this rank are outstanding, which is as many as there may be: wait \
                 for some of them first"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        Ok(())
    }

    /// See [`crate::transport::PointToPoint::send`].
    pub(super) fn send(&mut self, message: Outgoing, done: Arc<dyn Completion>) -> Result<()> {
        self.check(Some(message.to))?;
        let link = &self.links[message.to];
        if let Some(error) = link.refusal() {
            self.ended.push(Ended::new(done, Err(error.clone())));
            return Ok(());
        }
        if !link.is_open() {
            self.keep(message, done, SendStage::Offered);
            return Ok(());
        }
        let cost = Limits::cost(message.bytes.len());
        let is_whole = !message.synchronous
            && message.bytes.len() <= self.limits.eager_bytes
            && link.used + cost <= self.limits.held_bytes;
        match (message.to == self.rank, is_whole) {
            (true, _) => self.send_to_self(message, done, is_whole),
            (false, true) => self.send_whole(message, done),
            (false, false) => self.offer(message, done),
        }
        Ok(())
    }

    /// See [`crate::transport::PointToPoint::receive`].
    pub(super) fn receive(&mut self, message: Incoming, done: Arc<dyn Completion>) -> Result<()> {
        self.check(message.from)?;
        let receive = self.keep_receive(message, done, false);
        self.place(receive);
        self.begin_receive(receive);
        Ok(())
    }

    /// Keeps a receive until it ends; its number.
    pub(super) fn keep_receive(
        &mut self,
        message: Incoming,
        done: Arc<dyn Completion>,
        is_matched: bool,
    ) -> u64 {
        let receive = self.fresh();
        let (stage, grown) = (ReceiveStage::Posted, Vec::new());
        let receiving = Receiving { message, done, due: None, stage, grown, is_matched };
        self.receives.insert(receive, receiving);
        receive
    }

    /// A receive has found its message, or waits for one: its deadline counts from now on.
    pub(super) fn begin_receive(&mut self, receive: u64) {
        self.read_some();
        if let Some(receiving) = self.receives.get_mut(&receive) {
            receiving.due = due(&receiving.message.deadline);
            self.timers.extend(receiving.due.map(|due| (due, Timed::Receive(receive))));
        }
    }

    /// Keeps a send until it ends; its number.
    pub(super) fn keep(
        &mut self,
        message: Outgoing,
        done: Arc<dyn Completion>,
        stage: SendStage,
    ) -> u64 {
        let number = self.fresh();
        let due = due(&message.deadline);
        self.timers.extend(due.map(|due| (due, Timed::Send(number))));
        self.sends.insert(number, Sending { message, done, due, stage, place: None });
        number
    }

    fn send_to_self(&mut self, message: Outgoing, done: Arc<dyn Completion>, is_whole: bool) {
        let Outgoing { to: from, tag, dtype, bytes, .. } = message;
        let arrival = self.fresh();
        let held = if is_whole { hold(bytes.len()).ok() } else { None };
        let body = match held {
            Some(mut held) => {
                Dst::from(held.as_mut_slice()).copy_from(bytes);
                let cost = Limits::cost(bytes.len());
                let link = &mut self.links[from];
                link.used += cost;
                link.held += cost;
                self.buffered += held.len();
                let delivery = Delivery { peer: from, tag, bytes: bytes.len() };
                self.ended.push(Ended::new(done, Ok(delivery)));
                Body::Held(held)
            }
            None => Body::Own(self.keep(message, done, SendStage::Own { arrival })),
        };
        self.arrived(arrival, Message { from, tag, dtype, len: bytes.len(), body });
    }

    /// Finds a message for a receive, or lets it wait for one.
    pub(super) fn place(&mut self, receive: u64) {
        loop {
            let Some(receiving) = self.receives.get_mut(&receive) else { return };
            if receiving.is_matched {
                return self.end_withdrawn(receive);
            }
            receiving.stage = ReceiveStage::Posted;
            // What was made for a message that has been withdrawn.
            receiving.grown = Vec::new();
            let Incoming { from, tag, .. } = receiving.message;
            let wanted: Wanted = (from, tag);
            let Some((arrival, found)) = self.unexpected.first(wanted) else {
                match self.nobody_left(from) {
                    Some(error) => self.end_receive(receive, Err(error)),
                    None => self.posted.insert(wanted, receive),
                }
                return;
            };
            if let Some(error) = receiving.refuses(&self.links[found.from].name, found) {
                return self.end_receive(receive, Err(error));
            }
            let Some(found) = self.unexpected.remove(arrival) else { return };
            if self.consume(found, receive) {
                return;
            }
        }
    }

    /// Gives a message to the receive that waits for it, or keeps it for one to come.
    pub(super) fn arrived(&mut self, arrival: u64, message: Message) {
        match self.take_posted(&message) {
            None => {
                self.unexpected.insert(arrival, message);
                self.note_news();
            }
            Some(receive) => {
                if !self.consume(message, receive) {
                    self.place(receive);
                }
            }
        }
    }

    /// Takes out the first receive that fits a message; those before it that it does not fit end.
    pub(super) fn take_posted(&mut self, message: &Message) -> Option<u64> {
        loop {
            let receive = self.posted.first(message.from, message.tag)?;
            let receiving = self.receives.get_mut(&receive)?;
            let Incoming { from, tag, .. } = receiving.message;
            self.posted.remove((from, tag), receive);
            match receiving.refuses(&self.links[message.from].name, message) {
                None => return Some(receive),
                Some(error) => self.end_receive(receive, Err(error)),
            }
        }
    }

    /// Brings a message and a receive that fit together; false where the message is not there any
    /// more.
    pub(super) fn consume(&mut self, message: Message, receive: u64) -> bool {
        let Some(receiving) = self.receives.get_mut(&receive) else { return true };
        let delivery = Delivery { peer: message.from, tag: message.tag, bytes: message.len };
        match message.body {
            Body::Offered(number) => return self.take_offer(message.from, number, receive),
            Body::Held(bytes) => {
                match receiving.message.into {
                    Room::Lent(into) => {
                        into.slice(0, message.len).copy_from(bytes.as_slice().into())
                    }
                    Room::Grows { .. } => receiving.grown = bytes,
                }
                self.buffered -= message.len;
                self.pay_back(message.from, Limits::cost(message.len));
            }
            Body::Own(number) => {
                let Some(sending) = self.sends.get(&number) else { return false };
                receiving.room(0, message.len).copy_from(sending.message.bytes);
                self.end_send(number, Ok(delivery));
            }
        }
        self.end_receive(receive, Ok(delivery));
        true
    }

    /// What was held for a sender is not held any more.
    pub(super) fn pay_back(&mut self, from: Rank, cost: usize) {
        let worth_telling = self.limits.worth_telling();
        let link = &mut self.links[from];
        link.held = link.held.saturating_sub(cost);
        if from == self.rank {
            link.used = link.used.saturating_sub(cost);
            return;
        }
        link.owed += cost;
        if link.owed >= worth_telling {
            let bytes = std::mem::take(&mut link.owed) as u64;
            self.say(from, Frame::Credit { bytes });
        }
    }

    /// Has something said to a peer.
    pub(super) fn say(&mut self, peer: Rank, frame: Frame) {
        self.queue(peer, Item::Say(frame));
    }

    /// Has something put into the stream to a peer.
    pub(super) fn queue(&mut self, peer: Rank, item: Item) {
        if self.links[peer].is_open() {
            self.links[peer].outbox.push_back(item);
            self.has_pending(peer);
        }
    }

    /// There is something to be sent to a peer.
    pub(super) fn has_pending(&mut self, peer: Rank) {
        if !std::mem::replace(&mut self.links[peer].is_pending, true) {
            self.pending.push(peer);
        }
    }

    pub(super) fn end_send(&mut self, number: u64, outcome: Result<Delivery>) {
        let Some(sending) = self.sends.remove(&number) else { return };
        if let Some(due) = sending.due {
            self.timers.remove(&(due, Timed::Send(number)));
        }
        sending.place.into_iter().for_each(|place| self.give_up_place(place));
        self.ended.push(Ended::new(sending.done, outcome));
    }

    /// A place on the desk is free again.
    pub(super) fn give_up_place(&mut self, place: u16) {
        self.desk().clear(place);
        self.places.give_back(place);
    }

    pub(super) fn end_receive(&mut self, receive: u64, outcome: Result<Delivery>) {
        let Some(receiving) = self.receives.remove(&receive) else { return };
        if let Some(due) = receiving.due {
            self.timers.remove(&(due, Timed::Receive(receive)));
        }
        self.ended.push(Ended::of_receive(receiving, outcome));
    }
}

/// When the time of a message has come, if ever.
fn due(deadline: &crate::base::deadline::Deadline) -> Option<Instant> {
    let left = deadline.left();
    if left > LIFETIME { None } else { Instant::now().checked_add(left) }
}
