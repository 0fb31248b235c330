//! Buffers that are read where they lie: a rank says where its buffer is, and the others copy out of the memory of its
//! process what they need, so that large vectors are moved once and not in and out of slots.
//!
//! * A rank *exposes* its buffer with a step, and *closes* it with a later one: it may write there, or return to its caller,
//!   once those who read have published that. Between the two it writes only what nobody else reads.
//! * Not all memory can be read by others: that of some devices cannot, though its process may. Where what is sent is not
//!   written meanwhile, whoever finds that says so when it closes, and the operation goes through slots. Else a rank looks at the
//!   ends of its buffer in the same way before it exposes it, and nobody reads where that fails. Everybody comes to the same
//!   conclusion, from the lines of all.
//! * Whether the ranks of a group can read each other's memory was tried when they met, and is the same for all
//!   ([`Shape::attached`](crate::algo::select::Shape)).
//! * What was read counts only once the reader has seen the owner's closing step, or knows otherwise that the owner had
//!   not returned before: a rank that gives up fails the group before it returns.

use super::direct::NOTHING;
use super::steps::Steps;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::attach;
use crate::wait::{Interrupt, Pace, until};
use std::time::Duration;

/// How long a rank whose memory cannot be read has to be known as dead, or to have failed the group.
const HEARING: Duration = Duration::from_secs(2);

/// In place of an address: nobody can read there.
const NOWHERE: u64 = 0;

/// The buffer of another rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exposed {
    rank: Rank,
    address: u64,
    /// What its elements are to be multiplied by, where the operator wants that.
    pub(super) factor: f64,
}

/// Where a buffer lies.
fn address(buffer: Src<'_>) -> u64 {
    buffer.as_ptr().addr() as u64
}

impl Steps<'_> {
    /// Publishes the coming step with the place of what this rank sends, and its factor, and waits for those of all; false where
    /// one of them cannot be read, here or elsewhere. Another buffer, that will be exposed later, is looked at too.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn expose_all(&mut self, operation: &Operation<'_>, later: Src<'_>) -> Result<bool> {
        let is_readable = attach::are_readable(operation.send, later);
        let place = if is_readable { address(operation.send) } else { NOWHERE };
        self.say_place(place, operation.factor)?;
        if self.is_asked(operation)? {
            return self.expose_all(operation, later);
        }
        self.await_all()?;
        let mut all = place != NOWHERE;
        for rank in self.others() {
            all &= self.exposed(rank)?.address != NOWHERE;
        }
        Ok(all)
    }

    /// Publishes the coming step with the place of what this rank sends, which nothing is written to before the step in which all
    /// [close with what they read](Steps::close_read).
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn expose_sent(&mut self, operation: &Operation<'_>) -> Result<()> {
        self.say_place(address(operation.send), operation.factor)?;
        if self.is_asked(operation)? { self.expose_sent(operation) } else { Ok(()) }
    }

    /// Publishes the coming step with the place of a buffer that can be read.
    ///
    /// # Errors
    /// As [`Steps::publish`].
    pub(super) fn expose(&mut self, buffer: Src<'_>) -> Result<()> {
        self.say_place(address(buffer), 1.0)
    }

    fn say_place(&mut self, place: u64, factor: f64) -> Result<()> {
        self.publish([NOTHING, place.to_le_bytes(), factor.to_le_bytes()].as_flattened())
    }

    /// What a rank exposed with the current step.
    ///
    /// # Errors
    /// As [`Steps::await_rank`].
    pub(super) fn exposed(&mut self, rank: Rank) -> Result<Exposed> {
        self.await_rank(rank)?;
        let mut words = [NOTHING; 3];
        self.payload(rank, words.as_flattened_mut());
        let [_, address, factor] = words.map(u64::from_le_bytes);
        Ok(Exposed { rank, address, factor: f64::from_bits(factor) })
    }

    /// Copies what lies at `offset` in an exposed buffer.
    ///
    /// # Errors
    /// Why the group has failed; `System` where the memory cannot be read for another reason, which fails it.
    pub(super) fn pull(&self, from: Exposed, offset: usize, into: Dst<'_>) -> Result<()> {
        let domain = self.domain();
        match attach::read(domain, from.rank, from.address + offset as u64, into) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() != ErrorKind::System => Err(error),
            Err(error) => Err(self.unreadable(from.rank, error)),
        }
    }

    /// The same; false where the memory cannot be read.
    ///
    /// # Errors
    /// Why the group has failed.
    pub(super) fn try_pull(&self, from: Exposed, offset: usize, into: Dst<'_>) -> Result<bool> {
        let read = attach::read(self.domain(), from.rank, from.address + offset as u64, into);
        match read {
            Err(error) if error.kind() == ErrorKind::System => {
                crate::log!(Level::Debug, "what is sent goes through slots: {error}");
                Ok(false)
            }
            read => read.map(|()| true),
        }
    }

    /// [Closes](Steps::close) what was exposed as sent, of which this rank could read everything or not; whether all could.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn close_read(&mut self, everything: bool) -> Result<bool> {
        self.publish([NOTHING, u64::from(everything).to_le_bytes()].as_flattened())?;
        self.await_all()?;
        Ok(everything
            && self.others().all(|rank| {
                let mut words = [NOTHING; 2];
                self.payload(rank, words.as_flattened_mut());
                words[1] != NOTHING
            }))
    }

    /// Publishes the coming step, and waits until everybody has: nobody reads what was exposed any more.
    ///
    /// # Errors
    /// As [`Steps::await_all`].
    pub(super) fn close(&mut self) -> Result<()> {
        self.publish(&[])?;
        self.await_all()
    }

    /// Why memory cannot be read: mostly because of a death that is known in a moment.
    #[cold]
    fn unreadable(&self, rank: Rank, error: Error) -> Error {
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
