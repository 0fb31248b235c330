//! Reads the kernel's clocks as numbers that the processes of a host can compare. Two processes may
//! compare their numbers if [`domain`] returns the same text in both.

use super::small_file;
use crate::base::processor::{has_invariant_tsc, read_tsc};
use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Instant;

/// How many samples [`snapshot`] takes to find one that no interruption delayed.
const SNAPSHOT_TRIES: u32 = 8;

/// The time of one moment on several clocks.
#[derive(Clone, Copy, Debug)]
pub struct ClockSnapshot {
    /// The time on the standard library's clock.
    pub instant: Instant,
    /// The time on the kernel's monotonic clock, in nanoseconds.
    pub monotonic_ns: u64,
    /// The wall-clock time of the host since 1970, in nanoseconds.
    pub wall_ns: u64,
}

/// Returns the current time on all clocks.
pub fn snapshot() -> ClockSnapshot {
    let take_sample = || {
        let before = Instant::now();
        let (monotonic_ns, wall_ns) = (read(libc::CLOCK_MONOTONIC), read(libc::CLOCK_REALTIME));
        (before.elapsed(), ClockSnapshot { instant: before, monotonic_ns, wall_ns })
    };
    // The shortest sample is the one in which this thread was not interrupted.
    let mut best = take_sample();
    for _ in 1..SNAPSHOT_TRIES {
        let next = take_sample();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

/// For this many ticks of the time stamp counter (TSC) after a clock read, the time is
/// extrapolated. After that, the clock is read again.
const EXTRAPOLATION_TICKS: u64 = 1 << 20;
/// The tick rate is computed from two clock reads if the ticks between them are in this range.
/// Fewer ticks give an inexact rate.
const CALIBRATION_TICKS: std::ops::RangeInclusive<u64> = 1 << 18..=1 << 36;
/// A clock read that took at least this many ticks was interrupted.
const UNINTERRUPTED_TICKS: u64 = 1 << 10;
/// The number of fraction bits in [`ClockSample::ns_per_tick`], a fixed-point number.
const RATE_FRACTION_BITS: u32 = 32;

/// The last clock read of a thread.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    ticks: u64,
    ns: u64,
    /// The nanoseconds per tick, or 0 if the rate is unknown.
    ns_per_tick: u64,
}

thread_local! {
    static LAST_SAMPLE: Cell<ClockSample> = const { Cell::new(ClockSample { ticks: 0, ns: 0, ns_per_tick: 0 }) };
}

/// Returns the time on the kernel's monotonic clock in nanoseconds, with an error of a few dozen
/// nanoseconds. For less than a millisecond after a thread has read the clock, the time is
/// extrapolated from the TSC, which costs half as much as a read.
#[inline]
pub fn monotonic_ns() -> u64 {
    let seen = LAST_SAMPLE.try_with(Cell::get).ok();
    match seen.and_then(|seen| seen.extrapolate(read_tsc())) {
        Some(ns) => ns,
        None => read_and_store(),
    }
}

impl ClockSample {
    /// Returns the time at this tick count; `None` if the clock must be read.
    #[inline]
    fn extrapolate(self, ticks: u64) -> Option<u64> {
        let elapsed_ticks = ticks.wrapping_sub(self.ticks);
        (elapsed_ticks < EXTRAPOLATION_TICKS && self.ns_per_tick != 0)
            .then(|| self.ns + ((elapsed_ticks * self.ns_per_tick) >> RATE_FRACTION_BITS))
    }

    /// Returns the sample to store after a clock read at tick count `ticks` returned `ns`. If the
    /// interval since the last sample is too short to compute a rate, the last sample stays. If the
    /// interval is too long, or the ticks went backwards, the new sample has no rate.
    fn updated(self, ticks: u64, ns: u64) -> Self {
        let (elapsed_ticks, elapsed_ns) =
            (ticks.wrapping_sub(self.ticks), ns.saturating_sub(self.ns));
        if self.ns == 0 || elapsed_ticks > *CALIBRATION_TICKS.end() {
            return Self { ticks, ns, ns_per_tick: 0 };
        }
        if !CALIBRATION_TICKS.contains(&elapsed_ticks) {
            return self;
        }
        let ns_per_tick =
            (u128::from(elapsed_ns) << RATE_FRACTION_BITS) / u128::from(elapsed_ticks);
        // A rate of 8 ns or more per tick is an error, because every processor counts faster.
        let ns_per_tick =
            u64::try_from(ns_per_tick).ok().filter(|rate| rate >> (RATE_FRACTION_BITS + 3) == 0);
        Self { ticks, ns, ns_per_tick: ns_per_tick.unwrap_or(0) }
    }
}

/// Reads the clock, and stores the sample.
#[cold]
fn read_and_store() -> u64 {
    static ARE_STEADY: LazyLock<bool> = LazyLock::new(has_invariant_tsc);
    let before = read_tsc();
    let ns = read(libc::CLOCK_MONOTONIC);
    if *ARE_STEADY && read_tsc().wrapping_sub(before) < UNINTERRUPTED_TICKS {
        // A thread that is ending cannot store the sample, and reads the clock each time.
        let _stored = LAST_SAMPLE.try_with(|place| place.set(place.get().updated(before, ns)));
    }
    ns
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` receives the result.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if status != 0 {
        return 0;
    }
    let [seconds, nanoseconds] =
        [time.tv_sec, time.tv_nsec].map(|it| u64::try_from(it).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Returns an identifier of the monotonic clock: the boot ID of the kernel and the time namespace.
/// Two processes with the same identifier can compare their numbers of the monotonic clock. The
/// identifier is empty if the system does not report it.
pub fn domain() -> String {
    let boot = small_file::read_text("/proc/sys/kernel/random/boot_id");
    // A kernel without this file has a single time namespace.
    let space = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    boot.map(|boot| format!("{}/{}", boot.trim(), space.to_string_lossy())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn clocks_advance_together() {
        let first = snapshot();
        let second = snapshot();
        assert!(second.monotonic_ns >= first.monotonic_ns);
        let apart = second.instant.duration_since(first.instant);
        let by_number = Duration::from_nanos(second.monotonic_ns - first.monotonic_ns);
        // The clocks are read one after the other, perhaps with an interruption between the reads.
        assert!(apart.abs_diff(by_number) < Duration::from_secs(5));
        assert!(first.wall_ns > 1_600_000_000_000_000_000);
        assert_eq!(domain(), domain());
        assert!(monotonic_ns() >= second.monotonic_ns);
    }

    #[test]
    fn clock_is_extrapolated_from_ticks_after_calibration() {
        let unread = ClockSample { ticks: 0, ns: 0, ns_per_tick: 0 };
        assert_eq!(unread.extrapolate(5), None);
        let first = unread.updated(1_000_000, 5_000_000);
        assert_eq!(first.extrapolate(1_000_001), None);
        // The interval is too short for a rate, so the older sample stays.
        assert_eq!(first.updated(1_001_000, 5_000_400).ns, 5_000_000);
        // The rate is 2.5 ticks per nanosecond.
        let second = first.updated(6_000_000, 7_000_000);
        assert_eq!(second.extrapolate(6_000_000), Some(7_000_000));
        assert!(second.extrapolate(6_500_000).unwrap().abs_diff(7_200_000) <= 1);
        // After more ticks, or on a core whose counter is behind, the sample is not used.
        assert_eq!(second.extrapolate(6_000_000 + EXTRAPOLATION_TICKS), None);
        assert_eq!(second.extrapolate(5_999_999), None);
        // Time that stands still or jumps gives no rate.
        assert_eq!(second.updated(7_000_000, 7_000_000).extrapolate(7_000_001), None);
        assert_eq!(second.updated(7_000_000, 70_000_000_000).extrapolate(7_000_001), None);
    }

    #[test]
    fn extrapolated_time_matches_the_kernel() {
        let began = Instant::now();
        let mut most = 0;
        while began.elapsed() < Duration::from_millis(50) {
            let before = read(libc::CLOCK_MONOTONIC);
            let extrapolated = monotonic_ns();
            let after = read(libc::CLOCK_MONOTONIC);
            // The distance of the extrapolated number from the interval between the two kernel
            // reads.
            most = most
                .max(before.saturating_sub(extrapolated))
                .max(extrapolated.saturating_sub(after));
        }
        assert!(most < 100_000, "{most} ns away");
    }
}
