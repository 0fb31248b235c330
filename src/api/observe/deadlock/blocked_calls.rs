//! The blocked calls of this process.
//!
//! A call that may wait for other ranks sets a [`BlockedCallGuard`], which only stores the call in
//! a variable of the thread. If the call waits for long, the waiting code calls
//! [`register_current_call`], which adds the call to the list of blocked calls and starts the
//! detector.

use super::needs::Need;
use crate::api::observe::recorder::short_group_id;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::process::this_process;
use crate::process::thread::{self, THREAD_FLAGS, ThreadFlags};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The maximum time for which the end of a call waits for the failure of a deadlock's groups.
const FAILURE_TIMEOUT: Duration = Duration::from_millis(500);

/// The operation that a call waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum AwaitedOperation {
    /// A collective of the group with this sequence number.
    Collective { sequence: u64 },
    /// The message of the work with this id.
    Message { work_id: usize, message: MessageDescriptor },
    /// A message that is enqueued on a device, at this position among the messages to or from the
    /// same rank; 0 if the position is unknown.
    EnqueuedMessage { position: u64, message: MessageDescriptor },
    /// Control messages of other ranks. The call publishes its needs.
    Control,
}

/// What a call that waits for control messages has published.
#[derive(Clone, Debug)]
pub(in crate::api) struct PublishedNeeds {
    /// The name of the call, for example "monitored_barrier #3".
    pub(in crate::api) title: String,
    pub(in crate::api) needs: Vec<Need>,
    /// The group that the call creates: the short id of the parent, and the name.
    pub(in crate::api) joining: Option<(u64, String)>,
}

/// A call that may be blocked.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockedCall {
    /// The address of the group's queue, which identifies the group in this process.
    pub(super) queue: usize,
    pub(super) operation: AwaitedOperation,
    /// The time limit of the operation, if its start is the issue of the operation.
    pub(super) timeout: Option<Duration>,
    /// The deadlines of the operation and of the call.
    pub(super) deadlines: [Option<Deadline>; 2],
}

impl BlockedCall {
    /// Describes a wait for the operation with this sequence number.
    fn of_work(queue: usize, sequence: u64, work: &AwaitedWork) -> Self {
        let operation = match work.kind {
            AwaitedWorkKind::Collective => AwaitedOperation::Collective { sequence },
            AwaitedWorkKind::Message(work_id, message) => {
                AwaitedOperation::Message { work_id, message }
            }
            AwaitedWorkKind::EnqueuedMessage(position, message) => {
                AwaitedOperation::EnqueuedMessage { position, message }
            }
            AwaitedWorkKind::Control => AwaitedOperation::Control,
        };
        Self { queue, operation, timeout: None, deadlines: work.deadlines.map(Some) }
    }
}

/// The calls of a wait: it ends when all calls of one branch have ended.
pub(super) type CallBranches = Vec<Vec<BlockedCall>>;

/// A call that is blocked.
#[derive(Clone, Debug)]
pub(super) struct RegisteredCall {
    /// The number of the wait. No other wait of this process has the number.
    pub(super) wait: u64,
    pub(super) branches: CallBranches,
    pub(super) published: Option<Arc<PublishedNeeds>>,
}

/// The call of a thread. Blocking collectives write only a few words, because small ones take less
/// than a microsecond.
struct CurrentCall {
    /// The address of the group's queue; 0 if the thread runs no call that may be blocked.
    queue: Cell<usize>,
    sequence: Cell<u64>,
    /// The time limit of a blocking collective in milliseconds; `None` for a wait for a work.
    timeout_ms: Cell<Option<u64>>,
    /// The details of a wait for a work.
    awaited_work: Cell<Option<AwaitedWork>>,
    /// The number of the wait if the call is registered; otherwise 0.
    wait: Cell<u64>,
    /// The queue and the sequence number of the last call that polled, and the time of its first
    /// poll.
    polls: Cell<Option<(usize, u64, Instant)>>,
    /// The wait in slices that goes on after the last call.
    sliced_wait: Cell<Option<SlicedWait>>,
}

/// A wait in several calls.
#[derive(Clone, Copy, Debug)]
struct SlicedWait {
    /// Identifies the awaited works.
    id: usize,
    since: Instant,
    /// The number of the wait if the call is registered; otherwise 0.
    wait: u64,
}

