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

/// Returns the allocated bytes of all segments that this process has mapped or holds a descriptor
/// of. Each segment counts once; an untouched page does not count.
fn shared_segment_bytes() -> u64 {
    let mut bytes = BTreeMap::new();
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, _, _, _, inode, name, ..] = fields[..] else { continue };
        if name.starts_with("/memfd:libdist") {
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|it| usize::from_str_radix(it, 16).unwrap());
            *bytes.entry(inode.parse().unwrap()).or_insert(0) += resident_bytes(start, end - start);
        }
    }
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let name = fs::read_link(entry.path()).unwrap_or_default();
        let is_segment = name.to_string_lossy().starts_with("/memfd:libdist");
        if let Some(found) = fs::metadata(entry.path()).ok().filter(|_| is_segment) {
            bytes.insert(found.ino(), 512 * found.blocks());
        }
    }
    bytes.values().sum()
}

/// Returns the number of bytes of a shared mapping whose pages exist, whether or not this process
/// has touched them.
fn resident_bytes(start: usize, len: usize) -> u64 {
    const PAGE: usize = 4096;
    let mut pages = vec![0_u8; len.div_ceil(PAGE)];
    let address = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the call writes one byte for each page of the range, and does not access the range.
    let status = unsafe { libc::mincore(address, len, pages.as_mut_ptr()) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    let resident = pages.iter().filter(|&&page| page & 1 != 0).count();
    u64::try_from(resident * PAGE).unwrap()
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
