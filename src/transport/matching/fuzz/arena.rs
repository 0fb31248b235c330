//! The receive buffers of a fuzz run, with guard bytes between them, and the completions of its
//! messages. The memory outlives every message.

use super::SharedCompletion;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::sync::lock;
use crate::transport::{Completion, Delivery};
use std::cell::OnceCell;
use std::sync::{Arc, Mutex};

const BYTES: usize = 128 << 10;
const GUARD: usize = 16;
/// The content of the memory before a message arrives.
const UNTOUCHED: u8 = 0xee;

thread_local! {
    /// Allocated only once, because the engine may borrow this memory until the process exits.
    static MEMORY: OnceCell<Dst<'static>> = const { OnceCell::new() };
}

/// The completion of a posted message.
#[derive(Debug, Default)]
pub(super) struct FuzzCompletion(Mutex<Option<Result<Delivery>>>);

impl Completion for FuzzCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        let mut outcome_slot = lock(&self.0);
        assert!(outcome_slot.is_none(), "completed twice: {outcome_slot:?}, {outcome:?}");
        *outcome_slot = Some(outcome);
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        assert_eq!(
            bytes.len(),
            delivery.bytes,
            "the reported length differs from the message's length"
        );
        self.complete(Ok(delivery));
    }
}

struct FuzzPosted {
    completion: SharedCompletion,
    /// The offset of a receive's buffer.
    start: usize,
    len: usize,
    is_over: bool,
}

pub(super) struct FuzzArena {
    memory: Dst<'static>,
    /// The expected content of the memory outside of borrowed buffers.
    expected: Vec<u8>,
    used: usize,
    posted: Vec<FuzzPosted>,
    count: usize,
}

impl FuzzArena {
    pub(super) fn new() -> Self {
        let make = || Dst::from(Box::leak(vec![UNTOUCHED; BYTES].into_boxed_slice()));
        let memory = MEMORY.with(|memory| *memory.get_or_init(make));
        let right = vec![UNTOUCHED; BYTES];
        memory.copy_from(right.as_slice().into());
        Self { memory, expected: right, used: GUARD, posted: Vec::new(), count: 0 }
    }

    /// Returns the number of posted messages.
    pub(super) fn posted(&self) -> usize {
        self.count
    }

    /// Returns a buffer and a completion for a receive; `None` if there is no room.
    pub(super) fn post_receive(&mut self, len: usize) -> Option<(SharedCompletion, Dst<'static>)> {
        let start = self.used;
        if self.count >= super::MAX_POSTED || start + len + GUARD > BYTES {
            return None;
        }
        self.used += len + GUARD;
        Some((self.add(start, len), self.memory.slice(start, len)))
    }

    /// Returns a completion for a send, which writes no memory.
    pub(super) fn post_send(&mut self) -> SharedCompletion {
        self.add(0, 0)
    }

    fn add(&mut self, start: usize, len: usize) -> SharedCompletion {
        let done = Arc::new(FuzzCompletion::default());
        self.posted.push(FuzzPosted { completion: Arc::clone(&done), start, len, is_over: false });
        self.count += 1;
        done
    }

    /// Forgets a message that could not be posted. Its completion is never called.
    pub(super) fn forget(&mut self, completion: &SharedCompletion) {
        self.posted.retain(|posted| !Arc::ptr_eq(&posted.completion, completion));
    }

    /// Records the completed messages. The content of their buffers must not change any more.
    pub(super) fn record_completions(&mut self) {
        for posted in self.posted.iter_mut().filter(|posted| !posted.is_over) {
            let outcome_slot = lock(&posted.completion.0);
            let Some(outcome) = &*outcome_slot else { continue };
            posted.is_over = true;
            // The buffer of a failed receive may have a part of a message. The buffer of a
            // successful receive is unchanged after the end of its message.
            let len = match outcome {
                Ok(delivery) if posted.len > 0 => delivery.bytes,
                _ => posted.len,
            };
            assert!(
                len <= posted.len || posted.start == 0,
                "the message is longer than the buffer"
            );
            let written = self.memory.slice(posted.start, len.min(posted.len));
            let expected = &mut self.expected[posted.start..posted.start + len.min(posted.len)];
            Dst::from(expected).copy_from(written.as_src());
        }
    }

    /// Checks that all messages have completed, and that no byte was written outside of their
    /// buffers.
    pub(super) fn check_end(&self) {
        assert!(self.posted.iter().all(|posted| posted.is_over), "a message did not complete");
        let mut now = vec![0; BYTES];
        Dst::from(now.as_mut_slice()).copy_from(self.memory.as_src());
        // Compare the memory as a whole: a check of each byte would take most of a run's time.
        assert!(now == self.expected, "bytes were written outside of the buffers");
    }
}
