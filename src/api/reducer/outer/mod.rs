//! Local SGD and DiLoCo: each rank trains alone for a number of steps, and then the ranks agree on
//! new values.
//!
//! 1. All ranks have the same global values.
//! 2. After a number of its own steps, a rank's values differ from the global values.
//! 3. The mean of these differences over the ranks is the gradient of an outer optimizer, which
//!    updates the global values.
//! 4. Every rank continues from the new global values.
//!
//! The parameters are cut into fragments, which take turns, so that no step sends all parameters.
//! For example, with two fragments and `every` = 4, fragment 0 is due after the steps 2, 6 and 10,
//! and fragment 1 after the steps 4, 8 and 12.
//!
//! If a rank votes against an outer step, all ranks return to the global values of the fragment. If
//! a rank dies during the step, the remaining ranks retry the step with the same differences
//! ([`fragment`]). Fragments on which the ranks agreed earlier do not change.

mod fragment;
mod optimizer;
mod save;

pub use optimizer::{OuterOptimizer, OuterOptions, OuterUpdate};

use super::array::Array;
use super::param::{self, Param};
use crate::api::group::process_group::Group;
use crate::api::work::callbacks;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use crate::kernel;
use fragment::OuterFragment;
use std::sync::{Arc, Mutex, MutexGuard};

/// Statistics since the outer optimizer was created; see `dist_outer_stats_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header explains the fields")]
pub struct OuterStats {
    pub steps: u64,
    pub updates: u64,
    pub restores: u64,
    pub bytes_reduced: u64,
    pub bytes_saved: u64,
    pub communication_ns: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterStep {
    /// The fragment that was due, if any.
    pub fragment: Option<usize>,
    /// The votes of all ranks on the fragment.
    pub votes: u64,
}

/// An outer optimizer.
#[derive(Debug)]
pub struct Outer {
    params: Vec<Param>,
    options: OuterOptions,
    fragments: Vec<OuterFragment>,
    /// The number of steps. It is an array of one number, because operations send it to joining
    /// ranks.
    counter: Array<u64>,
    state: Mutex<OuterState>,
}

#[derive(Debug, Default)]
struct OuterState {
    /// The fragment whose step has begun and not ended.
    pending: Option<usize>,
    stats: OuterStats,
}

impl Outer {
    /// Creates an outer optimizer together with the other ranks of a group. If some ranks call
    /// [`Self::regroup`] instead, all ranks get the global values of these ranks. Otherwise all
    /// ranks get the parameters of rank 0.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported` before any communication; the errors of
    /// [`super::Reducer::create`].
    pub fn create(
        group: &Arc<Group>,
        params: Vec<Param>,
        options: OuterOptions,
    ) -> Result<Arc<Self>> {
        callbacks::reject_blocking_in_callback("dist_outer_create")?;
        param::check_params(&params)?;
        let trained: Vec<usize> =
            (0..params.len()).filter(|&index| params[index].is_trained()).collect();
        check(&params, trained.len(), &options)?;
        let counts: Vec<usize> = trained.iter().map(|&index| params[index].count).collect();
        let counter = Array::new(1);
        let mut fragments = Vec::with_capacity(options.fragments);
        for range in fragment::cut(&counts, options.fragments) {
            let fragment = OuterFragment::new(group, &params, &trained[range], &options, &counter)?;
            fragments.push(fragment);
        }
        let state = Mutex::default();
        Ok(Arc::new(Self { params, options, fragments, counter, state }))
    }

    fn lock(&self) -> MutexGuard<'_, OuterState> {
        lock(&self.state)
    }

    /// Returns the fragment that is due after this number of steps. The fragments are spread evenly
    /// over `every` steps.
    fn due(&self, steps: u64) -> Option<usize> {
        let (every, count) = (self.options.every, self.fragments.len());
        let position = steps % every;
        // The last fragment is due at the end of a round.
        let position = if position == 0 { every } else { position };
        (0..count).find(|&index| (index as u64 + 1) * every / count as u64 == position)
    }

