//! Dump files of the flight recorder. A dump is written once for each failed group. A dump is also
//! written when the trigger file, with which a user requests a dump, appears or changes.
//!
//! A dump thread writes the dumps, so that the service thread, which monitors other processes,
//! never waits for a disk. The dump thread runs while an environment variable requests dumps and
//! the process is in a group. Every 250 ms (`POLL_INTERVAL`) the thread checks the trigger file,
//! and checks for group failures that no call of this process has reported.
//!
//! A program may end immediately after a call has failed. Therefore a call that reports the failure
//! of a group for the first time waits until the dump is written. This wait takes at most 1 s
//! (`DUMP_TIMEOUT`). It usually takes some milliseconds, because a dump has at most about 1 MB. If
//! no variable is set, there is no wait.
//!
//! This module does not depend on the content of a dump.

use super::dump::{DumpReason, dump};
use super::groups::{self, NewGroup};
use super::request_socket::RequestSocketUse;
use crate::base::config::{self, EnvVariable};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::{atomic_file, this_process, thread};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, pause, wait_until};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// The interval at which the dump thread checks the trigger file and unreported failures.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The time for which the dump thread waits before it dumps a failure. In this time, calls that
/// fail because of the group's failure record their end.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// The maximum time for which a failing call waits for the dump.
const DUMP_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of dumps that a process writes because groups have failed. Without a limit, a
/// program that continues with new groups after each failure could write any number of dumps.
const MAX_FAILURE_DUMPS: u64 = 100;

/// The dump settings in the environment.
#[derive(Debug)]
struct DumpSettings {
    /// The file name of a dump: the prefix before the rank, and the suffix after the rank.
    dump_name: Option<(String, &'static str)>,
    /// The path of the trigger file for all ranks. The trigger file of one rank has this path with
    /// the rank appended.
    trigger_path: Option<String>,
}

#[derive(Debug)]
struct DumpState {
    settings: DumpSettings,
    /// The number of groups that the process is in.
    open_groups: usize,
    has_thread: bool,
    /// The number of requested dumps.
    requested: u64,
    /// The number of requested dumps that were written or could not be written.
    written: u64,
    /// The number of dumps requested because of failures.
    failure_requests: u64,
    /// The reason of the last request.
    reason: DumpReason,
    /// The modification times of the trigger files at the last check; `None` before the first
    /// check.
    last_trigger_times: Option<TriggerTimes>,
}

/// The modification times of the trigger file for all ranks and of the trigger file for this rank;
/// `None` for a missing file.
type TriggerTimes = [Option<SystemTime>; 2];

static STATE: Mutex<DumpState> = Mutex::new(DumpState {
    settings: DumpSettings { dump_name: None, trigger_path: None },
    open_groups: 0,
    has_thread: false,
    requested: 0,
    written: 0,
    failure_requests: 0,
    reason: DumpReason::Failure,
    last_trigger_times: None,
});

/// True if failures are dumped. This copy of the setting is atomic, so that a check needs no lock.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The dump thread sleeps on this doorbell. It is notified when a dump is requested and when the
/// process has left its last group.
static WORK_DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

/// Callers that wait for a dump sleep on this doorbell. The dump thread notifies it after each
/// dump.
static WRITTEN_DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

fn lock_state() -> MutexGuard<'static, DumpState> {
    lock(&STATE)
}

/// Reads the dump settings from the environment. Called before a group is created.
///
/// # Errors
/// `InvalidArgument` if a variable is not UTF-8.
pub(in crate::api) fn read_dump_environment() -> Result<()> {
    let all: [(EnvVariable, &str); 3] = [
        (config::RECORDER_FILE, ".json"),
        (config::TORCH_RECORDER_FILE, ""),
        (config::TORCH_NCCL_RECORDER_FILE, ""),
    ];
    let mut dump_name = None;
    for (variable, ending) in all {
        dump_name = dump_name.or(config::read_text(variable)?.map(|prefix| (prefix, ending)));
    }
    let trigger_path = config::read_text(config::RECORDER_TRIGGER)?;
    IS_ON.store(dump_name.is_some(), Ordering::Relaxed);
    lock_state().settings = DumpSettings { dump_name, trigger_path };
    Ok(())
}

