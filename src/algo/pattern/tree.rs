//! The binomial tree (each round doubles the number of those who have the data), and the chain,
//! which is what pays when there is much of it.

use std::ops::Range;

/// Where a member stands in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Nearer to the root; `None` for the root.
    pub parent: Option<usize>,
    /// Farther from it, the one with the largest part of the tree first.
    pub children: Vec<usize>,
}

/// The place of `me` in the binomial tree of `size` members under `root`.
pub fn binomial(size: usize, root: usize, me: usize) -> Place {
    let relative = (me + size - root) % size;
    let absolute = |relative: usize| (relative + root) % size;
    // The lowest bit of a number says how large its part is; the root has all.
    let part = match relative {
        0 => size.next_power_of_two(),
        _ => 1 << relative.trailing_zeros(),
    };
    let parent = (relative > 0).then(|| absolute(relative - part));
    let steps = std::iter::successors(Some(part / 2), |step| Some(step / 2));
    let steps = steps.take_while(|&step| step > 0).filter(|step| relative + step < size);
    Place { parent, children: steps.map(|step| absolute(relative + step)).collect() }
}

/// Who is in the part of the binomial tree that begins with `me`, by distance from the root: itself
/// first, then the parts of its children.
pub fn span(size: usize, root: usize, me: usize) -> Range<usize> {
    let relative = (me + size - root) % size;
    let part = if relative == 0 { size } else { 1 << relative.trailing_zeros() };
    relative..size.min(relative + part)
}

/// The place of `me` in the chain of `size` members that begins with `root`.
pub fn chain(size: usize, root: usize, me: usize) -> Place {
    let relative = (me + size - root) % size;
    let parent = (relative > 0).then(|| (me + size - 1) % size);
    let children = if relative + 1 < size { vec![(me + 1) % size] } else { Vec::new() };
    Place { parent, children }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(place: fn(usize, usize, usize) -> Place, depth: impl Fn(usize) -> usize) {
        for size in 1..=64 {
            for root in 0..size {
                assert_eq!(place(size, root, root).parent, None);
                for me in 0..size {
                    for &child in &place(size, root, me).children {
                        assert_eq!(place(size, root, child).parent, Some(me));
                    }
                    let up = |&at: &usize| place(size, root, at).parent;
                    let way: Vec<usize> = std::iter::successors(Some(me), up).collect();
                    assert!(way.len() <= depth(size) + 1, "{size} {root} {me}");
                    assert_eq!(way.last(), Some(&root));
                    if let Some(parent) = place(size, root, me).parent {
                        assert!(place(size, root, parent).children.contains(&me));
                    }
                }
            }
        }
    }

    #[test]
    fn a_part_is_its_first_and_the_parts_of_its_children() {
        for size in 1..=64 {
            for root in 0..size {
                assert_eq!(span(size, root, root), 0..size);
                for me in 0..size {
                    let children = binomial(size, root, me).children;
                    let mut parts: Vec<usize> =
                        children.iter().flat_map(|&child| span(size, root, child)).collect();
                    parts.push((me + size - root) % size);
                    parts.sort_unstable();
                    assert!(parts.into_iter().eq(span(size, root, me)), "{size} {root} {me}");
                }
            }
        }
    }

    #[test]
    fn parents_and_children_agree_and_all_ways_lead_to_the_root() {
        check(binomial, |size| size.next_power_of_two().trailing_zeros() as usize);
        check(chain, |size| size - 1);
    }
}
