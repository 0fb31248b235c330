//! The heartbeat of a rank among the processes of its host: its service thread beats for it,
//! watches the pulses of the others, and says what its process is doing. A rank that stands still
//! fails the domain.

use super::{Shared, lifeline};
use crate::base::error::{Error, ErrorKind, Fault, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::transport::SharedDomain as _;
use crate::transport::pulse::{Rhythm, Vigil};
use crate::wait::service::{self, Alarm, Alarmed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What beats for a rank.
#[derive(Debug)]
struct Heart {
    shared: Weak<Shared>,
    vigil: Mutex<Vigil>,
}

/// Begins to beat, and to watch.
pub(super) fn start(shared: &Arc<Shared>, rhythm: Rhythm) -> Result<()> {
    // At once, so that the others watch this rank from now on.
    shared.region.pulse(shared.rank).beat();
    let now = Instant::now();
    let vigil = Mutex::new(Vigil::new(rhythm, shared.peers.len(), now));
    let alarm = service::alarm(Arc::new(Heart { shared: Arc::downgrade(shared), vigil }))?;
    // There before its time comes, since that is when it is set again.
    lock(&shared.heart).insert(alarm).set(Some(now));
    Ok(())
}

/// Says what this process is doing, and wakes whoever has asked. On the service thread, which alone
/// writes that.
pub(super) fn answer(shared: &Shared) {
    let region = &shared.region;
    region.pulse(shared.rank).say(&shared.vitals.activity(shared.group));
    (0..shared.peers.len()).for_each(|peer| region.bell(peer).ring());
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the beating.
pub(super) fn stop(shared: &Shared) {
    let alarm: Option<Alarm> = lock(&shared.heart).take();
    // Outside the lock, as that of the service thread is taken.
    drop(alarm);
}

impl Alarmed for Heart {
    fn on_alarm(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let region = &shared.region;
        let own = region.pulse(shared.rank);
        own.beat();
        own.say(&shared.vitals.activity(shared.group));
        let is_over = region.failure().is_set();
        let pulse = |peer: Rank| {
            let is_watched = !is_over && peer != shared.rank && !region.has_left(peer);
            region.pulse(peer).beats().filter(|_| is_watched)
        };
        let mut vigil = lock(&self.vigil);
        let silent = vigil.look(Instant::now(), pulse);
        let due = vigil.due();
        drop(vigil);
        if !silent.is_empty() {
            accuse(&shared, &silent);
        }
        if let Some(alarm) = lock(&shared.heart).as_ref() {
            alarm.set(Some(due));
        }
    }
}

/// Fails the domain for those who are silent.
fn accuse(shared: &Shared, silent: &[(Rank, Duration)]) {
    let describe = |&(rank, silence): &(Rank, Duration)| {
        let pulse = shared.region.pulse(rank);
        let mut text = format!(
            "{} does not respond: no heartbeat for {:.1} s (stopped, swapped out, or its machine is overloaded); it {}",
            shared.peers[rank],
            silence.as_secs_f64(),
            shared.region.doing(rank)
        );
        let said = pulse.said();
        if !said.is_empty() {
            text = format!("{text}, and said at last that its process {said}");
        }
        text
    };
    let message = silent.iter().map(describe).collect::<Vec<_>>().join("; ");
    crate::log!(Level::Error, "{message}");
    let error = Error::new(ErrorKind::PeerFailed, message);
    let error = match silent.first() {
        Some(&(rank, _)) => {
            let name = &shared.peers[rank];
            let is_stopped = lifeline::is_stopped(shared.stream(rank), name.pid);
            let fault = if is_stopped { Fault::Stopped } else { Fault::Unreachable };
            error.with_culprit(name.rank).with_fault(fault)
        }
        None => error,
    };
    shared.fail(&error);
}
