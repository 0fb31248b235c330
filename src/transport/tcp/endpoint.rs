//! What the algorithms and the matching engine call: sending, receiving, resting.

use super::door::{Door, lock};
use super::hello::Purpose;
use super::last_words;
use super::mesh::{Out, Shared, leave};
use super::standing::{HAS_DIED, HAS_LEFT, PRESENT};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::log::Level;
use crate::sys::poll::{Interest, PollSet};
use crate::sys::socket;
use crate::sys::stream::Stream;
use crate::transport::{Attendant, Channel, Direction, Endpoint, PeerName, Wish};
use crate::wait::service::Watch;
use crate::wait::{Pace, io};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// For how long an address that refuses is tried again: of a rank that has died its node tells
/// meanwhile.
const REFUSED: Duration = Duration::from_millis(500);

/// This process's end of all streams of a group.
#[derive(Debug)]
pub struct Mesh {
    pub(super) shared: Arc<Shared>,
    pub(super) door: Arc<Door>,
    /// What a rest waits for; kept, so that resting allocates nothing.
    pub(super) resting: Mutex<Rest>,
    pub(super) watches: Vec<Watch>,
}

/// The room that a rest needs.
#[derive(Debug, Default)]
pub(super) struct Rest {
    set: PollSet,
    /// Keeps the descriptors of the set open.
    streams: Vec<Arc<Stream>>,
}

/// Whether a wish needs to be waited for.
enum Outlook {
    /// It may have come true.
    Now,
    /// It comes true when this can be read or written.
    When(Arc<Stream>),
    /// The event tells.
    Told,
}

impl Mesh {
    /// Begins to connect a stream that is used for the first time.
    fn begin(&self, to: Rank, channel: Channel) -> Result<usize> {
        let dial =
            self.shared.dial(to, Purpose::Stream(channel), Some(Deadline::after(REFUSED)))?;
        *lock(&self.shared.slot(to, channel).out) = Out::Dialing(Arc::clone(&dial));
        // Not under the lock: where it fails at once, that is said in the same place.
        dial.start();
        Ok(0)
    }

    fn outlook(&self, wish: &Wish) -> Outlook {
        let shared = self.shared.as_ref();
        let slot = shared.slot(wish.peer, wish.channel);
        let standing = shared.standing(wish.peer);
        if standing == HAS_DIED {
            // Nothing more comes; only the reason does.
            return Outlook::Told;
        }
        // Nor does anything go to one that leaves.
        let (present, leaving) = (standing == PRESENT, standing == HAS_LEFT);
        match wish.direction {
            Direction::In => match &*lock(&slot.incoming) {
                Some(stream) => Outlook::When(Arc::clone(stream)),
                None if present || leaving => Outlook::Told,
                None => Outlook::Now,
            },
            Direction::Out if leaving => Outlook::Told,
            Direction::Out if !present => Outlook::Now,
            Direction::Out => match &*lock(&slot.out) {
                Out::Open(stream) => Outlook::When(Arc::clone(stream)),
                Out::Dialing(_) => Outlook::Told,
                Out::Unused | Out::Failed(_) => Outlook::Now,
            },
        }
    }
}

impl Endpoint for Mesh {
    fn rank(&self) -> Rank {
        self.shared.me
    }

    fn size(&self) -> WorldSize {
        self.shared.ranks()
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        self.shared.name(rank)
    }

    fn lanes(&self) -> u8 {
        self.shared.lanes
    }

    fn pace(&self) -> Pace {
        self.shared.pace
    }

