//! The table of algorithms, and the choice among them.
//!
//! The choice is a pure function of what all ranks agree on (the call's arguments and the group's
//! [`Shape`]), so that ranks never choose differently. Within one operation the first row that applies
//! is taken; an algorithm can be asked for by name instead.

use super::operation::Operation;
use super::shared::{self, Steps};
use crate::base::error::{Error, Result};
use crate::base::ids::WorldSize;
use crate::transport::OpKind;
use crate::transport::line::INLINE_BYTES;

/// What is agreed about a group, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of ranks.
    pub ranks: WorldSize,
    /// The hosts have fewer cores than ranks, so that each wait costs a context switch.
    pub crowded: bool,
}

/// One row of the table.
#[derive(Debug)]
pub struct Algorithm {
    /// The operation that it performs.
    pub kind: OpKind,
    /// Its name, unique within the operation.
    pub name: &'static str,
    /// What it does, in one line.
    pub description: &'static str,
    /// Whether it can perform a call whose count argument is this many bytes.
    pub can: fn(bytes: usize) -> bool,
    /// Whether it should, given the shape of the group.
    pub pays: fn(bytes: usize, shape: &Shape) -> bool,
    /// The algorithm.
    pub run: fn(&mut Steps<'_>, &Operation<'_>) -> Result<()>,
}

const ANY: fn(usize) -> bool = |_| true;
const ALWAYS: fn(usize, &Shape) -> bool = |_, _| true;
const FITS_A_LINE: fn(usize) -> bool = |bytes| bytes <= INLINE_BYTES;

static ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        kind: OpKind::AllReduce,
        name: "inline",
        description: "payload beside the step number, everybody folds all; at most 48 bytes",
        can: FITS_A_LINE,
        pays: ALWAYS,
        run: shared::all_reduce::inline,
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "one_shot",
        description: "staged in slots, everybody folds all vectors; one hop",
        can: ANY,
        pays: one_shot_pays,
        run: shared::all_reduce::one_shot,
    },
    Algorithm {
        kind: OpKind::AllReduce,
        name: "two_shot",
        description: "staged in slots, each rank folds its slice, all gather; two hops",
        can: ANY,
        pays: ALWAYS,
        run: shared::all_reduce::two_shot,
    },
    Algorithm {
        kind: OpKind::Reduce,
        name: "inline",
        description: "payload beside the step number, the root folds; at most 48 bytes",
        can: FITS_A_LINE,
        pays: ALWAYS,
        run: shared::reduce::inline,
    },
    Algorithm {
        kind: OpKind::Reduce,
        name: "staged",
        description: "staged in slots, the root folds",
        can: ANY,
        pays: ALWAYS,
        run: shared::reduce::staged,
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "inline",
        description: "payload beside the step number; at most 48 bytes",
        can: FITS_A_LINE,
        pays: ALWAYS,
        run: shared::broadcast::inline,
    },
    Algorithm {
        kind: OpKind::Broadcast,
        name: "staged",
        description: "through the root's slots",
        can: ANY,
        pays: ALWAYS,
        run: shared::broadcast::staged,
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "inline",
        description: "blocks beside the step number; at most 48 bytes each",
        can: FITS_A_LINE,
        pays: ALWAYS,
        run: shared::all_gather::inline,
    },
    Algorithm {
        kind: OpKind::AllGather,
        name: "staged",
        description: "blocks staged in slots, everybody copies all",
        can: ANY,
        pays: ALWAYS,
        run: shared::all_gather::staged,
    },
    Algorithm {
        kind: OpKind::ReduceScatter,
        name: "staged",
        description: "staged in slots, each rank folds its own block; one hop",
        can: ANY,
        pays: ALWAYS,
        run: shared::reduce_scatter::staged,
    },
    Algorithm {
        kind: OpKind::Barrier,
        name: "flags",
        description: "everybody reads everybody's line; one hop",
        can: ANY,
        pays: ALWAYS,
        run: shared::barrier::flags,
    },
];

/// Up to which size one hop with all the reading beats two hops with a share of it. A hop costs about
/// 200 ns, or a context switch of a few microseconds where ranks outnumber cores; beyond two ranks each
/// further one adds its whole vector to what one hop reads. Two ranks read the same either way.
fn one_shot_pays(bytes: usize, shape: &Shape) -> bool {
    let limit = match (shape.ranks, shape.crowded) {
        (0..=2, _) => 64 << 10,
        (ranks, true) => (128 << 10) / ranks,
        (ranks, false) => (8 << 10) / ranks,
    };
    bytes <= limit
}

/// The rows of one operation, in order of preference.
pub fn algorithms(kind: OpKind) -> impl Iterator<Item = &'static Algorithm> {
    ALGORITHMS.iter().filter(move |row| row.kind == kind)
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
        let chosen = rows.find(|row| (row.can)(bytes) && (row.pays)(bytes, shape));
        return chosen.ok_or_else(|| Error::internal(format!("no algorithm for {}", kind.name())));
    };
    algorithms(kind).find(|row| row.name == name && (row.can)(bytes)).ok_or_else(|| {
        let names: Vec<_> = algorithms(kind).map(|row| row.name).collect();
        Error::invalid(format!(
            "{} has no algorithm \"{name}\" for {bytes} bytes; there are: {}",
            kind.name(),
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_an_algorithm_and_names_are_unique() {
        for kind in OpKind::ALL {
            for ranks in 1..=64 {
                for crowded in [false, true] {
                    for bytes in [0, 1, 48, 49, 1 << 16, 1 << 20, usize::MAX] {
                        let shape = Shape { ranks, crowded };
                        assert!((select(kind, bytes, &shape, None).unwrap().can)(bytes));
                    }
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
        let shape = Shape { ranks: 2, crowded: false };
        let error = select(OpKind::AllReduce, 100, &shape, Some("ring")).unwrap_err();
        assert!(error.message().contains("inline, one_shot, two_shot"), "{error}");
        assert!(select(OpKind::AllReduce, 100, &shape, Some("inline")).is_err());
        assert_eq!(
            select(OpKind::AllReduce, 8, &shape, Some("two_shot")).unwrap().name,
            "two_shot"
        );
    }
}
