//! Stable sorting in code whose speed does not matter.
//!
//! The standard library's stable sort has about 9 KB of code for each type and order. The functions
//! here sort the positions of the elements, so that all types share this code.

use std::cmp::Ordering;

/// Sorts as `slice::sort_by_key`.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(items, |first, second| key(first).cmp(&key(second)));
}

/// Sorts as `slice::sort_by`.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let order =
        sorted_positions(items.len(), &|first, second| compare(&items[first], &items[second]));
    for place in 0..items.len() {
        // The element may have been swapped away from its first position, perhaps repeatedly.
        let mut position = order[place];
        while position < place {
            position = order[position];
        }
        items.swap(place, position);
    }
}

/// Returns the positions of the elements in their order.
fn sorted_positions(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..count).collect();
    positions.sort_by(|&first, &second| compare(first, second));
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn result_is_that_of_the_standard_library(
            keys in proptest::collection::vec(0_u8..20, 0..100),
        ) {
            let mut items: Vec<(u8, usize)> = keys.into_iter().zip(0..).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            sort_by_key(&mut items, |item| item.0);
            prop_assert_eq!(&items, &expected);
            expected.sort_by_key(|item| std::cmp::Reverse(item.1));
            sort_by(&mut items, |first, second| second.1.cmp(&first.1));
            prop_assert_eq!(items, expected);
        }
    }
}
