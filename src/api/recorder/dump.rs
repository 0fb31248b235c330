//! Everything that the flight recorder knows, as JSON. dist-doctor reads it
//! (`src/bin/dist-doctor/recorder_dump.rs`), so that what changes here raises the version.

use super::{RECORDER, entries, groups, recorder_now_ns};
use crate::base::ids::GroupId;
use crate::process::this_process;
use serde_json::{Value, json};

/// The version of the format.
const VERSION: u32 = 2;

/// Why a dump is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpReason {
    /// The program has asked for it.
    Request,
    /// A group has failed.
    Failure,
    /// A file has appeared.
    Trigger,
}

/// The operations of one group or of all, oldest first, and who was in it.
pub fn dump(group: Option<GroupId>, reason: DumpReason) -> Value {
    // The groups first: whatever is in an entry of theirs that ended before, the failure is known.
    let (groups, left_out) = groups::describe_groups(group);
    let identity = groups::job_rank_and_size();
    let entries = entries::describe_entries(group);
    json!({
        "format": "libdist flight recorder",
        "version": VERSION,
        "library": env!("CARGO_PKG_VERSION"),
        "reason": match reason {
            DumpReason::Request => "request",
            DumpReason::Failure => "failure",
            DumpReason::Trigger => "trigger",
        },
        "host": this_process::host_name(),
        "pid": this_process::pid(),
        "rank": identity.map(|(rank, _)| rank),
        "world_size": identity.map(|(_, size)| size),
        "origin_unix_ns": RECORDER.origin_unix_ns,
        "taken_ns": recorder_now_ns(),
        "groups": groups,
        "groups_left_out": left_out,
        "entries": entries,
    })
}
