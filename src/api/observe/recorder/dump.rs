//! A dump of the flight recorder as JSON. dist-doctor reads it
//! (`tools/src/bin/dist-doctor/recorder_dump.rs`), so every change of the format must increment
//! [`VERSION`].

use super::ring::{RECORDER, recorder_now_ns};
use super::{entries, groups};
use crate::base::ids::GroupId;
use crate::process::this_process;
use serde_json::{Value, json};

/// The version of the format.
const VERSION: u32 = 2;

/// The reason of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpReason {
    /// The program requested it.
    Request,
    /// A group has failed.
    Failure,
    /// The trigger file appeared or changed.
    Trigger,
}

/// Returns the operations of one group or of all groups, oldest first, and the groups with their
/// members.
pub fn dump(group: Option<GroupId>, reason: DumpReason) -> Value {
    // The groups come first, which reads their failures. For an entry that failed before this
    // point, the dump then has the failure of its group.
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
