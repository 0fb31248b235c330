//! Who makes progress, and when.
//!
//! Somebody who waits for a message attends: it looks at everything again and again, and then
//! sleeps on the bell of this rank's messages. While it looks, the endpoint need not tell anybody
//! of its streams; before it sleeps, it has the endpoint tell the service thread.
//!
//! While nobody attends, the service thread *listens*: whoever rings the bell has it look. To begin
//! and to end that costs more than a small message takes, so that it is not begun when an attendant
//! goes but once none has come for a while; an alarm clock looks whether that is so. Once it
//! listens, nothing runs unless something happens.
//!
//! An engine that has failed does not look at its streams again, and so has the endpoint tell
//! nobody of them: one that tells as long as nobody has looked would do so without end.

use super::outstanding::CompletedMessage;
use super::state::MatchingState;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::sys::host;
use crate::transport::{Completion, DoorbellListener, Endpoint, ProgressHandler, SharedDomain};
use crate::wait::service::{Alarm, AlarmHandler, alarm};
use crate::wait::service_task::ServiceTask;
use crate::wait::{WaitPolicy, wait_until};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long nobody has attended before the service thread listens: while there are messages that
/// nobody waits for, and while there are none. It runs at the cost of whoever calls next on its
/// core.
const SERVICE_DELAY: Duration = Duration::from_millis(1);
const SERVICE_DELAY_IDLE: Duration = Duration::from_millis(20);

/// How long an attendant looks, beyond its pace, before it leaves the streams to the service
/// thread.
const EXTRA_POLL_TIME: Duration = Duration::from_micros(200);

/// How many looks are taken between two glances at the clock.
const POLLS_PER_CLOCK_CHECK: u32 = 128;

/// What the caller's threads and the service thread share.
#[derive(Debug)]
pub(super) struct EngineCore {
    domain: Arc<dyn SharedDomain>,
    locked: Mutex<LockedEngine>,
    /// How many threads attend.
    active_waiters: AtomicUsize,
    /// How many are telling what has ended. Grows under the lock.
    completing: AtomicUsize,
    /// How much had moved when somebody looked last.
    moved_bytes: AtomicU64,
    service_hooks: OnceLock<ServiceHooks>,
}

/// How the service thread is reached.
#[derive(Debug)]
struct ServiceHooks {
    service_wakeup: ServiceTask,
    alarm: Alarm,
    /// Held for the domain and the endpoint, which know it weakly.
    _listener: Arc<EngineCallbacks>,
}

#[derive(Debug)]
pub(super) struct LockedEngine {
    pub(super) state: MatchingState,
    pub(super) delegation: ServiceDelegation,
}

/// What has to be told without the lock.
#[derive(Debug)]
struct CompletionBatch {
    completed: Vec<CompletedMessage>,
    /// Probes that wait look again.
    wakes_probes: bool,
}

/// How far the service thread is told of what happens.
#[derive(Debug, Default)]
pub(super) struct ServiceDelegation {
    /// It is told when the bell is rung.
    is_listening: bool,
    /// It is not told of streams that may go on.
    is_endpoint_paused: bool,
    /// What the alarm clock is set for.
    alarm_at: Option<Instant>,
    /// When somebody attended last.
    last_waited_at: Option<Instant>,
    /// A message has been received at once since the clock last looked, which is as good.
    had_fast_receive: bool,
    polls: u32,
    /// The service thread does nothing any more.
    is_dismissed: bool,
}

impl ServiceDelegation {
    /// Whether the service thread is told when the bell is rung.
    pub(super) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Notes that a message was received by a call that did not attend.
    pub(super) fn record_fast_receive(&mut self) {
        self.had_fast_receive = true;
    }
}

