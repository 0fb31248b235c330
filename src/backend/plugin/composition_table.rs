//! The methods that compose an operation that a plug-in does not have from operations that it has.
//! [`CompositionTable`] selects the method for each operation, and [`super::compose`] runs the
//! methods.

use super::communicator::OperationKinds;
use crate::backend::{OpKind, SupportQuery};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;

/// The method that runs an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompositionMethod {
    /// The plug-in's own operation.
    Direct,
    /// One all_reduce, after which each rank copies the part of the result that it needs.
    AllReduce,
    /// One reduce to rank 0, and one broadcast from rank 0.
    ReduceAndBroadcast,
    /// One broadcast from each rank that has data.
    Broadcasts,
    /// One all_gather, after which each rank uses the part of the result that it needs.
    AllGather,
    /// Messages between each pair of ranks that have data for each other.
    Messages,
    /// No method exists.
    Unavailable,
}

/// The method of each operation.
#[derive(Debug)]
pub(super) struct CompositionTable([CompositionMethod; OpKind::ALL.len()]);

impl CompositionTable {
    /// Selects the method for each operation. `kinds` contains the operations that the plug-in has.
    /// Of the candidates for an operation, the first possible method is selected.
    pub(super) fn for_kinds(kinds: OperationKinds) -> Self {
        Self(OpKind::ALL.map(|kind| {
            let possible = candidates(kind).iter().copied();
            possible
                .into_iter()
                .find(|method| method.is_possible(kinds, kind))
                .unwrap_or(CompositionMethod::Unavailable)
        }))
    }

    pub(super) fn method_for(&self, kind: OpKind) -> CompositionMethod {
        self.0[kind as usize]
    }
}

/// Returns the candidates for an operation, in order of preference.
fn candidates(kind: OpKind) -> &'static [CompositionMethod] {
    match kind {
        OpKind::AllReduce => &[CompositionMethod::Direct, CompositionMethod::ReduceAndBroadcast],
        OpKind::Reduce | OpKind::ReduceScatter | OpKind::ReduceScatterV => {
            &[CompositionMethod::Direct, CompositionMethod::AllReduce]
        }
        OpKind::Barrier => {
            &[CompositionMethod::Direct, CompositionMethod::AllReduce, CompositionMethod::AllGather]
        }
        OpKind::AllGather | OpKind::AllGatherV => {
            &[CompositionMethod::Direct, CompositionMethod::Broadcasts]
        }
        OpKind::Gather => {
            &[CompositionMethod::Direct, CompositionMethod::Messages, CompositionMethod::AllGather]
        }
        OpKind::Scatter => {
            &[CompositionMethod::Direct, CompositionMethod::Messages, CompositionMethod::Broadcasts]
        }
        OpKind::Broadcast
        | OpKind::AllToAll
        | OpKind::GatherV
        | OpKind::ScatterV
        | OpKind::AllToAllV => &[CompositionMethod::Direct, CompositionMethod::Messages],
        OpKind::Scan | OpKind::Exscan => &[CompositionMethod::Direct, CompositionMethod::AllGather],
    }
}

impl CompositionMethod {
    fn is_possible(self, kinds: OperationKinds, kind: OpKind) -> bool {
        match self {
            Self::Direct => kinds.has(kind),
            Self::AllReduce => kinds.has(OpKind::AllReduce),
            Self::ReduceAndBroadcast => kinds.has(OpKind::Reduce) && kinds.has(OpKind::Broadcast),
            Self::Broadcasts => kinds.has(OpKind::Broadcast),
            Self::AllGather => kinds.has(OpKind::AllGather),
            Self::Messages => kinds.has_messages(),
            Self::Unavailable => true,
        }
    }

