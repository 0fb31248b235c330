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
use crate::group::MpiGroup;
use crate::interface::*;
use crate::mpi::large_count::LargeCount;
use crate::mpi::{self, Handle, bytes_of, constant, mpi, sys};
use crate::process::Process;
use crate::request::CancelOutcome;
use crate::types;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first tag of the library's own messages; callers use smaller tags.
pub(crate) const FIRST_OWN_TAG: i64 = 1 << 31;

/// The maximum number of messages that one poll takes from MPI.
const MAX_PROBES: usize = 64;

/// The bytes of the tag header.
const TAG_HEADER_BYTES: usize = 8;

/// The messages of a group: the callers' messages, or the library's messages.
#[derive(Debug)]
pub(crate) struct Channel {
    comm: Handle<sys::MPI_Comm>,
    /// The tag that is 0 in MPI.
    tag_base: i64,
    /// MPI's largest tag: this tag and larger ones travel in a header.
    tag_limit: c_int,
    state: Mutex<ChannelState>,
}

#[derive(Debug, Default)]
struct ChannelState {
    /// Unexpected messages in the order of arrival; no waiting receive matches one of them.
    unexpected: VecDeque<IncomingMessage>,
    /// Posted receives without a match, in the order of posting.
    posted: VecDeque<(u64, ReceiveCriteria)>,
    /// Matched messages, by the number of their receive.
    matched: HashMap<u64, IncomingMessage>,
    /// A message with a tag header that is arriving. Later messages are not taken before it is
    /// complete.
    arriving: Option<ArrivingMessage>,
    next_receive: u64,
    next_message: u64,
}

/// The criteria of a receive: the sender and the tag; `None` for any.
#[derive(Clone, Copy, Debug)]
struct ReceiveCriteria {
    source: Option<i32>,
    tag: Option<i64>,
}

/// A message that has arrived.
#[derive(Debug)]
struct IncomingMessage {
    number: u64,
    source: i32,
    tag: i64,
    bytes: usize,
    body: MessageBody,
}

#[derive(Debug)]
enum MessageBody {
    /// MPI has the message.
    Probed(Handle<sys::MPI_Message>),
    /// The complete body of a message with a header.
    Copied(Vec<u8>),
}

#[derive(Debug)]
struct ArrivingMessage {
    number: u64,
    source: i32,
    request: Handle<sys::MPI_Request>,
    bytes: Vec<u8>,
}

/// A message that is being sent.
#[derive(Debug)]
pub(crate) struct SendOperation {
    request: Handle<sys::MPI_Request>,
    _copy: Vec<u8>,
}

/// A receive.
#[derive(Debug)]
pub(crate) struct ReceiveOperation {
    number: u64,
    /// The tag base, which identifies the channel.
    tag_base: i64,
    buffer: Handle<*mut c_void>,
    max_bytes: usize,
    grow: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    grow_arg: Handle<*mut c_void>,
    /// True if the buffer is in device memory, so that only MPI can write to it.
    is_on_device: bool,
    /// The message that is being received into the buffer.
    started: Option<StartedReceive>,
}

#[derive(Debug)]
struct StartedReceive {
    request: Handle<sys::MPI_Request>,
    source: i32,
    tag: i64,
    bytes: usize,
}

impl ReceiveCriteria {
    fn matches(&self, message: &IncomingMessage) -> bool {
        self.source.is_none_or(|source| source == message.source)
            && self.tag.is_none_or(|tag| tag == message.tag)
    }
}

impl ChannelState {
    /// Gives a message to the first matching receive, or stores it at its position.
    fn deliver(&mut self, message: IncomingMessage) {
        let receiver = self.posted.iter().position(|(_, criteria)| criteria.matches(&message));
        if let Some((receive, _)) = receiver.and_then(|index| self.posted.remove(index)) {
            self.matched.insert(receive, message);
            return;
        }
        let index = self.unexpected.partition_point(|other| other.number < message.number);
        self.unexpected.insert(index, message);
    }

    /// Gives a receive the first matching message, or queues the receive.
    fn post(&mut self, criteria: ReceiveCriteria) -> u64 {
        let number = self.next_receive;
        self.next_receive += 1;
        let index = self.unexpected.iter().position(|message| criteria.matches(message));
        match index.and_then(|index| self.unexpected.remove(index)) {
            Some(message) => {
                self.matched.insert(number, message);
            }
            None => self.posted.push_back((number, criteria)),
        }
        number
    }
}

impl Channel {
    pub(crate) fn new(comm: sys::MPI_Comm, tag_base: i64, process: &Process) -> Self {
        Self { comm: Handle(comm), tag_base, tag_limit: process.tag_limit, state: Mutex::default() }
    }

    pub(crate) fn comm(&self) -> sys::MPI_Comm {
        self.comm.0
    }

    fn lock_state(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if MPI has no message of this channel.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock_state();
        state.unexpected.is_empty() && state.matched.is_empty() && state.arriving.is_none()
    }

