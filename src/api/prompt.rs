//! The short way of a small blocking call that has its turn at once: most are over before anything is needed that a call needs
//! which waits. What is left where that is not so goes the long way, as if it had come there at first.

use super::call::{Call, CallOptions, Where};
use super::ear::{Ear, Entry};
use super::group::Group;
use super::recorder::Place;
use crate::backend::{PROMPT_BYTES, Prompt};
use crate::base::deadline::LateDeadline;
use crate::base::debug::{self, Level, Values};
use crate::base::error::Result;
use crate::base::probe::Probe as _;

/// Whether nothing is to be said or looked at of a call but its arguments.
#[inline]
pub(super) fn is_plain(call: &Call<'_>, options: &CallOptions) -> bool {
    let CallOptions { canonical, algorithm, values, place, stream, .. } = options;
    call.bytes() <= PROMPT_BYTES
        && !canonical
        && algorithm.is_none()
        && *values == Values::Any
        && *place == Where::Unsaid
        && stream.is_none()
        && debug::level() < Level::Detail
        && debug::values() == Values::Any
}

impl Group {
    /// Takes the place of a plain call in the order, and runs it on the calling thread.
    ///
    /// # Errors
    /// As [`Group::run`] once a call has been checked.
    #[inline]
    pub(super) fn run_promptly(&self, call: &Call<'_>, options: &CallOptions) -> Result<()> {
        let ticket = self.queue.issue();
        let descriptor = call.descriptor(ticket.sequence());
        let deadline = LateDeadline::after_ms(self.limit_ms(options));
        let mut entry = Entry { place: Place::take(), record: None };
        let mut operation =
            call.operation(descriptor, options, (self.name(), &deadline), &self.observer);
        let turn = self.queue.turn_at_once(&ticket);
        let mut found = Ok(Prompt::Untouched);
        if turn.is_some() && !self.observer.wants_all() {
            let mut begins = |algorithm| {
                let issued = deadline.begun().started();
                self.observer.begins(algorithm);
                entry.record = Some(self.record_at(entry.place, &descriptor, issued, true));
            };
            found = self.contain(|| self.backend.run_promptly(&operation, &mut begins));
            if let Ok(Prompt::Done) = found {
                if let Some(record) = entry.record {
                    record.end_at_once(&Ok(()));
                }
                return Ok(());
            }
        }
        let ear = Ear::with(self, &descriptor, &deadline, entry);
        operation.probe = &ear;
        let turn = match turn {
            Some(turn) => Ok(turn),
            None => self.await_turn(&mut operation, &ticket, &ear),
        };
        let outcome = turn.and_then(|_turn| {
            operation.is_published = found? == Prompt::Published;
            self.contain(|| self.backend.run(&operation))
        });
        ear.end(&outcome);
        self.conclude(outcome, &descriptor)
    }
}
