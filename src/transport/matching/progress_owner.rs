//! The progress owner: the thread that makes progress for an engine, that is, polls its streams and
//! writes its frames.
//!
//! - **A waiting caller.** A caller that waits for a message polls repeatedly. If nothing arrives,
//!   it sleeps on the doorbell of this rank's messages, a futex word that each sender changes.
//!   While the caller polls, the endpoint does not call the progress handler of this engine. Before
//!   the caller sleeps, it resumes the handler, so that an event on a stream between nodes wakes
//!   the service thread.
//! - **The service thread.** While no caller waits, the service thread of the process *listens*: a
//!   notification of the doorbell makes it poll. It runs only when an event occurs.
//!
//! Starting and stopping to listen costs more than a small message. When a waiting caller returns,
//! the service thread therefore does not listen immediately. It begins to listen when no caller has
//! waited for the *service delay*. An alarm checks that.
//!
//! A failed engine no longer polls its streams, so it pauses the endpoint's progress handler for
//! good. A level-triggered endpoint calls the handler until the streams are polled, and would
//! otherwise call it endlessly.

use super::outstanding::CompletedMessage;
use super::state::MatchingState;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::sync::lock;
use crate::sys::host;
use crate::transport::{DoorbellListener, Endpoint, ProgressHandler, SharedDomain};
use crate::wait::service::{Alarm, AlarmHandler, alarm};
use crate::wait::service_task::ServiceTask;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The service delay (see the head of this file) while there are messages that no caller waits for.
const SERVICE_DELAY: Duration = Duration::from_millis(1);
/// The service delay at all other times. It is longer, because the service thread takes its time
/// from the caller that next runs on its core.
const SERVICE_DELAY_IDLE: Duration = Duration::from_millis(20);

/// The time for which a waiting caller polls in addition to the spin time of its wait policy. After
/// that, it sleeps, and leaves the streams to the service thread.
const EXTRA_POLL_TIME: Duration = Duration::from_micros(200);

/// The number of polls between two checks of the deadlines. Such a check reads the clock.
const POLLS_PER_CLOCK_CHECK: u32 = 128;

/// The engine, shared by the callers' threads and the service thread.
#[derive(Debug)]
pub(super) struct EngineCore {
    domain: Arc<dyn SharedDomain>,
    locked: Mutex<LockedEngine>,
    /// The number of callers in `progress_until`.
    active_waiters: AtomicUsize,
    /// The number of threads that are calling completions. A thread increases this number under the
    /// lock, before other threads can see that the messages are gone.
    completing: AtomicUsize,
    /// The number of transferred bytes at the last poll.
    moved_bytes: AtomicU64,
    service_hooks: OnceLock<ServiceHooks>,
}

/// The handles for waking the service thread.
#[derive(Debug)]
struct ServiceHooks {
    service_wakeup: ServiceTask,
    alarm: Alarm,
    /// Kept alive here for the domain and the endpoint, which hold weak references.
    _listener: Arc<EngineCallbacks>,
}

#[derive(Debug)]
pub(super) struct LockedEngine {
    pub(super) state: MatchingState,
    pub(super) delegation: ServiceDelegation,
}

/// The completions to call, and the probes to wake, after the lock has been released.
#[derive(Debug)]
struct CompletionBatch {
    completed: Vec<CompletedMessage>,
    /// Whether the waiting probes must search again.
    wakes_probes: bool,
}

/// The state of the delegation of progress to the service thread.
#[derive(Debug, Default)]
pub(super) struct ServiceDelegation {
    /// Whether a notification of the doorbell wakes the service thread.
    is_listening: bool,
    /// Whether the endpoint's progress handler is paused.
    is_endpoint_paused: bool,
    /// The time for which the alarm is set.
    alarm_at: Option<Instant>,
    /// The time at which a caller last waited.
    last_waited_at: Option<Instant>,
    /// Whether the fast path has received a message since the last alarm. Such a receive counts
    /// like a waiting caller.
    had_fast_receive: bool,
    /// The number of polls; every [`POLLS_PER_CLOCK_CHECK`]th poll checks the deadlines.
    polls: u32,
    /// Whether the service thread makes no more progress for this engine.
    is_dismissed: bool,
}

