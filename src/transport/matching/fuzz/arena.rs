//! Memory that outlives every message, with something between any two buffers, and what has become
//! of the messages.

use super::Told;
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
pub(super) struct Done(Mutex<Option<Result<Delivery>>>);

impl Completion for Done {
    fn complete(&self, outcome: Result<Delivery>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(told.is_none(), "told twice: {told:?}, {outcome:?}");
        *told = Some(outcome);
    }

    fn complete_grown(&self, delivery: Delivery, bytes: Vec<u8>) {
        assert_eq!(bytes.len(), delivery.bytes, "the message has another length than is told");
        self.complete(Ok(delivery));
    }
}

struct Posted {
    done: Told,
    /// Where a receive writes.
    start: usize,
    len: usize,
    is_over: bool,
}

pub(super) struct Arena {
    memory: Dst<'static>,
    /// What is to be in it, outside of buffers that are lent.
    right: Vec<u8>,
    used: usize,
    posted: Vec<Posted>,
    count: usize,
}

impl Arena {
    pub(super) fn new() -> Self {
        let make = || Dst::from(Box::leak(vec![UNTOUCHED; BYTES].into_boxed_slice()));
        let memory = MEMORY.with(|memory| *memory.get_or_init(make));
        let right = vec![UNTOUCHED; BYTES];
        memory.copy_from(right.as_slice().into());
        Self { memory, right, used: GUARD, posted: Vec::new(), count: 0 }
    }

    /// How many messages were posted.
    pub(super) fn posted(&self) -> usize {
        self.count
    }

    /// A buffer for a receive; `None` where there is no room.
    pub(super) fn post(&mut self, len: usize) -> Option<(Told, Dst<'static>)> {
        let start = self.used;
        if self.count >= super::MOST_POSTED || start + len + GUARD > BYTES {
            return None;
        }
        self.used += len + GUARD;
        Some((self.add(start, len), self.memory.slice(start, len)))
    }

    /// For a send, which writes nothing.
    pub(super) fn lend(&mut self) -> Told {
        self.add(0, 0)
    }

    fn add(&mut self, start: usize, len: usize) -> Told {
        let done = Arc::new(Done::default());
        self.posted.push(Posted { done: Arc::clone(&done), start, len, is_over: false });
        self.count += 1;
        done
    }

    /// It was not posted after all, and nothing is told.
    pub(super) fn refused(&mut self, done: &Told) {
        self.posted.retain(|posted| !Arc::ptr_eq(&posted.done, done));
    }

    /// Looks which messages have ended; what is in their buffers now must stay there.
    pub(super) fn note(&mut self) {
        for posted in self.posted.iter_mut().filter(|posted| !posted.is_over) {
            let told = posted.done.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(outcome) = &*told else { continue };
            posted.is_over = true;
            // A failed receive may have got a part of its message, a successful one nothing behind
            // it.
            let len = match outcome {
                Ok(delivery) if posted.len > 0 => delivery.bytes,
                _ => posted.len,
            };
            assert!(len <= posted.len || posted.start == 0, "more than there is room for");
            let written = self.memory.slice(posted.start, len.min(posted.len));
            let right = &mut self.right[posted.start..posted.start + len.min(posted.len)];
            Dst::from(right).copy_from(written.as_src());
        }
    }

    /// Everything has ended, and nothing was written where it must not be.
    pub(super) fn check_end(&self) {
        assert!(self.posted.iter().all(|posted| posted.is_over), "a message never ended");
        let mut now = vec![0; BYTES];
        Dst::from(now.as_mut_slice()).copy_from(self.memory.as_src());
        // As a whole: a look at each byte would be most of what a run takes.
        assert!(now == self.right, "something was written where it must not be");
    }
}
