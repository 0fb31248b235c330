//! Trees for broadcast, reduce, gather and scatter.
//!
//! - In the binomial tree, each round doubles the number of members that have the data.
//! - In the chain, each member has one child. The chain is faster for large data, because each
//!   member sends the data once.
//!
//! ```text
//! Binomial tree of 8 members, root 0:  0 -> 4, 2, 1   4 -> 6, 5   2 -> 3   6 -> 7
//! ```

use std::ops::Range;

/// The position of a member in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePosition {
    /// The parent, which is nearer to the root; `None` for the root.
    pub parent: Option<usize>,
    /// The children, which are farther from the root; the child with the largest subtree comes
    /// first.
    pub children: Vec<usize>,
}

/// Returns the position of `me` in the binomial tree of `size` members under `root`.
pub fn binomial_position(size: usize, root: usize, me: usize) -> TreePosition {
    let relative = (me + size - root) % size;
    let absolute = |relative: usize| (relative + root) % size;
    // The size of a subtree is the lowest set bit of the relative number of its top member. The
    // subtree of the root contains all members.
    let subtree_size = match relative {
        0 => size.next_power_of_two(),
        _ => 1 << relative.trailing_zeros(),
    };
    let parent = (relative > 0).then(|| absolute(relative - subtree_size));
    let steps = std::iter::successors(Some(subtree_size / 2), |step| Some(step / 2));
    let steps = steps.take_while(|&step| step > 0).filter(|step| relative + step < size);
    TreePosition { parent, children: steps.map(|step| absolute(relative + step)).collect() }
}

/// Returns the members of the binomial subtree whose top member is `me`, as distances from the
/// root: first the distance of `me`, then the distances of the other members of the subtree.
pub fn subtree_span(size: usize, root: usize, me: usize) -> Range<usize> {
    let relative = (me + size - root) % size;
    let subtree_size = if relative == 0 { size } else { 1 << relative.trailing_zeros() };
    relative..size.min(relative + subtree_size)
}

/// Returns the position of `me` in the chain of `size` members that starts with `root`.
pub fn chain_position(size: usize, root: usize, me: usize) -> TreePosition {
    let relative = (me + size - root) % size;
    let parent = (relative > 0).then(|| (me + size - 1) % size);
    let children = if relative + 1 < size { vec![(me + 1) % size] } else { Vec::new() };
    TreePosition { parent, children }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_tree(place: fn(usize, usize, usize) -> TreePosition, depth: impl Fn(usize) -> usize) {
        for size in 1..=64 {
            for root in 0..size {
                assert_eq!(place(size, root, root).parent, None);
                for me in 0..size {
                    for &child in &place(size, root, me).children {
                        assert_eq!(place(size, root, child).parent, Some(me));
                    }
                    let up = |&at: &usize| place(size, root, at).parent;
                    let path: Vec<usize> = std::iter::successors(Some(me), up).collect();
                    assert!(path.len() <= depth(size) + 1, "{size} {root} {me}");
                    assert_eq!(path.last(), Some(&root));
                    if let Some(parent) = place(size, root, me).parent {
                        assert!(place(size, root, parent).children.contains(&me));
                    }
                }
            }
        }
    }

    #[test]
    fn subtree_span_is_the_member_and_its_children() {
        for size in 1..=64 {
            for root in 0..size {
                assert_eq!(subtree_span(size, root, root), 0..size);
                for me in 0..size {
                    let children = binomial_position(size, root, me).children;
                    let mut parts: Vec<usize> = children
                        .iter()
                        .flat_map(|&child| subtree_span(size, root, child))
                        .collect();
                    parts.push((me + size - root) % size);
                    parts.sort_unstable();
                    assert!(
                        parts.into_iter().eq(subtree_span(size, root, me)),
                        "{size} {root} {me}"
                    );
                }
            }
        }
    }

    #[test]
    fn parents_match_children_and_all_paths_reach_the_root() {
        check_tree(binomial_position, |size| size.next_power_of_two().trailing_zeros() as usize);
        check_tree(chain_position, |size| size - 1);
    }
}