    /// Begins to send.
    pub(crate) fn send(
        &self,
        group: &MpiGroup,
        operation: &dist_backend_operation_t,
    ) -> Result<SendOperation> {
        let bytes = operation.count * types::dtype(operation.dtype)?.size();
        let tag = operation.tag - self.tag_base;
        let (mpi_tag, has_header) = match c_int::try_from(tag) {
            Ok(mpi_tag) if mpi_tag < self.tag_limit => (mpi_tag, false),
            _ => (self.tag_limit, true),
        };
        if has_header && operation.device != DIST_DEVICE_HOST {
            let text = format!(
                "tag {tag}: tags of messages in device memory must be less than {}, the maximum \
                 of MPI; device_memory=staged allows larger tags",
                self.tag_limit
            );
            return Err(Failure::new(DIST_ERR_UNSUPPORTED, text));
        }
        let mut copy = Vec::new();
        let mut source_buffer = operation.send;
        let mut len = bytes;
        if has_header {
            copy.extend_from_slice(&tag.to_le_bytes());
            if bytes > 0 {
                // SAFETY: lent during submit, with this length.
                copy.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(operation.send.cast::<u8>(), bytes)
                });
            }
            (source_buffer, len) = (copy.as_ptr().cast(), bytes + TAG_HEADER_BYTES);
        }
        let large_count = LargeCount::bytes(len, group.options.max_count)?;
        let mut request = mpi::no_request();
        let comm = self.comm();
        mpi!(MPI_Isend(
            source_buffer,
            large_count.count,
            large_count.datatype,
            operation.peer,
            mpi_tag,
            comm,
            &raw mut request
        ))?;
        Ok(SendOperation { request: Handle(request), _copy: copy })
    }

    /// Begins to receive.
    pub(crate) fn receive(&self, operation: &dist_backend_operation_t) -> Result<ReceiveOperation> {
        let criteria = ReceiveCriteria {
            source: (operation.peer != DIST_ANY_SOURCE).then_some(operation.peer),
            tag: (operation.tag != i64::from(DIST_ANY_TAG)).then_some(operation.tag),
        };
        Ok(ReceiveOperation {
            number: self.lock_state().post(criteria),
            tag_base: self.tag_base,
            buffer: Handle(operation.recv),
            max_bytes: operation.count * types::dtype(operation.dtype)?.size(),
            grow: operation.grow,
            grow_arg: Handle(operation.grow_arg),
            is_on_device: operation.device != DIST_DEVICE_HOST,
            started: None,
        })
    }

    /// Takes the available messages from MPI.
    fn receive_available(&self, state: &mut ChannelState, max_count: c_int) -> Result<()> {
        for _ in 0..MAX_PROBES {
            if let Some(arriving) = &mut state.arriving {
                let mut flag = 0;
                let none = constant!(RSMPI_STATUS_IGNORE);
                mpi!(MPI_Test(&raw mut arriving.request.0, &raw mut flag, none))?;
                if flag == 0 {
                    return Ok(());
                }
                if let Some(arriving) = state.arriving.take() {
                    state.deliver(arriving.into_message(self.tag_base)?);
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
            if status.MPI_TAG == self.tag_limit {
                let (request, bytes) = start_tagged_receive(&mut message, bytes, max_count)?;
                state.arriving = Some(ArrivingMessage { number, source, request, bytes });
                continue;
            }
            let tag = self.tag_base + i64::from(status.MPI_TAG);
            let body = MessageBody::Probed(Handle(message));
            state.deliver(IncomingMessage { number, source, tag, bytes, body });
        }
        Ok(())
    }
}

/// Begins to receive a message with a header.
fn start_tagged_receive(
    message: &mut sys::MPI_Message,
    bytes: usize,
    max_count: c_int,
) -> Result<(Handle<sys::MPI_Request>, Vec<u8>)> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| {
        let text = format!("no memory for a message of {bytes} bytes");
        Failure::new(DIST_ERR_OUT_OF_MEMORY, text)
    })?;
    buffer.resize(bytes, 0_u8);
    let request = start_receive(message, buffer.as_mut_ptr().cast(), bytes, max_count)?;
    Ok((request, buffer))
}

fn start_receive(
    message: &mut sys::MPI_Message,
    buffer: *mut c_void,
    bytes: usize,
    max_count: c_int,
) -> Result<Handle<sys::MPI_Request>> {
    let large_count = LargeCount::bytes(bytes, max_count)?;
    let mut request = mpi::no_request();
    mpi!(MPI_Imrecv(buffer, large_count.count, large_count.datatype, message, &raw mut request))?;
    Ok(Handle(request))
}

