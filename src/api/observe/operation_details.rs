//! The details of operations for the flight recorder and the trace, in addition to the descriptor.
//! These are the sizes of buffers, the total size of byte strings, the missing ranks of monitored
//! barriers, and the time of the device.
//!
//! The sizes of most calls follow from the descriptor and from the size of the group. They are
//! derived when a dump or a trace is written ([`CallSizes::derive`]). A call records sizes only if
//! its descriptor does not have them, for example a call with a count for each rank. Such a call
//! never takes the fast path.

use crate::base::ids::{Rank, WorldSize};
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::time::Duration;

/// The maximum number of missing ranks in the details of a monitored barrier.
const MAX_MISSING: usize = 64;

/// The maximum number of inputs, and of outputs, whose sizes are recorded.
const MAX_BUFFERS: usize = 64;

/// The sizes of several buffers: for each buffer the extents of its dimensions, in elements.
pub(in crate::api) type BufferSizes = Vec<Vec<u64>>;

/// The sizes of the inputs and the outputs of a call on this rank. `None` if they are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::api) struct CallSizes {
    pub(in crate::api) inputs: Option<BufferSizes>,
    pub(in crate::api) outputs: Option<BufferSizes>,
}

/// The details of one operation.
#[derive(Clone, Debug, Default)]
pub(in crate::api) struct OperationDetails {
    /// The total size of the byte strings of a call, if this rank knows it.
    pub(in crate::api) total_bytes: Option<u64>,
    sizes: CallSizes,
    /// The time that the device needed for the operation, if it was measured.
    pub(in crate::api) device_time: Option<Duration>,
    /// The missing ranks of a monitored barrier that has failed, at most [`MAX_MISSING`].
    pub(in crate::api) missing: Vec<Rank>,
    /// The number of all missing ranks.
    pub(in crate::api) missing_count: usize,
}

impl OperationDetails {
    /// Sets the missing ranks.
    pub(in crate::api) fn set_missing(&mut self, missing: &[Rank]) {
        self.missing = missing.iter().take(MAX_MISSING).copied().collect();
        self.missing_count = missing.len();
    }

    /// Adds the sizes of buffers. Sizes that are not known do not replace known sizes.
    pub(in crate::api) fn add_sizes(&mut self, sizes: &CallSizes) {
        let limited = |sizes: &BufferSizes| sizes.iter().take(MAX_BUFFERS).cloned().collect();
        let CallSizes { inputs, outputs } = sizes;
        self.sizes.inputs = inputs.as_ref().map(limited).or(self.sizes.inputs.take());
        self.sizes.outputs = outputs.as_ref().map(limited).or(self.sizes.outputs.take());
    }

    /// Returns the sizes of the buffers of a collective on `rank` of a group of `size` ranks: the
    /// recorded sizes, and otherwise the sizes that follow from the descriptor.
    pub(in crate::api) fn collective_sizes(
        &self,
        descriptor: &Descriptor,
        rank: Rank,
        size: Option<WorldSize>,
    ) -> CallSizes {
        let derived = CallSizes::derive(descriptor, rank, size);
        let CallSizes { inputs, outputs } = self.sizes.clone();
        CallSizes { inputs: inputs.or(derived.inputs), outputs: outputs.or(derived.outputs) }
    }
}

/// Returns the sizes of buffers with one dimension each.
pub(in crate::api) fn flat_sizes(counts: impl IntoIterator<Item = usize>) -> BufferSizes {
    counts.into_iter().map(|count| vec![count as u64]).collect()
}

impl CallSizes {
    /// Returns the sizes of the buffers of a collective as far as they follow from its descriptor.
    /// `size` is the size of the group, if it is known.
    pub(in crate::api) fn derive(
        descriptor: &Descriptor,
        rank: Rank,
        size: Option<WorldSize>,
    ) -> Self {
        let count = match descriptor.count_spec {
            CountSpec::Count(count) => count,
            CountSpec::Counts { total, .. } => return Self::derive_from_total(descriptor, total),
            _ => return Self::default(),
        };
        let none = Some(Vec::new());
        let one = Some(vec![vec![count]]);
        let all = size.map(|size| vec![vec![size as u64, count]]);
        let at_root = |sizes| if descriptor.root == Some(rank) { sizes } else { Some(Vec::new()) };
        let (inputs, outputs) = match descriptor.kind {
            OpKind::AllReduce | OpKind::Scan => (one.clone(), one),
            OpKind::Exscan => (one.clone(), if rank == 0 { none } else { one }),
            OpKind::Reduce => (one.clone(), at_root(one)),
            OpKind::Broadcast => (at_root(one.clone()), one),
            OpKind::AllGather => (one, all),
            OpKind::ReduceScatter => (all, one),
            OpKind::Gather => (one, at_root(all)),
            OpKind::Scatter => (at_root(all), one),
            OpKind::AllToAll => (all.clone(), all),
            OpKind::Barrier => (none.clone(), none),
            OpKind::AllGatherV
            | OpKind::GatherV
            | OpKind::ScatterV
            | OpKind::ReduceScatterV
            | OpKind::AllToAllV => (None, None),
        };
        Self { inputs, outputs }
    }

