//! Connections of ranks that want to follow this rank while it does not coordinate.
//!
//! This rank follows a candidate, which may stop responding after its first answer. Its pending
//! followers therefore receive periodic wait notices. Without them they would skip this rank and
//! form a group without it.

use super::messages::{SEND_TIMEOUT, ShrinkMessage};
use crate::base::deadline::Deadline;
use crate::base::ids::Rank;
use crate::transport::survivor_rendezvous::{SurvivorLink, SurvivorSession};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of wait notices in one window, the time after which a silent rank is skipped.
const NOTICES_PER_WINDOW: u32 = 4;

/// The connections of the pending followers, and the time of the next wait notice.
#[derive(Debug)]
pub(super) struct PendingFollowers {
    links: BTreeMap<Rank, SurvivorLink>,
    next_notice: Deadline,
}

impl Default for PendingFollowers {
    fn default() -> Self {
        Self { links: BTreeMap::new(), next_notice: Deadline::after(Duration::ZERO) }
    }
}

impl PendingFollowers {
    /// Accepts new connections and sends the wait notices that are due. Returns the time of the
    /// next notice.
    pub(super) fn send_wait_notices(
        &mut self,
        session: &SurvivorSession<'_>,
        window: Duration,
    ) -> Deadline {
        let message = ShrinkMessage::Wait.encode();
        let was_notified =
            |link: &SurvivorLink| link.send(&message, &Deadline::after(SEND_TIMEOUT)).is_ok();
        if self.next_notice.has_passed() {
            self.links.retain(|_, link| was_notified(link));
            self.next_notice = Deadline::after(window / NOTICES_PER_WINDOW);
        }
        // A rank that connects again has lost its earlier connection.
        for (rank, link) in session.take_arrivals() {
            if was_notified(&link) {
                self.links.insert(rank, link);
            }
        }
        self.next_notice
    }

    /// Moves the connections to this rank's coordinator role.
    pub(super) fn take_links(&mut self) -> BTreeMap<Rank, SurvivorLink> {
        std::mem::take(&mut self.links)
    }
}
