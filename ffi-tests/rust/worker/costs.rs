//! What a worker's process has used so far: memory and time.
#![allow(unsafe_code, reason = "the standard library says neither")]

use super::library::Outcome;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// The bytes of shared memory behind the segments that this process holds, and those of its heap
/// that are in use.
pub(super) fn memory() -> Outcome {
    // SAFETY: takes nothing and touches no memory of ours.
    let heap = unsafe { libc::mallinfo2() };
    let message = json!({ "shared": segments(), "heap": heap.uordblks + heap.hblkhd });
    (0, message.to_string())
}

/// A segment that is held by several descriptors counts once; a page that was never used, not at
/// all.
fn segments() -> u64 {
    let mut blocks = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let name = fs::read_link(entry.path()).unwrap_or_default();
        let is_segment = name.to_string_lossy().starts_with("/memfd:libdist");
        if let Some(found) = fs::metadata(entry.path()).ok().filter(|_| is_segment) {
            blocks.insert(found.ino(), found.blocks());
        }
    }
    512 * blocks.values().sum::<u64>()
}

/// The microseconds that all threads of this process have computed.
pub(super) fn time() -> Outcome {
    // SAFETY: it consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` takes the result.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    assert_eq!(status, 0);
    let microseconds = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    let message = json!({ "us": microseconds(usage.ru_utime) + microseconds(usage.ru_stime) });
    (0, message.to_string())
}