impl ServiceDelegation {
    /// Returns whether a notification of the doorbell wakes the service thread.
    pub(super) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Records that the fast path has received a message.
    pub(super) fn record_fast_receive(&mut self) {
        self.had_fast_receive = true;
    }
}

/// The callbacks of an engine, which the domain, the endpoint and the alarm call.
#[derive(Debug)]
struct EngineCallbacks(Weak<EngineCore>);

impl EngineCallbacks {
    fn with_core(&self, action: impl FnOnce(&EngineCore)) {
        if let Some(core) = self.0.upgrade() {
            action(&core);
        }
    }
}

impl DoorbellListener for EngineCallbacks {
    fn on_doorbell(&self) {
        self.with_core(EngineCore::wake_service);
    }
}

impl ProgressHandler for EngineCallbacks {
    fn on_streams_ready(&self) {
        self.with_core(EngineCore::run_service);
    }
}

impl AlarmHandler for EngineCallbacks {
    fn on_alarm(&self) {
        self.with_core(EngineCore::on_alarm);
    }
}

impl EngineCore {
    pub(super) fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        allow_cma_read: bool,
    ) -> Result<Arc<Self>> {
        let cookie = host::random_nonce()?;
        let state = MatchingState::new(Arc::clone(&domain), endpoint.clone(), cookie)?;
        if allow_cma_read {
            state.exposed.publish_cookie();
        }
        let delegation = ServiceDelegation { is_listening: true, ..ServiceDelegation::default() };
        let core = Arc::new(Self {
            domain,
            locked: Mutex::new(LockedEngine { state, delegation }),
            active_waiters: AtomicUsize::new(0),
            completing: AtomicUsize::new(0),
            moved_bytes: AtomicU64::new(0),
            service_hooks: OnceLock::new(),
        });
        let callbacks = Arc::new(EngineCallbacks(Arc::downgrade(&core)));
        let task = EngineCallbacks(Arc::downgrade(&core));
        let service_task = ServiceTask::new(move || task.with_core(Self::run_service))?;
        let service_alarm = alarm(callbacks.clone())?;
        let listener: Arc<dyn DoorbellListener> = callbacks.clone();
        core.domain.add_listener(Arc::downgrade(&listener));
        let progress_handler: Arc<dyn ProgressHandler> = callbacks.clone();
        if let Some(endpoint) = &endpoint {
            endpoint.set_progress_handler(Arc::downgrade(&progress_handler));
        }
        core.domain.region().message_doorbell(core.domain.rank()).listen();
        // `set` cannot fail: the cell was empty.
        drop(core.service_hooks.set(ServiceHooks {
            service_wakeup: service_task,
            alarm: service_alarm,
            _listener: callbacks,
        }));
        // Other ranks may have sent messages before this rank listened.
        core.wake_service();
        Ok(core)
    }

    /// Returns the rank's domain.
    pub(super) fn domain(&self) -> &dyn SharedDomain {
        self.domain.as_ref()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LockedEngine> {
        lock(&self.locked)
    }

    fn wake_service(&self) {
        self.service_hooks.get().into_iter().for_each(|hooks| hooks.service_wakeup.wake());
    }

    fn doorbell(&self) -> &crate::wait::doorbell::Doorbell {
        self.domain.region().message_doorbell(self.domain.rank())
    }

    /// Runs an action on the state, and then delivers the completions that it caused.
    pub(super) fn with_state<T>(&self, action: impl FnOnce(&mut MatchingState) -> T) -> T {
        let mut locked = self.lock();
        let value = action(&mut locked.state);
        locked.state.flush_all();
        self.unlock_and_complete(locked);
        value
    }

    /// Releases the lock and delivers completions.
    fn unlock_and_complete(&self, mut locked: MutexGuard<'_, LockedEngine>) {
        self.delegate_to_service(&mut locked);
        let ended = self.take_completions(&mut locked.state);
        drop(locked);
        self.deliver_completions(ended);
    }

    /// Wakes the threads that sleep in this engine.
    pub(super) fn wake_waiters(&self) {
        self.doorbell().notify();
    }

    /// Takes the completions from the state. The caller delivers them after it has released the
    /// lock.
    fn take_completions(&self, state: &mut MatchingState) -> CompletionBatch {
        let ended = state.requests.take_completed();
        if !ended.is_empty() {
            self.completing.fetch_add(1, Ordering::Relaxed);
        }
        CompletionBatch { completed: ended, wakes_probes: state.queues.take_probe_wakeup() }
    }

    /// Calls completions. Then notifies the doorbell, so that sleeping callers and probes check
    /// their conditions.
    fn deliver_completions(
        &self,
        CompletionBatch { completed: ended, wakes_probes }: CompletionBatch,
    ) {
        if !ended.is_empty() {
            ended.into_iter().for_each(CompletedMessage::notify);
            self.completing.fetch_sub(1, Ordering::Release);
        } else if !wakes_probes {
            return;
        }
        self.doorbell().notify();
    }

    /// See [`crate::transport::PointToPoint::is_completing`].
    pub(super) fn is_completing(&self) -> bool {
        self.completing.load(Ordering::Acquire) != 0
    }

    /// Sets the alarm for the next deadline or the end of the service delay. Wakes the service
    /// thread if there is work that no waiting caller does.
    fn delegate_to_service(&self, locked: &mut LockedEngine) {
        if locked.delegation.is_dismissed {
            return;
        }
        if locked.state.failure.is_some() {
            set_endpoint_paused(locked, true);
        }
        let LockedEngine { state, delegation } = locked;
        let has_owner = self.active_waiters.load(Ordering::Relaxed) != 0 || delegation.is_listening;
        let service_due = delegation
            .last_waited_at
            .filter(|_| !has_owner)
            .map(|last| last + state.service_delay());
        let next = [state.next_deadline(), service_due].into_iter().flatten().min();
        if let Some(next) = next
            && delegation.alarm_at.is_none_or(|set_for| next < set_for)
        {
            delegation.alarm_at = Some(next);
            self.service_hooks.get().into_iter().for_each(|hooks| hooks.alarm.set(Some(next)));
        }
        if state.needs_service_progress() {
            self.wake_service();
        }
    }

    /// Makes progress on the service thread.
    fn run_service(&self) {
        let mut locked = self.lock();
        if locked.delegation.is_dismissed {
            return;
        }
        locked.state.progress_and_expire();
        self.unlock_and_complete(locked);
    }

    /// Handles the alarm: a message has expired, or no caller has waited for the service delay.
    fn on_alarm(&self) {
        let mut locked = self.lock();
        let delegation = &mut locked.delegation;
        if delegation.is_dismissed {
            return;
        }
        delegation.alarm_at = None;
        if std::mem::take(&mut delegation.had_fast_receive) {
            delegation.last_waited_at = Some(Instant::now());
        }
        let delay = locked.state.service_delay();
        let delegation = &mut locked.delegation;
        let is_idle = delegation.last_waited_at.is_none_or(|last| last.elapsed() >= delay);
        if self.active_waiters.load(Ordering::Relaxed) == 0 && !delegation.is_listening && is_idle {
            delegation.is_listening = true;
            self.doorbell().listen();
            set_endpoint_paused(&mut locked, false);
        }
        // Also handle the messages that arrived before the service thread listened. They woke no
        // thread.
        locked.state.progress_and_expire();
        self.unlock_and_complete(locked);
    }

    /// See [`crate::transport::PointToPoint::progress_until`].
    pub(super) fn progress_until(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) {
        if is_done() {
            return;
        }
        self.active_waiters.fetch_add(1, Ordering::AcqRel);
        let mut locked = self.lock();
        if std::mem::take(&mut locked.delegation.is_listening) {
            self.doorbell().stop_listening();
        }
        set_endpoint_paused(&mut locked, true);
        drop(locked);
        while !self.poll_while_moving(is_done, limit) && !self.sleep_until_moved(is_done, limit) {}
        let mut locked = self.lock();
        locked.delegation.last_waited_at = Some(Instant::now());
        if self.active_waiters.fetch_sub(1, Ordering::AcqRel) > 1 {
            // Other waiting callers may be asleep, and no thread polls the streams for them.
            set_endpoint_paused(&mut locked, false);
        }
        self.unlock_and_complete(locked);
    }

    /// Polls in rounds of limited time, as long as each round transfers bytes. Returns true if
    /// `is_done` returned true or the limit has passed.
    fn poll_while_moving(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) -> bool {
        let policy = self.domain.wait_policy();
        loop {
            let before = self.moved_bytes.load(Ordering::Relaxed);
            let poll_limit = limit.capped(policy.spin_time + EXTRA_POLL_TIME);
            let ready = || self.poll_once(is_done, limit);
            if wait_until(self.doorbell(), policy, &poll_limit, || None, ready).is_ok()
                || limit.has_passed()
            {
                return true;
            }
            if self.moved_bytes.load(Ordering::Relaxed) == before {
                return false;
            }
        }
    }

    /// Sleeps between polls until a poll transfers bytes. Returns true if `is_done` returned true
    /// or the limit has passed.
    fn sleep_until_moved(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) -> bool {
        let before = self.moved_bytes.load(Ordering::Relaxed);
        loop {
            let mut locked = self.lock();
            set_endpoint_paused(&mut locked, false);
            locked.state.progress_and_expire();
            let due = locked.state.next_deadline();
            let ended = self.take_completions(&mut locked.state);
            drop(locked);
            self.deliver_completions(ended);
            let until_due = due.map(|due| due.saturating_duration_since(Instant::now()));
            let slice = until_due.map_or(*limit, |left| limit.capped(left));
            let ready = || {
                let is_over = self.poll_once(is_done, limit).is_some();
                (is_over || self.moved_bytes.load(Ordering::Relaxed) != before).then_some(is_over)
            };
            match wait_until(self.doorbell(), WaitPolicy::SLEEP_SOON, &slice, || None, ready) {
                Ok(true) => return true,
                Ok(false) => {
                    set_endpoint_paused(&mut self.lock(), true);
                    return false;
                }
                Err(_) if limit.has_passed() => return true,
                Err(_) => {}
            }
        }
    }

    /// Polls once, and again while a further poll can make progress. Returns `Some` if `is_done`
    /// then returns true.
    fn poll_once(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) -> Option<()> {
        loop {
            let mut locked = self.lock();
            let LockedEngine { state, delegation } = &mut *locked;
            delegation.polls = delegation.polls.wrapping_add(1);
            if delegation.polls.is_multiple_of(POLLS_PER_CLOCK_CHECK) {
                state.progress_and_expire();
            } else {
                state.progress();
            }
            let ended = self.take_completions(state);
            let has_more = state.has_runnable_work();
            self.moved_bytes.store(state.peers.moved_bytes(), Ordering::Relaxed);
            drop(locked);
            self.deliver_completions(ended);
            if is_done() {
                return Some(());
            }
            if !has_more || limit.has_passed() {
                return None;
            }
        }
    }

    /// Leaves the group: completes all outstanding messages.
    pub(super) fn leave(&self) {
        let mut locked = self.lock();
        locked.state.leave();
        set_endpoint_paused(&mut locked, true);
        locked.state.detach();
        self.dismiss_service(&mut locked.delegation);
        let ended = self.take_completions(&mut locked.state);
        drop(locked);
        self.deliver_completions(ended);
    }

    /// Dismisses the service thread: it makes no more progress for this rank.
    pub(super) fn dismiss_service(&self, delegation: &mut ServiceDelegation) {
        delegation.is_dismissed = true;
        if std::mem::take(&mut delegation.is_listening) {
            self.doorbell().stop_listening();
        }
    }

    /// Returns the number of bytes of buffered eager messages.
    #[cfg(test)]
    pub(super) fn buffered_bytes(&self) -> usize {
        self.lock().state.buffered_bytes()
    }
}

impl MatchingState {
    /// Returns the service delay that applies now.
    fn service_delay(&self) -> Duration {
        if self.requests.has_unawaited() { SERVICE_DELAY } else { SERVICE_DELAY_IDLE }
    }
}

/// Pauses or resumes the endpoint's progress handler. After a failure, the handler stays paused.
fn set_endpoint_paused(locked: &mut LockedEngine, paused: bool) {
    let paused = paused || locked.state.failure.is_some();
    if let Some(endpoint) = &locked.state.endpoint
        && locked.delegation.is_endpoint_paused != paused
    {
        locked.delegation.is_endpoint_paused = paused;
        endpoint.pause_progress_handler(paused);
    }
}