/// The entry of a group in the recorder's list of groups. When this is dropped, the group counts as
/// left.
#[derive(Debug)]
pub(in crate::api) struct RecorderMembership {
    number: u64,
    /// `None` for a group of one rank, which waits for no other rank.
    _request_socket: Option<RequestSocketUse>,
}

impl RecorderMembership {
    /// Adds a group to the list.
    pub(in crate::api) fn register(new: &NewGroup<'_>) -> Self {
        let (number, is_listed) = groups::add_to_list(new);
        if is_listed {
            add_group();
        }
        let _request_socket = (new.global_ranks.len() > 1).then(RequestSocketUse::new);
        Self { number, _request_socket }
    }
}

impl Drop for RecorderMembership {
    fn drop(&mut self) {
        // If the group has failed and no call has reported the failure, the dump is written now.
        // The dump names the members of the group, and the list of groups knows them only until the
        // group is left.
        dump_failures_and_wait();
        if groups::mark_left(self.number) {
            remove_group();
        }
    }
}

/// Counts a group that the process has joined.
fn add_group() {
    let is_first_look = {
        let mut state = lock_state();
        state.open_groups += 1;
        state.last_trigger_times.is_none() && state.settings.trigger_path.is_some()
    };
    // The first look only records the times of the trigger files that exist already. It must be
    // complete before a user can touch a trigger file for this group.
    if is_first_look {
        replace_trigger_times(read_trigger_times());
    }
    let mut state = lock_state();
    if state.settings.is_enabled() {
        state.ensure_thread();
    }
}

/// Counts a group that the process has left.
fn remove_group() {
    let mut state = lock_state();
    state.open_groups = state.open_groups.saturating_sub(1);
    if state.open_groups == 0 {
        drop(state);
        WORK_DOORBELL.notify();
    }
}

/// Requests a dump if a group has failed since the last call of this function. Returns whether it
/// requested a dump. Does not block.
pub(in crate::api) fn request_failure_dump() -> bool {
    if !IS_ON.load(Ordering::Relaxed) || !groups::has_new_failure() {
        return false;
    }
    let mut state = lock_state();
    if state.failure_requests >= MAX_FAILURE_DUMPS {
        return false;
    }
    state.failure_requests += 1;
    state.request(DumpReason::Failure);
    state.ensure_thread();
    drop(state);
    WORK_DOORBELL.notify();
    true
}

/// Requests a dump if a group has failed since the last request, and waits until all requested
/// dumps are written. Called before a failure is reported to the program.
pub(in crate::api) fn dump_failures_and_wait() {
    request_failure_dump();
    wait_for_dump();
}

/// Waits until all dumps requested so far are written, but at most for `DUMP_TIMEOUT`.
fn wait_for_dump() {
    let requested = lock_state().requested;
    let ready = || (lock_state().written >= requested).then_some(());
    if wait_until(
        &WRITTEN_DOORBELL,
        WaitPolicy::SLEEP_SOON,
        &Deadline::after(DUMP_TIMEOUT),
        || None,
        ready,
    )
    .is_err()
    {
        let limit = DUMP_TIMEOUT.as_secs();
        crate::log!(
            LogLevel::Warn,
            "the flight recorder has not written its dump within {limit} s"
        );
    }
}

impl DumpSettings {
    fn is_enabled(&self) -> bool {
        self.dump_name.is_some() || self.trigger_path.is_some()
    }
}

impl DumpState {
    fn request(&mut self, reason: DumpReason) {
        self.requested += 1;
        self.reason = reason;
    }