/// The details of a wait for a work.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct AwaitedWork {
    pub(in crate::api) kind: AwaitedWorkKind,
    /// The deadlines of the operation and of the call.
    pub(in crate::api) deadlines: [Deadline; 2],
}

/// A work of a wait for any of several works.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct ListedWork {
    /// The address of the group's queue.
    pub(in crate::api) queue: usize,
    pub(in crate::api) sequence: u64,
    pub(in crate::api) work: AwaitedWork,
}

/// What a work waits for.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) enum AwaitedWorkKind {
    Collective,
    /// The message of the work with this id.
    Message(usize, MessageDescriptor),
    /// A message that is enqueued on a device, with its position.
    EnqueuedMessage(u64, MessageDescriptor),
    /// Control messages of a call without a work.
    Control,
}

thread_local! {
    static CURRENT: CurrentCall = const {
        CurrentCall {
            queue: Cell::new(0),
            sequence: Cell::new(0),
            timeout_ms: Cell::new(None),
            awaited_work: Cell::new(None),
            wait: Cell::new(0),
            polls: Cell::new(None),
            sliced_wait: Cell::new(None),
        }
    };

    /// The calls of a wait for any of several works; otherwise empty.
    static LISTED_CALLS: RefCell<CallBranches> = const { RefCell::new(Vec::new()) };
}

impl CurrentCall {
    /// Begins a call of this thread. Returns false if the thread is already in a call; then the
    /// outer call counts.
    fn begin(&self, queue: usize, sequence: u64, timeout_ms: Option<u64>) -> bool {
        let is_outermost = self.queue.get() == 0;
        if is_outermost {
            self.queue.set(queue);
            self.sequence.set(sequence);
            self.timeout_ms.set(timeout_ms);
        }
        is_outermost
    }

    /// Returns the call, if it is not registered.
    fn unregistered(&self) -> Option<CallBranches> {
        let (queue, sequence) = (self.queue.get(), self.sequence.get());
        if queue == 0 || self.wait.get() != 0 {
            return None;
        }
        let listed = LISTED_CALLS.with(|listed| listed.borrow().clone());
        if !listed.is_empty() {
            return Some(listed);
        }
        let timeout = self.timeout_ms.get().map(Duration::from_millis);
        let work = self.awaited_work.get().filter(|_| timeout.is_none());
        let collective = AwaitedOperation::Collective { sequence };
        let call = match work {
            Some(work) => BlockedCall::of_work(queue, sequence, &work),
            None => BlockedCall { queue, operation: collective, timeout, deadlines: [None; 2] },
        };
        Some(vec![vec![call]])
    }
}

struct CallList {
    last_wait: u64,
    /// The blocked calls, oldest first.
    calls: Vec<RegisteredCall>,
    has_detector: bool,
    /// The wait for which the detector is about to fail the groups of a deadlock.
    confirmed: Option<u64>,
}

static LIST: Mutex<CallList> =
    Mutex::new(CallList { last_wait: 0, calls: Vec::new(), has_detector: false, confirmed: None });

/// The function of the detector's thread.
static DETECTOR: OnceLock<fn()> = OnceLock::new();

/// The detector sleeps on this doorbell. It is notified when the list changes.
static DOORBELL: LazyLock<Doorbell> = LazyLock::new(Doorbell::default);

/// Marks that the current thread runs a call that may be blocked, until the guard is dropped.
#[must_use]
pub(in crate::api) struct BlockedCallGuard {
    is_outermost: bool,
    /// Whether the guard has set the list of calls.
    has_list: bool,
}

impl BlockedCallGuard {
    /// Begins a blocking collective of the group with this queue.
    #[inline]
    pub(in crate::api) fn collective(queue: usize, sequence: u64, timeout_ms: u64) -> Self {
        Self {
            is_outermost: CURRENT.with(|current| current.begin(queue, sequence, Some(timeout_ms))),
            has_list: false,
        }
    }

