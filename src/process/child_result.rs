//! The result of a forked child for its parent: the return value of the child's function, and the
//! last message that the library stored in the child.
//!
//! The result is in memory that both processes share, so it survives every kind of end: a return,
//! `exit`, or a signal. An exit status has only eight bits; this memory contains the full return
//! value. The parent reads it after the child has ended, and checks every length before use.
//!
//! The memory has one slot for each child:
//!
//! ```text
//! offset  content
//!      0  word 0: 1 if the child's function returned
//!      4  word 1: the return value
//!      8  word 2: the length of the message in bytes
//!     12  unused
//!     16  the message in UTF-8, at most 4080 bytes
//! ```

use crate::base::error::Result;
use crate::base::sync::lock;
use crate::sys::host;
use crate::sys::shm::Segment;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

/// The size of one slot.
const SLOT_BYTES: usize = 4096;

/// The offset of the message in a slot.
const TEXT_OFFSET: usize = 16;

/// The maximum length of the stored message.
const MAX_TEXT_BYTES: usize = SLOT_BYTES - TEXT_OFFSET;

/// The table with one result slot for each forked child.
#[derive(Clone, Debug)]
pub(super) struct ChildResultTable {
    segment: Arc<Segment>,
}

/// The content of a result slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildResult {
    /// The return value of the child's function, if it returned.
    pub returned: Option<i32>,
    /// The last message; empty if there was none.
    pub message: String,
}

/// The result slot of this process, if it is a forked child.
struct OwnResultSlot {
    table: ChildResultTable,
    index: usize,
}

static OWN_SLOT: Mutex<Option<OwnResultSlot>> = Mutex::new(None);

/// The ID of the process that owns `OWN_SLOT`, or 0. A child that a forked child forks has a copy
/// of `OWN_SLOT` but owns no slot. Such a process checks this ID before it locks `OWN_SLOT`: if
/// another thread held the lock at the time of the fork, no thread of the new process would ever
/// release it.
static SLOT_OWNER_PID: AtomicU32 = AtomicU32::new(0);

/// Stores a message of the library for the parent. Does nothing in a process without a result slot.
pub fn record_message(message: &str) {
    with_own_slot(|own| {
        let length = own.table.slot_word(own.index, 2);
        length.store(0, Ordering::Relaxed);
        let mut end = message.len().min(MAX_TEXT_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let text = own.table.slot_ptr(own.index).wrapping_add(TEXT_OFFSET);
        // SAFETY: at most `MAX_TEXT_BYTES` bytes, which are inside the slot; only this process
        // writes there, under the lock.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), text, end) };
        length.store(u32::try_from(end).unwrap_or(0), Ordering::Release);
    });
}

/// Stores the return value of the child's function.
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
    if let Some(own) = lock(&OWN_SLOT).as_ref() {
        body(own);
    }
}

impl ChildResultTable {
    /// Creates a table for `forks` children.
    pub(super) fn new(forks: usize) -> Result<Self> {
        Ok(Self { segment: Arc::new(Segment::create(forks * SLOT_BYTES)?) })
    }

    /// Makes slot `index` the result slot of the calling process, a new forked child.
    pub(super) fn claim_slot(&self, index: usize) {
        let mut own = match OWN_SLOT.try_lock() {
            Ok(own) => own,
            Err(TryLockError::Poisoned(own)) => own.into_inner(),
            // A thread of the parent held the lock at the time of the fork, so the lock never
            // becomes free. This child stores no result, and the parent uses the exit status.
            Err(TryLockError::WouldBlock) => return,
        };
        *own = Some(OwnResultSlot { table: self.clone(), index });
        SLOT_OWNER_PID.store(host::pid(), Ordering::Release);
    }

    /// Reads a slot. The child must have ended.
    pub(super) fn read(&self, index: usize) -> ChildResult {
        let has_returned = self.slot_word(index, 0).load(Ordering::Acquire) == 1;
        let returned = has_returned.then(|| self.result_word(index).load(Ordering::Relaxed));
        let length = self.slot_word(index, 2).load(Ordering::Acquire);
        let length = usize::try_from(length).unwrap_or(0).min(MAX_TEXT_BYTES);
        let mut bytes = vec![0; length];
        let text = self.slot_ptr(index).wrapping_add(TEXT_OFFSET);
        // SAFETY: the bytes are inside the slot, whose writer has ended.
        unsafe { std::ptr::copy_nonoverlapping(text, bytes.as_mut_ptr(), length) };
        ChildResult { returned, message: String::from_utf8_lossy(&bytes).into_owned() }
    }

    fn slot_ptr(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.segment.len() / SLOT_BYTES, "there is no result slot {slot}");
        self.segment.as_mut_ptr().wrapping_add(slot * SLOT_BYTES)
    }

    /// Returns word 0 or word 2 of a slot. The head of this file lists the words.
    fn slot_word(&self, slot: usize, index: usize) -> &AtomicU32 {
        // SAFETY: aligned, inside the segment, and used only through atomics while the segment
        // lives.
        unsafe { AtomicU32::from_ptr(self.slot_ptr(slot).wrapping_add(index * 4).cast()) }
    }

    /// Returns word 1, the return value.
    fn result_word(&self, slot: usize) -> &AtomicI32 {
        // SAFETY: as above.
        unsafe { AtomicI32::from_ptr(self.slot_ptr(slot).wrapping_add(4).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_message_and_result_are_read_with_checked_length() {
        let results = ChildResultTable::new(3).unwrap();
        assert_eq!(results.read(1), ChildResult::default());
        results.claim_slot(1);
        record_message("the first");
        record_message(&"é".repeat(SLOT_BYTES));
        let long = results.read(1);
        assert_eq!((long.returned, long.message.len()), (None, MAX_TEXT_BYTES));
        record_message("the last");
        record_result(-100);
        let expected = ChildResult { returned: Some(-100), message: "the last".into() };
        assert_eq!(results.read(1), expected);
        assert_eq!((results.read(0), results.read(2)), Default::default());
        results.slot_word(1, 2).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(results.read(1).message.len(), MAX_TEXT_BYTES);
        *OWN_SLOT.lock().unwrap() = None;
        record_message("unread");
        // Simulates a process that a child forked while another thread of the child held the lock.
        SLOT_OWNER_PID.store(host::pid() + 1, Ordering::Relaxed);
        let held = OWN_SLOT.lock().unwrap();
        record_message("unread");
        results.claim_slot(2);
        drop(held);
        assert_eq!(SLOT_OWNER_PID.load(Ordering::Relaxed), host::pid() + 1);
    }
}
