//! Statistics, a description of the reducer, and log lines.
//!
//! With the debug level INFO, the log has a line when the reducer is created. With DETAIL, it has a
//! line for each of the first steps, and then for every hundredth step, as c10d's logger
//! (`logger.hpp`). The names of the fields are those of c10d.

use super::ballot::Ballot;
use super::step::ReducerStep;
use super::{Reducer, ReducerState};
use crate::api::group::process_group::Group;
use crate::base::debug::{self, DebugLevel};
use crate::base::log;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The number of first steps that have a line each.
const ALWAYS_LOGGED_STEPS: u64 = 10;

/// The interval between later steps with a line.
const LOG_INTERVAL_STEPS: u64 = 100;

/// Statistics of the last step that ended; see `dist_reducer_stats_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header explains the fields")]
pub struct ReducerStats {
    pub steps: u64,
    pub n_buckets: u64,
    pub bytes_reduced: u64,
    pub bytes_saved: u64,
    pub bytes_copied: u64,
    pub first_ready_to_last_ready_ns: u64,
    pub communication_ns: u64,
    pub exposed_ns: u64,
    pub step_ns: u64,
    pub rebuilds: u64,
    pub retries: u64,
}

/// The statistics of the last step, and sums over all steps.
#[derive(Clone, Debug, Default)]
pub(super) struct ReducerTotals {
    last: ReducerStats,
    bytes_reduced: u64,
    bytes_saved: u64,
    bytes_copied: u64,
    communication: Duration,
    exposed: Duration,
    time: Duration,
    pub(super) rebuilds: u64,
    pub(super) retries: u64,
}

fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time between two events, or 0 if one did not happen.
fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    from.zip(to).map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from))
}

impl ReducerTotals {
    /// Adds an ended step.
    pub(super) fn add(&mut self, step: &ReducerStep, n_buckets: usize) {
        let notes = step.notes.lock();
        let times = &step.times;
        let whole = between(Some(times.begun), times.ended);
        let bytes_saved = notes.bytes_reduced.saturating_sub(notes.bytes_sent);
        self.last = ReducerStats {
            n_buckets: n_buckets as u64,
            bytes_reduced: notes.bytes_reduced,
            bytes_saved,
            bytes_copied: notes.bytes_copied,
            first_ready_to_last_ready_ns: saturating_ns(between(
                times.first_ready,
                times.last_ready,
            )),
            communication_ns: saturating_ns(notes.communication),
            step_ns: saturating_ns(whole),
            ..ReducerStats::default()
        };
        self.bytes_reduced += notes.bytes_reduced;
        self.bytes_saved += bytes_saved;
        self.bytes_copied += notes.bytes_copied;
        self.communication += notes.communication;
        self.time += whole;
    }

    /// Returns how long the caller waited for the end of the last step.
    pub(super) fn exposed(&mut self, time: Duration) {
        self.last.exposed_ns = saturating_ns(time);
        self.exposed += time;
    }
}

impl Reducer {
    /// Returns the statistics of the last step that ended.
    pub fn stats(&self) -> ReducerStats {
        let state = self.settled();
        let ReducerTotals { last, rebuilds, retries, .. } = state.totals;
        ReducerStats { steps: state.steps, rebuilds, retries, ..last }
    }

    /// Returns the parameters, the buckets, the options and the sums over all steps.
    pub fn describe(&self) -> Value {
        let state = self.settled();
        let totals = &state.totals;
        let buckets: Vec<Value> = state
            .memory
            .layout
            .buckets
            .iter()
            .map(|bucket| {
                let names: Vec<&str> =
                    bucket.params.iter().map(|&param| self.params[param].name.as_str()).collect();
                json!({ "bytes": bucket.bytes, "dtype": bucket.dtype.name(), "params": names })
            })
            .collect();
        json!({
            "name": self.options.name,
            "phase": state.phase.name(),
            "steps": state.steps,
            "num_parameter_tensors": self.trained_params(),
            "total_parameter_size_bytes": self.param_bytes(),
            "options": self.options.agreement(),
            "buckets": buckets,
            "memory_bytes": state.memory.bytes() + state.own.as_ref().map_or(0, |own| own.bytes()),
            "bytes_reduced": totals.bytes_reduced,
            "bytes_saved": totals.bytes_saved,
            "bytes_copied": totals.bytes_copied,
            "communication_ns": saturating_ns(totals.communication),
            "exposed_ns": saturating_ns(totals.exposed),
            "step_ns": saturating_ns(totals.time),
            "rebuilds": totals.rebuilds,
            "retries": totals.retries,
        })
    }

