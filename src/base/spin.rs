//! Polling of memory until another core has written it.

use super::processor::load_fence;

/// Polls at most `max_polls` times, one poll at a time, until `poll` returns a value. Returns that
/// value.
#[inline]
pub fn spin_until_some<T>(max_polls: u32, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    (0..max_polls).find_map(|_| {
        let found = poll();
        if found.is_none() {
            load_fence();
        }
        found
    })
}

/// Polls at most `max_polls` times until `condition` holds. Returns whether it holds.
#[inline]
pub fn spin_until(max_polls: u32, mut condition: impl FnMut() -> bool) -> bool {
    spin_until_some(max_polls, || condition().then_some(())).is_some()
}
