//! Local SGD and DiLoCo: ranks train on their own for a number of steps, and then agree on new
//! values.
//!
//! All ranks have the same global values. After so many steps of its own a rank has moved away from
//! them. The mean of these distances over the ranks is the gradient of an outer optimizer, which
//! updates the global values; then every rank goes on from these. The parameters are cut into
//! fragments, which take turns, so that no step sends all of them.
//!
//! If a rank votes against an outer step, all ranks go back to the global values of the fragment.
//! If a rank dies in it, the ranks that are left repeat it with the same distances ([`fragment`]);
//! the fragments that were agreed on before are as they were.

mod fragment;
mod optimizer;
mod save;

pub use optimizer::{OuterOptimizer, OuterUpdate};

use super::array::Array;
use super::hook::HookChoice;
use super::param::{self, Param};
use crate::api::callbacks;
use crate::api::group::Group;
use crate::base::error::{Error, ErrorKind, Result};
use crate::kernel;
use fragment::OuterFragment;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See `dist_outer_options_t`.
#[derive(Clone, Debug)]
pub struct OuterOptions {
    /// Each fragment is agreed on after so many steps.
    pub every: u64,
    /// The number of fragments.
    pub fragments: usize,
    /// What updates the global values.
    pub optimizer: OuterOptimizer,
    /// How distances are reduced.
    pub hook: HookChoice,
    /// The deadline of each operation in milliseconds; 0 for the group's, `u64::MAX` for none.
    pub timeout_ms: u64,
    /// A name for the log.
    pub name: String,
}

/// Figures since the outer optimizer was created; see `dist_outer_stats_t`.
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

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterStep {
    /// The fragment that was due, if one was.
    pub fragment: Option<usize>,
    /// The votes of all ranks on it.
    pub votes: u64,
}

/// An outer optimizer.
#[derive(Debug)]
pub struct Outer {
    params: Vec<Param>,
    options: OuterOptions,
    fragments: Vec<OuterFragment>,
    /// The number of steps; one number, since operations bring it to ranks that join.
    counter: Array<u64>,
    state: Mutex<OuterState>,
}

#[derive(Debug, Default)]
struct OuterState {
    /// A fragment whose step has begun and not ended.
    pending: Option<usize>,
    stats: OuterStats,
}

impl Outer {
    /// Makes an outer optimizer together with the other ranks of a group. All get the parameters of
    /// rank 0, or the global values of ranks that call [`Self::regroup`].
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported` with nothing done; those of [`super::Reducer::create`].
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
            let of = (&options, &counter);
            fragments.push(OuterFragment::new(group, &params, &trained[range], of)?);
        }
        let state = Mutex::default();
        Ok(Arc::new(Self { params, options, fragments, counter, state }))
    }

    fn lock(&self) -> MutexGuard<'_, OuterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fragment that is due after so many steps: they are spread over the steps.
    fn due(&self, steps: u64) -> Option<usize> {
        let (every, count) = (self.options.every, self.fragments.len());
        let position = steps % every;
        // The last fragment is due at the end of a round.
        let position = if position == 0 { every } else { position };
        (0..count).find(|&index| (index as u64 + 1) * every / count as u64 == position)
    }

    /// The caller has made a step of its own. If a fragment is due, the ranks agree on it. After a
    /// failure and [`Self::regroup`], the call is repeated.
    ///
    /// # Errors
    /// Those of [`super::Reducer::end`].
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

    /// The fragment that is due, or whose step is to be repeated.
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

    /// Goes on in another group. All its ranks call this, or create an outer optimizer.
    ///
    /// # Errors
    /// Those of [`super::Reducer::regroup`].
    pub fn regroup(&self, group: &Arc<Group>) -> Result<()> {
        callbacks::reject_blocking_in_callback("dist_outer_regroup")?;
        self.fragments.iter().try_for_each(|fragment| fragment.reducer.regroup(group))
    }

    /// The global values of a parameter and the state of the optimizer, with the number of
    /// elements; no state if that has none.
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

    /// Figures.
    pub fn stats(&self) -> OuterStats {
        self.lock().stats
    }

    /// Waits until no operation uses the memory any more. Operations have deadlines.
    pub fn retire(&self) {
        self.fragments.iter().for_each(|fragment| fragment.reducer.retire());
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        // Operations use the global values.
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
            "fragments is {fragments}: there are {trained} parameters with gradients, and every is {every}: pass a number from \
             1 to the smaller one"
        );
        return Err(Error::invalid(message));
    }
    if options.has_no_communication() {
        return Err(Error::invalid("hook is \"none\": the ranks would never agree"));
    }
    for param in params.iter().filter(|param| param.is_trained()) {
        let wrong = match (param.is_sparse, param.device) {
            (true, _) => "has sparse rows",
            (_, Some(_)) => "is in the memory of a device",
            _ if !kernel::is_convertible(param.dtype) => "is neither f16, bf16, f32 nor f64",
            _ => continue,
        };
        let message =
            format!("parameter \"{}\" {wrong}: an outer optimizer has none of these", param.name);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}
