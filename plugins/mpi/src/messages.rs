//! Point-to-point messages.
//!
//! The plug-in takes messages from MPI in the order in which MPI offers them (MPI_Improbe). It
//! matches them here with receives, in the order of their posting, and receives a message only
//! after its match. This has four advantages: a receive can accept any sender and any tag of
//! callers. A message that is too long stays for the next receive. A buffer can be allocated with
//! the exact length. An unmatched receive is cancelled without MPI.
//!
//! If a tag exceeds MPI's maximum, it travels as a header of the message under MPI's largest tag.
//! Both sides copy such a message.

use crate::failure::{Failure, Result};
use crate::interface::*;
use crate::mpi::lot::Lot;
use crate::mpi::{self, Handle, bytes_of, constant, mpi, sys};
use crate::part::Part;
use crate::process::Process;
use crate::request::Taken;
use crate::types;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first tag of the library's own messages; callers use smaller tags.
pub(crate) const FIRST_OWN_TAG: i64 = 1 << 31;

/// The maximum number of messages that one poll takes from MPI.
const AT_ONCE: usize = 64;

/// The bytes of the tag header.
const HEAD: usize = 8;

/// The messages of a group: those of callers, or those of the library.
#[derive(Debug)]
pub(crate) struct Channel {
    comm: Handle<sys::MPI_Comm>,
    /// The tag that is 0 in MPI.
    base: i64,
    /// MPI's largest tag: this tag and larger ones travel in a header.
    limit: c_int,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Unexpected messages in the order of arrival; no waiting receive matches one of them.
    held: VecDeque<Message>,
    /// Posted receives without a match, in the order of posting.
    waiting: VecDeque<(u64, Want)>,
    /// Matched messages, by the number of their receive.
    matched: HashMap<u64, Message>,
    /// A message with a tag header that is arriving. Later messages are not taken before it is
    /// complete.
    arriving: Option<Arriving>,
    next_receive: u64,
    next_message: u64,
}

/// The criteria of a receive: the sender and the tag; `None` for any.
#[derive(Clone, Copy, Debug)]
struct Want {
    source: Option<i32>,
    tag: Option<i64>,
}

/// A message that has arrived.
#[derive(Debug)]
struct Message {
    number: u64,
    source: i32,
    tag: i64,
    bytes: usize,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// MPI has the message.
    Offered(Handle<sys::MPI_Message>),
    /// The complete body of a message with a header.
    Whole(Vec<u8>),
}

#[derive(Debug)]
struct Arriving {
    number: u64,
    source: i32,
    request: Handle<sys::MPI_Request>,
    bytes: Vec<u8>,
}

/// A message that is being sent.
#[derive(Debug)]
pub(crate) struct Sending {
    request: Handle<sys::MPI_Request>,
    _copy: Vec<u8>,
}

/// A receive.
#[derive(Debug)]
pub(crate) struct Receive {
    number: u64,
    /// The tag base, which identifies the channel.
    base: i64,
    place: Handle<*mut c_void>,
    room: usize,
    grow: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    grow_arg: Handle<*mut c_void>,
    /// True if the buffer is in device memory, so that only MPI can write to it.
    is_on_device: bool,
    /// The message that is being received into the buffer.
    taken: Option<Took>,
}

#[derive(Debug)]
struct Took {
    request: Handle<sys::MPI_Request>,
    source: i32,
    tag: i64,
    bytes: usize,
}

impl Want {
    fn takes(&self, message: &Message) -> bool {
        self.source.is_none_or(|source| source == message.source)
            && self.tag.is_none_or(|tag| tag == message.tag)
    }
}

impl State {
    /// Gives a message to the first matching receive, or stores it at its position.
    fn arrive(&mut self, message: Message) {
        let taker = self.waiting.iter().position(|(_, want)| want.takes(&message));
        if let Some((receive, _)) = taker.and_then(|at| self.waiting.remove(at)) {
            self.matched.insert(receive, message);
            return;
        }
        let at = self.held.partition_point(|held| held.number < message.number);
        self.held.insert(at, message);
    }

    /// Gives a receive the first matching message, or queues the receive.
    fn post(&mut self, want: Want) -> u64 {
        let number = self.next_receive;
        self.next_receive += 1;
        let at = self.held.iter().position(|message| want.takes(message));
        match at.and_then(|at| self.held.remove(at)) {
            Some(message) => {
                self.matched.insert(number, message);
            }
            None => self.waiting.push_back((number, want)),
        }
        number
    }
}

impl Channel {
    pub(crate) fn new(comm: sys::MPI_Comm, base: i64, process: &Process) -> Self {
        Self { comm: Handle(comm), base, limit: process.tag_limit, state: Mutex::default() }
    }