/// What the domain, the endpoint and the clock know of an engine.
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
            state.publish_cookie();
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
        let nudge = ServiceTask::new(move || task.with_core(Self::run_service))?;
        let service_alarm = alarm(callbacks.clone())?;
        let listener: Arc<dyn DoorbellListener> = callbacks.clone();
        core.domain.add_listener(Arc::downgrade(&listener));
        let progress_handler: Arc<dyn ProgressHandler> = callbacks.clone();
        if let Some(endpoint) = &endpoint {
            endpoint.set_progress_handler(Arc::downgrade(&progress_handler));
        }
        core.domain.region().message_doorbell(core.domain.rank()).listen();
        // It was empty.
        drop(core.service_hooks.set(ServiceHooks {
            service_wakeup: nudge,
            alarm: service_alarm,
            _listener: callbacks,
        }));
        // Others may have sent already.
        core.wake_service();
        Ok(core)
    }

    /// The domain that the rank is a member of.
    pub(super) fn domain(&self) -> &dyn SharedDomain {
        self.domain.as_ref()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LockedEngine> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_service(&self) {
        self.service_hooks.get().into_iter().for_each(|hooks| hooks.service_wakeup.wake());
    }

    fn doorbell(&self) -> &crate::wait::doorbell::Doorbell {
        self.domain.region().message_doorbell(self.domain.rank())
    }

    /// Does something with the state, and tells what has ended by it.
    pub(super) fn with_state<T>(&self, action: impl FnOnce(&mut MatchingState) -> T) -> T {
        let mut locked = self.lock();
        let value = action(&mut locked.state);
        locked.state.flush_all();
        self.unlock_and_complete(locked);
        value
    }

    /// Lets go of the lock and tells what has ended.
    fn unlock_and_complete(&self, mut locked: MutexGuard<'_, LockedEngine>) {
        self.delegate_to_service(&mut locked);
        let ended = self.take_completions(&mut locked.state);
        drop(locked);
        self.deliver_completions(ended);
    }

    /// Wakes those that sleep for something.
    pub(super) fn wake_waiters(&self) {
        self.doorbell().notify();
    }

    /// What has ended, to be told without the lock.
    fn take_completions(&self, state: &mut MatchingState) -> CompletionBatch {
        let ended = std::mem::take(&mut state.completed);
        if !ended.is_empty() {
            self.completing.fetch_add(1, Ordering::Relaxed);
        }
        CompletionBatch {
            completed: ended,
            wakes_probes: std::mem::take(&mut state.has_new_message),
        }
    }

    /// Tells what has been collected, and wakes those that sleep for it.
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

    /// Sees to it that the service thread looks when there is need.
    fn delegate_to_service(&self, locked: &mut LockedEngine) {
        if locked.delegation.is_dismissed {
            return;
        }
        if locked.state.failure.is_some() {
            set_endpoint_paused(locked, true);
        }
        let LockedEngine { state, delegation: watch } = locked;
        let is_attended = self.active_waiters.load(Ordering::Relaxed) != 0 || watch.is_listening;
        let service_due =
            watch.last_waited_at.filter(|_| !is_attended).map(|last| last + state.service_delay());
        let next = [state.next_deadline(), service_due].into_iter().flatten().min();
        if let Some(next) = next
            && watch.alarm_at.is_none_or(|set_for| next < set_for)
        {
            watch.alarm_at = Some(next);
            self.service_hooks.get().into_iter().for_each(|hooks| hooks.alarm.set(Some(next)));
        }
        if state.needs_service_progress() {
            self.wake_service();
        }
    }

    /// The service thread makes progress.
    fn run_service(&self) {
        let mut locked = self.lock();
        if locked.delegation.is_dismissed {
            return;
        }
        locked.state.progress_and_expire();
        self.unlock_and_complete(locked);
    }

    /// The clock: something has run out of time, or nobody has attended for a while.
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
        // Also for what came before it listened.
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
            // Others may be asleep, and nobody looks at the streams for them.
            set_endpoint_paused(&mut locked, false);
        }
        self.unlock_and_complete(locked);
    }

    /// Looks again and again, as long as that moves something; whether it is over or the limit has
    /// passed.
    fn poll_while_moving(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) -> bool {
        let pace = self.domain.wait_policy();
        loop {
            let before = self.moved_bytes.load(Ordering::Relaxed);
            let poll_limit = limit.capped(pace.spin_time + EXTRA_POLL_TIME);
            let ready = || self.poll_once(is_done, limit);
            if wait_until(self.doorbell(), pace, &poll_limit, || None, ready).is_ok()
                || limit.has_passed()
            {
                return true;
            }
            if self.moved_bytes.load(Ordering::Relaxed) == before {
                return false;
            }
        }
    }

    /// Sleeps between looks, until one moves something; whether it is over or the limit has passed.
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

    /// Makes progress while there is any to make at once; whether it is over then.
    fn poll_once(&self, is_done: &dyn Fn() -> bool, limit: &Deadline) -> Option<()> {
        loop {
            let mut locked = self.lock();
            let LockedEngine { state, delegation: watch } = &mut *locked;
            watch.polls = watch.polls.wrapping_add(1);
            if watch.polls.is_multiple_of(POLLS_PER_CLOCK_CHECK) {
                state.progress_and_expire();
            } else {
                state.progress();
            }
            let ended = self.take_completions(state);
            let has_more = state.has_runnable_work();
            self.moved_bytes.store(state.moved_bytes, Ordering::Relaxed);
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

    /// The rank leaves: everything that has not ended does.
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

    /// The service thread does nothing for this rank any more.
    pub(super) fn dismiss_service(&self, delegation: &mut ServiceDelegation) {
        delegation.is_dismissed = true;
        if std::mem::take(&mut delegation.is_listening) {
            self.doorbell().stop_listening();
        }
    }

    /// Bytes of whole messages that are held for receives to come.
    #[cfg(test)]
    pub(super) fn buffered_bytes(&self) -> usize {
        self.lock().state.buffered_bytes
    }
}

impl MatchingState {
    /// How long the service thread leaves messages to those who may attend.
    fn service_delay(&self) -> Duration {
        let is_unawaited = |done: &Arc<dyn Completion>| !done.is_awaited();
        let sends = self.sends.values().map(|it| &it.completion);
        let mut all = sends.chain(self.receives.values().map(|it| &it.completion));
        if all.any(is_unawaited) { SERVICE_DELAY } else { SERVICE_DELAY_IDLE }
    }
}

/// Whether the endpoint tells the service thread of streams that may go on: never again after a
/// failure.
fn set_endpoint_paused(locked: &mut LockedEngine, paused: bool) {
    let paused = paused || locked.state.failure.is_some();
    if let Some(endpoint) = &locked.state.endpoint
        && locked.delegation.is_endpoint_paused != paused
    {
        locked.delegation.is_endpoint_paused = paused;
        endpoint.pause_progress_handler(paused);
    }
}