    /// Returns the sizes of a collective with a count for each rank, if only the total of the
    /// counts is known.
    fn derive_from_total(descriptor: &Descriptor, total: u64) -> Self {
        // The largest total also represents all larger totals.
        let whole = (total < CountSpec::MAX_TOTAL).then(|| vec![vec![total]]);
        match descriptor.kind {
            OpKind::AllGatherV => Self { inputs: None, outputs: whole },
            OpKind::ReduceScatterV => Self { inputs: whole, outputs: None },
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::DataType;
    use crate::base::label::Label;

    fn descriptor(kind: OpKind, count_spec: CountSpec, root: Option<Rank>) -> Descriptor {
        Descriptor {
            kind,
            dtype: Some(DataType::F32),
            op: None,
            root,
            count_spec,
            sequence: 1,
            algorithm: 0,
            part: 0,
            label: Label::NONE,
        }
    }

    /// The sizes of a call with count 5 on rank 1 of 3 ranks.
    fn sizes(kind: OpKind, root: Option<Rank>) -> [BufferSizes; 2] {
        let derived = CallSizes::derive(&descriptor(kind, CountSpec::Count(5), root), 1, Some(3));
        [derived.inputs.unwrap(), derived.outputs.unwrap()]
    }

    #[test]
    fn sizes_follow_from_kind_count_and_group_size() {
        let (none, one, all) = (vec![], vec![vec![5]], vec![vec![3, 5]]);
        for (kind, expected) in [
            (OpKind::AllReduce, [&one, &one]),
            (OpKind::Scan, [&one, &one]),
            (OpKind::Exscan, [&one, &one]),
            (OpKind::AllGather, [&one, &all]),
            (OpKind::ReduceScatter, [&all, &one]),
            (OpKind::AllToAll, [&all, &all]),
            (OpKind::Barrier, [&none, &none]),
        ] {
            assert_eq!(sizes(kind, None), expected.map(Clone::clone), "{kind:?}");
        }
        // Rank 1 is the root, and then it is not.
        for (kind, as_root, otherwise) in [
            (OpKind::Reduce, [&one, &one], [&one, &none]),
            (OpKind::Broadcast, [&one, &one], [&none, &one]),
            (OpKind::Gather, [&one, &all], [&one, &none]),
            (OpKind::Scatter, [&all, &one], [&none, &one]),
        ] {
            assert_eq!(sizes(kind, Some(1)), as_root.map(Clone::clone), "{kind:?}");
            assert_eq!(sizes(kind, Some(0)), otherwise.map(Clone::clone), "{kind:?}");
        }
        let all_gather = descriptor(OpKind::AllGather, CountSpec::Count(5), None);
        let unknown = CallSizes::derive(&all_gather, 1, None);
        assert_eq!((unknown.inputs, unknown.outputs), (Some(one), None));
    }

    #[test]
    fn recorded_sizes_precede_derived_sizes() {
        let counts = CountSpec::of_counts([3, 5]);
        let all_gather_v = descriptor(OpKind::AllGatherV, counts, None);
        let mut details = OperationDetails::default();
        let derived = details.collective_sizes(&all_gather_v, 1, Some(2));
        assert_eq!(derived, CallSizes { inputs: None, outputs: Some(vec![vec![8]]) });
        details.add_sizes(&CallSizes { inputs: Some(flat_sizes([5])), outputs: None });
        details.add_sizes(&CallSizes { inputs: None, outputs: Some(flat_sizes([3, 5])) });
        let recorded = details.collective_sizes(&all_gather_v, 1, Some(2));
        let (inputs, outputs) = (Some(vec![vec![5]]), Some(vec![vec![3], vec![5]]));
        assert_eq!(recorded, CallSizes { inputs, outputs });
        details.add_sizes(&CallSizes { inputs: Some(flat_sizes(0..100)), outputs: None });
        let limited = details.collective_sizes(&all_gather_v, 1, Some(2)).inputs.unwrap();
        assert_eq!(limited.len(), MAX_BUFFERS);
    }
}
