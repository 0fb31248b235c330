//! Which files dumps go to, and when: once for each group that fails, and whenever a file appears.
//!
//! A thread of the recorder's own writes them, and looks every [`POLL_INTERVAL`] for the file and
//! for failures that no call of this process has met. It is there while a variable is set and the
//! process is in a group: neither a caller nor the service thread, which watches over other
//! processes, ever waits for a disk. But a program may end as soon as a call has failed. So whoever
//! is about to be told of a failure for the first time gives the thread a moment, [`DUMP_TIMEOUT`]
//! at most and usually some milliseconds (a dump has a megabyte at most); where no variable is set,
//! it gives none.
//!
//! Must not know: what is in a dump.

use super::{DumpReason, dump, groups};
use crate::base::config::{self, EnvVariable};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::log::LogLevel;
use crate::process::{atomic_file, this_process, thread};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, pause, wait_until};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How often the thread looks for the file that asks for a dump, and for failures that nobody has
/// told it of.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How long it gives a call that is about to fail of the same to note its end.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// How long a call that fails waits for the dump.
const DUMP_TIMEOUT: Duration = Duration::from_secs(1);

/// How many dumps failures lead to; a program that goes on with new groups may see many.
const MAX_FAILURE_DUMPS: u64 = 100;

/// What the environment asks for.
#[derive(Debug)]
struct DumpSettings {
    /// What the name begins with, before the rank, and what it ends with.
    dump_name: Option<(String, &'static str)>,
    trigger_path: Option<String>,
}

#[derive(Debug)]
struct DumpState {
    settings: DumpSettings,
    /// The groups that the process is in.
    open_groups: usize,
    has_thread: bool,
    /// Dumps that have been asked for, and how many of these have been written or could not be.
    requested: u64,
    written: u64,
    /// How many of them failures have asked for.
    failure_requests: u64,
    /// What has asked for the last one.
    reason: DumpReason,
    /// When the files that ask for dumps were last changed, so far as is known; `None` before the
    /// first look.
    last_trigger_times: Option<TriggerTimes>,
}

/// When two files were last changed; `None` for one that is not there.
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

/// Whether failures are dumped, for whoever must not take a lock to find that out.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Rung when the thread has something to do.
static WORK_DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

/// Rung when a dump has been written.
static WRITTEN_DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

fn lock_state() -> MutexGuard<'static, DumpState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what the environment asks for; before a group comes to be.
///
/// # Errors
/// `InvalidArgument` where a variable is not UTF-8.
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

/// Notes that the process is in one more group.
pub(super) fn add_group() {
    let is_first_look = {
        let mut state = lock_state();
        state.open_groups += 1;
        state.last_trigger_times.is_none() && state.settings.trigger_path.is_some()
    };
    // Before anybody can ask for a dump of this group.
    if is_first_look {
        replace_trigger_times(read_trigger_times());
    }
    let mut state = lock_state();
    if state.settings.is_enabled() {
        state.ensure_thread();
    }
}

/// Notes that it is in one less.
pub(super) fn remove_group() {
    let mut state = lock_state();
    state.open_groups = state.open_groups.saturating_sub(1);
    if state.open_groups == 0 {
        drop(state);
        WORK_DOORBELL.notify();
    }
}

/// Asks for a dump if a group has failed since this was last called; true where it has. Does not
/// block.
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

/// Both, for who is about to tell the caller of a failure.
pub(in crate::api) fn dump_failures_and_wait() {
    request_failure_dump();
    wait_for_dump();
}

/// Waits until what has been asked for so far is written, but not for long.
fn wait_for_dump() {
    let asked = lock_state().requested;
    let ready = || (lock_state().written >= asked).then_some(());
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
        crate::log!(LogLevel::Warn, "the flight recorder's dump is not written after {limit} s");
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
                crate::log!(LogLevel::Warn, "the flight recorder writes no dumps: {error}");
            }
        }
    }
}

/// The thread: writes what is asked for, until there is no group.
fn run_dump_thread() {
    loop {
        if has_new_trigger() {
            lock_state().request(DumpReason::Trigger);
        }
        if request_failure_dump() {
            pause(SETTLE_TIME, &Deadline::never());
        }
        let asked = {
            let state = lock_state();
            (state.requested > state.written).then_some((state.requested, state.reason))
        };
        if let Some((asked, why)) = asked {
            write_dump(why);
            lock_state().written = asked;
            WRITTEN_DOORBELL.notify();
        }
        if try_retire() {
            return;
        }
        let ready = || {
            let state = lock_state();
            (state.requested > state.written || state.open_groups == 0).then_some(())
        };
        // At the end of the time, too, the thread looks around.
        drop(wait_until(
            &WORK_DOORBELL,
            WaitPolicy::SLEEP_SOON,
            &Deadline::after(POLL_INTERVAL),
            || None,
            ready,
        ));
    }
}

/// Ends the thread's time, unless there is something to do or to come.
fn try_retire() -> bool {
    let mut state = lock_state();
    let has_work =
        state.requested > state.written || state.open_groups > 0 && state.settings.is_enabled();
    state.has_thread = has_work;
    !has_work
}

/// Whether a file that asks for a dump has come to be, or has been changed, since the last look.
/// One that was there before the first look asks for nothing: it is from an earlier job.
fn has_new_trigger() -> bool {
    let now = read_trigger_times();
    let is_new =
        |(now, before): (&Option<SystemTime>, &Option<SystemTime>)| now.is_some() && now != before;
    replace_trigger_times(now).is_some_and(|before| now.iter().zip(&before).any(is_new))
}

/// Keeps what a look has found, and returns what the one before did.
fn replace_trigger_times(now: TriggerTimes) -> Option<TriggerTimes> {
    lock_state().last_trigger_times.replace(now)
}

/// When the file that asks all ranks for a dump was last changed, and the one that asks this rank.
fn read_trigger_times() -> TriggerTimes {
    let Some(trigger) = lock_state().settings.trigger_path.clone() else { return [None; 2] };
    let changed = |path: &str| Path::new(path).metadata().ok()?.modified().ok();
    let own = groups::job_rank_and_size().map(|(rank, _)| format!("{trigger}{rank}"));
    [changed(&trigger), own.as_deref().and_then(changed)]
}

/// Where this process's dump goes. Without a name for it, beside the file that asks for it.
fn dump_path() -> Option<String> {
    // A process that is in no group yet has no rank.
    let rank = groups::job_rank_and_size()
        .map_or_else(|| format!("pid{}", this_process::pid()), |(rank, _)| rank.to_string());
    let state = lock_state();
    let beside =
        || state.settings.trigger_path.as_ref().map(|trigger| (format!("{trigger}_"), ".json"));
    let (prefix, ending) = state.settings.dump_name.clone().or_else(beside)?;
    Some(format!("{prefix}{rank}{ending}"))
}

fn write_dump(reason: DumpReason) {
    let Some(target) = dump_path() else { return };
    let bytes = dump(None, reason).to_string();
    match atomic_file::write(Path::new(&target), bytes.as_bytes()) {
        Ok(()) => crate::log!(LogLevel::Info, "the flight recorder has written {target}"),
        Err(error) => {
            crate::log!(LogLevel::Error, "the flight recorder's dump is not written: {error}");
        }
    }
}