    fn trained_params(&self) -> usize {
        self.params.iter().filter(|param| param.is_trained()).count()
    }

    fn param_bytes(&self) -> usize {
        let trained = self.params.iter().filter(|param| param.is_trained());
        trained.map(|param| param.count * param.dtype.size()).sum()
    }

    /// Logs the creation of the reducer.
    pub(super) fn log_creation(&self, group: &Group) {
        if debug::level() < DebugLevel::Info || !log::enabled(log::LogLevel::Info) {
            return;
        }
        let memory = std::sync::Arc::clone(&self.lock().memory);
        let dtypes: BTreeSet<&str> = self
            .params
            .iter()
            .filter(|param| param.is_trained())
            .map(|param| param.grad_dtype.name())
            .collect();
        let sizes: Vec<String> =
            memory.layout.buckets.iter().map(|bucket| bucket.bytes.to_string()).collect();
        let limits = self.options.limits(&self.params);
        let has_bucket_views =
            self.params.iter().any(|param| param.is_trained() && param.grad.is_none());
        crate::log!(
            log::LogLevel::Info,
            "reducer on {}: world_size: {}, module_name: {}, backend_name: {}, broadcast_buffers: {}, bucket_cap_bytes: \
             {}, find_unused_parameters: {}, gradient_as_bucket_view: {has_bucket_views}, static_graph: {}, join_uneven_inputs: {}, \
             num_parameter_tensors: {}, total_parameter_size_bytes: {}, dtypes: {}, bucket_sizes: {}",
            group.describe_rank(),
            group.size(),
            if self.options.name.is_empty() { "unnamed" } else { &self.options.name },
            group.backend_name(),
            self.options.broadcasts_buffers,
            limits.rest,
            self.options.missing != super::MissingPolicy::Error,
            self.options.is_static,
            self.options.is_uneven,
            self.trained_params(),
            self.param_bytes(),
            dtypes.into_iter().collect::<Vec<_>>().join(", "),
            sizes.join(", ")
        );
    }

    /// Logs the end of a step.
    pub(super) fn log_step(
        &self,
        state: &ReducerState,
        step: &ReducerStep,
        ballot: &Ballot,
        group: &Group,
    ) {
        let is_due =
            step.number < ALWAYS_LOGGED_STEPS || step.number.is_multiple_of(LOG_INTERVAL_STEPS);
        if debug::level() < DebugLevel::Detail || !is_due || !log::enabled(log::LogLevel::Info) {
            return;
        }
        let times = &step.times;
        let notes = step.notes.lock();
        let unused: Vec<String> = self
            .params
            .iter()
            .enumerate()
            .filter(|&(index, param)| param.is_trained() && !ballot.is_used(index))
            .map(|(_, param)| format!("\"{}\"", param.name))
            .collect();
        let unused_bytes: usize = self
            .params
            .iter()
            .enumerate()
            .filter(|&(index, param)| param.is_trained() && !ballot.is_used(index))
            .map(|(_, param)| param.count * param.dtype.size())
            .sum();
        let compute = between(times.first_ready, times.last_ready);
        let communication = between(times.first_sent, notes.last_end);
        let overlap = between(times.first_sent, times.last_ready).min(communication);
        crate::log!(
            log::LogLevel::Info,
            "reducer on {}: iteration: {}, unused_parameter_size: {unused_bytes}, unused_parameters: {}, \
             has_rebuilt_buckets: {}, num_buckets_reduced: {}, forward_compute_time: {}, backward_compute_time: {}, \
             backward_comm_time: {}, backward_compute_comm_overlap_time: {}, votes: {:#x} of ranks {:?} (times in ns)",
            group.describe_rank(),
            step.number,
            if unused.is_empty() { "none".to_owned() } else { unused.join(", ") },
            state.totals.rebuilds > 0,
            step.sent,
            saturating_ns(between(Some(times.begun), times.first_ready)),
            saturating_ns(compute),
            saturating_ns(communication),
            saturating_ns(overlap),
            ballot.votes(),
            ballot.voters()
        );
    }
}