    /// Returns the text for `dist_group_describe`.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Direct => "own",
            Self::AllReduce => "made of all_reduce",
            Self::ReduceAndBroadcast => "made of reduce and broadcast",
            Self::Broadcasts => "made of broadcast",
            Self::AllGather => "made of all_gather",
            Self::Messages => "made of send and recv",
            Self::Unavailable => "none",
        }
    }

    /// Returns the kinds of calls that the plug-in must support, so that this method can run the
    /// original operation `whole`.
    pub(super) fn queries(self, whole: &SupportQuery) -> Vec<SupportQuery> {
        let bytes = Some(DataType::U8);
        let of = |kind: OpKind, dtype, op| SupportQuery {
            name: kind.name(),
            kind: Some(kind),
            dtype,
            op,
            gpu: None,
        };
        match self {
            Self::Direct | Self::Unavailable => vec![*whole],
            Self::AllReduce if whole.op.is_none() => {
                vec![of(OpKind::AllReduce, bytes, Some(ReduceOp::Max))]
            }
            Self::AllReduce => vec![of(OpKind::AllReduce, whole.dtype, whole.op)],
            Self::ReduceAndBroadcast => vec![
                of(OpKind::Reduce, whole.dtype, whole.op),
                of(OpKind::Broadcast, whole.dtype, None),
            ],
            Self::Broadcasts => vec![of(OpKind::Broadcast, whole.dtype, None)],
            Self::AllGather => vec![of(OpKind::AllGather, whole.dtype.or(bytes), None)],
            Self::Messages => ["send", "recv"]
                .map(|name| SupportQuery { name, kind: None, dtype: bytes, op: None, gpu: None })
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_for(kinds: &[OpKind], messages: bool) -> CompositionTable {
        let bits =
            kinds.iter().fold(u64::from(messages) << 32, |bits, &kind| bits | 1 << kind as u32);
        CompositionTable::for_kinds(OperationKinds::from_bits(bits).unwrap())
    }

    #[test]
    fn plugin_operations_are_never_composed() {
        let all = CompositionTable::for_kinds(OperationKinds::from_bits(0).unwrap());
        assert!(OpKind::ALL.iter().all(|&kind| all.method_for(kind) == CompositionMethod::Direct));
        assert!(
            OperationKinds::from_bits(1 << OpKind::ALL.len()).is_err()
                && OperationKinds::from_bits(1 << 33).is_err()
        );
    }

    #[test]
    fn composition_uses_only_available_operations() {
        let messages = table_for(&[], true);
        for kind in OpKind::ALL {
            let expected = match kind {
                OpKind::Broadcast
                | OpKind::Gather
                | OpKind::Scatter
                | OpKind::AllToAll
                | OpKind::GatherV
                | OpKind::ScatterV
                | OpKind::AllToAllV => CompositionMethod::Messages,
                _ => CompositionMethod::Unavailable,
            };
            assert_eq!(messages.method_for(kind), expected, "{}", kind.name());
        }
        let reduces = table_for(&[OpKind::AllReduce], false);
        for kind in [OpKind::Reduce, OpKind::ReduceScatter, OpKind::ReduceScatterV, OpKind::Barrier]
        {
            assert_eq!(reduces.method_for(kind), CompositionMethod::AllReduce);
        }
        assert_eq!(reduces.method_for(OpKind::AllGather), CompositionMethod::Unavailable);
        let pair = table_for(&[OpKind::Reduce, OpKind::Broadcast], false);
        assert_eq!(pair.method_for(OpKind::AllReduce), CompositionMethod::ReduceAndBroadcast);
        assert_eq!(pair.method_for(OpKind::Scatter), CompositionMethod::Broadcasts);
        // Sub-operations must be the plug-in's own: no operation is composed of composed
        // operations.
        assert_eq!(pair.method_for(OpKind::Reduce), CompositionMethod::Direct);
        assert_eq!(pair.method_for(OpKind::ReduceScatter), CompositionMethod::Unavailable);
    }

    #[test]
    fn composed_queries_match_the_suboperations() {
        let whole = SupportQuery {
            name: "reduce",
            kind: Some(OpKind::Reduce),
            dtype: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            gpu: None,
        };
        let queries = CompositionMethod::AllReduce.queries(&whole);
        assert_eq!(queries.len(), 1);
        assert_eq!(queries[0].to_string(), "all_reduce (f32, SUM)");
        let barrier = SupportQuery {
            name: "barrier",
            kind: Some(OpKind::Barrier),
            dtype: None,
            op: None,
            gpu: None,
        };
        assert_eq!(
            CompositionMethod::AllReduce.queries(&barrier)[0].to_string(),
            "all_reduce (u8, MAX)"
        );
        assert_eq!(
            CompositionMethod::AllGather.queries(&barrier)[0].to_string(),
            "all_gather (u8)"
        );
    }
}
