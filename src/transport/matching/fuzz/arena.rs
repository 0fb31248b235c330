//! Memory that outlives every message, with something between any two buffers, and what has become
//! of the messages.

use super::SharedCompletion;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::transport::{Completion, Delivery};
use std::cell::OnceCell;
use std::sync::{Arc, Mutex, PoisonError};

const BYTES: usize = 128 << 10;
const GUARD: usize = 16;
/// What lies in it before anything comes.
const UNTOUCHED: u8 = 0xee;

thread_local! {
    /// Made once, since it is lent for good.
    static MEMORY: OnceCell<Dst<'static>> = const { OnceCell::new() };
}

/// What is told when a message ends.
#[derive(Debug, Default)]
pub(super) struct FuzzCompletion(Mutex<Option<Result<Delivery>>>);

impl Completion for FuzzCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        let mut outcome_slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(outcome_slot.is_none(), "told twice: {outcome_slot:?}, {outcome:?}");
        *outcome_slot = Some(outcome);
    }

    fn complete_allocated(&self, delivery: Delivery, bytes: Vec<u8>) {
        assert_eq!(bytes.len(), delivery.bytes, "the message has another length than is told");
        self.complete(Ok(delivery));
    }
}

struct FuzzPosted {
    completion: SharedCompletion,
    /// Where a receive writes.
    start: usize,
    len: usize,
    is_over: bool,
}

pub(super) struct FuzzArena {
    memory: Dst<'static>,
    /// What is to be in it, outside of buffers that are lent.
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

    /// How many messages were posted.
    pub(super) fn posted(&self) -> usize {
        self.count
    }

    /// A buffer for a receive; `None` where there is no room.
    pub(super) fn post_receive(&mut self, len: usize) -> Option<(SharedCompletion, Dst<'static>)> {
        let start = self.used;
        if self.count >= super::MAX_POSTED || start + len + GUARD > BYTES {
            return None;
        }
        self.used += len + GUARD;
        Some((self.add(start, len), self.memory.slice(start, len)))
    }

    /// For a send, which writes nothing.
    pub(super) fn post_send(&mut self) -> SharedCompletion {
        self.add(0, 0)
    }

    fn add(&mut self, start: usize, len: usize) -> SharedCompletion {
        let done = Arc::new(FuzzCompletion::default());
        self.posted.push(FuzzPosted { completion: Arc::clone(&done), start, len, is_over: false });
        self.count += 1;
        done
    }

    /// It was not posted after all, and nothing is told.
    pub(super) fn forget(&mut self, completion: &SharedCompletion) {
        self.posted.retain(|posted| !Arc::ptr_eq(&posted.completion, completion));
    }

    /// Looks which messages have ended; what is in their buffers now must stay there.
    pub(super) fn record_completions(&mut self) {
        for posted in self.posted.iter_mut().filter(|posted| !posted.is_over) {
            let outcome_slot = posted.completion.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(outcome) = &*outcome_slot else { continue };
            posted.is_over = true;
            // A failed receive may have got a part of its message, a successful one nothing behind
            // it.
            let len = match outcome {
                Ok(delivery) if posted.len > 0 => delivery.bytes,
                _ => posted.len,
            };
            assert!(len <= posted.len || posted.start == 0, "more than there is room for");
            let written = self.memory.slice(posted.start, len.min(posted.len));
            let expected = &mut self.expected[posted.start..posted.start + len.min(posted.len)];
            Dst::from(expected).copy_from(written.as_src());
        }
    }

    /// Everything has ended, and nothing was written where it must not be.
    pub(super) fn check_end(&self) {
        assert!(self.posted.iter().all(|posted| posted.is_over), "a message never ended");
        let mut now = vec![0; BYTES];
        Dst::from(now.as_mut_slice()).copy_from(self.memory.as_src());
        // As a whole: a look at each byte would be most of what a run takes.
        assert!(now == self.expected, "something was written where it must not be");
    }
}
