//! A fragment: some of the parameters with their global values (the values on which the ranks last
//! agreed), and a reducer. The reducer averages the differences between the global values and the
//! values of each rank. It also provides the agreement on a fragment, the retry after a failure,
//! and the values for a joining rank.

use super::super::array::Array;
use super::super::ballot::VoteDelivery;
use super::super::options::ReducerOptions;
use super::super::param::{Param, ParamRole};
use super::super::reducer_state::Reducer;
use super::optimizer::{OptimizerMemory, OuterOptions};
use crate::api::group::process_group::Group;
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::kernel;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A parameter of a fragment.
#[derive(Debug)]
pub(super) struct FragmentParam {
    /// The index of the parameter in the caller's list.
    pub(super) index: usize,
    pub(super) global: Array<f32>,
    /// The optimizer's state; empty if the optimizer has none.
    pub(super) state: Array<f32>,
}

#[derive(Debug)]
pub(super) struct OuterFragment {
    pub(super) members: Vec<FragmentParam>,
    /// Whether the optimizer has a state for each member. Each state is a parameter of the reducer.
    has_states: bool,
    pub(super) reducer: Arc<Reducer>,
}

/// Cuts the parameters into contiguous parts with about equal numbers of elements. `counts` has the
/// number of elements of each parameter. For example, the counts 4, 4 and 8 are cut into the two
/// parts 0..2 and 2..3.
pub(super) fn cut(counts: &[usize], parts: usize) -> Vec<Range<usize>> {
    let total: usize = counts.iter().sum();
    let mut ranges = Vec::new();
    let (mut begin, mut sum) = (0, 0);
    for (index, count) in counts.iter().enumerate() {
        sum += count;
        let is_full = sum * parts >= total * (ranges.len() + 1);
        // Each remaining part must get at least one of the remaining parameters.
        let is_needed = counts.len() - index - 1 < parts - ranges.len();
        if (is_full || is_needed) && ranges.len() + 1 < parts {
            ranges.push(begin..index + 1);
            begin = index + 1;
        }
    }
    ranges.push(begin..counts.len());
    ranges
}

impl OuterFragment {
    /// Creates a fragment. All ranks call this. They get the values of the lowest rank that already
    /// has the fragment, or of rank 0 if no rank has it.
    pub(super) fn new(
        group: &Arc<Group>,
        params: &[Param],
        indices: &[usize],
        options: &OuterOptions,
        counter: &Array<u64>,
    ) -> Result<Self> {
        let has_states = options.optimizer.has_state();
        let mut members = Vec::with_capacity(indices.len());
        let mut own = Vec::with_capacity(2 * indices.len() + 1);
        for &index in indices {
            let param = &params[index];
            let state = Array::new(if has_states { param.count } else { 0 });
            let member = FragmentParam { index, global: Array::new(param.count), state };
            member.read_local(param, &member.global);
            own.push(inner_param(&param.name, member.global.view(), ParamRole::Trained));
            if has_states {
                let name = format!("the outer state of {}", param.name);
                own.push(inner_param(&name, member.state.view(), ParamRole::Buffer));
            }
            members.push(member);
        }
        let bytes = counter.view();
        let name = format!("the number of steps, {}", options.agreement());
        own.push(Param {
            dtype: DataType::U8,
            grad_dtype: DataType::U8,
            count: bytes.len(),
            ..inner_param(&name, bytes, ParamRole::Buffer)
        });
        let reducer = Reducer::create(group, own, reducer_options(options))?;
        let fragment = Self { members, has_states, reducer };
        fragment.restore(params);
        Ok(fragment)
    }

    /// Copies the global values into this rank's parameters.
    pub(super) fn restore(&self, params: &[Param]) {
        for member in &self.members {
            let param = &params[member.index];
            let values: Vec<f32> = (0..param.count).map(|at| member.global.get(at)).collect();
            kernel::narrow(param.dtype, &values, param.data);
        }
    }

