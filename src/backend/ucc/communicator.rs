//! The functions of UCC for one group, as the interface of a plug-in
//! ([`crate::backend::plugin::Communicator`]).
//!
//! A thread that waits for a collective polls UCC. It keeps the right to call UCC for a series of
//! polls. If another thread has this right, that thread makes progress for all groups, and this
//! thread only waits for its turn.

use super::call;
use super::context::UccAccess;
use super::team::{ActiveCall, UccTeam};
use super::types::check_support;
use crate::backend::plugin::{
    Communicator, OperationKinds, PluginFailureState, PluginMessageStatus, PluginRequest,
    PluginTask, ReleaseReport, RunOutcome, SubmitOutcome, TaskKind,
};
use crate::backend::{Backend, BackendMemory, GroupFailureState as _, OpKind, SupportQuery};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::sync::lock;
use crate::sys::library::loaded_paths;
use crate::wait::pause;
use crate::wait::policy::try_yield;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The number of polls for which a thread keeps the right to call UCC.
const POLLS: u32 = 64;
const POLLS_WHEN_OVERSUBSCRIBED: u32 = 8;

/// The number of polls of the first series of a collective, if each rank has a core. A short
/// collective ends in this series, so that it needs no entry among the pending ones.
const FIRST_POLLS: u32 = 512;

/// The time that a waiter polls without sleeping.
const POLL_TIME: Duration = Duration::from_millis(5);
const MIN_SLEEP: Duration = Duration::from_micros(20);
const MAX_SLEEP: Duration = Duration::from_micros(500);

/// The time for which an error of UCC waits for the failure of the native group.
const REASON_WAIT: Duration = Duration::from_millis(500);
const REASON_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The element counts of short operations: if the first polls find such an operation complete, it
/// took about 10 microseconds at most.
const SHORT: RangeInclusive<usize> = 1..=1024;

/// Variables that select components and devices of UCC and UCX, for `dist_group_describe`.
const SHOWN_VARIABLES: [config::EnvVariable; 5] = [
    config::UCC_CLS,
    config::UCC_TLS,
    config::UCX_TLS,
    config::UCX_NET_DEVICES,
    config::UCC_ALL_REDUCE_RADIX,
];

/// The functions of UCC for one group.
#[derive(Debug)]
pub(super) struct UccCommunicator {
    team: UccTeam,
    state: Arc<PluginFailureState>,
    /// The native group of the same ranks.
    host: Arc<dyn Backend>,
    /// True if the ranks of this host outnumber its processors.
    is_oversubscribed: bool,
    /// The collectives that are not complete, by the number of their request.
    pending: Mutex<BTreeMap<u64, PendingCall>>,
    next_ticket: AtomicU64,
}

/// A collective that is not complete, and its sequence number in the group.
#[derive(Debug)]
struct PendingCall {
    active: ActiveCall,
    sequence: u64,
}

/// The progress of a collective after a series of polls.
enum PollOutcome {
    /// The collective is complete.
    Done,
    /// The collective continues.
    Continues(ActiveCall),
}

impl UccCommunicator {
    pub(super) fn new(
        team: UccTeam,
        state: &Arc<PluginFailureState>,
        host: &Arc<dyn Backend>,
        is_oversubscribed: bool,
    ) -> Self {
        Self {
            team,
            state: Arc::clone(state),
            host: Arc::clone(host),
            is_oversubscribed,
            pending: Mutex::default(),
            next_ticket: AtomicU64::new(1),
        }
    }