    fn ensure_thread(&mut self) {
        if self.has_thread {
            return;
        }
        match thread::start("dist-recorder", run_dump_thread) {
            Ok(()) => self.has_thread = true,
            Err(error) => {
                self.written = self.requested;
                crate::log!(
                    LogLevel::Warn,
                    "the flight recorder cannot start its dump thread and writes \
                                             no dumps: {error}"
                );
            }
        }
    }
}

/// Runs the dump thread, which writes the requested dumps until the process is in no group.
fn run_dump_thread() {
    loop {
        if has_new_trigger() {
            lock_state().request(DumpReason::Trigger);
        }
        if request_failure_dump() {
            pause(SETTLE_TIME, &Deadline::never());
        }
        let requested = {
            let state = lock_state();
            (state.requested > state.written).then_some((state.requested, state.reason))
        };
        if let Some((requested, reason)) = requested {
            write_dump(reason);
            lock_state().written = requested;
            WRITTEN_DOORBELL.notify();
        }
        if try_retire() {
            return;
        }
        let ready = || {
            let state = lock_state();
            (state.requested > state.written || state.open_groups == 0).then_some(())
        };
        // The result is ignored: after the time limit the thread checks the trigger files.
        drop(wait_until(
            &WORK_DOORBELL,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(POLL_INTERVAL),
            || None,
            ready,
        ));
    }
}

/// Marks the dump thread as ended unless a dump is requested or the process is in a group. Returns
/// whether the thread must end.
fn try_retire() -> bool {
    let mut state = lock_state();
    let has_work =
        state.requested > state.written || state.open_groups > 0 && state.settings.is_enabled();
    state.has_thread = has_work;
    !has_work
}

/// Returns whether a trigger file has appeared or changed since the last check. A file that existed
/// before the first check is from an earlier job and does not request a dump.
fn has_new_trigger() -> bool {
    let now = read_trigger_times();
    let is_new =
        |(now, before): (&Option<SystemTime>, &Option<SystemTime>)| now.is_some() && now != before;
    replace_trigger_times(now).is_some_and(|before| now.iter().zip(&before).any(is_new))
}

/// Stores the modification times and returns the previous ones.
fn replace_trigger_times(now: TriggerTimes) -> Option<TriggerTimes> {
    lock_state().last_trigger_times.replace(now)
}

/// Returns the modification times of the trigger file for all ranks and of the trigger file for
/// this rank.
fn read_trigger_times() -> TriggerTimes {
    let Some(trigger) = lock_state().settings.trigger_path.clone() else { return [None; 2] };
    let changed = |path: &str| Path::new(path).metadata().ok()?.modified().ok();
    let own = groups::job_rank_and_size().map(|(rank, _)| format!("{trigger}{rank}"));
    [changed(&trigger), own.as_deref().and_then(changed)]
}

/// Returns the path of this process's dump. If the environment sets only a trigger file, the dump
/// is next to that file.
fn dump_path() -> Option<String> {
    // A process without a group has no rank.
    let rank = groups::job_rank_and_size()
        .map_or_else(|| format!("pid{}", this_process::pid()), |(rank, _)| rank.to_string());
    let state = lock_state();
    let from_trigger =
        || state.settings.trigger_path.as_ref().map(|trigger| (format!("{trigger}_"), ".json"));
    let (prefix, ending) = state.settings.dump_name.clone().or_else(from_trigger)?;
    Some(format!("{prefix}{rank}{ending}"))
}

fn write_dump(reason: DumpReason) {
    let Some(target) = dump_path() else { return };
    let bytes = dump(None, reason).to_string();
    match atomic_file::write(Path::new(&target), bytes.as_bytes()) {
        Ok(()) => crate::log!(LogLevel::Info, "the flight recorder wrote {target}"),
        Err(error) => {
            crate::log!(LogLevel::Error, "the flight recorder cannot write its dump: {error}");
        }
    }
}