    pub(crate) fn comm(&self) -> sys::MPI_Comm {
        self.comm.0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if MPI has no message of this channel.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.held.is_empty() && state.matched.is_empty() && state.arriving.is_none()
    }

    /// Begins to send.
    pub(crate) fn send(&self, part: &Part, what: &dist_backend_operation_t) -> Result<Sending> {
        let bytes = what.count * types::dtype(what.dtype)?.size();
        let tag = what.tag - self.base;
        let (short, head) = match c_int::try_from(tag) {
            Ok(short) if short < self.limit => (short, false),
            _ => (self.limit, true),
        };
        if head && what.device != DIST_DEVICE_HOST {
            let text = format!(
                "tag {tag}: tags of messages in device memory must be less than {}, the maximum \
                 of MPI; device_memory=staged allows larger tags",
                self.limit
            );
            return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
        }
        let mut copy = Vec::new();
        let mut from = what.send;
        let mut len = bytes;
        if head {
            copy.extend_from_slice(&tag.to_le_bytes());
            if bytes > 0 {
                // SAFETY: lent during submit, with this length.
                copy.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(what.send.cast::<u8>(), bytes)
                });
            }
            (from, len) = (copy.as_ptr().cast(), bytes + HEAD);
        }
        let lot = Lot::bytes(len, part.options.largest)?;
        let mut request = mpi::no_request();
        let comm = self.comm();
        mpi!(MPI_Isend(from, lot.count, lot.datatype, what.peer, short, comm, &raw mut request))?;
        Ok(Sending { request: Handle(request), _copy: copy })
    }

    /// Begins to receive.
    pub(crate) fn receive(&self, what: &dist_backend_operation_t) -> Result<Receive> {
        let want = Want {
            source: (what.peer != DIST_ANY_SOURCE).then_some(what.peer),
            tag: (what.tag != i64::from(DIST_ANY_TAG)).then_some(what.tag),
        };
        Ok(Receive {
            number: self.state().post(want),
            base: self.base,
            place: Handle(what.recv),
            room: what.count * types::dtype(what.dtype)?.size(),
            grow: what.grow,
            grow_arg: Handle(what.grow_arg),
            is_on_device: what.device != DIST_DEVICE_HOST,
            taken: None,
        })
    }

    /// Takes the available messages from MPI.
    fn drain(&self, state: &mut State, largest: c_int) -> Result<()> {
        for _ in 0..AT_ONCE {
            if let Some(arriving) = &mut state.arriving {
                let mut flag = 0;
                let none = constant!(RSMPI_STATUS_IGNORE);
                mpi!(MPI_Test(&raw mut arriving.request.0, &raw mut flag, none))?;
                if flag == 0 {
                    return Ok(());
                }
                if let Some(arriving) = state.arriving.take() {
                    state.arrive(arriving.unpacked(self.base)?);
                }
            }
            let (any, all) = (constant!(RSMPI_ANY_SOURCE), constant!(RSMPI_ANY_TAG));
            let (mut flag, mut status) = (0, mpi::status());
            let mut message = constant!(RSMPI_MESSAGE_NULL);
            let comm = self.comm();
            mpi!(MPI_Improbe(any, all, comm, &raw mut flag, &raw mut message, &raw mut status))?;
            if flag == 0 {
                return Ok(());
            }
            let (number, bytes) = (state.next_message, bytes_of(&status)?);
            state.next_message += 1;
            let source = status.MPI_SOURCE;
            if status.MPI_TAG == self.limit {
                let (request, bytes) = fetch(&mut message, bytes, largest)?;
                state.arriving = Some(Arriving { number, source, request, bytes });
                continue;
            }
            let tag = self.base + i64::from(status.MPI_TAG);
            let body = Body::Offered(Handle(message));
            state.arrive(Message { number, source, tag, bytes, body });
        }
        Ok(())
    }
}

/// Begins to receive a message with a header.
fn fetch(
    message: &mut sys::MPI_Message,
    bytes: usize,
    largest: c_int,
) -> Result<(Handle<sys::MPI_Request>, Vec<u8>)> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| {
        let text = format!("no memory for a message of {bytes} bytes");
        Failure::new(DIST_ERR_OUT_OF_MEMORY, text)
    })?;
    room.resize(bytes, 0_u8);
    let request = receive_into(message, room.as_mut_ptr().cast(), bytes, largest)?;
    Ok((request, room))
}

fn receive_into(
    message: &mut sys::MPI_Message,
    place: *mut c_void,
    bytes: usize,
    largest: c_int,
) -> Result<Handle<sys::MPI_Request>> {
    let lot = Lot::bytes(bytes, largest)?;
    let mut request = mpi::no_request();
    mpi!(MPI_Imrecv(place, lot.count, lot.datatype, message, &raw mut request))?;
    Ok(Handle(request))
}

