//! The statistics and the description of a reducer, and its log lines.
//!
//! With the debug level INFO, the log has some lines when the reducer is created. With DETAIL, it
//! has some lines for each of the first steps, and then for every hundredth step, as c10d's logger
//! (`logger.hpp`) does. The names of the fields are those of c10d.

use super::ballot::Ballot;
use super::options::MissingPolicy;
use super::param::Param;
use super::reducer_state::{Reducer, ReducerState};
use super::stats::{ReducerStats, ReducerTotals, between_ns};
use super::step::ReducerStep;
use crate::api::group::process_group::Group;
use crate::base::debug::{self, DebugLevel};
use crate::base::log;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The maximum number of items of a list in a log line.
const MAX_LISTED: usize = 6;

/// The number of first steps that are logged.
const ALWAYS_LOGGED_STEPS: u64 = 10;

/// The interval between later steps that are logged.
const LOG_INTERVAL_STEPS: u64 = 100;

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
        let (totals, sums) = (&state.totals, &state.totals.sums);
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
            "num_parameter_tensors": self.trained_params().count(),
            "total_parameter_size_bytes": self.param_bytes(),
            "options": self.options.agreement(),
            "buckets": buckets,
            "memory_bytes": state.memory.bytes() + state.own.as_ref().map_or(0, |own| own.bytes()),
            "bytes_reduced": sums.bytes_reduced,
            "bytes_saved": sums.bytes_saved,
            "bytes_copied": sums.bytes_copied,
            "communication_ns": sums.communication_ns,
            "exposed_ns": sums.exposed_ns,
            "step_ns": sums.step_ns,
            "rebuilds": totals.rebuilds,
            "retries": totals.retries,
        })
    }

    fn trained_params(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| param.is_trained())
    }

    fn param_bytes(&self) -> usize {
        self.trained_params().map(|param| param.count * param.dtype.size()).sum()
    }

    /// Logs the creation of the reducer.
    pub(super) fn log_creation(&self, group: &Group) {
        if debug::level() < DebugLevel::Info || !log::enabled(log::LogLevel::Info) {
            return;
        }
        let memory = Arc::clone(&self.lock().memory);
        let dtypes: BTreeSet<&str> =
            self.trained_params().map(|param| param.grad_dtype.name()).collect();
        let sizes: Vec<String> =
            memory.layout.buckets.iter().map(|bucket| bucket.bytes.to_string()).collect();
        let limits = self.options.limits(&self.params);
        let has_bucket_views = self.trained_params().any(|param| param.grad.is_none());
        let options = &self.options;
        let name = if options.name.is_empty() { "unnamed" } else { &options.name };
        let fields = [
            ("world_size", group.size().to_string()),
            ("module_name", name.to_owned()),
            ("backend_name", group.backend_name().to_owned()),
            ("num_parameter_tensors", self.trained_params().count().to_string()),
            ("total_parameter_size_bytes", self.param_bytes().to_string()),
            ("dtypes", dtypes.into_iter().collect::<Vec<_>>().join(", ")),
            ("broadcast_buffers", options.broadcasts_buffers.to_string()),
            ("bucket_cap_bytes", limits.rest.to_string()),
            ("find_unused_parameters", (options.missing != MissingPolicy::Error).to_string()),
            ("gradient_as_bucket_view", has_bucket_views.to_string()),
            ("static_graph", options.is_static.to_string()),
            ("join_uneven_inputs", options.is_uneven.to_string()),
            ("bucket_sizes", format_list(&sizes)),
        ];
        let head = format!("reducer on {}", group.describe_rank());
        log::write_fields(log::LogLevel::Info, &head, &fields);
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
        let notes = step.log.lock();
        let is_unused =
            |&(index, param): &(usize, &Param)| param.is_trained() && !ballot.is_used(index);
        let unused = || self.params.iter().enumerate().filter(is_unused).map(|(_, param)| param);
        let names: Vec<String> = unused().map(|param| format!("\"{}\"", param.name)).collect();
        let unused_bytes: usize = unused().map(|param| param.count * param.dtype.size()).sum();
        let compute = between_ns(times.first_ready, times.last_ready);
        let communication = between_ns(times.first_sent, notes.last_end);
        let overlap = between_ns(times.first_sent, times.last_ready).min(communication);
        let voters: Vec<String> = ballot.voters().iter().map(ToString::to_string).collect();
        let forward = between_ns(times.begun, times.first_ready);
        let fields = [
            ("has_rebuilt_buckets", (state.totals.rebuilds > 0).to_string()),
            ("num_buckets_reduced", step.sent.to_string()),
            ("unused_parameter_size", unused_bytes.to_string()),
            ("unused_parameters", format_list(&names)),
            ("forward_compute_time", format!("{forward} ns")),
            ("backward_compute_time", format!("{compute} ns")),
            ("backward_comm_time", format!("{communication} ns")),
            ("backward_compute_comm_overlap_time", format!("{overlap} ns")),
            ("votes", format!("{:#x}", ballot.votes())),
            ("voters", format_list(&voters)),
        ];
        let head = format!("reducer on {}, iteration {}", group.describe_rank(), step.number);
        log::write_fields(log::LogLevel::Info, &head, &fields);
    }
}

/// Formats the first items of a list, and counts the rest.
fn format_list(items: &[String]) -> String {
    let shown = items.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
    match items.len().saturating_sub(MAX_LISTED) {
        _ if items.is_empty() => "none".to_owned(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