    /// Begins a step of the reducer with the difference between the global values and this rank's
    /// values.
    pub(super) fn begin(&self, params: &[Param]) -> Result<()> {
        self.reducer.begin(0.0, true)?;
        for (position, member) in self.members.iter().enumerate() {
            let param = &params[member.index];
            let (grad, _) = self.reducer.grad(self.inner_index(position))?;
            let mut values = vec![0.0; param.count];
            kernel::widen(param.dtype, 1.0, param.data.as_src(), &mut values);
            for (at, value) in values.iter_mut().enumerate() {
                *value = member.global.get(at) - *value;
            }
            kernel::narrow(DataType::F32, &values, grad);
        }
        let all: Vec<usize> = (0..self.members.len()).map(|at| self.inner_index(at)).collect();
        self.reducer.ready(&all)
    }

    /// Ends the step, or ends it again after a failure, and returns the votes of all ranks. If no
    /// rank votes against the step, the optimizer updates the global values. Then the global values
    /// are copied into this rank's parameters.
    pub(super) fn end(&self, params: &[Param], options: &OuterOptions, vote: u64) -> Result<u64> {
        let votes = Arc::new(AtomicU64::new(0));
        let all = Arc::clone(&votes);
        let deliver = VoteDelivery::new(move |votes| all.store(votes, Ordering::Relaxed));
        self.reducer.end(vote, deliver)?;
        let votes = votes.load(Ordering::Relaxed);
        if votes == 0 {
            for (position, member) in self.members.iter().enumerate() {
                let (result, count) = self.reducer.result(self.inner_index(position))?;
                let mut gradient = vec![0.0; count];
                kernel::widen(DataType::F32, 1.0, result.as_src(), &mut gradient);
                let memory = OptimizerMemory { global: &member.global, state: &member.state };
                // Each rank computes the same update, so all ranks must get the same bits.
                kernel::with_default_float_mode(|| {
                    options.optimizer.update(member.index, memory, &gradient);
                });
            }
        }
        self.restore(params);
        Ok(votes)
    }

    /// Returns the index, in the reducer, of the parameter with a member's global values. If
    /// members have states, each member has two parameters in the reducer.
    fn inner_index(&self, position: usize) -> usize {
        if self.has_states { 2 * position } else { position }
    }
}

impl FragmentParam {
    /// Reads this rank's values of a parameter.
    fn read_local(&self, param: &Param, into: &Array<f32>) {
        let mut values = vec![0.0; param.count];
        kernel::widen(param.dtype, 1.0, param.data.as_src(), &mut values);
        values.iter().enumerate().for_each(|(at, value)| into.set(at, *value));
    }
}

fn inner_param(name: &str, data: Dst<'static>, role: ParamRole) -> Param {
    Param {
        name: name.to_owned(),
        data,
        grad: None,
        shape: Vec::new(),
        count: data.len() / size_of::<f32>(),
        dtype: DataType::F32,
        grad_dtype: DataType::F32,
        device: None,
        is_sparse: false,
        role,
        tag: 0,
    }
}

fn reducer_options(options: &OuterOptions) -> ReducerOptions {
    ReducerOptions {
        timeout_ms: options.timeout_ms,
        is_retryable: true,
        has_fixed_layout: true,
        hook: options.hook.clone(),
        name: options.name.clone(),
        ..ReducerOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_even_and_cover_all_parameters() {
        assert_eq!(cut(&[10, 10, 10, 10], 2), [0..2, 2..4]);
        assert_eq!(cut(&[1, 1, 1, 100], 2), [0..3, 3..4]);
        assert_eq!(cut(&[100, 1, 1, 1], 3), [0..1, 1..2, 2..4]);
        for counts in [vec![5], vec![0, 0, 0], vec![3, 1, 4, 1, 5, 9, 2, 6]] {
            for parts in 1..=counts.len() {
                let ranges = cut(&counts, parts);
                assert_eq!(ranges.len(), parts);
                assert!(ranges.iter().all(|range| !range.is_empty()), "{ranges:?}");
                let all: Vec<usize> = ranges.into_iter().flatten().collect();
                assert_eq!(all, (0..counts.len()).collect::<Vec<_>>());
            }
        }
    }
}
