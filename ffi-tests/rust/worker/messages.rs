//! Messages between two ranks, with contents that say from whom and under which tag they are.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use super::library::{Group, Outcome, WRONG_RESULT, defaults, outcome, rank};
use super::words::Words;
use super::works::Work;
use dist::ffi::point_to_point::{dist_recv, dist_send};
use dist::ffi::types::{
    DIST_ANY_SOURCE, DIST_ANY_TAG, DIST_OK, DIST_U8, dist_call_options_t, dist_status_t,
    dist_work_t,
};
use std::ptr::{from_ref, null_mut};

/// What a buffer has before a message comes: no message has such a byte.
const UNTOUCHED: u8 = 255;

/// One message, ready to be sent or received.
pub(super) struct Message<'a> {
    words: Words<'a>,
    group: Group,
    options: dist_call_options_t,
    /// With any for whoever and whatever.
    peer: i32,
    tag: i32,
    bytes: Vec<u8>,
}

/// The byte at an index of the message from a rank under a tag.
fn byte(from: i32, tag: i32, index: usize) -> u8 {
    let (from, tag) = (usize::try_from(from).unwrap(), usize::try_from(tag).unwrap());
    u8::try_from((index + 29 * from + 53 * tag) % 251).unwrap()
}

impl<'a> Message<'a> {
    /// `send BYTES PEER TAG`, `recv BYTES PEER TAG`, with `timeout_ms=`. To receive, the peer and, with
    /// `async=yes`, the tag may be `any`, and `of=BYTES` says that the message is shorter than the room.
    pub(super) fn new(words: Words<'a>, group: Group) -> Self {
        let mut options: dist_call_options_t = defaults();
        options.struct_size = size_of::<dist_call_options_t>();
        options.timeout_ms = words.number("timeout_ms").unwrap_or(0);
        let or_any = |text: &str, any| if text == "any" { any } else { text.parse().unwrap() };
        let count: usize = words.at(0).parse().unwrap();
        let (peer, tag) = (or_any(words.at(1), DIST_ANY_SOURCE), or_any(words.at(2), DIST_ANY_TAG));
        let bytes = if words.verb() == "send" {
            let me = rank(group).max(0);
            (0..count).map(|index| byte(me, tag, index)).collect()
        } else {
            vec![UNTOUCHED; count]
        };
        Self { words, group, options, peer, tag, bytes }
    }

    /// Sends or receives it, and looks at what has come.
    pub(super) fn make(&mut self) -> Outcome {
        let mut source = self.peer;
        let status = self.call(&raw mut source, null_mut());
        match status {
            DIST_OK => self.check(source, self.tag, self.expected()),
            _ => outcome(status),
        }
    }

    /// Issues it with a work, to which its bytes are lent until it is done.
    pub(super) fn issue(&mut self) -> Result<Work, Outcome> {
        Work::issued(|work| self.call(null_mut(), work))
    }

    /// What there is to say of a work that has succeeded.
    pub(super) fn judge(&self, work: &Work) -> Outcome {
        if self.words.verb() == "recv" && work.received() != self.expected() {
            let text = format!("{} bytes have come, not {}", work.received(), self.expected());
            return (WRONG_RESULT, text);
        }
        self.check(work.source(), work.tag(), self.expected())
    }

    fn call(&mut self, source: *mut i32, work: *mut *mut dist_work_t) -> dist_status_t {
        let (group, options) = (self.group.0, from_ref(&self.options));
        let (count, peer, tag) = (self.bytes.len(), self.peer, self.tag);
        if self.words.verb() == "send" {
            let bytes = self.bytes.as_ptr().cast();
            // SAFETY: the buffer holds `count` bytes and outlives the operation.
            return unsafe { dist_send(group, bytes, count, DIST_U8, peer, tag, options, work) };
        }
        let bytes = self.bytes.as_mut_ptr().cast();
        // SAFETY: as above, and `source` takes a rank or is NULL.
        unsafe { dist_recv(group, bytes, count, DIST_U8, peer, tag, source, options, work) }
    }

    /// How many bytes come.
    fn expected(&self) -> usize {
        self.words.number("of").unwrap_or(self.bytes.len())
    }

    fn check(&self, from: i32, tag: i32, len: usize) -> Outcome {
        if self.words.verb() == "send" {
            return (DIST_OK, String::new());
        }
        let is_wanted = |wanted: i32, found: i32| found >= 0 && (wanted < 0 || wanted == found);
        if !is_wanted(self.peer, from) || !is_wanted(self.tag, tag) {
            return (WRONG_RESULT, format!("it is said to be from rank {from}, tag {tag}"));
        }
        let right = |index| if index < len { byte(from, tag, index) } else { UNTOUCHED };
        let wrong = (0..self.bytes.len()).find(|&index| self.bytes[index] != right(index));
        wrong.map_or((DIST_OK, String::new()), |index| {
            let text = format!("byte {index} is {}, not {}", self.bytes[index], right(index));
            (WRONG_RESULT, text)
        })
    }
}