    /// Begins a wait for a work of the group with this queue.
    pub(in crate::api) fn work(queue: usize, sequence: u64, work: AwaitedWork) -> Self {
        let is_outermost = CURRENT.with(|current| {
            let is_outermost = current.begin(queue, sequence, None);
            if is_outermost {
                current.awaited_work.set(Some(work));
                current.polls.set(None);
            }
            is_outermost
        });
        Self { is_outermost, has_list: false }
    }

    /// Begins or continues a wait in slices. The id identifies the awaited works. `begin` begins
    /// the wait of one slice.
    pub(in crate::api) fn slice(id: usize, begin: impl FnOnce() -> Self) -> Self {
        let found = CURRENT.with(|current| current.sliced_wait.get());
        let sliced = match found.filter(|sliced| sliced.id == id) {
            Some(sliced) => sliced,
            None => {
                end_sliced_wait();
                SlicedWait { id, since: Instant::now(), wait: 0 }
            }
        };
        let guard = begin();
        if guard.is_outermost {
            CURRENT.with(|current| {
                current.sliced_wait.set(Some(sliced));
                current.wait.set(sliced.wait);
            });
            let threshold = debug::blocked_call_threshold();
            if threshold.is_some_and(|threshold| sliced.since.elapsed() >= threshold) {
                register_current_call();
            }
        }
        guard
    }

    /// Ends a call that waited for one slice. If `goes_on`, the wait goes on in the next call.
    pub(in crate::api) fn end_slice(self, goes_on: bool) {
        if !self.is_outermost {
            return;
        }
        CURRENT.with(|current| {
            let sliced = current.sliced_wait.take().filter(|_| goes_on);
            if let Some(sliced) = sliced {
                let wait = current.wait.replace(0);
                current.sliced_wait.set(Some(SlicedWait { wait, ..sliced }));
                THREAD_FLAGS.with(ThreadFlags::begin_sliced_wait);
            }
        });
    }

    /// Begins a wait for any of several works. A batch is the list of the works of its calls, and
    /// any other work is a list with one entry.
    pub(in crate::api) fn any_work(works: &[Vec<ListedWork>]) -> Self {
        let Some(&ListedWork { queue, work, .. }) = works.iter().flatten().next() else {
            return Self { is_outermost: false, has_list: false };
        };
        let mut guard = Self::work(queue, 0, work);
        if guard.is_outermost {
            guard.has_list = true;
            let call = |it: &ListedWork| BlockedCall::of_work(it.queue, it.sequence, &it.work);
            let branch = |works: &Vec<ListedWork>| works.iter().map(call).collect();
            LISTED_CALLS.set(works.iter().map(branch).collect());
        }
        guard
    }

    /// Begins a call that waits for control messages of other ranks in the group with this queue.
    pub(in crate::api) fn control(queue: usize, limit: &Deadline) -> Self {
        let deadlines = [*limit; 2];
        Self::work(queue, 0, AwaitedWork { kind: AwaitedWorkKind::Control, deadlines })
    }

    /// Returns whether the call is blocked, so that it should publish its needs.
    pub(in crate::api) fn is_blocked(&self) -> bool {
        self.is_outermost && CURRENT.with(|current| current.wait.get() != 0)
    }

    /// Publishes what the call needs. `needs` must have been complete when all messages that this
    /// rank had processed before were considered.
    pub(in crate::api) fn publish(&self, needs: PublishedNeeds) {
        let wait = CURRENT.with(|current| current.wait.get());
        let mut list = lock(&LIST);
        if let Some(call) = list.calls.iter_mut().find(|call| call.wait == wait) {
            call.published = Some(Arc::new(needs));
        }
    }
}

impl Drop for BlockedCallGuard {
    #[inline]
    fn drop(&mut self) {
        if !self.is_outermost {
            return;
        }
        let wait = CURRENT.with(|current| {
            current.queue.set(0);
            current.wait.replace(0)
        });
        if self.has_list {
            LISTED_CALLS.take();
        }
        if wait != 0 {
            unregister(wait);
        }
    }
}

/// Ends the wait in slices of this thread.
pub(super) fn end_sliced_wait() {
    let sliced = CURRENT.with(|current| current.sliced_wait.take());
    if let Some(sliced) = sliced.filter(|sliced| sliced.wait != 0) {
        unregister(sliced.wait);
    }
}