    /// Returns the operations that UCC has.
    pub(super) fn kinds(&self) -> Result<OperationKinds> {
        let has = |kind: OpKind| {
            call::coll_type(kind).is_ok_and(|coll_type| self.team.context.has_collective(coll_type))
        };
        let own = OpKind::ALL.into_iter().filter(|&kind| has(kind));
        let bits = own.fold(0, |bits, kind| bits | 1 << kind as u32);
        if bits == 0 {
            let message = "UCC has no collectives: UCC_CLS or UCC_TLS excludes all components";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        OperationKinds::from_bits(bits)
    }

    /// Returns true if UCC accepts device memory.
    pub(super) fn serves_device(&self) -> bool {
        self.team.context.has_cuda()
    }

    fn check_failure(&self) -> Result<()> {
        match self.state.known_failure() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Returns the reason of an error of UCC. UCC often notices the end of a connection before the
    /// native group does, which knows the rank and the reason, so this waits for its failure.
    #[cold]
    fn explain(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Backend {
            return error;
        }
        let limit = Deadline::after(REASON_WAIT);
        while self.state.known_failure().is_none() && !limit.has_passed() {
            pause(REASON_POLL_INTERVAL, &limit);
        }
        self.state.known_failure().cloned().unwrap_or(error)
    }

    /// Returns the number of polls of a series: `polls` if each rank has a core.
    #[inline]
    fn polls(&self, polls: u32) -> u32 {
        if self.is_oversubscribed { POLLS_WHEN_OVERSUBSCRIBED } else { polls }
    }

    /// Polls a collective for a series of polls.
    #[inline]
    fn poll(
        &self,
        access: &UccAccess<'_>,
        active: ActiveCall,
        polls: u32,
        name: &'static str,
    ) -> Result<PollOutcome> {
        let outcome = self.team.poll(access, &active, self.polls(polls));
        match outcome {
            Ok(true) => self.team.finish(access, active).map(|()| PollOutcome::Done),
            Ok(false) => Ok(PollOutcome::Continues(active)),
            Err(error) => {
                // UCC may still use the memory of a collective that failed: the other messages of
                // the collective continue.
                self.team.abandon(active);
                Err(error.context(name))
            }
        }
    }

    fn keep(&self, active: ActiveCall, sequence: u64) -> PluginRequest {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        lock(&self.pending).insert(ticket, PendingCall { active, sequence });
        PluginRequest { handle: 0, ticket }
    }

    /// Polls a pending collective for a series of polls, if no other thread calls UCC. Returns
    /// true if it is complete.
    fn poll_pending(&self, ticket: u64) -> Result<bool> {
        let Some(access) = self.team.context.try_access() else { return Ok(false) };
        let Some(PendingCall { active, sequence }) = lock(&self.pending).remove(&ticket) else {
            return Err(Error::internal("the request of UCC is not pending"));
        };
        match self.poll(&access, active, POLLS, "UCC")? {
            PollOutcome::Done => Ok(true),
            PollOutcome::Continues(active) => {
                lock(&self.pending).insert(ticket, PendingCall { active, sequence });
                Ok(false)
            }
        }
    }

    /// Returns the error for a collective that ended before it was complete. It names the rank
    /// that has not entered the collective.
    fn uncancellable_error(&self, sequence: u64) -> Error {
        let message = "UCC cannot cancel a collective that was started";
        let monitor = self.host.peer_monitor();
        let late =
            monitor.and_then(|monitor| Some((monitor, monitor.first_rank_before(sequence)?)));
        let Some((monitor, rank)) = late else {
            return Error::new(ErrorKind::Backend, message);
        };
        let activity = monitor.last_activity(rank).unwrap_or_default();
        let name = self.host.rank_locations().get(rank).map(|location| location.name.to_string());
        let name = name.unwrap_or_else(|| format!("rank {rank}"));
        let message = format!("{message}; {name} has not entered it: it {activity}");
        Error::new(ErrorKind::Backend, message).with_culprit(rank)
    }
}

impl Communicator for UccCommunicator {
    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome> {
        self.check_failure()?;
        let begun = self.team.begin(&self.team.context.access(), task);
        match begun.context(|| task.kind.name()).map_err(|error| self.explain(error))? {
            None => Ok(SubmitOutcome::Done(PluginMessageStatus::default())),
            Some(active) => Ok(SubmitOutcome::Pending(self.keep(active, task.sequence))),
        }
    }

    fn has_fast_path(&self) -> bool {
        true
    }

    fn run(&self, task: &PluginTask<'_>, limit: Duration) -> Option<Result<RunOutcome>> {
        Some(self.run_collective(task, limit).map_err(|error| self.explain(error)))
    }

    fn test(&self, request: PluginRequest) -> Result<Option<PluginMessageStatus>> {
        Ok(self.poll_pending(request.ticket)?.then(PluginMessageStatus::default))
    }

    fn wait(&self, request: PluginRequest, limit: Duration) -> Result<Option<PluginMessageStatus>> {
        self.wait_for(request, limit).map_err(|error| self.explain(error))
    }

    fn release(&self, request: PluginRequest) -> Result<ReleaseReport> {
        let Some(pending) = lock(&self.pending).remove(&request.ticket) else {
            return Ok(ReleaseReport::default());
        };
        self.team.abandon(pending.active);
        Err(self.uncancellable_error(pending.sequence))
    }

    fn abort(&self, _: &Error) {
        self.team.fail();
    }

    fn failure(&self) -> Option<Error> {
        self.state.failure()
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        check_support(query)
    }

    fn allocate(&self, _: usize) -> Result<Option<Box<dyn BackendMemory>>> {
        Ok(None)
    }

    fn describe(&self) -> Value {
        let library = self.team.context.library();
        let mut variables = Map::new();
        for variable in SHOWN_VARIABLES {
            let value = config::read_text(variable).ok().flatten();
            variables.insert(variable.name.to_owned(), value.into());
        }
        json!({
            "version": library.version_text(),
            "file": library.file(),
            "thread_mode": self.team.context.thread_mode_name(),
            "team_id": self.team.id,
            "components": loaded_components(&["libucc_cl_", "libucc_tl_", "libucc_mc_", "libucc_ec_"]),
            "ucx_modules": loaded_components(&["libuct_", "libucm_"]),
            "takes_device": self.serves_device(),
            "yields": self.is_oversubscribed,
            "environment": variables,
        })
    }
}

impl UccCommunicator {
    /// Waits for a pending collective for at most the limit.
    fn wait_for(
        &self,
        request: PluginRequest,
        limit: Duration,
    ) -> Result<Option<PluginMessageStatus>> {
        let end = Deadline::after(limit);
        let mut sleep_time = MIN_SLEEP;
        loop {
            if self.poll_pending(request.ticket)? {
                return Ok(Some(PluginMessageStatus::default()));
            }
            let waited = end.elapsed();
            if waited >= limit || self.team.has_failed() {
                return Ok(None);
            }
            if waited < POLL_TIME {
                if self.is_oversubscribed {
                    try_yield();
                }
                continue;
            }
            // The failure of the group notifies this doorbell.
            let has_failed = || self.team.has_failed().then_some(());
            let sleep = sleep_time.min(end.remaining());
            self.state.doorbell().sleep_unless_ready(sleep, || true, has_failed);
            sleep_time = (sleep_time * 2).min(MAX_SLEEP);
        }
    }

    /// Runs a collective for at most the limit. If it is not complete then, it is pending.
    fn run_collective(&self, task: &PluginTask<'_>, limit: Duration) -> Result<RunOutcome> {
        let TaskKind::Collective(kind) = task.kind else {
            return Err(Error::internal("a message is no collective"));
        };
        if self.team.has_failed() {
            self.check_failure()?;
        }
        let access = self.team.context.access();
        let Some(active) = self.team.begin(&access, task).context(|| kind.name())? else {
            return Ok(RunOutcome::Done);
        };
        let active = match self.poll(&access, active, FIRST_POLLS, kind.name())? {
            PollOutcome::Done if SHORT.contains(&task.count) && !self.is_oversubscribed => {
                return Ok(RunOutcome::DoneQuickly);
            }
            PollOutcome::Done => return Ok(RunOutcome::Done),
            PollOutcome::Continues(active) => active,
        };
        drop(access);
        let request = self.keep(active, task.sequence);
        match self.wait_for(request, limit).context(|| kind.name())? {
            Some(_) => Ok(RunOutcome::Done),
            None => Ok(RunOutcome::Pending(request)),
        }
    }
}

/// Returns the names of the loaded objects whose file names start with one of these texts.
fn loaded_components(prefixes: &[&str]) -> Vec<String> {
    let name = |path: std::path::PathBuf| {
        let file = path.file_name()?.to_str()?.to_owned();
        let stem = file.split(".so").next()?.to_owned();
        prefixes.iter().any(|prefix| file.starts_with(prefix)).then_some(stem)
    };
    let mut names: Vec<String> = loaded_paths().into_iter().filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}
