//! A dump of the flight recorder (the list of the last operations) as JSON. dist-doctor reads dumps
//! (`tools/src/bin/dist-doctor/recorder_dump.rs`), so every change of the format must increment
//! [`VERSION`].

use super::ring::{RECORDER, recorder_now_ns};
use super::{entries, groups};
use crate::base::ids::GroupId;
use crate::process::this_process;
use serde_json::{Value, json};

/// The version of the format.
const VERSION: u32 = 4;

/// The reason of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpReason {
    /// The program requested the dump.
    Request,
    /// A group has failed.
    Failure,
    /// The trigger file, whose change requests a dump, appeared or changed.
    Trigger,
}

/// Returns the dump of one group, or of all groups if `group` is `None`. The dump has the
/// operations, oldest first, and the groups with their members.
pub fn dump(group: Option<GroupId>, reason: DumpReason) -> Value {
    // The groups are read before the entries. Then, if an entry has failed because its group failed
    // earlier, the dump also has the failure of the group.
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
