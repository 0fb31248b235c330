//! Log lines about the creation and the release of a group, at debug level INFO and above.

use crate::api::group::process_group::Group;
use crate::backend::RankLocation;
use crate::base::debug::{self, DebugLevel};
use crate::base::log;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The maximum number of members in a line.
const MAX_MEMBERS_LISTED: usize = 64;

fn is_group_log_enabled() -> bool {
    debug::level() >= DebugLevel::Info && log::enabled(log::LogLevel::Info)
}

impl Group {
    /// Logs the creation of the group.
    pub(in crate::api) fn log_creation(&self, took: Duration) {
        if !is_group_log_enabled() {
            return;
        }
        let native = self.backend.describe();
        let transport = native.get("transport").and_then(|name| name.as_str()).unwrap_or("unknown");
        crate::log!(
            log::LogLevel::Info,
            "{} of {} was created in {} ms (id {}): back end {}, transport {}, operation timeout \
             {} ms, arrival check before each collective {}; members: {}",
            self.describe_rank(),
            self.size(),
            took.as_millis(),
            self.id(),
            self.backend_name(),
            transport,
            self.timeout_ms(),
            if self.has_arrival_check { "on" } else { "off" },
            format_members(self.backend.rank_locations())
        );
        let algorithms = native.get("algorithms").cloned().unwrap_or_default();
        crate::log!(log::LogLevel::Info, "{} uses algorithms: {algorithms}", self.describe_rank());
    }

    /// Logs the release of the group.
    pub(in crate::api) fn log_release(&self) {
        if !is_group_log_enabled() {
            return;
        }
        let failure = self.failure().map(|error| format!("; it failed: {error}"));
        crate::log!(
            log::LogLevel::Info,
            "{} is released after {} collective operations and {} messages{}",
            self.describe_rank(),
            self.queue.issued(),
            self.messages_issued.load(Ordering::Relaxed),
            failure.unwrap_or_default()
        );
    }
}

fn format_members(locations: &[RankLocation]) -> String {
    let listed =
        locations.iter().take(MAX_MEMBERS_LISTED).map(|location| location.name.to_string());
    let mut text = listed.collect::<Vec<_>>().join("; ");
    if locations.len() > MAX_MEMBERS_LISTED {
        text.push_str(&format!(" and {} more", locations.len() - MAX_MEMBERS_LISTED));
    }
    text
}
