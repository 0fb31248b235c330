//! Those who have come to a rank that does not lead, or not yet.
//!
//! They want to follow it, while it follows another that may have fallen silent after it had
//! answered. So they hear again and again that somebody is there; else they would pass it over, and
//! come to a group that was made without them.

use super::SAYING;
use super::words::Word;
use crate::base::deadline::Deadline;
use crate::base::ids::Rank;
use crate::transport::reunion::{Link, Session};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many signs of life fit into the time for which a silent rank is waited for.
const SIGNS: u32 = 4;

/// Their connections, and when they are told again.
#[derive(Debug)]
pub(super) struct Quiet {
    links: BTreeMap<Rank, Link>,
    told: Deadline,
}

impl Default for Quiet {
    fn default() -> Self {
        Self { links: BTreeMap::new(), told: Deadline::after(Duration::ZERO) }
    }
}

impl Quiet {
    /// Takes those who have come, and asks all to wait whose time it is; until when nobody must be
    /// asked again.
    pub(super) fn ask_to_wait(&mut self, session: &Session<'_>, window: Duration) -> Deadline {
        let word = Word::Wait.encode();
        let is_told = |link: &Link| link.send(&word, &Deadline::after(SAYING)).is_ok();
        if self.told.has_passed() {
            self.links.retain(|_, link| is_told(link));
            self.told = Deadline::after(window / SIGNS);
        }
        // One that comes again has lost its earlier connection.
        for (rank, link) in session.arrivals() {
            if is_told(&link) {
                self.links.insert(rank, link);
            }
        }
        self.told
    }

    /// Gives the connections to a rank that leads now.
    pub(super) fn take(&mut self) -> BTreeMap<Rank, Link> {
        std::mem::take(&mut self.links)
    }
}
