//! Buffers that are read, and written, where they lie: a rank says where its buffers are, and the
//! others copy out of the memory of its process what they need, or into it what is for it, so that
//! large vectors are moved once and not in and out of slots.
//!
//! * A rank *exposes* its buffer with a step, and *closes* it with a later one: it may write there,
//!   or return to its caller, once those who read have published that. Between the two it writes
//!   only what nobody else reads.
//! * Not all memory can be read by others: that of some devices cannot, though its process may.
//!   Where what is sent is not written meanwhile, whoever finds that says so when it closes, and
//!   the operation goes through slots. Else a rank looks at the ends of its buffer in the same way
//!   before it exposes it, and nobody reads where that fails. Everybody comes to the same
//!   conclusion, from the lines of all.
//! * Whether the ranks of a group can read each other's memory, and write it, was tried when they
//!   met, and is the same for all ([`Shape::attached`](crate::algo::select::Shape)).
//! * What a rank writes to another's memory, nobody else writes or reads before all have closed.
//!   How a rank that gives up gets its memory back is in [`super::withdrawal`].
//! * What was read counts only once the reader has seen the owner's closing step, or knows
//!   otherwise that the owner had not returned before: a rank that gives up fails the group before
//!   it returns.

use super::direct::NOTHING;
use super::steps::Steps;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::attach;
use crate::transport::progress::Purpose;
use crate::wait::{Interrupt, Pace, until};
use std::time::Duration;

/// How long a rank whose memory cannot be read has to be known as dead, or to have failed the
/// group.
const HEARING: Duration = Duration::from_secs(2);

/// In place of an address: nobody can read there.
const NOWHERE: u64 = 0;

/// The buffers of another rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exposed {
    rank: Rank,
    sent: u64,
    /// What the elements of that are to be multiplied by, where the operator wants that.
    pub(super) factor: f64,
    received: u64,
    /// Where its process has the region.
    region: u64,
}

/// Where a buffer lies.
fn address(buffer: Src<'_>) -> u64 {
    buffer.as_ptr().addr() as u64
}

impl Exposed {
    fn target(&self, offset: usize) -> attach::Target {
        let Self { rank, received, region, .. } = *self;
        attach::Target { rank, address: received.wrapping_add(offset as u64), region }
    }
}

/// Whether memory was read or written; false where it cannot be.
fn was_reached(outcome: Result<()>) -> Result<bool> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::System => {
            crate::log!(Level::Debug, "what is sent goes through slots: {error}");
            Ok(false)
        }
        outcome => outcome.map(|()| true),
    }
}

