//! Looking at memory until another core has written it.

use super::processor::load_fence;

/// Looks so often at most until there is something, one look at a time; what there is.
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

/// The same for something that is so, or not.
#[inline]
pub fn spin_until(max_polls: u32, mut condition: impl FnMut() -> bool) -> bool {
    spin_until_some(max_polls, || condition().then_some(())).is_some()
}
