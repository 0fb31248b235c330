//! Shrink (as in ULFM): the surviving ranks of a failed group form a new group. They use neither
//! the connections of the old group nor the store.
//!
//! All survivors call [`Group::shrink`]. The lowest survivor becomes the coordinator, and the
//! others follow it. The steps of a round:
//!
//! 1. Each rank tries the lower ranks in ascending order as its coordinator ([`follower`]). It
//!    skips a rank that is dead, or that sends nothing for a certain time (the window).
//! 2. While a rank follows a lower rank, other ranks may want to follow it, for example because the
//!    lower rank does not respond to them. The rank sends them periodic wait notices ([`attempt`]),
//!    so that they do not skip it. If the lower rank stops responding, the rank becomes their
//!    coordinator.
//! 3. A rank becomes the coordinator if it has skipped all lower ranks ([`coordinator`]). It waits
//!    until all ranks that are not known to be dead or absent have joined, or until the window
//!    ends. Then it proposes the joined ranks as members.
//! 4. The members must be a quorum of the ranks that are not proven dead ([`membership`]), and all
//!    of them must accept. Then the coordinator commits the proposal.
//! 5. The members create the back end of the new group. For this, they exchange bootstrap data over
//!    their links to the coordinator ([`exchange`]). If a member dies before the group is complete,
//!    the round fails, and the remaining ranks start another round.
//! 6. When the group is complete on all members, the coordinator sends the ready notice. The group
//!    is now formed.
//!
//! **Late ranks.** A member keeps the survivor endpoint of the old group (the socket at which
//! survivors meet), and answers a rank that comes late with the outcome. It keeps the endpoint
//! while the new group, or a group that was shrunk from the new group, exists.
//!
//! **Death during the ready notice.** If the coordinator dies while it sends the ready notice, some
//! members may not get it. Such a member keeps the group that it has prepared ([`attempt`]) and
//! starts another round. There it meets another member. If the other member got the notice, it
//! reports that the group is formed, and the member without the notice uses the group that it has
//! prepared. If no member got the notice, the round creates another group.
//!
//! This module does not depend on how ranks connect or on the data that back ends exchange.

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
use attempt::ShrinkAttempt;
use messages::ShrinkMessage;
use std::sync::Arc;
use std::time::Duration;

/// The default of [`ShrinkOptions::timeout_ms`].
const DEFAULT_WINDOW_MS: u64 = 10_000;

/// Options of [`Group::shrink`].
#[derive(Clone, Debug, Default)]
pub struct ShrinkOptions {
    /// The window: the time in milliseconds in which the other ranks must call shrink. 0 selects
    /// the default of 10 s.
    pub timeout_ms: u64,
    /// The time limit of the whole call in milliseconds. 0 selects the default.
    pub connect_timeout_ms: u64,
}

impl Group {
    /// Creates a group of the surviving ranks that call this method, in the order of their old
    /// ranks. If the group has not failed, this method first fails it.
    ///
    /// # Errors
    /// * `Aborted` if the other ranks formed a group without this rank.
    /// * `PeerFailed` if the group's failure names this rank as its culprit, or if the ranks that
    ///   have joined are not a quorum.
    /// * `Timeout`.
    /// * Any error that prevents the creation of the back end.
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
            let aborted = || Error::new(ErrorKind::Aborted, message);
            self.fail(&self.backend.first_death().unwrap_or_else(aborted));
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
        session.finish_with_answer(&final_answer.encode());
        if outcome.is_ok() {
            // The process continues after the failure of the old group, so the error file for this
            // failure is removed.
            error_file::retract();
        }
        outcome.map(|(group, _)| group).context(|| format!("shrinking {}", self.describe_rank()))
    }

    /// Returns an error if the group's failure names this rank as its culprit, because the other
    /// ranks then exclude this rank.
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
