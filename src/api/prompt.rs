//! The short way of a small blocking call whose like has been there before, and which has its turn
//! at once: most are over before anything is needed that a call needs which waits. What is left
//! where that is not so goes the long way, as if it had come there at first.

use super::call::{Call, CallOptions, Where};
use super::ear::{Ear, Entry};
use super::group::Group;
use super::queue::{Ticket, Turn};
use super::recorder::{Place, Record};
use crate::backend::{Key, PROMPT_BYTES, Plain, Prompt};
use crate::base::deadline::LateDeadline;
use crate::base::debug::{self, Values};
use crate::base::error::Result;
use crate::base::probe::Probe as _;
use crate::base::sync::fence_behind_rmw;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that have passed all checks but those of their buffers, by their keys, and whether the
/// back end knows a short way for them. A call that comes is compared with one place, and taken for
/// new where another has that now.
#[derive(Debug, Default)]
pub(super) struct Known([AtomicU64; Key::PLACES]);

impl Known {
    /// Beside a key, for which there is no short way; a key itself has this bit not set.
    const IN_VAIN: u64 = 2;

    #[inline]
    fn has(&self, key: Key) -> bool {
        self.0[key.place()].load(Ordering::Relaxed) == key.word()
    }

    fn is_new(&self, key: Key) -> bool {
        self.0[key.place()].load(Ordering::Relaxed) & !Self::IN_VAIN != key.word()
    }

    fn add(&self, key: Key, is_prompt: bool) {
        let mark = if is_prompt { 0 } else { Self::IN_VAIN };
        self.0[key.place()].store(key.word() | mark, Ordering::Relaxed);
    }
}

impl CallOptions {
    /// Whether nothing is said of a call but its arguments, its label, and for how long it may
    /// take.
    #[inline]
    fn is_plain(&self) -> bool {
        let Self { premul_scale, canonical, algorithm, values, place, stream, .. } = self;
        !canonical
            && *premul_scale == 0.0
            && algorithm.is_none()
            && *values == Values::Any
            && *place == Where::Unsaid
            && stream.is_none()
    }
}

/// A call that is nothing but its arguments.
pub(super) type Simple<'a> = (Plain<'a>, Key);

impl Group {
    /// The call, if nothing is said of it and nothing is looked at beside its arguments, and they
    /// are few.
    #[inline]
    pub(super) fn simple<'a>(
        &self,
        call: &Call<'a>,
        options: &'a CallOptions,
    ) -> Option<Simple<'a>> {
        let is_plain = self.is_prompt && options.is_plain();
        if !is_plain || debug::looks() || self.observer.wants_all() {
            return None;
        }
        let plain = call.plain(&options.label).filter(|plain| plain.bytes() <= PROMPT_BYTES)?;
        Some((plain, plain.key()?))
    }

    /// Such a call has passed all checks, and has run; its turn has not ended. The next one like it
    /// may take the short way.
    pub(super) fn rehearse(&self, (plain, key): &Simple<'_>) {
        if self.known.is_new(*key) {
            self.known.add(*key, self.backend.rehearse(plain, *key));
        }
    }

    /// Runs a call whose like has been there before, if its turn comes at once.
    ///
    /// # Errors
    /// As [`Group::run`].
    #[inline]
    pub(super) fn run_promptly(
        &self,
        call: &Call<'_>,
        options: &CallOptions,
        (plain, key): &Simple<'_>,
    ) -> Option<Result<()>> {
        if !self.known.has(*key) {
            return None;
        }
        if let Err(error) = call.check_overlap(self.rank()) {
            return Some(Err(error.context(call.kind().name())));
        }
        let (ticket, turn) = self.queue.issue_at_once()?;
        let place = Place::take();
        let mut begun = None;
        let mut begins = |words: &[u64; 3]| {
            self.observer.nobody_is_late();
            begun = Some(self.record_words(place, words, &options.label));
        };
        let deadline = LateDeadline::after_ms(self.limit_ms(options));
        let due = (ticket.sequence(), &deadline);
        let found = self.contain(|| self.backend.run_promptly((plain, *key), due, &mut begins));
        match (found, begun) {
            (Ok(done @ (Prompt::Done | Prompt::Unheard | Prompt::Waited)), Some(record)) => {
                match done {
                    Prompt::Waited => record.end(&Ok(())),
                    _ => record.end_at_once(&Ok(())),
                }
                drop(turn);
                if done == Prompt::Unheard {
                    fence_behind_rmw();
                    self.backend.ring_fenced();
                }
                Some(Ok(()))
            }
            (found, begun) => {
                let rest = Rest { ticket, turn, deadline, place, found, begun };
                Some(self.go_on(call, options, rest))
            }
        }
    }

    /// Goes on the long way.
    #[cold]
    fn go_on(&self, call: &Call<'_>, options: &CallOptions, rest: Rest<'_>) -> Result<()> {
        let Rest { ticket, turn, deadline, place, found, begun } = rest;
        let descriptor = call.descriptor(ticket.sequence(), options.label);
        let ear = Ear::with(self, &descriptor, &deadline, Entry { place, record: begun });
        let mut operation = call.operation(descriptor, options, (self.name(), &deadline), &ear);
        operation.is_fresh = true;
        let outcome = found.and_then(|found| {
            operation.is_published = found == Prompt::Published;
            self.contain(|| self.backend.run(&operation))
        });
        drop(turn);
        ear.end(&outcome);
        self.conclude(outcome, &descriptor)
    }
}

/// What is left of a call that was not over at once.
struct Rest<'a> {
    ticket: Ticket,
    turn: Turn<'a>,
    deadline: LateDeadline,
    place: Place,
    found: Result<Prompt>,
    /// Its entry in the recorder, if it has begun.
    begun: Option<Record>,
}
