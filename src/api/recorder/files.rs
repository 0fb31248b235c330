//! Which files dumps go to, and when: once for each group that fails, and whenever a file appears.
//!
//! A thread of the recorder's own writes them, and looks every [`LOOK_EVERY`] for the file and for
//! failures that no call of this process has met. It is there while a variable is set and the
//! process is in a group: neither a caller nor the service thread, which watches over other
//! processes, ever waits for a disk. But a program may end as soon as a call has failed. So whoever
//! is about to be told of a failure for the first time gives the thread a moment, [`PATIENCE`] at
//! most and usually some milliseconds (a dump has a megabyte at most); where no variable is set, it
//! gives none.
//!
//! Must not know: what is in a dump.

use super::{Why, dump, groups};
use crate::base::config::{self, Variable};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::log::Level;
use crate::process::{this, thread, whole_file};
use crate::wait::bell::Bell;
use crate::wait::{Pace, pause, until};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How often the thread looks for the file that asks for a dump, and for failures that nobody has
/// told it of.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long it gives a call that is about to fail of the same to note its end.
const LEEWAY: Duration = Duration::from_millis(50);

/// How long a call that fails waits for the dump.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many dumps failures lead to; a program that goes on with new groups may see many.
const MOST_FAILURES: u64 = 100;

/// What the environment asks for.
#[derive(Debug)]
struct Settings {
    /// What the name begins with, before the rank, and what it ends with.
    file: Option<(String, &'static str)>,
    trigger: Option<String>,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    /// The groups that the process is in.
    open: usize,
    has_thread: bool,
    /// Dumps that have been asked for, and how many of these have been written or could not be.
    asked: u64,
    written: u64,
    /// How many of them failures have asked for.
    failures: u64,
    /// What has asked for the last one.
    why: Why,
    /// When the files that ask for dumps were last changed, so far as is known; `None` before the
    /// first look.
    seen: Option<Stamps>,
}

/// When two files were last changed; `None` for one that is not there.
type Stamps = [Option<SystemTime>; 2];

static STATE: Mutex<State> = Mutex::new(State {
    settings: Settings { file: None, trigger: None },
    open: 0,
    has_thread: false,
    asked: 0,
    written: 0,
    failures: 0,
    why: Why::Failure,
    seen: None,
});

/// Whether failures are dumped, for whoever must not take a lock to find that out.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Rung when the thread has something to do.
static BELL: LazyLock<Bell> = LazyLock::new(Bell::default);

/// Rung when a dump has been written.
static WRITTEN: LazyLock<Bell> = LazyLock::new(Bell::default);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what the environment asks for; before a group comes to be.
///
/// # Errors
/// `InvalidArgument` where a variable is not UTF-8.
pub(in crate::api) fn look_at_environment() -> Result<()> {
    let all: [(Variable, &str); 3] = [
        (config::RECORDER_FILE, ".json"),
        (config::TORCH_RECORDER_FILE, ""),
        (config::TORCH_NCCL_RECORDER_FILE, ""),
    ];
    let mut file = None;
    for (variable, ending) in all {
        file = file.or(config::text(variable)?.map(|prefix| (prefix, ending)));
    }
    let trigger = config::text(config::RECORDER_TRIGGER)?;
    IS_ON.store(file.is_some(), Ordering::Relaxed);
    state().settings = Settings { file, trigger };
    Ok(())
}

/// Notes that the process is in one more group.
pub(super) fn group_begins() {
    let is_first_look = {
        let mut state = state();
        state.open += 1;
        state.seen.is_none() && state.settings.trigger.is_some()
    };
    // Before anybody can ask for a dump of this group.
    if is_first_look {
        remember(stamps());
    }
    let mut state = state();
    if state.settings.is_any() {
        state.ensure_thread();
    }
}

/// Notes that it is in one less.
pub(super) fn group_ends() {
    let mut state = state();
    state.open = state.open.saturating_sub(1);
    if state.open == 0 {
        drop(state);
        BELL.ring();
    }
}

/// Asks for a dump if a group has failed since this was last called; true where it has. Does not
/// block.
pub(in crate::api) fn look_for_failures() -> bool {
    if !IS_ON.load(Ordering::Relaxed) || !groups::has_any_failed() {
        return false;
    }
    let mut state = state();
    if state.failures >= MOST_FAILURES {
        return false;
    }
    state.failures += 1;
    state.ask(Why::Failure);
    state.ensure_thread();
    drop(state);
    BELL.ring();
    true
}

/// Both, for who is about to tell the caller of a failure.
pub(in crate::api) fn dump_failures() {
    look_for_failures();
    give_time();
}

/// Waits until what has been asked for so far is written, but not for long.
fn give_time() {
    let asked = state().asked;
    let ready = || (state().written >= asked).then_some(());
    if until(&WRITTEN, Pace::PATIENT, &Deadline::after(PATIENCE), || None, ready).is_err() {
        let limit = PATIENCE.as_secs();
        crate::log!(Level::Warn, "the flight recorder's dump is not written after {limit} s");
    }
}

impl Settings {
    fn is_any(&self) -> bool {
        self.file.is_some() || self.trigger.is_some()
    }
}

impl State {
    fn ask(&mut self, why: Why) {
        self.asked += 1;
        self.why = why;
    }

