//! Works that a worker has issued and not yet waited for.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use super::command_words::CommandWords;
use super::library::{self, CollectiveCall, CommandOutcome, GroupHandle, outcome};
use super::messages::MessageCall;
use dist::ffi::types::{DIST_OK, DIST_WAIT_FOREVER, dist_status_t, dist_work_t};
use dist::ffi::work::{
    dist_work_received_count, dist_work_release, dist_work_source, dist_work_tag, dist_work_wait,
};
use std::ptr::null_mut;

/// A work handle.
#[derive(Debug)]
pub(super) struct WorkHandle(*mut dist_work_t);

impl WorkHandle {
    /// Makes a call and returns its work.
    pub(super) fn issued(
        call: impl FnOnce(*mut *mut dist_work_t) -> dist_status_t,
    ) -> Result<Self, CommandOutcome> {
        let mut work = null_mut();
        match call(&raw mut work) {
            DIST_OK => Ok(Self(work)),
            status => Err(outcome(status)),
        }
    }

    fn wait(&self) -> CommandOutcome {
        // SAFETY: the call takes a handle, which the library checks.
        outcome(unsafe { dist_work_wait(self.0, DIST_WAIT_FOREVER) })
    }

    /// Returns the rank that sent the message.
    pub(super) fn source(&self) -> i32 {
        // SAFETY: the call takes a handle, which the library checks.
        unsafe { dist_work_source(self.0) }
    }

    /// Returns the tag of the message.
    pub(super) fn tag(&self) -> i32 {
        // SAFETY: the call takes a handle, which the library checks.
        unsafe { dist_work_tag(self.0) }
    }

    /// Returns the number of received elements.
    pub(super) fn received_count(&self) -> usize {
        // SAFETY: the call takes a handle, which the library checks.
        unsafe { dist_work_received_count(self.0) }
    }
}

impl Drop for WorkHandle {
    fn drop(&mut self) {
        // SAFETY: the call takes a handle, which the library checks.
        unsafe { dist_work_release(self.0) };
    }
}

/// The operation of a work, with its buffers.
enum IssuedOperation {
    Collective(CollectiveCall<'static>),
    Message(MessageCall<'static>),
}

/// All works that the worker has issued since the last wait for all works.
#[derive(Default)]
pub(super) struct OutstandingWorks(Vec<(&'static str, IssuedOperation, WorkHandle)>);

impl OutstandingWorks {
    /// Issues a command as a work.
    pub(super) fn issue(
        &mut self,
        words: &CommandWords<'static>,
        group: GroupHandle,
    ) -> CommandOutcome {
        let issued = if matches!(words.verb(), "send" | "recv" | "sendrecv") {
            let mut message = MessageCall::new(words.clone(), group);
            message.issue().map(|work| (IssuedOperation::Message(message), work))
        } else {
            let mut call = CollectiveCall::new(words.clone(), group);
            call.issue().map(|work| (IssuedOperation::Collective(call), work))
        };
        match issued {
            Ok((operation, work)) => {
                self.0.push((words.line(), operation, work));
                (DIST_OK, String::new())
            }
            Err(outcome) => outcome,
        }
    }

    /// Waits for the last issued work and reports the culprit of its error.
    pub(super) fn last_work_culprit(&self) -> CommandOutcome {
        let (_, _, work) = self.0.last().unwrap();
        drop(work.wait());
        library::work_culprit(work.0)
    }

    /// Waits for all works in another order than they were issued, and checks the results. Returns
    /// the error of the first issued work that failed.
    pub(super) fn wait_for_all(&mut self) -> CommandOutcome {
        let issued = std::mem::take(&mut self.0);
        let waited_first = (0..issued.len()).rev().filter(|index| index % 2 == 0);
        let waited_last = (0..issued.len()).filter(|index| index % 2 == 1);
        for index in waited_first.chain(waited_last) {
            // The work keeps its outcome, which the loop below reads.
            drop(issued[index].2.wait());
        }
        for (line, operation, work) in &issued {
            let mut outcome = work.wait();
            if outcome.0 == DIST_OK {
                outcome = match operation {
                    IssuedOperation::Collective(call) => call.check_result(),
                    IssuedOperation::Message(message) => message.check_received(work),
                };
            }
            if outcome.0 != DIST_OK {
                return (outcome.0, format!("{line}: {}", outcome.1));
            }
        }
        (DIST_OK, String::new())
    }
}
