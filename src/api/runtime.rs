//! The state of the process: the world group, which `dist_init` creates and `dist_finalize`
//! releases.
//!
//! `dist_init` resolves the init method, opens or hosts the rendezvous store and creates the group.
//! `dist_finalize` ends the works (asynchronous operations) and their callbacks, releases the
//! group, compares the calls of all ranks, and passes a leave barrier in the store. With the
//! barrier, the rank that hosts the store leaves last.

use super::init_options::InitOptions;
use super::world_store::{WorldSetup, set_up_store};
use crate::api::group::call_comparison::CallComparison;
use crate::api::group::create::{GroupOptions, connect_deadline};
use crate::api::group::process_group::Group;
use crate::api::observe::error_file;
use crate::api::observe::trace;
use crate::api::work::callbacks;
use crate::backend;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::log::LogLevel;
use crate::base::plural::Plural;
use crate::base::sync::{lock, unpoisoned};
use crate::security::SecuritySetting;
use crate::store::Store;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::Duration;

/// The time limit of `dist_finalize`. It covers three steps: the end of asynchronous operations,
/// the comparison of the calls, and the leave barrier.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of each step of `dist_finalize` in a failed group. It is shorter, because in a
/// failed group operations end immediately and some ranks never reach the leave barrier.
const FAILED_GROUP_TIMEOUT: Duration = Duration::from_secs(1);

/// The minimum time limit of each step of `dist_finalize`, even if earlier steps took all the time.
const MIN_STEP_TIMEOUT: Duration = Duration::from_millis(300);

const WORLD_NAME: &str = "world";

/// The world group and its rendezvous store.
#[derive(Debug)]
struct WorldState {
    group: Arc<Group>,
    store: Arc<dyn Store>,
    /// True if this process hosts the store for the other ranks.
    hosts_store: bool,
}

static WORLD: RwLock<Option<WorldState>> = RwLock::new(None);

/// Locked while a thread creates or releases the world group, so that no two threads do this
/// concurrently.
static WORLD_CHANGE: Mutex<()> = Mutex::new(());

/// Returns the world group.
///
/// # Errors
/// `NotInitialized`.
pub fn world() -> Result<Arc<Group>> {
    let world = unpoisoned(WORLD.read());
    let Some(WorldState { group, .. }) = &*world else {
        let message = "there is no world group: call dist_init first";
        return Err(Error::new(ErrorKind::NotInitialized, message));
    };
    Ok(Arc::clone(group))
}

/// Replaces the world group and returns the previous one.
fn replace_world(world: Option<WorldState>) -> Option<WorldState> {
    let mut slot = unpoisoned(WORLD.write());
    std::mem::replace(&mut *slot, world)
}

/// Returns true between `dist_init` and `dist_finalize`.
pub fn is_initialized() -> bool {
    unpoisoned(WORLD.read()).is_some()
}

/// Returns whether an elastic launcher started this process.
///
/// # Errors
/// `InvalidArgument` if the variable is not UTF-8.
pub fn is_elastic_launched() -> Result<bool> {
    Ok(config::read_text(config::RUN_ID)?.is_some())
}

/// Creates the world group.
///
/// # Errors
/// `AlreadyInitialized`; `InvalidArgument` that names a missing environment variable; any failure
/// of the rendezvous.
pub fn init(options: InitOptions) -> Result<()> {
    callbacks::reject_blocking_in_callback("dist_init")?;
    let _changing = lock_world_change();
    if is_initialized() {
        let message = "dist_init was called twice; call dist_finalize in between";
        return Err(Error::new(ErrorKind::AlreadyInitialized, message));
    }
    make_world(options)
        .inspect_err(|error| error_file::write_first_fatal_error(error, error.culprit()))?;
    error_file::retract();
    Ok(())
}

/// Logs each misspelt variable of the environment in one line, once per process.
fn warn_of_misspelt_variables() {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    if HAS_WARNED.swap(true, Ordering::Relaxed) {
        return;
    }
    for (name, meant) in config::misspelt_variables() {
        crate::log!(
            LogLevel::Warn,
            "the environment variable {name} has no effect; is {meant} meant?"
        );
    }
}

