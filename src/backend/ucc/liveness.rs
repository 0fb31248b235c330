//! Whether UCC may be called: not after the group has failed, and not while an end of a connection
//! is known to the kernel that libdist has not handled.
//!
//! UCC 1.2 crashes if it sends to a process whose end UCX has noticed, because it cancels the
//! error code as if it were a request. The service thread learns of the death, too, but it needs
//! some time to wake. So before UCC may send, this module asks whether the service thread has an
//! event ([`EventProbe`]), and waits until the thread has handled it. The question is a system
//! call of some 0.2 us, so it is asked at most once in [`CHECK_INTERVAL`] if each rank has a core.

use crate::backend::{DoorbellListener, GroupFailureState};
use crate::base::deadline::Deadline;
use crate::wait::policy::yield_until;
use crate::wait::service::EventProbe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The minimum interval between two questions to the kernel.
const CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// The longest time that a call waits for the service thread to handle an event.
const EVENT_WAIT: Duration = Duration::from_millis(20);

/// The state of the group's ranks, as far as it decides whether UCC may be called.
#[derive(Debug)]
pub(super) struct Liveness {
    /// True once the group has failed on this rank.
    has_failed: AtomicBool,
    /// The failure state of the native group.
    native: Arc<dyn GroupFailureState>,
    probe: Option<EventProbe>,
    /// True if the ranks of this host outnumber its cores.
    is_oversubscribed: bool,
    created: Instant,
    /// The time of the next question to the kernel, in nanoseconds after `created`.
    next_check: AtomicU64,
}

impl Liveness {
    /// Returns the state of a new group, which follows the failure of the native group.
    pub(super) fn follow(native: Arc<dyn GroupFailureState>, is_oversubscribed: bool) -> Arc<Self> {
        let liveness = Arc::new(Self {
            has_failed: AtomicBool::new(native.failure().is_some()),
            native: Arc::clone(&native),
            probe: EventProbe::of_service_thread(),
            is_oversubscribed,
            created: Instant::now(),
            next_check: AtomicU64::new(0),
        });
        let listener = Arc::clone(&liveness) as Arc<dyn DoorbellListener>;
        native.add_listener(Arc::downgrade(&listener));
        liveness
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Returns true if UCC may send. Waits for the service thread if it has an event.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        if self.is_oversubscribed {
            // A rank that waits for a core finds the last message and the end of a rank together.
            self.await_handled_events();
            return !self.has_failed();
        }
        let now = u64::try_from(self.created.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if now >= self.next_check.load(Ordering::Relaxed) {
            self.await_handled_events();
            let interval = u64::try_from(CHECK_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
            self.next_check.store(now.saturating_add(interval), Ordering::Relaxed);
        }
        !self.has_failed()
    }

    fn await_handled_events(&self) {
        let Some(probe) = &self.probe else { return };
        if !probe.has_events() {
            return;
        }
        // An event is most often a message of another rank, which needs some microseconds.
        let limit = Deadline::after(EVENT_WAIT);
        let is_over = || (self.has_failed() || !probe.has_events()).then_some(());
        while yield_until(16, is_over).is_none() && !limit.has_passed() {}
    }
}

impl DoorbellListener for Liveness {
    fn on_doorbell(&self) {
        if !self.has_failed() && self.native.failure().is_some() {
            self.fail();
        }
    }
}
