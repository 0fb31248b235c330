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

use super::outstanding::Ended;
use super::state::State;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::sys::host;
use crate::transport::{Attendant, Completion, Endpoint, Listener, SharedDomain};
use crate::wait::nudge::Nudge;
use crate::wait::service::{Alarm, Alarmed, alarm};
use crate::wait::{Pace, until};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long nobody has attended before the service thread listens: while there are messages that
/// nobody waits for, and while there are none. It runs at the cost of whoever calls next on its
/// core.
const LINGER: Duration = Duration::from_millis(1);
const LINGER_AT_REST: Duration = Duration::from_millis(20);

/// How long an attendant looks, beyond its pace, before it leaves the streams to the service
/// thread.
const LOOK_FOR: Duration = Duration::from_micros(200);

/// How many looks are taken between two glances at the clock.
const LOOKS_PER_GLANCE: u32 = 128;

/// What the caller's threads and the service thread share.
#[derive(Debug)]
pub(super) struct Core {
    domain: Arc<dyn SharedDomain>,
    locked: Mutex<Locked>,
    /// How many threads attend.
    attending: AtomicUsize,
    /// How many are telling what has ended. Grows under the lock.
    telling: AtomicUsize,
    /// How much had moved when somebody looked last.
    moved: AtomicU64,
    hooks: OnceLock<Hooks>,
}

/// How the service thread is reached.
#[derive(Debug)]
struct Hooks {
    nudge: Nudge,
    alarm: Alarm,
    /// Held for the domain and the endpoint, which know it weakly.
    _listener: Arc<Ear>,
}

#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: State,
    pub(super) watch: Watch,
}

/// What has to be told without the lock.
#[derive(Debug)]
struct Reports {
    ended: Vec<Ended>,
    /// Probes that wait look again.
    wakes_probes: bool,
}

/// How far the service thread is told of what happens.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// It is told when the bell is rung.
    listens: bool,
    /// It is not told of streams that may go on.
    paused: bool,
    /// What the alarm clock is set for.
    set_for: Option<Instant>,
    /// When somebody attended last.
    attended: Option<Instant>,
    /// A message has been received at once since the clock last looked, which is as good.
    was_prompt: bool,
    looks: u32,
    /// The service thread does nothing any more.
    is_left_alone: bool,
}

impl Watch {
    /// Whether the service thread is told when the bell is rung.
    pub(super) fn listens(&self) -> bool {
        self.listens
    }

    /// Notes that a message was received by a call that did not attend.
    pub(super) fn note_prompt(&mut self) {
        self.was_prompt = true;
    }
}

/// What the domain, the endpoint and the clock know of an engine.
#[derive(Debug)]
struct Ear(Weak<Core>);

impl Ear {
    fn with_core(&self, act: impl FnOnce(&Core)) {
        if let Some(core) = self.0.upgrade() {
            act(&core);
        }
    }
}

impl Listener for Ear {
    fn on_knock(&self) {
        self.with_core(Core::nudge);
    }
}

impl Attendant for Ear {
    fn attend(&self) {
        self.with_core(Core::serve);
    }
}

impl Alarmed for Ear {
    fn on_alarm(&self) {
        self.with_core(Core::on_alarm);
    }
}

impl Core {
    pub(super) fn new(
        domain: Arc<dyn SharedDomain>,
        endpoint: Option<Arc<dyn Endpoint>>,
        may_be_read: bool,
    ) -> Result<Arc<Self>> {
        let mark = host::random_nonce()?;
        let state = State::new(Arc::clone(&domain), endpoint.clone(), mark)?;
        if may_be_read {
            state.show_mark();
        }
        let watch = Watch { listens: true, ..Watch::default() };
        let core = Arc::new(Self {
            domain,
            locked: Mutex::new(Locked { state, watch }),
            attending: AtomicUsize::new(0),
            telling: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            hooks: OnceLock::new(),
        });
        let ear = Arc::new(Ear(Arc::downgrade(&core)));
        let task = Ear(Arc::downgrade(&core));
        let nudge = Nudge::new(move || task.with_core(Self::serve))?;
        let clock = alarm(ear.clone())?;
        let listener: Arc<dyn Listener> = ear.clone();
        core.domain.add_listener(Arc::downgrade(&listener));
        let attendant: Arc<dyn Attendant> = ear.clone();
        if let Some(endpoint) = &endpoint {
            endpoint.set_attendant(Arc::downgrade(&attendant));
        }
        core.domain.region().message_bell(core.domain.rank()).listen();
        // It was empty.
        drop(core.hooks.set(Hooks { nudge, alarm: clock, _listener: ear }));
        // Others may have sent already.
        core.nudge();
        Ok(core)
    }