fn make_world(options: InitOptions) -> Result<()> {
    // These checks come before the wait for other ranks.
    config::refuse_former_names()?;
    options.backend.as_deref().map_or(Ok(()), backend::check_name)?;
    debug::read_environment()?;
    warn_of_misspelt_variables();
    SecuritySetting::requested(false)?;
    let deadline = connect_deadline(options.connect_timeout_ms)?;
    let setup = set_up_store(&options, &deadline)?;
    let left = u64::try_from(deadline.remaining().as_millis()).unwrap_or(u64::MAX).max(1);
    let group = Group::create(GroupOptions {
        store: Arc::clone(&setup.store),
        rank: setup.rank,
        size: setup.size,
        backend: options.backend,
        backend_options: options.backend_options,
        device: options.device,
        name: options.group_name.unwrap_or_else(|| WORLD_NAME.to_owned()),
        timeout_ms: options.timeout_ms,
        connect_timeout_ms: left,
        global_ranks: None,
        job_secret: setup.job_secret.clone(),
    })?;
    warn_of_open_job(&group);
    let WorldSetup { store, hosts_store, .. } = setup;
    let world = WorldState { group: Arc::new(group), store, hosts_store };
    drop(replace_world(Some(world)));
    Ok(())
}

/// Logs one line on rank 0 if the world spans several hosts and nothing protects the connections
/// between its ranks.
fn warn_of_open_job(world: &Group) {
    let is_open = world.origin.security.setting() == SecuritySetting::None;
    if world.rank() == 0 && world.host_count() > 1 && is_open {
        crate::log!(
            LogLevel::Warn,
            "this job of {} hosts has no secret (or {}=none): each process that reaches its ports \
             can read and change its data and end it; set {} on all ranks to a file with the same \
             random bytes (distrun: --secret-file), see docs/security.md",
            world.host_count(),
            config::SECURITY.name,
            config::SECRET_FILE.name
        );
    }
}

/// Leaves the world group. The time is bounded:
/// * Asynchronous operations have 5 s (`FINALIZE_TIMEOUT`) to end, and their callbacks to return.
/// * In the rest of these 5 s, each rank waits until all ranks have compared their calls, and the
///   rank that hosts the store waits for the other ranks to leave. If the group has failed, these
///   waits take at most 1 s, because failed ranks do not come.
///
/// Blocking calls that run on other threads continue. `release_handle` releases the caller's handle
/// of the world group. It runs after the callbacks have returned and before the rank leaves the
/// group.
///
/// # Errors
/// `NotInitialized`; `InvalidArgument` inside a completion callback; `Mismatch`, after this rank
/// has left, if ranks made different calls in a group.
pub fn finalize(release_handle: impl FnOnce()) -> Result<()> {
    callbacks::reject_blocking_in_callback("dist_finalize")?;
    let _changing = lock_world_change();
    let Ok(group) = world() else {
        return Err(no_world_error());
    };
    let deadline = Deadline::after(FINALIZE_TIMEOUT);
    finish_works_and_callbacks(group.as_ref(), &deadline);
    drop(group);
    release_handle();
    let Some(WorldState { group, store, hosts_store }) = replace_world(None) else {
        return Err(no_world_error());
    };
    let leave_barrier = LeaveBarrier::new(&group);
    let limit = Deadline::after(step_time(&group, &deadline));
    let comparison =
        (group.size() > 1).then(|| CallComparison::begin(store.as_ref(), &group, &limit));
    // While the other ranks finish their last calls, a connection with bytes for them may break.
    let _links = backend::LinkHold::of_this_process();
    // Releases the group's memory and sends departure messages to the other ranks, unless another
    // thread still runs a call in the group.
    drop(group);
    let compared = comparison.map_or(Ok(()), |it| it.finish(store.as_ref(), &limit));
    if leave_barrier.size > 1 {
        // The comparison has the same time limit. If it took all the time, a short time is left.
        let limit = Deadline::after(limit.remaining().max(MIN_STEP_TIMEOUT));
        leave_barrier.wait_for_ranks(store.as_ref(), hosts_store, &limit);
    }
    trace::stop_from_environment();
    compared
}

/// Leaves the world group when the process ends without `dist_finalize`. This rank stores its calls
/// for the comparison, so that the other ranks do not wait for it in `dist_finalize`. Waits for no
/// other rank. Does nothing if another thread is creating or leaving the world group.
pub(in crate::api) fn leave_world_at_exit(deadline: &Deadline) {
    let Ok(_changing) = WORLD_CHANGE.try_lock() else { return };
    let Some(WorldState { group, store, .. }) = replace_world(None) else { return };
    // If this process hosts the store, the store stays open until the process has ended.
    let store = ManuallyDrop::new(store);
    let leave_barrier = LeaveBarrier::new(&group);
    let uses_store = group.size() > 1 && !store.calls_program();
    if uses_store {
        drop(CallComparison::begin(store.as_ref(), &group, deadline));
    }
    drop(group);
    if uses_store {
        leave_barrier.wait_for_ranks(store.as_ref(), false, deadline);
    }
}