impl ArrivingMessage {
    fn into_message(self, tag_base: i64) -> Result<IncomingMessage> {
        let Self { number, source, mut bytes, .. } = self;
        let header = bytes.first_chunk::<TAG_HEADER_BYTES>().copied().ok_or_else(|| {
            Failure::new(DIST_ERR_BACKEND, "a message has no tag header").with_culprit(source)
        })?;
        bytes.drain(..TAG_HEADER_BYTES);
        let tag = tag_base + i64::from_le_bytes(header);
        Ok(IncomingMessage {
            number,
            source,
            tag,
            bytes: bytes.len(),
            body: MessageBody::Copied(bytes),
        })
    }
}

impl SendOperation {
    /// Polls; returns true if MPI no longer uses the buffer.
    pub(crate) fn poll(&mut self) -> Result<bool> {
        let mut flag = 0;
        let none = constant!(RSMPI_STATUS_IGNORE);
        mpi!(MPI_Test(&raw mut self.request.0, &raw mut flag, none))?;
        Ok(flag != 0)
    }

    pub(crate) fn cancel(&mut self) -> CancelOutcome {
        match self.poll() {
            Ok(true) => CancelOutcome::Released,
            _ => CancelOutcome::InUse("MPI cannot cancel a message that is being sent"),
        }
    }
}

impl ReceiveOperation {
    /// Polls; returns true if the message is complete, and fills in the outcome.
    pub(crate) fn poll(
        &mut self,
        group: &MpiGroup,
        outcome: *mut dist_backend_outcome_t,
    ) -> Result<bool> {
        if self.started.is_none() && !self.start(group)? {
            return Ok(false);
        }
        let Some(started) = &mut self.started else { return Ok(false) };
        let mut flag = 0;
        let none = constant!(RSMPI_STATUS_IGNORE);
        let tested = mpi!(MPI_Test(&raw mut started.request.0, &raw mut flag, none));
        tested.map_err(|failure| failure.with_culprit(started.source))?;
        if flag == 0 {
            return Ok(false);
        }
        // SAFETY: the library's struct, valid during the call.
        if let Some(outcome) = unsafe { outcome.as_mut() } {
            outcome.peer = started.source;
            outcome.tag = started.tag;
            outcome.len_bytes = i64::try_from(started.bytes).unwrap_or(i64::MAX);
        }
        Ok(true)
    }

    /// Begins to receive the matched message, if there is one.
    fn start(&mut self, group: &MpiGroup) -> Result<bool> {
        let channel = group.channel(self.tag_base);
        let mut state = channel.lock_state();
        if !state.matched.contains_key(&self.number) {
            channel.receive_available(&mut state, group.options.max_count)?;
        }
        let Some(mut message) = state.matched.remove(&self.number) else { return Ok(false) };
        let buffer = match self.buffer_for(&message) {
            Ok(buffer) => buffer,
            Err(failure) => {
                let failure = failure.with_culprit(message.source);
                state.deliver(message);
                return Err(failure);
            }
        };
        drop(state);
        let request = match &mut message.body {
            MessageBody::Copied(bytes) => {
                super::collective::copy_bytes(bytes, buffer);
                Handle(mpi::no_request())
            }
            MessageBody::Probed(handle) => {
                start_receive(&mut handle.0, buffer, message.bytes, group.options.max_count)?
            }
        };
        let IncomingMessage { source, tag, bytes, .. } = message;
        self.started = Some(StartedReceive { request, source, tag, bytes });
        Ok(true)
    }

    /// Returns the buffer for a message.
    fn buffer_for(&self, message: &IncomingMessage) -> Result<*mut c_void> {
        let bytes = message.bytes;
        if self.is_on_device && matches!(message.body, MessageBody::Copied(_)) {
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
                let buffer = unsafe { grow(self.grow_arg.0, bytes) };
                if buffer.is_null() && bytes > 0 {
                    return too_long(format!(
                        "there is no buffer for the message of {bytes} bytes"
                    ));
                }
                Ok(buffer)
            }
            None if bytes > self.max_bytes => too_long(format!(
                "the message has {bytes} bytes, and the buffer has {}",
                self.max_bytes
            )),
            None => Ok(self.buffer.0),
        }
    }

    pub(crate) fn cancel(&mut self, group: &MpiGroup) -> CancelOutcome {
        if let Some(started) = &mut self.started {
            let mut flag = 0;
            let none = constant!(RSMPI_STATUS_IGNORE);
            let tested = mpi!(MPI_Test(&raw mut started.request.0, &raw mut flag, none));
            return match tested {
                Ok(()) if flag == 0 => {
                    CancelOutcome::InUse("MPI cannot cancel a message that is arriving")
                }
                // The message is complete or failed: MPI writes no more bytes.
                _ => CancelOutcome::Released,
            };
        }
        let mut state = group.channel(self.tag_base).lock_state();
        state.posted.retain(|(number, _)| *number != self.number);
        if let Some(message) = state.matched.remove(&self.number) {
            state.deliver(message);
        }
        CancelOutcome::Released
    }
}