/// Adds the call of this thread to the blocked calls, if it has polled for the configured time. The
/// waits of other back ends call this again and again.
pub(super) fn record_poll() {
    let Some(threshold) = debug::blocked_call_threshold() else { return };
    let is_long = CURRENT.with(|current| {
        let (queue, sequence) = (current.queue.get(), current.sequence.get());
        match current.polls.get() {
            Some((polled, number, since)) if (polled, number) == (queue, sequence) => {
                since.elapsed() >= threshold
            }
            _ => {
                current.polls.set(Some((queue, sequence, Instant::now())));
                false
            }
        }
    });
    if is_long {
        register_current_call();
    }
}

/// Adds the call of this thread to the blocked calls, if it is not there.
pub(super) fn register_current_call() {
    let Some(branches) = CURRENT.with(CurrentCall::unregistered) else { return };
    let mut list = lock(&LIST);
    list.last_wait = next_wait(list.last_wait);
    let wait = list.last_wait;
    list.calls.push(RegisteredCall { wait, branches, published: None });
    let needs_detector = !std::mem::replace(&mut list.has_detector, true);
    drop(list);
    CURRENT.with(|current| current.wait.set(wait));
    DOORBELL.notify();
    if needs_detector
        && let Some(&detector) = DETECTOR.get()
        && let Err(error) = thread::start("dist-deadlock", detector)
    {
        lock(&LIST).has_detector = false;
        crate::log!(LogLevel::Warn, "deadlocks are not searched for: {error}");
    }
}

/// Returns the number of a new wait. The first number is random, so that two processes with the
/// same key, such as processes of two containers, do not have the same waits.
pub(super) fn next_wait(last: u64) -> u64 {
    let first = || this_process::random_nonce().map_or(1, |nonce| short_group_id(nonce) >> 1);
    if last == 0 { first().max(1) } else { last + 1 }
}

/// Sets the function of the detector's thread. Only the first call has an effect.
pub(super) fn set_detector(detector: fn()) {
    let _first = DETECTOR.set(detector);
}

/// Removes a call that has ended. If its wait is a part of a deadlock, first waits until the
/// detector has failed the groups of the deadlock. Otherwise this process might leave such a group
/// before, and the departure would be the error of the other process.
#[cold]
fn unregister(wait: u64) {
    let is_free = || (lock(&LIST).confirmed != Some(wait)).then_some(());
    let limit = Deadline::after(FAILURE_TIMEOUT);
    drop(wait_until(&DOORBELL, WaitPolicy::SLEEP_SOON, &limit, || None, is_free));
    lock(&LIST).calls.retain(|call| call.wait != wait);
    DOORBELL.notify();
}

/// Stores the wait for which the detector is about to fail the groups of a deadlock.
pub(super) fn set_confirmed(wait: Option<u64>) {
    let before = std::mem::replace(&mut lock(&LIST).confirmed, wait);
    if before != wait {
        DOORBELL.notify();
    }
}

/// Returns the oldest blocked call, and whether it is the only one. If there is none, ends the
/// detector.
pub(super) fn oldest_or_retire() -> Option<(RegisteredCall, bool)> {
    let mut list = lock(&LIST);
    list.has_detector = !list.calls.is_empty();
    list.calls.first().map(|oldest| (oldest.clone(), list.calls.len() == 1))
}

/// Returns what a blocked call has published.
pub(super) fn published_needs(wait: u64) -> Option<Arc<PublishedNeeds>> {
    let list = lock(&LIST);
    list.calls.iter().find(|call| call.wait == wait).and_then(|call| call.published.clone())
}

/// Returns whether a call is blocked.
pub(super) fn is_blocked(wait: u64) -> bool {
    lock(&LIST).calls.iter().any(|call| call.wait == wait)
}

/// Waits until a call is no longer blocked, or until the time has passed.
pub(super) fn wait_for_end(wait: u64, time: Duration) {
    let limit = Deadline::after(time);
    while is_blocked(wait) && !limit.has_passed() {
        // The detector sleeps at once: a phase of polling would take most of its processor time.
        let has_ended = || (!is_blocked(wait)).then_some(());
        let _ended = DOORBELL.sleep_unless_ready(limit.remaining(), || true, has_ended);
    }
}
