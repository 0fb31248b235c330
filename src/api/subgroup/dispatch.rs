//! A letter on its way to some ranks, piece by piece: how much of it is, and who has not taken over
//! theirs.
//!
//! Must not know: what letters say.

use super::definition::named;
use super::parcel::Block;
use crate::api::group::Group;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{Completion, Delivery, LARGEST_TAG, Outgoing, PointToPoint};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The tag of letters.
pub(super) const LETTERS: u32 = LARGEST_TAG + 1;

/// How many pieces of a letter may be on their way: far fewer than messages may be outstanding, of
/// which the caller has some too.
pub(super) const WINDOW: usize = 256;

/// How long to wait in one go before looking around, at first and later.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(20);
pub(super) const LOOK_AROUND: Duration = Duration::from_millis(250);

/// Messages that are on their way.
#[derive(Debug)]
pub(super) struct Dispatch {
    /// How many of them each rank has not taken over yet.
    left: Vec<(Rank, AtomicUsize)>,
    failed: Mutex<Option<Error>>,
}

impl Dispatch {
    /// Of a letter to these.
    pub(super) fn new(to: &[Rank]) -> Self {
        let left = to.iter().map(|&rank| (rank, AtomicUsize::new(0))).collect();
        Self { left, failed: Mutex::default() }
    }

    /// How many are on their way to all of them.
    fn left(&self) -> usize {
        self.left.iter().map(|(_, left)| left.load(Ordering::Acquire)).sum()
    }

    fn count(&self, to: Rank) -> Option<&AtomicUsize> {
        self.left.iter().find_map(|(rank, left)| (*rank == to).then_some(left))
    }

    /// Why a piece did not go; once.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// One more is on its way.
    fn begin(&self, to: Rank) {
        if let Some(left) = self.count(to) {
            left.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// One is on its way no more.
    fn end(&self, to: Rank) {
        if let Some(left) = self.count(to) {
            left.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits until no more than so many pieces are on their way.
    pub(super) fn await_left(
        &self,
        group: &Group,
        engine: &dyn PointToPoint,
        most: usize,
        limit: &Deadline,
    ) -> Result<()> {
        let is_gone = || self.left() <= most;
        while !is_gone() {
            if let Some(error) = group.failure() {
                return Err(error);
            }
            if limit.has_passed() {
                return Err(self.late(group, limit));
            }
            engine.attend(&is_gone, &limit.capped(LOOK_AROUND));
        }
        Ok(())
    }

    /// Who has not taken over what was sent.
    #[cold]
    fn late(&self, group: &Group, limit: &Deadline) -> Error {
        let is_behind = |left: &AtomicUsize| left.load(Ordering::Acquire) > 0;
        let behind = self.left.iter().filter(|(_, left)| is_behind(left));
        let behind: Vec<Rank> = behind.map(|&(rank, _)| rank).collect();
        let message = format!(
            "{} waited {} ms for {} of group {} to take over what it was sent to make another group",
            group.place().name,
            limit.elapsed().as_millis(),
            named(&behind),
            group.name(),
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match behind[..] {
            [rank] => error.with_culprit(rank),
            _ => error,
        }
    }

    /// Posts a piece. Where too much is outstanding, of the caller's or of other letters, it waits
    /// within the limit.
    pub(super) fn post(
        self: &Arc<Self>,
        group: &Group,
        engine: &dyn PointToPoint,
        (to, block): (Rank, &Arc<Block>),
        limit: Option<&Deadline>,
    ) -> Result<()> {
        let (tag, dtype, bytes) = (LETTERS, DataType::U8, block.bytes());
        // One that is cut off in the middle would fail the group; and whoever hears late still
        // needs it.
        let deadline = Deadline::never();
        loop {
            let sent = Sent { to, _block: Arc::clone(block), dispatch: Arc::clone(self) };
            self.begin(to);
            let Err(error) = engine.send(
                Outgoing { to, tag, dtype, bytes, deadline, synchronous: false },
                Arc::new(sent),
            ) else {
                return Ok(());
            };
            self.end(to);
            let limit = limit.filter(|limit| !limit.has_passed());
            match (error.kind(), limit, group.failure()) {
                (ErrorKind::OutOfMemory, Some(limit), None) => {
                    engine.attend(&|| false, &limit.capped(FIRST_LOOK));
                }
                _ => return Err(error),
            }
        }
    }
}

/// One piece on its way; several ranks may be sent the same block.
#[derive(Debug)]
struct Sent {
    to: Rank,
    _block: Arc<Block>,
    dispatch: Arc<Dispatch>,
}

impl Completion for Sent {
    fn complete(&self, outcome: Result<Delivery>) {
        if let Err(error) = outcome {
            let mut failed = self.dispatch.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(error);
        }
        self.dispatch.end(self.to);
    }
}
