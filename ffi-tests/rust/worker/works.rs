//! Works: what a worker has issued and not waited for yet.
#![allow(unsafe_code, reason = "the C ABI takes raw pointers")]

use super::library::{self, Call, Group, Outcome, outcome};
use super::messages::Message;
use super::words::Words;
use dist::ffi::types::{DIST_OK, DIST_WAIT_FOREVER, dist_status_t, dist_work_t};
use dist::ffi::work::{
    dist_work_received_count, dist_work_release, dist_work_source, dist_work_tag, dist_work_wait,
};
use std::ptr::null_mut;

/// A work's handle.
#[derive(Debug)]
pub(super) struct Work(*mut dist_work_t);

impl Work {
    /// The work of a call that is made with it.
    pub(super) fn issued(
        call: impl FnOnce(*mut *mut dist_work_t) -> dist_status_t,
    ) -> Result<Self, Outcome> {
        let mut work = null_mut();
        match call(&raw mut work) {
            DIST_OK => Ok(Self(work)),
            status => Err(outcome(status)),
        }
    }

    fn wait(&self) -> Outcome {
        // SAFETY: a handle, good or not, is all it takes.
        outcome(unsafe { dist_work_wait(self.0, DIST_WAIT_FOREVER) })
    }

    /// The rank that sent the message.
    pub(super) fn source(&self) -> i32 {
        // SAFETY: a handle, good or not, is all it takes.
        unsafe { dist_work_source(self.0) }
    }

    /// The tag of the message.
    pub(super) fn tag(&self) -> i32 {
        // SAFETY: a handle, good or not, is all it takes.
        unsafe { dist_work_tag(self.0) }
    }

    /// How many elements were received.
    pub(super) fn received(&self) -> usize {
        // SAFETY: a handle, good or not, is all it takes.
        unsafe { dist_work_received_count(self.0) }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: a handle, good or not, is all it takes.
        unsafe { dist_work_release(self.0) };
    }
}

/// The operations of works, with the buffers that are lent to them.
enum Operation {
    Collective(Call<'static>),
    Message(Message<'static>),
}

/// All that was issued since works were last waited for.
#[derive(Default)]
pub(super) struct Outstanding(Vec<(&'static str, Operation, Work)>);

impl Outstanding {
    /// Issues a command.
    pub(super) fn issue(&mut self, words: &Words<'static>, group: Group) -> Outcome {
        let issued = if matches!(words.verb(), "send" | "recv" | "sendrecv") {
            let mut message = Message::new(words.clone(), group);
            message.issue().map(|work| (Operation::Message(message), work))
        } else {
            let mut call = Call::new(words.clone(), group);
            call.issue().map(|work| (Operation::Collective(call), work))
        };
        match issued {
            Ok((operation, work)) => {
                self.0.push((words.line(), operation, work));
                (DIST_OK, String::new())
            }
            Err(outcome) => outcome,
        }
    }

    /// Waits for the work issued last, and tells the culprit of its error.
    pub(super) fn culprit(&self) -> Outcome {
        let (_, _, work) = self.0.last().unwrap();
        drop(work.wait());
        library::work_culprit(work.0)
    }

    /// Waits for all works in another order than that of their issue, and looks at the results;
    /// returns what has become of the one issued first that has failed.
    pub(super) fn settle(&mut self) -> Outcome {
        let issued = std::mem::take(&mut self.0);
        let waited_first = (0..issued.len()).rev().filter(|index| index % 2 == 0);
        let waited_last = (0..issued.len()).filter(|index| index % 2 == 1);
        for index in waited_first.chain(waited_last) {
            // Its outcome stays, and is looked at below.
            drop(issued[index].2.wait());
        }
        for (line, operation, work) in &issued {
            let mut outcome = work.wait();
            if outcome.0 == DIST_OK {
                outcome = match operation {
                    Operation::Collective(call) => call.judge(),
                    Operation::Message(message) => message.judge(work),
                };
            }
            if outcome.0 != DIST_OK {
                return (outcome.0, format!("{line}: {}", outcome.1));
            }
        }
        (DIST_OK, String::new())
    }
}
