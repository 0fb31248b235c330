//! The details of operations that an entry of the ring has no room for, for example the total size
//! of byte strings.
//!
//! The details are in a second ring, which has a place for each entry of the first ring. A call on
//! the fast path has no details, so it does not touch the second ring. Each place has a lock of its
//! own, which is held only while one value is read or written. A place keeps the number of its
//! operation, so a reader does not take the details of an earlier operation.

use super::ring::MAX_ENTRIES;
use crate::api::observe::operation_details::OperationDetails;
use crate::base::sync::lock;
use std::sync::{LazyLock, Mutex, MutexGuard};

/// The details of the operation with this number.
#[derive(Debug)]
struct NumberedDetails {
    number: u64,
    details: OperationDetails,
}

type DetailsPlace = Option<Box<NumberedDetails>>;

static DETAILS: LazyLock<Vec<Mutex<DetailsPlace>>> =
    LazyLock::new(|| (0..MAX_ENTRIES).map(|_| Mutex::default()).collect());

fn lock_place(number: u64) -> MutexGuard<'static, DetailsPlace> {
    let index = usize::try_from(number % (MAX_ENTRIES as u64)).unwrap_or(0);
    lock(&DETAILS[index])
}

/// Changes the details of an operation. Does nothing if a later operation has overwritten them.
pub(super) fn update_details(number: u64, change: impl FnOnce(&mut OperationDetails)) {
    let mut place = lock_place(number);
    if place.as_ref().is_some_and(|known| known.number > number) {
        return;
    }
    let known = place.take().filter(|known| known.number == number);
    let details = OperationDetails::default();
    let known =
        place.insert(known.unwrap_or_else(|| Box::new(NumberedDetails { number, details })));
    change(&mut known.details);
}

/// Returns the details of an operation. They are empty if the operation has none.
pub(super) fn read_details(number: u64) -> OperationDetails {
    let place = lock_place(number);
    let known = place.as_ref().filter(|known| known.number == number);
    known.map_or_else(OperationDetails::default, |known| known.details.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_belong_to_one_number() {
        // No other test reserves numbers of this size.
        let number = u64::MAX / 2;
        assert_eq!(read_details(number).total_bytes, None);
        update_details(number, |details| details.total_bytes = Some(7));
        assert_eq!(read_details(number).total_bytes, Some(7));
        let later = number + MAX_ENTRIES as u64;
        assert_eq!(read_details(later).total_bytes, None);
        update_details(later, |_| {});
        update_details(number, |details| details.total_bytes = Some(8));
        assert_eq!(
            (read_details(number).total_bytes, read_details(later).total_bytes),
            (None, None)
        );
    }
}