    fn ensure_thread(&mut self) {
        if self.has_thread {
            return;
        }
        match thread::start("dist-recorder", run) {
            Ok(()) => self.has_thread = true,
            Err(error) => {
                self.written = self.asked;
                crate::log!(Level::Warn, "the flight recorder writes no dumps: {error}");
            }
        }
    }
}

/// The thread: writes what is asked for, until there is no group.
fn run() {
    loop {
        if has_been_touched() {
            state().ask(Why::Trigger);
        }
        if look_for_failures() {
            pause(LEEWAY, &Deadline::never());
        }
        let asked = {
            let state = state();
            (state.asked > state.written).then_some((state.asked, state.why))
        };
        if let Some((asked, why)) = asked {
            write(why);
            state().written = asked;
            WRITTEN.ring();
        }
        if retire() {
            return;
        }
        let ready = || {
            let state = state();
            (state.asked > state.written || state.open == 0).then_some(())
        };
        // At the end of the time, too, the thread looks around.
        drop(until(&BELL, Pace::PATIENT, &Deadline::after(LOOK_EVERY), || None, ready));
    }
}

/// Ends the thread's time, unless there is something to do or to come.
fn retire() -> bool {
    let mut state = state();
    let has_work = state.asked > state.written || state.open > 0 && state.settings.is_any();
    state.has_thread = has_work;
    !has_work
}

/// Whether a file that asks for a dump has come to be, or has been changed, since the last look.
/// One that was there before the first look asks for nothing: it is from an earlier job.
fn has_been_touched() -> bool {
    let now = stamps();
    let is_new =
        |(now, before): (&Option<SystemTime>, &Option<SystemTime>)| now.is_some() && now != before;
    remember(now).is_some_and(|before| now.iter().zip(&before).any(is_new))
}

/// Keeps what a look has found, and returns what the one before did.
fn remember(now: Stamps) -> Option<Stamps> {
    state().seen.replace(now)
}

/// When the file that asks all ranks for a dump was last changed, and the one that asks this rank.
fn stamps() -> Stamps {
    let Some(trigger) = state().settings.trigger.clone() else { return [None; 2] };
    let changed = |path: &str| Path::new(path).metadata().ok()?.modified().ok();
    let own = groups::identity().map(|(rank, _)| format!("{trigger}{rank}"));
    [changed(&trigger), own.as_deref().and_then(changed)]
}

/// Where this process's dump goes. Without a name for it, beside the file that asks for it.
fn target() -> Option<String> {
    // A process that is in no group yet has no rank.
    let rank = groups::identity()
        .map_or_else(|| format!("pid{}", this::pid()), |(rank, _)| rank.to_string());
    let state = state();
    let beside = || state.settings.trigger.as_ref().map(|trigger| (format!("{trigger}_"), ".json"));
    let (prefix, ending) = state.settings.file.clone().or_else(beside)?;
    Some(format!("{prefix}{rank}{ending}"))
}

fn write(why: Why) {
    let Some(target) = target() else { return };
    let bytes = dump(None, why).to_string();
    match whole_file::write(Path::new(&target), bytes.as_bytes()) {
        Ok(()) => crate::log!(Level::Info, "the flight recorder has written {target}"),
        Err(error) => {
            crate::log!(Level::Error, "the flight recorder's dump is not written: {error}");
        }
    }
}
