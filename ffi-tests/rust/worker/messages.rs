//! Messages between two ranks. The content depends on the source and the tag, so that the receiver
//! can check both.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use super::command_words::CommandWords;
use super::library::{CommandOutcome, GroupHandle, WRONG_RESULT, defaults, outcome, rank};
use super::outstanding_works::WorkHandle;
use dist::ffi::message::{dist_probe, dist_recv_message, dist_sendrecv};
use dist::ffi::point_to_point::{dist_recv, dist_send};
use dist::ffi::types::{
    DIST_ANY_SOURCE, DIST_ANY_TAG, DIST_CALL_SYNCHRONOUS, DIST_OK, DIST_U8, dist_call_options_t,
    dist_message_t, dist_recv_status_t, dist_status_t, dist_work_t,
};
use std::ptr::{from_ref, null_mut};

/// The content of a buffer before the message arrives; no message contains this byte.
const UNTOUCHED_BYTE: u8 = 255;

/// A message that can be sent or received.
pub(super) struct MessageCall<'a> {
    words: CommandWords<'a>,
    group: GroupHandle,
    options: dist_call_options_t,
    /// The receiver in a `sendrecv`.
    dest: i32,
    /// The peer; negative for any source. The tag may be negative as well, for any tag.
    peer: i32,
    tag: i32,
    bytes: Vec<u8>,
}

/// Returns the byte at an index of the message from a rank with a tag.
fn message_byte(from: i32, tag: i32, index: usize) -> u8 {
    let (from, tag) = (usize::try_from(from).unwrap(), usize::try_from(tag).unwrap());
    u8::try_from((index + 29 * from + 53 * tag) % 251).unwrap()
}

impl<'a> MessageCall<'a> {
    /// Parses `send BYTES PEER TAG` or `recv BYTES PEER TAG`, with `timeout_ms=`. In a receive, the
    /// peer and, with `async=yes`, the tag may be `any`; `of=BYTES` gives the length of a message
    /// that is shorter than the buffer. `sync=yes` makes a send synchronous. `probe BYTES PEER TAG`
    /// receives the message that a probe finds. `sendrecv BYTES DEST SOURCE TAG` sends and receives
    /// in one buffer.
    pub(super) fn new(words: CommandWords<'a>, group: GroupHandle) -> Self {
        let mut options: dist_call_options_t = defaults();
        options.struct_size = size_of::<dist_call_options_t>();
        options.timeout_ms = words.number("timeout_ms").unwrap_or(0);
        let or_any = |text: &str, any| if text == "any" { any } else { text.parse().unwrap() };
        let count: usize = words.at(0).parse().unwrap();
        if words.text("sync") == Some("yes") {
            options.flags = DIST_CALL_SYNCHRONOUS;
        }
        let first = usize::from(words.verb() == "sendrecv");
        let dest = or_any(words.at(1), DIST_ANY_SOURCE);
        let peer = or_any(words.at(1 + first), DIST_ANY_SOURCE);
        let tag = or_any(words.at(2 + first), DIST_ANY_TAG);
        let bytes = if words.verb().starts_with("send") {
            let me = rank(group).max(0);
            (0..count).map(|index| message_byte(me, tag, index)).collect()
        } else {
            vec![UNTOUCHED_BYTE; count]
        };
        Self { words, group, options, dest, peer, tag, bytes }
    }

    /// Sends or receives the message and checks the received content.
    pub(super) fn call_and_check(&mut self) -> CommandOutcome {
        let mut message = dist_recv_status_t {
            struct_size: size_of::<dist_recv_status_t>(),
            source: self.peer,
            tag: self.tag,
            count: self.expected(),
            dtype: DIST_U8,
            reserved: 0,
        };
        let status = self.call(&raw mut message, null_mut());
        match status {
            DIST_OK => self.check_content(message.source, message.tag, message.count),
            _ => outcome(status),
        }
    }

    /// Issues the message as a work. The caller keeps this value, with its buffer, until the work
    /// completes.
    pub(super) fn issue(&mut self) -> Result<WorkHandle, CommandOutcome> {
        WorkHandle::issued(|work| self.call(null_mut(), work))
    }

    /// Checks the message of a successful work.
    pub(super) fn check_received(&self, work: &WorkHandle) -> CommandOutcome {
        if self.words.verb() != "send" && work.received_count() != self.expected() {
            let text =
                format!("{} bytes have come, not {}", work.received_count(), self.expected());
            return (WRONG_RESULT, text);
        }
        self.check_content(work.source(), work.tag(), self.expected())
    }

    fn call(
        &mut self,
        message: *mut dist_recv_status_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (group, options) = (self.group.0, from_ref(&self.options));
        let (count, peer, tag) = (self.bytes.len(), self.peer, self.tag);
        if self.words.verb() == "send" {
            let bytes = self.bytes.as_ptr().cast();
            // SAFETY: the buffer holds `count` bytes and outlives the operation.
            return unsafe { dist_send(group, bytes, count, DIST_U8, peer, tag, options, work) };
        }
        let bytes: *mut std::ffi::c_void = self.bytes.as_mut_ptr().cast();
        if self.words.verb() == "sendrecv" {
            let dest = self.dest;
            // SAFETY: as above, and `message` is NULL or valid for a status.
            return unsafe {
                dist_sendrecv(
                    group,
                    bytes.cast_const(),
                    count,
                    dest,
                    tag,
                    bytes,
                    count,
                    peer,
                    tag,
                    DIST_U8,
                    message,
                    options,
                    work,
                )
            };
        }
        if self.words.verb() == "probe" {
            let mut message_handle: *mut dist_message_t = null_mut();
            // SAFETY: `message` is valid for a status, and `message_handle` for the handle.
            let status =
                unsafe { dist_probe(group, peer, tag, message, options, &raw mut message_handle) };
            if status != DIST_OK {
                return status;
            }
            // SAFETY: as above.
            return unsafe {
                dist_recv_message(message_handle, bytes, count, DIST_U8, message, options, work)
            };
        }
        // SAFETY: as above, and `message` is NULL or valid for a status.
        unsafe { dist_recv(group, bytes, count, DIST_U8, peer, tag, message, options, work) }
    }

    /// Returns the expected length of the received message in bytes.
    fn expected(&self) -> usize {
        self.words.number("of").unwrap_or(self.bytes.len())
    }

    fn check_content(&self, from: i32, tag: i32, len: usize) -> CommandOutcome {
        if self.words.verb() == "send" {
            return (DIST_OK, String::new());
        }
        let is_wanted = |wanted: i32, found: i32| found >= 0 && (wanted < 0 || wanted == found);
        if !is_wanted(self.peer, from) || !is_wanted(self.tag, tag) {
            return (WRONG_RESULT, format!("it is said to be from rank {from}, tag {tag}"));
        }
        let right =
            |index| if index < len { message_byte(from, tag, index) } else { UNTOUCHED_BYTE };
        let wrong = (0..self.bytes.len()).find(|&index| self.bytes[index] != right(index));
        wrong.map_or((DIST_OK, String::new()), |index| {
            let text = format!("byte {index} is {}, not {}", self.bytes[index], right(index));
            (WRONG_RESULT, text)
        })
    }
}
