//! What a fork leaves for its parent to read: what its function returned, and the last message of
//! the library in it.
//!
//! It lies in memory that both share, so that it survives whatever ends the fork: a return, exit, a
//! signal. An exit status has only eight bits; the whole result is here.
//!
//! The parent reads after the fork has ended, and believes no length that it finds without a check.

use crate::base::error::Result;
use crate::sys::host;
use crate::sys::shm::Segment;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// What one fork has: three words and the text.
const STRIDE: usize = 4096;

/// Where in it the text begins.
const TEXT: usize = 16;

/// How much of a message is kept.
const LONGEST: usize = STRIDE - TEXT;

/// One place for each fork.
#[derive(Clone, Debug)]
pub(super) struct Witness {
    segment: Arc<Segment>,
}

/// What was found in a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Testimony {
    /// What the fork's function returned, if it did.
    pub returned: Option<i32>,
    /// The last message, "" if there was none.
    pub message: String,
}

/// The place of this process, where it is a fork.
struct Own {
    witness: Witness,
    place: usize,
}

static OWN: Mutex<Option<Own>> = Mutex::new(None);

/// Whose place that is, 0 for nobody's. A fork of the fork has none, and asks before it locks:
/// another thread may have held the lock when it was forked, and nobody would ever give it back.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Keeps a message of the library for the parent. Does nothing in a process that is no fork.
pub fn tell(message: &str) {
    with_own(|own| {
        let length = own.witness.word(own.place, 2);
        length.store(0, Ordering::Relaxed);
        let mut end = message.len().min(LONGEST);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let text = own.witness.place(own.place).wrapping_add(TEXT);
        // SAFETY: at most LONGEST bytes, which lie in the place; only this process writes there,
        // under the lock.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), text, end) };
        length.store(u32::try_from(end).unwrap_or(0), Ordering::Release);
    });
}

/// Keeps what the fork's function has returned.
pub(super) fn tell_result(result: i32) {
    with_own(|own| {
        own.witness.result(own.place).store(result, Ordering::Relaxed);
        own.witness.word(own.place, 0).store(1, Ordering::Release);
    });
}

fn with_own(body: impl FnOnce(&Own)) {
    if OWNER.load(Ordering::Acquire) != host::pid() {
        return;
    }
    if let Some(own) = OWN.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        body(own);
    }
}

impl Witness {
    /// Places for that many forks.
    pub(super) fn new(forks: usize) -> Result<Self> {
        Ok(Self { segment: Arc::new(Segment::create(forks * STRIDE)?) })
    }

    /// Makes a place the calling process's own.
    pub(super) fn take(&self, place: usize) {
        let mut own = match OWN.try_lock() {
            Ok(own) => own,
            Err(TryLockError::Poisoned(own)) => own.into_inner(),
            // Held by a thread of a process that this one was forked from: then its exit status
            // must do.
            Err(TryLockError::WouldBlock) => return,
        };
        *own = Some(Own { witness: self.clone(), place });
        OWNER.store(host::pid(), Ordering::Release);
    }

    /// What is in a place; to be asked once its fork has ended.
    pub(super) fn read(&self, place: usize) -> Testimony {
        let has_returned = self.word(place, 0).load(Ordering::Acquire) == 1;
        let returned = has_returned.then(|| self.result(place).load(Ordering::Relaxed));
        let length = self.word(place, 2).load(Ordering::Acquire);
        let length = usize::try_from(length).unwrap_or(0).min(LONGEST);
        let mut bytes = vec![0; length];
        let text = self.place(place).wrapping_add(TEXT);
        // SAFETY: the bytes lie in the place, whose writer has ended.
        unsafe { std::ptr::copy_nonoverlapping(text, bytes.as_mut_ptr(), length) };
        Testimony { returned, message: String::from_utf8_lossy(&bytes).into_owned() }
    }

    fn place(&self, place: usize) -> *mut u8 {
        assert!(place < self.segment.len() / STRIDE, "there is no place {place}");
        self.segment.as_mut_ptr().wrapping_add(place * STRIDE)
    }

    /// Whether there is a result is word 0, and the length of the text word 2.
    fn word(&self, place: usize, index: usize) -> &AtomicU32 {
        // SAFETY: aligned, inside the segment, and used only through atomics while the segment
        // lives.
        unsafe { AtomicU32::from_ptr(self.place(place).wrapping_add(index * 4).cast()) }
    }

    /// The result is word 1.
    fn result(&self, place: usize) -> &AtomicI32 {
        // SAFETY: as above.
        unsafe { AtomicI32::from_ptr(self.place(place).wrapping_add(4).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_and_the_result_are_read_and_no_length_is_believed() {
        let witness = Witness::new(3).unwrap();
        assert_eq!(witness.read(1), Testimony::default());
        witness.take(1);
        tell("the first");
        tell(&"é".repeat(STRIDE));
        let long = witness.read(1);
        assert_eq!((long.returned, long.message.len()), (None, LONGEST));
        tell("the last");
        tell_result(-100);
        let expected = Testimony { returned: Some(-100), message: "the last".into() };
        assert_eq!(witness.read(1), expected);
        assert_eq!((witness.read(0), witness.read(2)), Default::default());
        witness.word(1, 2).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(witness.read(1).message.len(), LONGEST);
        *OWN.lock().unwrap() = None;
        tell("to nobody");
        // A fork of the fork, while a thread of the fork was telling something.
        OWNER.store(host::pid() + 1, Ordering::Relaxed);
        let held = OWN.lock().unwrap();
        tell("to nobody");
        witness.take(2);
        drop(held);
        assert_eq!(OWNER.load(Ordering::Relaxed), host::pid() + 1);
    }
}