    /// The domain that the rank is a member of.
    pub(super) fn domain(&self) -> &dyn SharedDomain {
        self.domain.as_ref()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nudge(&self) {
        self.hooks.get().into_iter().for_each(|hooks| hooks.nudge.nudge());
    }

    fn bell(&self) -> &crate::wait::bell::Bell {
        self.domain.region().message_bell(self.domain.rank())
    }

    /// Does something with the state, and tells what has ended by it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut locked = self.lock();
        let value = act(&mut locked.state);
        locked.state.put_all();
        self.release(locked);
        value
    }

    /// Lets go of the lock and tells what has ended.
    fn release(&self, mut locked: MutexGuard<'_, Locked>) {
        self.leave_to_service(&mut locked);
        let ended = self.collect(&mut locked.state);
        drop(locked);
        self.tell(ended);
    }

    /// Wakes those that sleep for something.
    pub(super) fn rouse(&self) {
        self.bell().ring();
    }

    /// What has ended, to be told without the lock.
    fn collect(&self, state: &mut State) -> Reports {
        let ended = std::mem::take(&mut state.ended);
        if !ended.is_empty() {
            self.telling.fetch_add(1, Ordering::Relaxed);
        }
        Reports { ended, wakes_probes: std::mem::take(&mut state.has_news) }
    }

    /// Tells what has been collected, and wakes those that sleep for it.
    fn tell(&self, Reports { ended, wakes_probes }: Reports) {
        if !ended.is_empty() {
            ended.into_iter().for_each(Ended::tell);
            self.telling.fetch_sub(1, Ordering::Release);
        } else if !wakes_probes {
            return;
        }
        self.bell().ring();
    }

    /// See [`crate::transport::PointToPoint::is_telling`].
    pub(super) fn is_telling(&self) -> bool {
        self.telling.load(Ordering::Acquire) != 0
    }

    /// Sees to it that the service thread looks when there is need.
    fn leave_to_service(&self, locked: &mut Locked) {
        if locked.watch.is_left_alone {
            return;
        }
        if locked.state.failed.is_some() {
            pause(locked, true);
        }
        let Locked { state, watch } = locked;
        let is_attended = self.attending.load(Ordering::Relaxed) != 0 || watch.listens;
        let linger = watch.attended.filter(|_| !is_attended).map(|last| last + state.linger());
        let next = [state.next_due(), linger].into_iter().flatten().min();
        if let Some(next) = next
            && watch.set_for.is_none_or(|set_for| next < set_for)
        {
            watch.set_for = Some(next);
            self.hooks.get().into_iter().for_each(|hooks| hooks.alarm.set(Some(next)));
        }
        if state.leaves_more() {
            self.nudge();
        }
    }

    /// The service thread makes progress.
    fn serve(&self) {
        let mut locked = self.lock();
        if locked.watch.is_left_alone {
            return;
        }
        locked.state.go_on();
        self.release(locked);
    }

    /// The clock: something has run out of time, or nobody has attended for a while.
    fn on_alarm(&self) {
        let mut locked = self.lock();
        let watch = &mut locked.watch;
        if watch.is_left_alone {
            return;
        }
        watch.set_for = None;
        if std::mem::take(&mut watch.was_prompt) {
            watch.attended = Some(Instant::now());
        }
        let linger = locked.state.linger();
        let watch = &mut locked.watch;
        let rested = watch.attended.is_none_or(|last| last.elapsed() >= linger);
        if self.attending.load(Ordering::Relaxed) == 0 && !watch.listens && rested {
            watch.listens = true;
            self.bell().listen();
            pause(&mut locked, false);
        }
        // Also for what came before it listened.
        locked.state.go_on();
        self.release(locked);
    }

