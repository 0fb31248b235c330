//! The calls that a two-level group supports. It supports a call if all inner groups of all ranks
//! support the steps of the call. The ranks agree on this table when the group is created, so each
//! call is supported on all ranks or on none. The table is small, because few operations have
//! steps.

use super::average::StepOperators;
use super::inner_group::{InnerGroup, InnerGroups, Level};
use super::operations::{SUPPORTED_KINDS, step_kinds};
use crate::backend::{BootstrapExchange, GroupFailureState, OpKind, SupportQuery};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;

/// The table, with one bit for each operation, type and operator ([`bit_of`]).
#[derive(Debug)]
pub(super) struct SupportTable(Box<[u8]>);

/// Returns the operation, type and operator of each possible call.
fn all_calls() -> impl Iterator<Item = (OpKind, Option<DataType>, Option<ReduceOp>)> {
    SUPPORTED_KINDS.into_iter().flat_map(|kind| {
        let dtypes: Vec<Option<DataType>> = match kind {
            OpKind::Barrier => vec![None],
            _ => DataType::ALL.into_iter().map(Some).collect(),
        };
        let ops: Vec<Option<ReduceOp>> = match kind.is_reduction() {
            true => ReduceOp::ALL.into_iter().map(Some).collect(),
            false => vec![None],
        };
        let with_ops = move |dtype| ops.clone().into_iter().map(move |op| (kind, dtype, op));
        dtypes.into_iter().flat_map(with_ops)
    })
}

/// The number of bits of an operation, type and operator in the table.
const DTYPE_BITS: usize = ReduceOp::ALL.len() + 1;
const KIND_BITS: usize = (DataType::ALL.len() + 1) * DTYPE_BITS;

/// Returns the bit of a call, or `None` for an operation without steps.
fn bit_of(query: &SupportQuery) -> Option<usize> {
    let kind = SUPPORTED_KINDS.iter().position(|&kind| query.kind == Some(kind))?;
    let dtype = query.dtype.map_or(0, |dtype| dtype as usize + 1);
    let op = query.op.map_or(0, |op| op as usize + 1);
    Some(kind * KIND_BITS + dtype * DTYPE_BITS + op)
}

/// Returns an error if an inner group does not support the steps of a call. `op` is the operator of
/// the steps on its level.
fn check_level(group: &InnerGroup, query: &SupportQuery, op: Option<ReduceOp>) -> Result<()> {
    let Some(kind) = query.kind else { return Ok(()) };
    let steps = step_kinds(kind)[usize::from(group.level == Level::Between)];
    steps.iter().try_for_each(|&step| {
        let op = op.filter(|_| step.is_reduction());
        let query = SupportQuery { name: step.name(), kind: Some(step), op, ..*query };
        group.backend.supports(&query)
    })
}

/// Returns an error if an inner group of this rank does not support the steps of a call.
fn check_groups(groups: &InnerGroups, query: &SupportQuery) -> Result<()> {
    let operators = match (query.op, query.dtype) {
        (Some(op), Some(dtype)) => {
            query.check_operator(op, dtype, || "two-level")?;
            Some(StepOperators::of(op, dtype, 1.0, groups.hosts.rank_count())?)
        }
        _ => None,
    };
    groups.groups().try_for_each(|group| {
        let op = operators.map(|operators| match group.level {
            Level::Inside => operators.first,
            Level::Between => operators.second,
        });
        check_level(group, query, op)
    })
}

