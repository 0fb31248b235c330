//! The choice among the algorithms of the table.
//!
//! The choice is a pure function of what all ranks agree on (the call's arguments and the group's
//! [`Shape`]), so that ranks never choose differently. Within one operation the first row that applies
//! is taken; an algorithm can be asked for by name instead.

use super::table::{Algorithm, algorithms};
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;
use crate::base::nodes::Nodes;
use crate::transport::{Descriptor, OpKind};

/// What is agreed about a group, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of ranks.
    pub ranks: WorldSize,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of ranks on the smallest node.
    pub smallest: usize,
    /// The number of ranks on the largest node; 1 where each rank is alone.
    pub largest: usize,
    /// The hosts have fewer cores than ranks, so that each wait costs a context switch.
    pub crowded: bool,
}

impl Shape {
    /// The shape of a group with these nodes.
    pub fn of(nodes: &Nodes, crowded: bool) -> Self {
        let (ranks, count) = (nodes.ranks(), nodes.count());
        let (smallest, largest) = (nodes.smallest(), nodes.largest());
        Self { ranks, nodes: count, smallest, largest, crowded }
    }
}

/// What a rank called, beside what another one did: with its algorithm, where they differ in nothing else.
pub fn beside(this: &Descriptor, other: &Descriptor) -> String {
    let differs = this != other && Descriptor { algorithm: this.algorithm, ..*other } == *this;
    let row = usize::from(this.algorithm).checked_sub(1);
    match row.and_then(|row| algorithms(this.kind).nth(row)).filter(|_| differs) {
        Some(row) => format!("{this} by the algorithm \"{}\"", row.name),
        None => this.to_string(),
    }
}

/// The algorithm for a call of `bytes` bytes, or the one called `name`.
///
/// # Errors
/// `InvalidArgument` where no algorithm has that name, or it cannot do this size; the message lists
/// those there are.
pub fn select(
    kind: OpKind,
    bytes: usize,
    shape: &Shape,
    name: Option<&str>,
) -> Result<&'static Algorithm> {
    let Some(name) = name else {
        let mut rows = algorithms(kind);
        let chosen = rows.find(|row| row.can(bytes, shape) && (row.pays)(bytes, shape));
        return chosen.ok_or_else(|| Error::internal(format!("no algorithm for {}", kind.name())));
    };
    algorithms(kind).find(|row| row.name == name && row.can(bytes, shape)).ok_or_else(|| {
        let able = algorithms(kind).filter(|row| row.can(bytes, shape));
        let names: Vec<_> = able.map(|row| row.name).collect();
        Error::invalid(format!(
            "{} has no algorithm \"{name}\" for {bytes} bytes in a group of {} ranks on {} nodes; there are: {}",
            kind.name(),
            shape.ranks,
            shape.nodes,
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(labels: &[usize]) -> Shape {
        Shape::of(&Nodes::by_label(labels), false)
    }

    fn shapes() -> Vec<Shape> {
        let mut all = Vec::new();
        for ranks in 1..=64 {
            for labels in
                [vec![0; ranks], (0..ranks).collect(), (0..ranks).map(|r| r / 3).collect()]
            {
                for crowded in [false, true] {
                    all.push(Shape { crowded, ..shape(&labels) });
                }
            }
        }
        all
    }

    #[test]
    fn every_call_has_an_algorithm_and_names_are_unique() {
        for kind in OpKind::ALL {
            for shape in shapes() {
                for bytes in [0, 1, 48, 49, 1 << 16, 1 << 20, usize::MAX] {
                    assert!(select(kind, bytes, &shape, None).unwrap().can(bytes, &shape));
                }
            }
            let mut names: Vec<_> = algorithms(kind).map(|row| row.name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    #[test]
    fn an_unknown_name_lists_those_there_are() {
        let one = shape(&[0, 0]);
        let error = select(OpKind::AllReduce, 100, &one, Some("ring")).unwrap_err();
        assert!(error.message().ends_with("one_shot, two_shot"), "{error}");
        assert!(select(OpKind::AllReduce, 100, &one, Some("inline")).is_err());
        assert_eq!(select(OpKind::AllReduce, 8, &one, Some("two_shot")).unwrap().name, "two_shot");
    }

    #[test]
    fn the_shape_decides_which_algorithms_there_are() {
        let chosen = |labels: &[usize], bytes| {
            select(OpKind::AllReduce, bytes, &shape(labels), None).unwrap().name
        };
        let apart: Vec<usize> = (0..16).collect();
        let sizes = [8, 4 << 10, 32 << 10, 1 << 20, 2 << 20];
        assert_eq!(
            sizes.map(|bytes| chosen(&apart, bytes)),
            ["doubling", "doubling", "doubling", "rabenseifner", "ring"]
        );
        assert_eq!(chosen(&[0, 1], 8), "direct");
        assert_eq!(sizes.map(|bytes| chosen(&[0, 0, 1, 1], bytes))[2..4], ["leader", "lanes"]);
        assert_eq!(chosen(&[0, 0, 1], 1 << 20), "leader");
        for name in ["ring", "direct", "lanes"] {
            assert!(select(OpKind::AllReduce, 8, &shape(&[0, 1, 1]), Some(name)).is_ok());
        }
        assert!(select(OpKind::AllReduce, 8, &shape(&[0, 1]), Some("lanes")).is_err());
        assert!(select(OpKind::AllReduce, 8, &shape(&[0, 1]), Some("two_shot")).is_err());
    }
}
