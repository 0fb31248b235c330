//! Allocates and holds the fragmented free memory during the measurement, so that no rank gets it.
//! The kernel serves the first allocations from small free fragments. If a rank's buffer consists
//! of such fragments, other processes read it about 10 % more slowly than a buffer of contiguous
//! pages. Without this module, the ranks that start first would get such buffers.

use dist::sys::host;
use dist::sys::thread::pin_to_core;
use std::{fs, thread};

/// The size of a huge page in bytes. Free fragments that are smaller are held.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;

/// At most the available memory divided by this number is held.
const MEMORY_DIVISOR: u64 = 8;

/// The held memory. One thread on each core allocates a part of it, because the kernel caches free
/// pages separately for each core.
#[derive(Debug)]
pub(crate) struct HeldFragments {
    _held: Vec<Vec<u8>>,
}

impl HeldFragments {
    /// Allocates as much memory as is free in small fragments, up to the limit. If the system does
    /// not report its fragments, holds nothing.
    pub(crate) fn new() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let max_bytes = host::memory_available().unwrap_or(0) / MEMORY_DIVISOR;
        let bytes = fragmented_bytes(&read("/proc/buddyinfo"))
            + per_cpu_list_bytes(&read("/proc/zoneinfo"));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let bytes_per_core = usize::try_from(bytes.min(max_bytes)).unwrap_or(0) / cores;
        let held = thread::scope(|scope| {
            let allocate = |core| {
                scope.spawn(move || {
                    // If the thread cannot be pinned, pages of another core are acceptable.
                    drop(pin_to_core(core));
                    let mut held = Vec::new();
                    if held.try_reserve_exact(bytes_per_core).is_ok() {
                        held.resize(bytes_per_core, 1);
                    }
                    held
                })
            };
            let threads: Vec<_> = (0..cores).map(allocate).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        Self { _held: held }
    }
}

/// Returns the number of bytes in small free fragments. Each line of `buddyinfo` describes a memory
/// zone: it contains the numbers of free fragments of 1, 2, 4, ... pages.
fn fragmented_bytes(buddyinfo: &str) -> u64 {
    let counts = |line: &str| -> u64 {
        let (_, zone) = line.split_once("zone").unwrap_or_default();
        let counts = zone.split_whitespace().skip(1).filter_map(|count| count.parse::<u64>().ok());
        let pieces = (0..).map(|order: u32| PAGE_BYTES << order);
        let small = pieces.take_while(|&bytes| bytes < HUGE_PAGE_BYTES);
        small.zip(counts).map(|(bytes, count)| bytes.saturating_mul(count)).sum()
    };
    buddyinfo.lines().map(counts).sum()
}

/// Returns the number of bytes in the free pages that the kernel caches for each core.
fn per_cpu_list_bytes(zoneinfo: &str) -> u64 {
    let counts = zoneinfo.lines().filter_map(|line| line.trim().strip_prefix("count:"));
    counts
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .map(|pages| pages * PAGE_BYTES)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_below_2_mib_are_counted() {
        let zones = "Node 0, zone      DMA      1      0      0      0      0      0      0      0      1      5      3 \n\
                     Node 0, zone   Normal      3      2      0      0      0      0      0      0      0    327   1598 \n";
        assert_eq!(fragmented_bytes(zones), 4096 + (1 << 20) + 3 * 4096 + 2 * 8192);
        assert_eq!(fragmented_bytes("no such thing\n"), 0);
    }

    #[test]
    fn per_cpu_page_lists_are_counted() {
        let zone = "  pagesets\n    cpu: 0\n              count:    3\n              high: 9\n    cpu: 1\n  count: 1\n";
        assert_eq!(per_cpu_list_bytes(zone), 4 * 4096);
    }
}
