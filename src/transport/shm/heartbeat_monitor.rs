//! The heartbeats between the processes of one host. On each alarm, the service thread increments
//! the heartbeat counter of this rank, publishes this process's activity text, and checks the
//! counters of the peers ([`transport::heartbeat`](crate::transport::heartbeat)). If a peer's
//! counter stops, the domain fails.

use super::domain_state::ShmDomainShared;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::transport::SharedDomain as _;
use crate::transport::heartbeat::{HeartbeatMonitor, HeartbeatTiming, without_contradiction};
use crate::wait::service::{self, Alarm, AlarmHandler};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The alarm handler for one rank's heartbeat and monitor.
#[derive(Debug)]
struct RankHeartbeat {
    shared: Weak<ShmDomainShared>,
    monitor: Mutex<HeartbeatMonitor>,
}

/// Starts the heartbeat and the monitor.
pub(super) fn start(shared: &Arc<ShmDomainShared>, timing: HeartbeatTiming) -> Result<()> {
    // Send the first heartbeat immediately, because the peers watch this rank only after its first
    // heartbeat.
    shared.region.heartbeat(shared.rank).beat();
    let now = Instant::now();
    let monitor = Mutex::new(HeartbeatMonitor::new(timing, shared.peers.len(), now));
    let alarm =
        service::alarm(Arc::new(RankHeartbeat { shared: Arc::downgrade(shared), monitor }))?;
    // Store the alarm before it can fire, because the handler uses the stored alarm to set the next
    // time.
    lock(&shared.heartbeat_alarm).insert(alarm).set(Some(now));
    Ok(())
}

/// Stops the heartbeat.
pub(super) fn stop(shared: &ShmDomainShared) {
    let alarm: Option<Alarm> = lock(&shared.heartbeat_alarm).take();
    // Drop the alarm outside this lock, because dropping an alarm takes the lock of the service
    // thread.
    drop(alarm);
}

impl AlarmHandler for RankHeartbeat {
    fn on_alarm(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let region = &shared.region;
        let own = region.heartbeat(shared.rank);
        own.beat();
        own.publish_activity(&shared.vitals.describe_activity(shared.group));
        let is_over = region.abort_record().is_set();
        let heartbeat = |peer: Rank| {
            let has_ended = || region.presence(peer).has_left() || shared.has_ended(peer);
            let is_watched = !is_over && peer != shared.rank && !has_ended();
            region.heartbeat(peer).beats().filter(|_| is_watched)
        };
        let mut monitor = lock(&self.monitor);
        let silent = monitor.check_peers(Instant::now(), heartbeat);
        let due = monitor.next_check();
        drop(monitor);
        if !silent.is_empty() {
            fail_for_silence(&shared, &silent);
        }
        if let Some(alarm) = lock(&shared.heartbeat_alarm).as_ref() {
            alarm.set(Some(due));
        }
    }
}

/// Fails the domain because these ranks have sent no heartbeat for the given times.
fn fail_for_silence(shared: &ShmDomainShared, silent: &[(Rank, Duration)]) {
    let describe = |&(rank, silence): &(Rank, Duration)| {
        let heartbeat = shared.region.heartbeat(rank);
        let mut text = format!(
            "{} does not respond: no heartbeat for {:.1} s (stopped, swapped out, or its machine is overloaded); it {}",
            shared.peers[rank],
            silence.as_secs_f64(),
            shared.region.describe_progress(rank)
        );
        let is_in_operation = shared.region.progress(rank).is_in_operation();
        let activity = without_contradiction(heartbeat.last_activity(), is_in_operation);
        if !activity.is_empty() {
            text = format!("{text}, and its process last reported that it {activity}");
        }
        text
    };
    let message = silent.iter().map(describe).collect::<Vec<_>>().join("; ");
    crate::log!(LogLevel::Error, "{message}");
    let error = Error::new(ErrorKind::PeerFailed, message);
    let error = match silent.first() {
        Some(&(rank, _)) => {
            let name = &shared.peers[rank];
            let is_stopped = shared.route(rank).link().is_some_and(|it| it.is_stopped(name.pid));
            let fault = if is_stopped { RankFault::Stopped } else { RankFault::Silent };
            error.with_culprit(name.rank).with_fault(fault)
        }
        None => error,
    };
    shared.fail(&error);
}
