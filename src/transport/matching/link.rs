//! What lies between this rank and one other: the streams to it and from it, and what is on its way
//! in them.

use super::frame::{Frame, HEAD_BYTES, Lent};
use super::unexpected::Message;
use super::wire::Wire;
use crate::base::error::Error;
use crate::transport::{PeerName, SharedDomain};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Something to be put into the stream.
#[derive(Debug)]
pub(super) enum Item {
    /// The whole message of a send.
    Whole(u64),
    /// The offer of a send.
    Offer(u64),
    /// Something that is said.
    Say(Frame),
    /// That a receive has taken the offer of this number.
    Taken { number: u64, receive: u64 },
}

/// What is being put into the stream.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) head: [u8; HEAD_BYTES],
    pub(super) body: Load,
    /// How many bytes of head and body are in the stream.
    pub(super) written: usize,
}

impl Current {
    /// Whether it is the lane that what is left goes into.
    pub(super) fn waits_for_lane(&self) -> bool {
        self.written >= self.head.len() && self.body.in_lane()
    }
}

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Nothing; of a send that is offered here, its number.
    Nothing(Option<u64>),
    /// Nothing; the receive that ends with it.
    Taken(u64),
    /// A whole message.
    Whole { number: u64, in_lane: bool },
    /// A piece of one.
    Piece { number: u64, attempt: u32, offset: usize, len: usize, in_lane: bool },
}

impl Load {
    /// Whether it goes into the lane.
    pub(super) fn in_lane(&self) -> bool {
        matches!(self, Self::Whole { in_lane: true, .. } | Self::Piece { in_lane: true, .. })
    }

    /// The send that it belongs to.
    pub(super) fn number(&self) -> Option<u64> {
        match *self {
            Self::Nothing(number) => number,
            Self::Taken(_) => None,
            Self::Whole { number, .. } | Self::Piece { number, .. } => Some(number),
        }
    }
}

/// What is being taken from the stream.
#[derive(Debug)]
pub(super) enum Inflow {
    Head { bytes: [u8; HEAD_BYTES], have: usize },
    Body { sink: Sink, got: usize, len: usize, in_lane: bool },
}

impl Inflow {
    pub(super) const START: Self = Self::Head { bytes: [0; HEAD_BYTES], have: 0 };
}

/// Where bytes that come go.
#[derive(Debug)]
pub(super) enum Sink {
    /// Into a message that nobody waits for yet.
    Held(Message),
    /// Into the buffer of a receive.
    Receive(u64),
    /// Into the buffer of the receive that has taken an offer.
    Piece(u64),
    /// Nowhere: a piece that was asked for in vain.
    Nowhere,
}

/// What a peer has offered.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) arrival: u64,
    pub(super) tag: u32,
    pub(super) dtype: crate::base::dtype::DataType,
    pub(super) len: usize,
    pub(super) lent: Option<Lent>,
    /// Its sender waits until it is taken.
    pub(super) awaited: bool,
    /// How often it has been pulled.
    pub(super) attempt: u32,
    /// The receive that has taken it.
    pub(super) receive: Option<u64>,
    /// How much of it has come.
    pub(super) got: usize,
    /// Who copies its back, where it is read.
    pub(super) back: Back,
}

/// Who copies the back of a message that is read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// Its receiver reads all of it.
    Read,
    /// Its sender has been asked to write the back.
    Asked,
    /// It has written so much of that, and does no more.
    Written(usize),
}

/// Whether the peer's memory can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    Untried,
    Works,
    Refused,
}

/// One other rank, or this one.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: PeerName,
    pub(super) wire: Wire,
    /// Why nothing goes to it or comes from it any more.
    pub(super) closed: Option<Error>,
    /// Why nothing goes to it any more, and why nothing comes, until both ends.
    pub(super) out_closed: Option<Error>,
    pub(super) in_closed: Option<Error>,
    /// Until when a reason for that may come.
    pub(super) parts_at: Option<Instant>,
    pub(super) outbox: VecDeque<Item>,
    /// Sends that have been pulled, in turns.
    pub(super) bulk: VecDeque<u64>,
    pub(super) current: Option<Current>,
    /// On the list of those that have something to send.
    pub(super) is_pending: bool,
    /// The stream was full, and nothing has been heard since.
    pub(super) is_full: bool,
    /// What the peer holds of what it holds for this rank.
    pub(super) used: usize,
    pub(super) inflow: Inflow,
    pub(super) offers: HashMap<u64, Offer>,
    pub(super) last_offer: u64,
    /// What is held for the peer, and what it has not been told that is not held any more.
    pub(super) held: usize,
    pub(super) owed: usize,
    pub(super) attach: Attach,
}

impl Link {
    pub(super) fn new(name: PeerName, wire: Wire) -> Self {
        Self {
            name,
            wire,
            closed: None,
            out_closed: None,
            in_closed: None,
            parts_at: None,
            outbox: VecDeque::new(),
            bulk: VecDeque::new(),
            current: None,
            is_pending: false,
            is_full: false,
            used: 0,
            inflow: Inflow::START,
            offers: HashMap::new(),
            last_offer: 0,
            held: 0,
            owed: 0,
            attach: Attach::Untried,
        }
    }

    /// Nothing waits to be put into the stream.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.outbox.is_empty() && self.bulk.is_empty()
    }

    /// Forgets what was to be put into the stream for a send, if none of it is there; true if so.
    pub(super) fn unqueue(&mut self, number: u64) -> bool {
        let is_its = |item: &Item| matches!(item, Item::Whole(n) | Item::Offer(n) if *n == number);
        if let Some(place) = self.outbox.iter().position(is_its) {
            self.outbox.remove(place);
            return true;
        }
        match &self.current {
            Some(current) if current.body.number() == Some(number) && current.written == 0 => {
                self.current = None;
                true
            }
            _ => false,
        }
    }

    /// Whether the lane of this rank serves the peer.
    pub(super) fn uses_lane(&mut self, domain: &dyn SharedDomain) -> bool {
        let is_under_way = self.current.as_ref().is_some_and(|current| current.body.in_lane());
        self.closed.is_none() && (is_under_way || !self.wire.has_cleared_lane(domain))
    }

    /// Whether bytes of a send are being put into the stream.
    pub(super) fn is_sending(&self, number: u64) -> bool {
        self.current.as_ref().is_some_and(|current| {
            current.written > 0
                && !matches!(current.body, Load::Nothing(_))
                && current.body.number() == Some(number)
        })
    }

    /// Whether anything goes to the peer.
    pub(super) fn is_open(&self) -> bool {
        self.closed.is_none() && self.out_closed.is_none()
    }

    /// Why a send to the peer ends at once. While the link parts, it ends with that.
    pub(super) fn refusal(&self) -> Option<&Error> {
        let out_closed = self.out_closed.as_ref().filter(|_| self.parts_at.is_none());
        self.closed.as_ref().or(out_closed)
    }

    /// Ends everything that goes to the peer.
    pub(super) fn clear_out(&mut self) {
        self.outbox.clear();
        self.bulk.clear();
        self.current = None;
    }

    /// Ends everything that goes to the peer or comes from it.
    pub(super) fn clear(&mut self) {
        self.clear_out();
        self.inflow = Inflow::START;
        self.offers.clear();
    }
}
