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
const SLOT_BYTES: usize = 4096;

/// Where in it the text begins.
const TEXT_OFFSET: usize = 16;

/// How much of a message is kept.
const MAX_TEXT_BYTES: usize = SLOT_BYTES - TEXT_OFFSET;

/// One place for each fork.
#[derive(Clone, Debug)]
pub(super) struct ChildResultTable {
    segment: Arc<Segment>,
}

/// What was found in a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildResult {
    /// What the fork's function returned, if it did.
    pub returned: Option<i32>,
    /// The last message, "" if there was none.
    pub message: String,
}

/// The place of this process, where it is a fork.
struct OwnResultSlot {
    table: ChildResultTable,
    index: usize,
}

static OWN_SLOT: Mutex<Option<OwnResultSlot>> = Mutex::new(None);

/// Whose place that is, 0 for nobody's. A fork of the fork has none, and asks before it locks:
/// another thread may have held the lock when it was forked, and nobody would ever give it back.
static SLOT_OWNER_PID: AtomicU32 = AtomicU32::new(0);

/// Keeps a message of the library for the parent. Does nothing in a process that is no fork.
pub fn record_message(message: &str) {
    with_own_slot(|own| {
        let length = own.table.slot_word(own.index, 2);
        length.store(0, Ordering::Relaxed);
        let mut end = message.len().min(MAX_TEXT_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let text = own.table.slot_ptr(own.index).wrapping_add(TEXT_OFFSET);
        // SAFETY: at most LONGEST bytes, which lie in the place; only this process writes there,
        // under the lock.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), text, end) };
        length.store(u32::try_from(end).unwrap_or(0), Ordering::Release);
    });
}

/// Keeps what the fork's function has returned.
pub(super) fn record_result(result: i32) {
    with_own_slot(|own| {
        own.table.result_word(own.index).store(result, Ordering::Relaxed);
        own.table.slot_word(own.index, 0).store(1, Ordering::Release);
    });
}

fn with_own_slot(body: impl FnOnce(&OwnResultSlot)) {
    if SLOT_OWNER_PID.load(Ordering::Acquire) != host::pid() {
        return;
    }
    if let Some(own) = OWN_SLOT.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        body(own);
    }
}

impl ChildResultTable {
    /// Places for that many forks.
    pub(super) fn new(forks: usize) -> Result<Self> {
        Ok(Self { segment: Arc::new(Segment::create(forks * SLOT_BYTES)?) })
    }

    /// Makes a place the calling process's own.
    pub(super) fn claim_slot(&self, index: usize) {
        let mut own = match OWN_SLOT.try_lock() {
            Ok(own) => own,
            Err(TryLockError::Poisoned(own)) => own.into_inner(),
            // Held by a thread of a process that this one was forked from: then its exit status
            // must do.
            Err(TryLockError::WouldBlock) => return,
        };
        *own = Some(OwnResultSlot { table: self.clone(), index });
        SLOT_OWNER_PID.store(host::pid(), Ordering::Release);
    }

    /// What is in a place; to be asked once its fork has ended.
    pub(super) fn read(&self, index: usize) -> ChildResult {
        let has_returned = self.slot_word(index, 0).load(Ordering::Acquire) == 1;
        let returned = has_returned.then(|| self.result_word(index).load(Ordering::Relaxed));
        let length = self.slot_word(index, 2).load(Ordering::Acquire);
        let length = usize::try_from(length).unwrap_or(0).min(MAX_TEXT_BYTES);
        let mut bytes = vec![0; length];
        let text = self.slot_ptr(index).wrapping_add(TEXT_OFFSET);
        // SAFETY: the bytes lie in the place, whose writer has ended.
        unsafe { std::ptr::copy_nonoverlapping(text, bytes.as_mut_ptr(), length) };
        ChildResult { returned, message: String::from_utf8_lossy(&bytes).into_owned() }
    }

    fn slot_ptr(&self, place: usize) -> *mut u8 {
        assert!(place < self.segment.len() / SLOT_BYTES, "there is no place {place}");
        self.segment.as_mut_ptr().wrapping_add(place * SLOT_BYTES)
    }

    /// Whether there is a result is word 0, and the length of the text word 2.
    fn slot_word(&self, place: usize, index: usize) -> &AtomicU32 {
        // SAFETY: aligned, inside the segment, and used only through atomics while the segment
        // lives.
        unsafe { AtomicU32::from_ptr(self.slot_ptr(place).wrapping_add(index * 4).cast()) }
    }

    /// The result is word 1.
    fn result_word(&self, place: usize) -> &AtomicI32 {
        // SAFETY: as above.
        unsafe { AtomicI32::from_ptr(self.slot_ptr(place).wrapping_add(4).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_message_and_result_are_read_with_checked_length() {
        let witness = ChildResultTable::new(3).unwrap();
        assert_eq!(witness.read(1), ChildResult::default());
        witness.claim_slot(1);
        record_message("the first");
        record_message(&"é".repeat(SLOT_BYTES));
        let long = witness.read(1);
        assert_eq!((long.returned, long.message.len()), (None, MAX_TEXT_BYTES));
        record_message("the last");
        record_result(-100);
        let expected = ChildResult { returned: Some(-100), message: "the last".into() };
        assert_eq!(witness.read(1), expected);
        assert_eq!((witness.read(0), witness.read(2)), Default::default());
        witness.slot_word(1, 2).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(witness.read(1).message.len(), MAX_TEXT_BYTES);
        *OWN_SLOT.lock().unwrap() = None;
        record_message("to nobody");
        // A fork of the fork, while a thread of the fork was telling something.
        SLOT_OWNER_PID.store(host::pid() + 1, Ordering::Relaxed);
        let held = OWN_SLOT.lock().unwrap();
        record_message("to nobody");
        witness.claim_slot(2);
        drop(held);
        assert_eq!(SLOT_OWNER_PID.load(Ordering::Relaxed), host::pid() + 1);
    }
}