    /// Counts a step that the caller has made. If a fragment is due, the ranks agree on it. After a
    /// failure and [`Self::regroup`], the caller repeats the call.
    ///
    /// # Errors
    /// The errors of [`super::Reducer::end`].
    pub fn step(&self, vote: u64) -> Result<OuterStep> {
        callbacks::reject_blocking_in_callback("dist_outer_step")?;
        let Some(fragment) = self.begin_step()? else {
            return Ok(OuterStep { fragment: None, votes: 0 });
        };
        let part = &self.fragments[fragment];
        let votes = part.end(&self.params, &self.options, vote)?;
        let mut state = self.lock();
        state.pending = None;
        let done = part.reducer.stats();
        let stats = &mut state.stats;
        stats.bytes_reduced += done.bytes_reduced;
        stats.bytes_saved += done.bytes_saved;
        stats.communication_ns += done.communication_ns;
        *(if votes == 0 { &mut stats.updates } else { &mut stats.restores }) += 1;
        Ok(OuterStep { fragment: Some(fragment), votes })
    }

    /// Returns the fragment that is due, or the fragment whose step must be retried.
    fn begin_step(&self) -> Result<Option<usize>> {
        if let Some(pending) = self.lock().pending {
            return Ok(Some(pending));
        }
        let steps = self.counter.get(0) + 1;
        self.counter.set(0, steps);
        self.lock().stats.steps += 1;
        let Some(due) = self.due(steps) else { return Ok(None) };
        self.lock().pending = Some(due);
        self.fragments[due].begin(&self.params)?;
        Ok(Some(due))
    }

    /// Continues in another group. Each rank of `group` calls this, or creates an outer optimizer.
    ///
    /// # Errors
    /// The errors of [`super::Reducer::regroup`].
    pub fn regroup(&self, group: &Arc<Group>) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_outer_regroup")?;
        self.fragments.iter().try_for_each(|fragment| fragment.reducer.regroup(group))
    }

    /// Returns the global values of a parameter, the state of the optimizer if it has one, and the
    /// number of elements.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter that does not exist or is not trained.
    pub fn values(&self, param: usize) -> Result<(*mut f32, Option<*mut f32>, usize)> {
        let members = self.fragments.iter().flat_map(|fragment| &fragment.members);
        let Some(member) = members.into_iter().find(|member| member.index == param) else {
            let message = format!("parameter {param} does not exist, is frozen or is a buffer");
            return Err(Error::invalid(message));
        };
        let state = (member.state.len() > 0).then(|| member.state.as_mut_ptr());
        Ok((member.global.as_mut_ptr(), state, member.global.len()))
    }

    /// Returns the statistics.
    pub fn stats(&self) -> OuterStats {
        self.lock().stats
    }

    /// Waits until no operation uses the memory of this object. Each operation has a deadline, so
    /// the wait ends.
    pub fn retire(&self) {
        self.fragments.iter().for_each(|fragment| fragment.reducer.retire());
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        // The operations use the global values, so they must end first.
        self.retire();
    }
}

fn check(params: &[Param], trained: usize, options: &OuterOptions) -> Result<()> {
    let OuterOptions { every, fragments, .. } = options;
    if *every == 0 {
        return Err(Error::invalid("every is 0: pass the number of steps between two agreements"));
    }
    if *fragments == 0 || *fragments > trained.max(1) || *fragments as u64 > *every {
        let message = format!(
            "fragments is {fragments}: there are {trained} parameters with gradients, and every is \
             {every}: pass a number from 1 to the smaller of the two"
        );
        return Err(Error::invalid(message));
    }
    if options.has_no_communication() {
        return Err(Error::invalid(
            "hook is \"none\": the ranks would never exchange their parameters",
        ));
    }
    for param in params.iter().filter(|param| param.is_trained()) {
        let wrong = match (param.is_sparse, param.device) {
            (true, _) => "has sparse rows",
            (_, Some(_)) => "is in the memory of a device",
            _ if !kernel::is_convertible(param.dtype) => "is neither f16, bf16, f32 nor f64",
            _ => continue,
        };
        let message =
            format!("parameter \"{}\" {wrong}: an outer optimizer does not support it", param.name);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}
