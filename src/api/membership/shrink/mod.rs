//! Shrink (ULFM): the survivors of a failed group form a new group, without the old group's streams
//! and without the store.
//!
//! All survivors call [`Group::shrink`] and form a star around the lowest surviving rank:
//!
//! 1. Each rank tries the lower ranks in ascending order as coordinator ([`follower`]). It skips a
//!    rank that is dead, or that sends nothing for the length of the window.
//! 2. A rank that follows another rank may have pending followers of its own. It sends them
//!    periodic wait notices ([`attempt`]), since it becomes the coordinator if its
//!    candidate stops responding.
//! 3. A rank with no expected rank below it coordinates ([`coordinator`]). It waits until all ranks
//!    that are not known to be dead or absent have joined, or until the window ends. It then
//!    proposes the joined ranks as members.
//! 4. All members must accept, and they must be a quorum of the ranks that are not proven dead
//!    ([`membership`]). The coordinator then commits.
//! 5. The members run the back end's bootstrap exchange over their links to the coordinator
//!    ([`exchange`]). If a member dies before the group is complete, the round fails and the
//!    remaining ranks start another round.
//!
//! A member keeps the old group's survivor endpoint, so that a late rank receives the outcome. The
//! member keeps it while the new group, or a group that was shrunk from it, exists.
//!
//! The last message of the coordinator is the ready notice: all members have a prepared group
//! ([`attempt`]). If the coordinator dies while it sends the notice, a member without the notice
//! keeps its prepared group and looks for the other members. The peer that it finds either received
//! the notice and reports the formed group, or takes part in another round.
//!
//! This module does not depend on how ranks connect, or on how the ranks of a back end bootstrap.

mod attempt;
mod build;
mod coordinator;
mod exchange;
mod follower;
mod membership;
mod messages;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::api::group::create::connect_deadline;
use crate::api::group::process_group::Group;
use crate::api::observe::error_file;
use crate::api::work::callbacks;
use crate::backend::PeerMonitor;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::log::LogLevel;
use attempt::ShrinkAttempt;
use messages::ShrinkMessage;
use std::sync::Arc;
use std::time::Duration;

/// Default for the time in which the other ranks must call shrink.
const DEFAULT_WINDOW_MS: u64 = 10_000;

/// Options of [`Group::shrink`].
#[derive(Clone, Debug, Default)]
pub struct ShrinkOptions {
    /// How long the other ranks may take to call shrink, in milliseconds; 0 for the default.
    pub timeout_ms: u64,
    /// The deadline of the whole call in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
}

impl Group {
    /// Creates a group of the surviving ranks that call this method, in the order of their old
    /// ranks. If the group has not failed, the method fails it first.
    ///
    /// # Errors
    /// `Aborted` if the other ranks formed a group without this rank; `PeerFailed` if the group's
    /// failure names this rank as culprit, or if the arrived ranks are no quorum; `Timeout`; any
    /// error that prevents the creation of the back end.
    pub fn shrink(self: &Arc<Self>, options: &ShrinkOptions) -> Result<Self> {
        callbacks::reject_blocking_in_callback("shrinking a group")?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let window_ms =
            if options.timeout_ms == 0 { DEFAULT_WINDOW_MS } else { options.timeout_ms };
        let monitor = self.backend.peer_monitor();
        if self.size() > 1 && monitor.is_none() {
            let message = format!(
                "back end {} cannot reconnect the ranks of a failed group",
                self.backend.name()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.failure().is_none() {
            let message = format!("rank {} shrinks group {}", self.rank(), self.name());
            self.fail(&Error::new(ErrorKind::Aborted, message));
        }
        let Some(endpoint) = monitor.map(PeerMonitor::survivor_endpoint) else {
            return build::shrink_alone(self, &deadline);
        };
        let failure = self.failure().unwrap_or_else(|| Error::internal("the group has no failure"));
        let session =
            endpoint.open_session().context(|| format!("shrinking {}", self.describe_rank()))?;
        let outcome = self.check_blame(&failure).and_then(|()| {
            let window = Duration::from_millis(window_ms);
            ShrinkAttempt::new(self, &session, endpoint, window, deadline, &failure).run()
        });
        let final_answer = match &outcome {
            Ok((_, proposal)) => ShrinkMessage::GroupFormed(proposal.clone()),
            Err(reason) => ShrinkMessage::Abandoned(reason.clone()),
        };
        if let Err(error) = session.finish_with_answer(&final_answer.encode()) {
            crate::log!(LogLevel::Warn, "cannot send the result to late ranks: {error}");
        }
        if outcome.is_ok() {
            // The failure of the old group no longer ends the process, so its error file is
            // withdrawn.
            error_file::retract();
        }
        outcome.map(|(group, _)| group).context(|| format!("shrinking {}", self.describe_rank()))
    }

    /// Fails if the group's failure names this rank as its culprit: the other ranks then exclude
    /// it.
    fn check_blame(&self, failure: &Error) -> Result<()> {
        if failure.kind() != ErrorKind::PeerFailed || failure.culprit() != Some(self.rank()) {
            return Ok(());
        }
        let message = format!(
            "this rank caused the failure of the group, so the other ranks continue without it \
             ({failure}): end or restart this process"
        );
        Err(Error::new(ErrorKind::PeerFailed, message).with_culprit(self.rank()))
    }
}
