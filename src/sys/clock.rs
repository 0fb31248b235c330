//! The clocks of the kernel, as numbers that processes can compare, and which processes can.

use crate::base::processor::{has_steady_ticks, ticks};
use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Instant;

/// How often the clocks are read to find a moment in which they are read close together.
const TRIES: u32 = 8;

/// One moment on several clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// On the standard library's clock.
    pub instant: Instant,
    /// On the kernel's monotonic clock, in nanoseconds.
    pub monotonic_ns: u64,
    /// Since 1970, in nanoseconds, by the host's idea of that.
    pub wall_ns: u64,
}

/// Now.
pub fn now() -> Moment {
    let read = || {
        let before = Instant::now();
        let (monotonic_ns, wall_ns) = (read(libc::CLOCK_MONOTONIC), read(libc::CLOCK_REALTIME));
        (before.elapsed(), Moment { instant: before, monotonic_ns, wall_ns })
    };
    // The one in which this thread was not interrupted.
    let mut best = read();
    for _ in 1..TRIES {
        let next = read();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

/// How many ticks after it was read this clock is told by ticks, and of how many of them their pace
/// is.
const TOLD: u64 = 1 << 20;
const PACED: std::ops::RangeInclusive<u64> = 1 << 18..=1 << 36;
/// A look at the clock that took more ticks than this was interrupted.
const AT_ONCE: u64 = 1 << 10;
/// Of a pace, in nanoseconds a tick, as a whole number.
const FRACTION: u32 = 32;

/// When a thread has read the clock last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    ticks: u64,
    ns: u64,
    /// 0 where it is not known.
    pace: u64,
}

thread_local! {
    static SEEN: Cell<Seen> = const { Cell::new(Seen { ticks: 0, ns: 0, pace: 0 }) };
}

/// Now, on the kernel's monotonic clock alone, in nanoseconds, give or take a few dozen of them:
/// less than a millisecond after a thread has read the clock it is told what has passed by the
/// processor's ticks, which costs half of that.
#[inline]
pub fn monotonic_ns() -> u64 {
    let seen = SEEN.try_with(Cell::get).ok();
    match seen.and_then(|seen| seen.told(ticks())) {
        Some(ns) => ns,
        None => look(),
    }
}

impl Seen {
    /// What the clock says so many ticks later; `None` where it has to be read.
    #[inline]
    fn told(self, ticks: u64) -> Option<u64> {
        let passed = ticks.wrapping_sub(self.ticks);
        (passed < TOLD && self.pace != 0).then(|| self.ns + ((passed * self.pace) >> FRACTION))
    }

    /// The same after the clock was read, at these ticks, and said `ns`. Of a short time nobody
    /// knows the pace yet, nor after one in which it went backwards.
    fn then(self, ticks: u64, ns: u64) -> Self {
        let (passed, lasted) = (ticks.wrapping_sub(self.ticks), ns.saturating_sub(self.ns));
        if self.ns == 0 || passed > *PACED.end() {
            return Self { ticks, ns, pace: 0 };
        }
        if !PACED.contains(&passed) {
            return self;
        }
        let pace = (u128::from(lasted) << FRACTION) / u128::from(passed);
        // No processor ticks but once in eight nanoseconds.
        let pace = u64::try_from(pace).ok().filter(|pace| pace >> (FRACTION + 3) == 0);
        Self { ticks, ns, pace: pace.unwrap_or(0) }
    }
}

/// Reads the clock, and remembers it.
#[cold]
fn look() -> u64 {
    static ARE_STEADY: LazyLock<bool> = LazyLock::new(has_steady_ticks);
    let before = ticks();
    let ns = read(libc::CLOCK_MONOTONIC);
    if *ARE_STEADY && ticks().wrapping_sub(before) < AT_ONCE {
        // A thread that ends reads it each time.
        let _kept = SEEN.try_with(|place| place.set(place.get().then(before, ns)));
    }
    ns
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` takes the result.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if status != 0 {
        return 0;
    }
    let [seconds, nanoseconds] =
        [time.tv_sec, time.tv_nsec].map(|it| u64::try_from(it).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// What two processes must have in common for a number of the monotonic clock to mean the same
/// moment to both: the boot id of the kernel and the name space of its clocks. Empty where the
/// system does not tell.
pub fn domain() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    // Old kernels have one for all.
    let space = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    boot.map(|boot| format!("{}/{}", boot.trim(), space.to_string_lossy())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn clocks_go_on_together() {
        let first = now();
        let second = now();
        assert!(second.monotonic_ns >= first.monotonic_ns);
        let apart = second.instant.duration_since(first.instant);
        let by_number = Duration::from_nanos(second.monotonic_ns - first.monotonic_ns);
        // Read one after the other, perhaps with an interruption between.
        assert!(apart.abs_diff(by_number) < Duration::from_secs(5));
        assert!(first.wall_ns > 1_600_000_000_000_000_000);
        assert_eq!(domain(), domain());
        assert!(monotonic_ns() >= second.monotonic_ns);
    }

    #[test]
    fn ticks_tell_the_clock_for_a_while_once_their_pace_is_known() {
        let never = Seen { ticks: 0, ns: 0, pace: 0 };
        assert_eq!(never.told(5), None);
        let first = never.then(1_000_000, 5_000_000);
        assert_eq!(first.told(1_000_001), None);
        // Too soon to know, so that the older one stays.
        assert_eq!(first.then(1_001_000, 5_000_400).ns, 5_000_000);
        // Two ticks and a half a nanosecond.
        let second = first.then(6_000_000, 7_000_000);
        assert_eq!(second.told(6_000_000), Some(7_000_000));
        assert!(second.told(6_500_000).unwrap().abs_diff(7_200_000) <= 1);
        // Later, or on a core whose counter is behind, nobody trusts them.
        assert_eq!(second.told(6_000_000 + TOLD), None);
        assert_eq!(second.told(5_999_999), None);
        // Time that stands still, or jumps, gives no pace.
        assert_eq!(second.then(7_000_000, 7_000_000).told(7_000_001), None);
        assert_eq!(second.then(7_000_000, 70_000_000_000).told(7_000_001), None);
    }

    #[test]
    fn the_time_that_ticks_tell_is_the_kernels() {
        let began = Instant::now();
        let mut most = 0;
        while began.elapsed() < Duration::from_millis(50) {
            let before = read(libc::CLOCK_MONOTONIC);
            let told = monotonic_ns();
            let after = read(libc::CLOCK_MONOTONIC);
            // How far outside of what the kernel says.
            most = most.max(before.saturating_sub(told)).max(told.saturating_sub(after));
        }
        assert!(most < 100_000, "{most} ns away");
    }
}
