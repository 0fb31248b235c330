//! What is told of a group in the log where the debug level is INFO or above: how it was made, and
//! what it has done.

use crate::api::group::Group;
use crate::backend::Place;
use crate::base::debug::{self, Level};
use crate::base::log;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many members a line names.
const MEMBERS_NAMED: usize = 64;

fn is_told() -> bool {
    debug::level() >= Level::Info && log::enabled(log::Level::Info)
}

impl Group {
    /// The group has just been made.
    pub(in crate::api) fn tell_birth(&self, took: Duration) {
        if !is_told() {
            return;
        }
        let native = self.backend.describe();
        let transport = native.get("transport").and_then(|name| name.as_str()).unwrap_or("unknown");
        crate::log!(
            log::Level::Info,
            "{} of {} was made in {} ms (id {}): back end {}, transport {}, operations have {} ms; who is there before \
             each collective is {}; members: {}",
            self.whom(),
            self.size(),
            took.as_millis(),
            self.id(),
            self.backend_name(),
            transport,
            self.timeout_ms(),
            if self.looks_who_is_there { "looked at" } else { "not looked at" },
            members(self.backend.places())
        );
        let algorithms = native.get("algorithms").cloned().unwrap_or_default();
        crate::log!(log::Level::Info, "{} takes algorithms: {algorithms}", self.whom());
    }

    /// The group is about to go.
    pub(in crate::api) fn tell_end(&self) {
        if !is_told() {
            return;
        }
        let failure = self.failure().map(|error| format!("; it failed: {error}"));
        crate::log!(
            log::Level::Info,
            "{} ends after {} collective operations and {} messages{}",
            self.whom(),
            self.queue.issued(),
            self.messages_issued.load(Ordering::Relaxed),
            failure.unwrap_or_default()
        );
    }
}

fn members(places: &[Place]) -> String {
    let named = places.iter().take(MEMBERS_NAMED).map(|place| place.name.to_string());
    let mut text = named.collect::<Vec<_>>().join("; ");
    if places.len() > MEMBERS_NAMED {
        text.push_str(&format!(" and {} more", places.len() - MEMBERS_NAMED));
    }
    text
}
