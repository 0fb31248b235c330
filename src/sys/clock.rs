//! The clocks of the kernel, as numbers that processes can compare, and which processes can.

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

/// Now, on the kernel's monotonic clock alone, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
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

/// What two processes must have in common for a number of the monotonic clock to mean the same moment to both: the
/// boot id of the kernel and the name space of its clocks. Empty where the system does not tell.
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
}