impl SupportTable {
    /// Agrees on the table with all ranks. `device` is the device of the buffers.
    ///
    /// # Errors
    /// `Mismatch` if a rank sends another table length; the errors of the exchange.
    pub(super) fn agree(
        groups: &InnerGroups,
        device: Option<usize>,
        phase: &str,
        exchange: &dyn BootstrapExchange,
        failure_state: &dyn GroupFailureState,
    ) -> Result<Self> {
        let mut own = vec![0_u8; (SUPPORTED_KINDS.len() * KIND_BITS).div_ceil(8)];
        for (kind, dtype, op) in all_calls() {
            let query =
                SupportQuery { name: kind.name(), kind: Some(kind), dtype, op, gpu: device };
            let is_supported = check_groups(groups, &query).is_ok();
            if let Some(bit) = bit_of(&query).filter(|_| is_supported) {
                own[bit / 8] |= 1 << (bit % 8);
            }
        }
        let all = exchange.all_gather(phase, &own, &|| failure_state.failure())?;
        for (rank, theirs) in all.iter().enumerate() {
            if theirs.len() != own.len() {
                let message = format!("rank {rank} has another version of the library");
                return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
            }
            own.iter_mut().zip(theirs).for_each(|(own, theirs)| *own &= theirs);
        }
        Ok(Self(own.into()))
    }

    /// Checks a call. `name` is the name of the back end.
    ///
    /// # Errors
    /// `Unsupported`; the error says what to use instead.
    pub(super) fn check(
        &self,
        groups: &InnerGroups,
        query: &SupportQuery,
        name: &str,
    ) -> Result<()> {
        let Some(bit) = bit_of(query) else { return Err(unsupported_kind(query, name)) };
        if self.0[bit / 8] >> (bit % 8) & 1 == 1 {
            return Ok(());
        }
        // The reason may be an inner group of another rank.
        let message = match check_groups(groups, query) {
            Err(reason) => format!("{query}: back end {name}: {reason}"),
            Ok(()) => format!(
                "{query}: a back end of {name} does not support the steps of this call on another \
                 rank: use another type or operator, or a group with one back end"
            ),
        };
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// Returns the error for an operation that has no steps.
fn unsupported_kind(query: &SupportQuery, name: &str) -> Error {
    let advice = match query.kind {
        None => "send and receive in host memory",
        Some(OpKind::AllGatherV) => "pad the blocks to one length and use all_gather",
        Some(OpKind::ReduceScatterV) => "pad the blocks to one length and use reduce_scatter",
        Some(OpKind::Gather | OpKind::GatherV) => "use all_gather",
        Some(OpKind::Scatter | OpKind::ScatterV) => "use broadcast",
        Some(_) => "use send and recv",
    };
    let kinds = SUPPORTED_KINDS.map(OpKind::name).join(", ");
    let message = format!(
        "{query}: the back end {name} supports only {kinds}: {advice}, or make a group with one \
         back end for this call (dist_group_new with the option backend)"
    );
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn table_has_each_call_once() {
        let bit = |(kind, dtype, op): (OpKind, _, _)| {
            let (name, kind, gpu) = (kind.name(), Some(kind), None);
            bit_of(&SupportQuery { name, kind, dtype, op, gpu }).expect("an operation with steps")
        };
        let bits: BTreeSet<usize> = all_calls().map(bit).collect();
        let reductions = 3 * DataType::ALL.len() * ReduceOp::ALL.len();
        assert_eq!(bits.len(), reductions + 2 * DataType::ALL.len() + 1);
        assert!(bits.last().is_some_and(|&last| last < SUPPORTED_KINDS.len() * KIND_BITS));
    }

    #[test]
    fn only_operations_with_steps_are_supported() {
        for kind in OpKind::ALL {
            let has_steps = step_kinds(kind).iter().all(|steps| !steps.is_empty());
            assert_eq!(has_steps, SUPPORTED_KINDS.contains(&kind), "{}", kind.name());
        }
    }

    #[test]
    fn error_for_other_operations_says_what_to_use() {
        for kind in OpKind::ALL.into_iter().filter(|kind| !SUPPORTED_KINDS.contains(kind)) {
            let (name, kind) = (kind.name(), Some(kind));
            let query = SupportQuery { name, kind, dtype: None, op: None, gpu: None };
            let error = unsupported_kind(&query, "inside=a,between=b");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            for word in [name, "inside=a,between=b", "use ", "dist_group_new"] {
                assert!(error.message().contains(word), "{error}");
            }
        }
    }
}