    fn try_send(&self, to: Rank, channel: Channel, parts: &[Src<'_>]) -> Result<usize> {
        let shared = self.shared.as_ref();
        if shared.standing(to) != PRESENT {
            return shared.after_the_end(to);
        }
        let out = lock(&shared.slot(to, channel).out);
        let has_ended = match &*out {
            Out::Open(stream) => match stream.send_parts(parts) {
                Ok(sent) => return Ok(sent),
                Err(cause) => shared.judge(to, &cause)?,
            },
            Out::Dialing(_) => return Ok(0),
            Out::Failed(error) => return Err(error.clone()),
            Out::Unused => {
                drop(out);
                return self.begin(to, channel);
            }
        };
        drop(out);
        if has_ended { shared.after_the_end(to) } else { Ok(0) }
    }

    fn try_receive(&self, from: Rank, channel: Channel, into: Dst<'_>) -> Result<usize> {
        let shared = self.shared.as_ref();
        if into.is_empty() {
            return Ok(0);
        }
        let mut incoming = lock(&shared.slot(from, channel).incoming);
        let Some(stream) = incoming.as_ref() else {
            drop(incoming);
            return shared.after_the_end(from);
        };
        let has_ended = match stream.receive_into(into) {
            Ok(0) => {
                shared.mark_left(from);
                // It would be found to have its end again and again.
                incoming.take().iter().for_each(|stream| leave(stream));
                true
            }
            Ok(got) => return Ok(got),
            Err(cause) => shared.judge(from, &cause)?,
        };
        drop(incoming);
        if has_ended { shared.after_the_end(from) } else { Ok(0) }
    }

    fn rest(&self, wishes: &[Wish], limit: Duration) {
        let shared = self.shared.as_ref();
        let bell = shared.domain.region().bell(shared.domain.rank());
        let mut rest = lock(&self.resting);
        let Rest { set, streams } = &mut *rest;
        set.push(shared.wake.as_fd(), Interest::READ);
        bell.listen();
        let mut may_sleep = !shared.domain.region().failure().is_set();
        for wish in wishes {
            match self.outlook(wish) {
                Outlook::Now => may_sleep = false,
                Outlook::Told => {}
                Outlook::When(stream) => {
                    let write = wish.direction == Direction::Out;
                    set.push(stream.as_fd(), Interest { read: !write, write });
                    streams.push(stream);
                }
            }
        }
        if may_sleep && let Err(cause) = io::any(set, limit) {
            crate::log!(Level::Error, "cannot wait for peers: {cause}");
        }
        bell.stop_listening();
        // The caller looks at everything after this. Where it is not raised, a call is saved.
        if set.first_is_ready() {
            shared.wake.clear();
        }
        set.clear();
        streams.clear();
    }

    fn ready(&self, peers: &mut Vec<Rank>) {
        self.shared.messages.ready(peers);
    }

    fn set_attendant(&self, attendant: Weak<dyn Attendant>) {
        if let Err(error) = self.shared.messages.set_attendant(attendant) {
            self.shared.fail_here(&error);
        }
    }

    fn pause_attendant(&self, paused: bool) {
        self.shared.messages.pause(paused);
    }

    fn ask(&self, ranks: &[Rank]) -> Vec<Option<String>> {
        self.shared.ask(ranks)
    }

    fn labels(&self, rank: Rank, sequence: u64) -> Vec<Label> {
        self.shared.ask_labels(rank, sequence)
    }

    fn describe(&self) -> Value {
        let shared = self.shared.as_ref();
        let advert = &shared.members[shared.me].advert;
        let open = shared.slots.iter().find_map(|slot| match &*lock(&slot.out) {
            Out::Open(stream) => Some(socket::congestion_control(stream.as_ref())),
            _ => None,
        });
        let addresses = |list: &[super::advert::Offer]| -> Vec<String> {
            list.iter().map(|offer| offer.address.to_string()).collect()
        };
        json!({
            "addresses": addresses(&advert.anyone),
            "addresses_near": addresses(&advert.near),
            "why": advert.why,
            "lanes": shared.lanes,
            "congestion_control": open,
        })
    }

    fn failure(&self) -> Option<Error> {
        self.shared.domain.failure()
    }

    fn fail(&self, error: &Error) {
        self.shared.domain.fail(error);
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let shared = self.shared.as_ref();
        shared.leaving.store(true, Ordering::Release);
        self.door.forget((shared.group, shared.me));
        shared.messages.end();
        self.watches.clear();
        for dial in lock(&shared.dials).drain(..) {
            dial.cancel();
        }
        shared.end_lines();
        let failure = shared.domain.failure();
        for slot in &shared.slots {
            let out = std::mem::take(&mut *lock(&slot.out));
            match &out {
                Out::Dialing(dial) => dial.cancel(),
                Out::Open(stream) => leave(stream),
                Out::Unused | Out::Failed(_) => {}
            }
            if let Some(stream) = lock(&slot.incoming).take() {
                failure.iter().for_each(|reason| last_words::say(&stream, reason.clone()));
                leave(&stream);
            }
        }
    }
}