impl Steps<'_> {
    /// Publishes the coming step with the place of what this rank sends, and its factor, and waits
    /// for those of all; false where one of them cannot be read, here or elsewhere. Another buffer,
    /// that will be exposed later, is looked at too.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn expose_all(&mut self, operation: &Operation<'_>, later: Src<'_>) -> Result<bool> {
        let is_readable = attach::are_readable(operation.send, later);
        let place = if is_readable { address(operation.send) } else { NOWHERE };
        self.say_place(place, operation)?;
        if self.is_asked(operation)? {
            return self.expose_all(operation, later);
        }
        self.await_all()?;
        let mut all = place != NOWHERE;
        for rank in self.others() {
            all &= self.exposed(rank)?.sent != NOWHERE;
        }
        Ok(all)
    }

    /// Publishes the coming step with the place of what this rank sends, which nothing is written
    /// to before the step in which all [close with what they read](Steps::close_tried).
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn expose_sent(&mut self, operation: &Operation<'_>) -> Result<()> {
        self.say_place(address(operation.send), operation)?;
        if self.is_asked(operation)? { self.expose_sent(operation) } else { Ok(()) }
    }

    /// Publishes the coming step with the place of what this rank has of the result, which can be
    /// read.
    ///
    /// # Errors
    /// As [`Steps::publish`].
    pub(super) fn expose_result(&mut self, operation: &Operation<'_>) -> Result<()> {
        self.say_place(address(operation.recv.as_src()), operation)
    }

    fn say_place(&mut self, sent: u64, operation: &Operation<'_>) -> Result<()> {
        let received = address(operation.recv.as_src());
        let words = [sent, operation.factor.to_bits(), received, self.domain().region().address()];
        let [sent, factor, received, region] = words.map(u64::to_le_bytes);
        self.publish([NOTHING, sent, factor, received, region].as_flattened())
    }

    /// What a rank exposed with the current step.
    ///
    /// # Errors
    /// As [`Steps::await_rank`].
    pub(super) fn exposed(&mut self, rank: Rank) -> Result<Exposed> {
        self.await_rank(rank)?;
        let mut words = [NOTHING; 5];
        self.payload(rank, words.as_flattened_mut());
        let [_, sent, factor, received, region] = words.map(u64::from_le_bytes);
        Ok(Exposed { rank, sent, factor: f64::from_bits(factor), received, region })
    }

    /// Copies what lies at `offset` in what a rank has exposed as sent.
    ///
    /// # Errors
    /// Why the group has failed; `System` where the memory cannot be read for another reason, which
    /// fails it.
    pub(super) fn pull(&self, from: Exposed, offset: usize, into: Dst<'_>) -> Result<()> {
        attach::read(self.domain(), from.rank, from.sent.wrapping_add(offset as u64), into)
            .map_err(|error| self.out_of_reach(from.rank, error))
    }

    /// Copies to `offset` in what a rank receives.
    ///
    /// # Errors
    /// Why the group has failed; `System` where the memory cannot be written for another reason,
    /// which fails it.
    pub(super) fn push(&self, what: Src<'_>, to: Exposed, offset: usize) -> Result<()> {
        attach::write(self.domain(), Purpose::Collective, to.target(offset), what)
            .map_err(|error| self.out_of_reach(to.rank, error))
    }

    /// The same; false where the memory cannot be read.
    ///
    /// # Errors
    /// Why the group has failed.
    pub(super) fn try_pull(&self, from: Exposed, offset: usize, into: Dst<'_>) -> Result<bool> {
        was_reached(attach::read(
            self.domain(),
            from.rank,
            from.sent.wrapping_add(offset as u64),
            into,
        ))
    }

    /// As [`Steps::push`]; false where the memory cannot be written.
    ///
    /// # Errors
    /// Why the group has failed.
    pub(super) fn try_push(&self, what: Src<'_>, to: Exposed, offset: usize) -> Result<bool> {
        was_reached(attach::write(self.domain(), Purpose::Collective, to.target(offset), what))
    }

    /// The same to several ranks, once each has exposed its buffers.
    ///
    /// # Errors
    /// As [`Steps::exposed`].
    pub(super) fn try_push_to_all(
        &mut self,
        ranks: impl Iterator<Item = Rank>,
        what: Src<'_>,
        offset: usize,
    ) -> Result<bool> {
        for rank in ranks {
            let theirs = self.exposed(rank)?;
            if !self.try_push(what, theirs, offset)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// [Closes](Steps::close) what was exposed as sent, of which this rank could read, or write
    /// where it goes, everything or not; whether all could.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn close_tried(&mut self, everything: bool) -> Result<bool> {
        self.publish([NOTHING, u64::from(everything).to_le_bytes()].as_flattened())?;
        self.await_all()?;
        Ok(everything
            && self.others().all(|rank| {
                let mut words = [NOTHING; 2];
                self.payload(rank, words.as_flattened_mut());
                words[1] != NOTHING
            }))
    }

    /// Publishes the coming step, and waits until everybody has: nobody reads or writes what was
    /// exposed any more.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn close(&mut self) -> Result<()> {
        self.publish(&[])?;
        self.await_all()
    }

    /// Why memory cannot be read or written, if the group has not failed: mostly because of a death
    /// that is known in a moment.
    #[cold]
    fn out_of_reach(&self, rank: Rank, error: Error) -> Error {
        if error.kind() != ErrorKind::System {
            return error;
        }
        let domain = self.domain();
        let bell = domain.region().bell(self.rank());
        let never = || None::<()>;
        let halted = || domain.failure();
        match until(bell, Pace::PATIENT, &Deadline::after(HEARING), halted, never) {
            Err(Interrupt::Halted(reason)) => reason,
            Ok(()) | Err(Interrupt::Deadline) => {
                self.fail(error.with_culprit(self.peer(rank).rank))
            }
        }
    }
}
