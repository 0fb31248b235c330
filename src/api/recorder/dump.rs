//! Everything that the flight recorder knows, as JSON. dist-doctor reads it
//! (`src/bin/dist-doctor/dump.rs`), so that what changes here raises the version.

use super::{RECORDER, entries, groups, now_ns};
use crate::base::ids::GroupId;
use crate::process::this;
use serde_json::{Value, json};

/// The version of the format.
const VERSION: u32 = 2;

/// Why a dump is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The program has asked for it.
    Asked,
    /// A group has failed.
    Failure,
    /// A file has appeared.
    Trigger,
}

/// The operations of one group or of all, oldest first, and who was in it.
pub fn dump(group: Option<GroupId>, why: Why) -> Value {
    // The groups first: whatever is in an entry of theirs that ended before, the failure is known.
    let (groups, left_out) = groups::describe(group);
    let identity = groups::identity();
    let entries = entries::all(group);
    json!({
        "format": "libdist flight recorder",
        "version": VERSION,
        "library": env!("CARGO_PKG_VERSION"),
        "reason": match why {
            Why::Asked => "request",
            Why::Failure => "failure",
            Why::Trigger => "trigger",
        },
        "host": this::host_name(),
        "pid": this::pid(),
        "rank": identity.map(|(rank, _)| rank),
        "world_size": identity.map(|(_, size)| size),
        "origin_unix_ns": RECORDER.origin_unix_ns,
        "taken_ns": now_ns(),
        "groups": groups,
        "groups_left_out": left_out,
        "entries": entries,
    })
}