    /// See [`crate::transport::PointToPoint::attend`].
    pub(super) fn attend(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        if over() {
            return;
        }
        self.attending.fetch_add(1, Ordering::AcqRel);
        let mut locked = self.lock();
        if std::mem::take(&mut locked.watch.listens) {
            self.bell().stop_listening();
        }
        pause(&mut locked, true);
        drop(locked);
        while !self.look_on(over, limit) && !self.rest(over, limit) {}
        let mut locked = self.lock();
        locked.watch.attended = Some(Instant::now());
        if self.attending.fetch_sub(1, Ordering::AcqRel) > 1 {
            // Others may be asleep, and nobody looks at the streams for them.
            pause(&mut locked, false);
        }
        self.release(locked);
    }

    /// Looks again and again, as long as that moves something; whether it is over or the limit has
    /// passed.
    fn look_on(&self, over: &dyn Fn() -> bool, limit: &Deadline) -> bool {
        let pace = self.domain.pace();
        loop {
            let before = self.moved.load(Ordering::Relaxed);
            let looking = limit.capped(pace.spin + LOOK_FOR);
            let ready = || self.look(over, limit);
            if until(self.bell(), pace, &looking, || None, ready).is_ok() || limit.has_passed() {
                return true;
            }
            if self.moved.load(Ordering::Relaxed) == before {
                return false;
            }
        }
    }

    /// Sleeps between looks, until one moves something; whether it is over or the limit has passed.
    fn rest(&self, over: &dyn Fn() -> bool, limit: &Deadline) -> bool {
        let before = self.moved.load(Ordering::Relaxed);
        loop {
            let mut locked = self.lock();
            pause(&mut locked, false);
            locked.state.go_on();
            let due = locked.state.next_due();
            let ended = self.collect(&mut locked.state);
            drop(locked);
            self.tell(ended);
            let until_due = due.map(|due| due.saturating_duration_since(Instant::now()));
            let slice = until_due.map_or(*limit, |left| limit.capped(left));
            let ready = || {
                let is_over = self.look(over, limit).is_some();
                (is_over || self.moved.load(Ordering::Relaxed) != before).then_some(is_over)
            };
            match until(self.bell(), Pace::PATIENT, &slice, || None, ready) {
                Ok(true) => return true,
                Ok(false) => {
                    pause(&mut self.lock(), true);
                    return false;
                }
                Err(_) if limit.has_passed() => return true,
                Err(_) => {}
            }
        }
    }

    /// Makes progress while there is any to make at once; whether it is over then.
    fn look(&self, over: &dyn Fn() -> bool, limit: &Deadline) -> Option<()> {
        loop {
            let mut locked = self.lock();
            let Locked { state, watch } = &mut *locked;
            watch.looks = watch.looks.wrapping_add(1);
            if watch.looks.is_multiple_of(LOOKS_PER_GLANCE) {
                state.go_on();
            } else {
                state.progress();
            }
            let ended = self.collect(state);
            let has_more = state.has_more();
            self.moved.store(state.moved, Ordering::Relaxed);
            drop(locked);
            self.tell(ended);
            if over() {
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
        pause(&mut locked, true);
        locked.state.detach();
        self.dismiss_service(&mut locked.watch);
        let ended = self.collect(&mut locked.state);
        drop(locked);
        self.tell(ended);
    }

    /// The service thread does nothing for this rank any more.
    pub(super) fn dismiss_service(&self, watch: &mut Watch) {
        watch.is_left_alone = true;
        if std::mem::take(&mut watch.listens) {
            self.bell().stop_listening();
        }
    }

    /// Bytes of whole messages that are held for receives to come.
    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        self.lock().state.buffered
    }
}

impl State {
    /// How long the service thread leaves messages to those who may attend.
    fn linger(&self) -> Duration {
        let is_unawaited = |done: &Arc<dyn Completion>| !done.is_awaited();
        let sends = self.sends.values().map(|it| &it.done);
        let mut all = sends.chain(self.receives.values().map(|it| &it.done));
        if all.any(is_unawaited) { LINGER } else { LINGER_AT_REST }
    }
}

/// Whether the endpoint tells the service thread of streams that may go on: never again after a
/// failure.
fn pause(locked: &mut Locked, paused: bool) {
    let paused = paused || locked.state.failed.is_some();
    if let Some(endpoint) = &locked.state.endpoint
        && locked.watch.paused != paused
    {
        locked.watch.paused = paused;
        endpoint.pause_attendant(paused);
    }
}