impl Arriving {
    fn unpacked(self, base: i64) -> Result<Message> {
        let Self { number, source, mut bytes, .. } = self;
        let head = bytes.first_chunk::<HEAD>().copied().ok_or_else(|| {
            Failure::new(DIST_ERR_BACKEND, "a message has no tag header").by(source)
        })?;
        bytes.drain(..HEAD);
        let tag = base + i64::from_le_bytes(head);
        Ok(Message { number, source, tag, bytes: bytes.len(), body: Body::Whole(bytes) })
    }
}

impl Sending {
    /// Polls; returns true if MPI no longer uses the buffer.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let mut flag = 0;
        let none = constant!(RSMPI_STATUS_IGNORE);
        mpi!(MPI_Test(&raw mut self.request.0, &raw mut flag, none))?;
        Ok(flag != 0)
    }

    pub(crate) fn cancel(&mut self) -> Taken {
        match self.look() {
            Ok(true) => Taken::Back,
            _ => Taken::Kept("MPI cannot cancel a message that is being sent"),
        }
    }
}

impl Receive {
    /// Polls; returns true if the message is complete, and fills in the outcome.
    pub(crate) fn look(
        &mut self,
        part: &Part,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        if self.taken.is_none() && !self.take(part)? {
            return Ok(false);
        }
        let Some(taken) = &mut self.taken else { return Ok(false) };
        let mut flag = 0;
        let none = constant!(RSMPI_STATUS_IGNORE);
        let tested = mpi!(MPI_Test(&raw mut taken.request.0, &raw mut flag, none));
        tested.map_err(|failure| failure.by(taken.source))?;
        if flag == 0 {
            return Ok(false);
        }
        // SAFETY: the library's struct, valid during the call.
        if let Some(outcome) = unsafe { outcome.as_mut() } {
            outcome.peer = taken.source;
            outcome.tag = taken.tag;
            outcome.len_bytes = i64::try_from(taken.bytes).unwrap_or(i64::MAX);
        }
        Ok(true)
    }

    /// Begins to receive the matched message, if there is one.
    fn take(&mut self, part: &Part) -> Result<bool> {
        let channel = part.channel(self.base);
        let mut state = channel.state();
        if !state.matched.contains_key(&self.number) {
            channel.drain(&mut state, part.options.largest)?;
        }
        let Some(mut message) = state.matched.remove(&self.number) else { return Ok(false) };
        let place = match self.place_for(&message) {
            Ok(place) => place,
            Err(failure) => {
                let failure = failure.by(message.source);
                state.arrive(message);
                return Err(failure);
            }
        };
        drop(state);
        let request = match &mut message.body {
            Body::Whole(bytes) => {
                super::collective::copy_bytes(bytes, place);
                Handle(mpi::no_request())
            }
            Body::Offered(offer) => {
                receive_into(&mut offer.0, place, message.bytes, part.options.largest)?
            }
        };
        let Message { source, tag, bytes, .. } = message;
        self.taken = Some(Took { request, source, tag, bytes });
        Ok(true)
    }

    /// Returns the buffer for a message.
    fn place_for(&self, message: &Message) -> Result<*mut c_void> {
        let bytes = message.bytes;
        if self.is_on_device && matches!(message.body, Body::Whole(_)) {
            let text = format!(
                "the message has tag {}, which exceeds MPI's maximum, and so it arrived in host \
                 memory: receive it in host memory",
                message.tag
            );
            return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
        }
        let too_long = |text: String| Err(Failure::new(DIST_ERR_MISMATCH, text));
        match self.grow {
            Some(grow) => {
                // SAFETY: the library's function with its argument, called once.
                let place = unsafe { grow(self.grow_arg.0, bytes) };
                if place.is_null() && bytes > 0 {
                    return too_long(format!(
                        "there is no buffer for the message of {bytes} bytes"
                    ));
                }
                Ok(place)
            }
            None if bytes > self.room => {
                too_long(format!("the message has {bytes} bytes, and the buffer has {}", self.room))
            }
            None => Ok(self.place.0),
        }
    }

    pub(crate) fn cancel(&mut self, part: &Part) -> Taken {
        if let Some(taken) = &mut self.taken {
            let mut flag = 0;
            let none = constant!(RSMPI_STATUS_IGNORE);
            let tested = mpi!(MPI_Test(&raw mut taken.request.0, &raw mut flag, none));
            return match tested {
                Ok(()) if flag == 0 => Taken::Kept("MPI cannot cancel a message that is arriving"),
                // The message is complete or failed: MPI writes no more bytes.
                _ => Taken::Back,
            };
        }
        let mut state = part.channel(self.base).state();
        state.waiting.retain(|(number, _)| *number != self.number);
        if let Some(message) = state.matched.remove(&self.number) {
            state.arrive(message);
        }
        Taken::Back
    }
}