/// Compares the calls of a group that the caller is about to release. If the group belongs to the
/// world, `dist_finalize` compares them.
///
/// # Errors
/// `Mismatch`.
pub fn compare_calls_at_release(group: &Group) -> Result<()> {
    let world_store = unpoisoned(WORLD.read()).as_ref().map(|world| Arc::downgrade(&world.store));
    match world_store {
        Some(store) if Weak::ptr_eq(&store, &group.origin.rendezvous_store) => Ok(()),
        _ => group.compare_calls_at_release(),
    }
}

fn no_world_error() -> Error {
    let message = "there is no world group to leave: dist_init has not been called";
    Error::new(ErrorKind::NotInitialized, message)
}

/// Ends the works of the world group and calls their callbacks while the group exists, so that
/// every callback can use the group. Callbacks may issue further works until the deadline. If a
/// callback does not return, the callbacks after it are not called.
fn finish_works_and_callbacks(group: &Group, deadline: &Deadline) {
    let mut dropped = 0;
    loop {
        let issued = group.operations_issued();
        finish_works(group, deadline);
        dropped += callbacks::drain(&Deadline::after(step_time(group, deadline)));
        // A work posts its callbacks before it counts as ended. So once no work is outstanding, all
        // their callbacks have been posted.
        let is_over = group.outstanding_works() == 0 && group.operations_issued() == issued;
        if is_over || group.failure_or_death().is_some() || deadline.has_passed() {
            break;
        }
    }
    group.queue.close();
    // Ends the works that were issued before the queue closed.
    finish_works(group, &Deadline::after(time_after_failure(deadline)));
    dropped += callbacks::drain(&Deadline::after(time_after_failure(deadline)));
    if dropped > 0 {
        crate::log!(
            LogLevel::Warn,
            "dist_finalize drops {dropped} completion callbacks: an earlier callback has not returned"
        );
    }
}

/// Waits for the works of a group to end, and aborts the group if they do not end by the deadline.
pub(super) fn finish_works(group: &Group, deadline: &Deadline) {
    if group.outstanding_works() == 0 {
        return;
    }
    if group.failure().is_none() && !group.wait_for_works(deadline) {
        let text = format!(
            "dist_finalize was called with {} asynchronous operations that did not end within {} s",
            group.outstanding_works(),
            deadline.timeout().as_secs()
        );
        group.abort(&text);
    }
    // In a failed group, the works end by themselves. This wait is needed because a work holds a
    // reference to the group until it ends.
    if !group.wait_for_works(&Deadline::after(time_after_failure(deadline))) {
        crate::log!(
            LogLevel::Warn,
            "still outstanding at the end of dist_finalize: {}",
            Plural(group.outstanding_works(), "work")
        );
    }
}

/// Returns the time limit of a step: the remaining time, but at least `MIN_STEP_TIMEOUT`. In a
/// failed group, the limit is shorter.
fn step_time(group: &Group, deadline: &Deadline) -> Duration {
    match group.failure_or_death() {
        Some(_) => time_after_failure(deadline),
        None => deadline.remaining().max(MIN_STEP_TIMEOUT),
    }
}

/// Returns the time limit of a step in a failed group: the remaining time, but at least
/// `MIN_STEP_TIMEOUT` and at most `FAILED_GROUP_TIMEOUT`.
fn time_after_failure(deadline: &Deadline) -> Duration {
    deadline.remaining().clamp(MIN_STEP_TIMEOUT, FAILED_GROUP_TIMEOUT)
}

/// The last exchange through the store, after which the rank that hosts the store leaves last.
///
/// Each rank increments a counter. The rank that brings the counter to the group's size sets the
/// key `…/all`. The rank that hosts the store waits for this key; the other ranks do not wait.
struct LeaveBarrier {
    key: String,
    size: usize,
}

impl LeaveBarrier {
    fn new(group: &Group) -> Self {
        Self { key: format!("dist/{}/{}/bye", group.name(), group.id()), size: group.size() }
    }

    /// Counts this rank as left, and waits for the other ranks if this rank hosts the store. Errors
    /// are only logged, because at the end of a job the store may already be closed.
    fn wait_for_ranks(&self, store: &dyn Store, hosts_store: bool, deadline: &Deadline) {
        let all_left_key = format!("{}/all", self.key);
        let left_count = store.add(self.key.as_bytes(), 1, deadline);
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        let outcome = match left_count {
            Ok(count) if count >= size => store.set(all_left_key.as_bytes(), b"", deadline),
            Ok(_) if hosts_store => store.wait(&[all_left_key.as_bytes()], deadline),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            crate::log!(LogLevel::Info, "cannot leave the store: {error}");
        }
    }
}

fn lock_world_change() -> MutexGuard<'static, ()> {
    lock(&WORLD_CHANGE)
}
