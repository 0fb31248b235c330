//! Those who have come to a rank that does not lead, or not yet.
//!
//! They want to follow it, while it follows another that may have fallen silent after it had
//! answered. So they hear again and again that somebody is there; else they would pass it over, and
//! come to a group that was made without them.

use super::SEND_TIMEOUT;
use super::messages::ShrinkMessage;
use crate::base::deadline::Deadline;
use crate::base::ids::Rank;
use crate::transport::survivor_rendezvous::{SurvivorLink, SurvivorSession};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many signs of life fit into the time for which a silent rank is waited for.
const NOTICES_PER_WINDOW: u32 = 4;

/// Their connections, and when they are told again.
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
    /// Takes those who have come, and asks all to wait whose time it is; until when nobody must be
    /// asked again.
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
        // One that comes again has lost its earlier connection.
        for (rank, link) in session.take_arrivals() {
            if was_notified(&link) {
                self.links.insert(rank, link);
            }
        }
        self.next_notice
    }

    /// Gives the connections to a rank that leads now.
    pub(super) fn take_links(&mut self) -> BTreeMap<Rank, SurvivorLink> {
        std::mem::take(&mut self.links)
    }
}
