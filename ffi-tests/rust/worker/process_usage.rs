//! The memory and the CPU time that a worker's process has used.
#![allow(unsafe_code, reason = "the standard library says neither")]

use super::library::CommandOutcome;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// Reports the used bytes of the shared memory segments that this process holds, and the used bytes
/// of its heap.
pub(super) fn report_memory() -> CommandOutcome {
    // SAFETY: the call takes no arguments and accesses no memory of this program.
    let heap = unsafe { libc::mallinfo2() };
    let message = json!({ "shared": shared_segment_bytes(), "heap": heap.uordblks + heap.hblkhd });
    (0, message.to_string())
}

/// Returns the allocated bytes of all segments. A segment with several descriptors counts once; an
/// untouched page does not count.
fn shared_segment_bytes() -> u64 {
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

/// Reports the CPU time of all threads of this process in microseconds.
pub(super) fn report_cpu_time() -> CommandOutcome {
    // SAFETY: the structure consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the result.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    assert_eq!(status, 0);
    let microseconds = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    let message = json!({ "us": microseconds(usage.ru_utime) + microseconds(usage.ru_stime) });
    (0, message.to_string())
}
