//! Looking at memory until another core has written it.

use super::processor::await_loads;

/// Looks so often at most until there is something, one look at a time; what there is.
#[inline]
pub fn look<T>(times: u32, mut what: impl FnMut() -> Option<T>) -> Option<T> {
    (0..times).find_map(|_| {
        let found = what();
        if found.is_none() {
            await_loads();
        }
        found
    })
}

/// The same for something that is so, or not.
#[inline]
pub fn look_whether(times: u32, mut is_so: impl FnMut() -> bool) -> bool {
    look(times, || is_so().then_some(())).is_some()
}
