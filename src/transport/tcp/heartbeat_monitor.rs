//! The heartbeat between nodes. Each node leader sends heartbeats on its message links to the other
//! leaders, and counts every successful read from such a link as a heartbeat of the leader at the
//! other end.
//!
//! If nothing arrives from a leader within the limit, that leader is stopped or unreachable, and
//! the leader that detects this fails the group. In a network partition, this happens on both
//! sides. If a rank that is not a leader stops, the ranks of its node detect this.

use super::mesh::TcpMeshShared;
use crate::base::error::{Error, ErrorKind, RankFault, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::Channel;
use crate::transport::heartbeat::{HeartbeatMonitor, HeartbeatTiming};
use crate::wait::service::{self, AlarmHandler};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The alarm handler of a leader: sends its heartbeats and checks the other leaders.
#[derive(Debug)]
struct NodeHeartbeat {
    shared: Weak<TcpMeshShared>,
    timing: HeartbeatTiming,
    monitor: Mutex<HeartbeatMonitor>,
}

/// Starts to send heartbeats to the other leaders, and to monitor them.
pub(super) fn start(shared: &Arc<TcpMeshShared>, timing: HeartbeatTiming) -> Result<()> {
    let now = Instant::now();
    let monitor = Mutex::new(HeartbeatMonitor::new(timing, shared.leaders.len(), now));
    let alarm = service::alarm(Arc::new(NodeHeartbeat {
        shared: Arc::downgrade(shared),
        timing,
        monitor,
    }))?;
    // Store the alarm before it can fire, because the handler uses the stored alarm to set the next
    // time.
    shared.heartbeat_alarm.get_or_init(|| alarm).set(Some(now));
    Ok(())
}

impl AlarmHandler for NodeHeartbeat {
    fn on_alarm(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let is_over = shared.domain.region().abort_record().is_set();
        let receive_count = |node: usize| {
            let channel = shared.control_channel(node)?;
            let link = shared.incoming_link(channel.leader, Channel::PointToPoint)?;
            (channel.is_active() && !is_over).then(|| link.read_count.load(Ordering::Acquire))
        };
        let mut monitor = lock(&self.monitor);
        let interval = self.timing.interval();
        let channels = shared.open_control_channels();
        channels.iter().for_each(|channel| channel.send_heartbeat(interval));
        let silent = monitor.check_peers(Instant::now(), receive_count);
        let due = monitor.next_check();
        drop(monitor);
        if !silent.is_empty() {
            shared.fail_all_nodes(&silence_error(&shared, &silent));
        }
        if let Some(alarm) = shared.heartbeat_alarm.get() {
            alarm.set(Some(due));
        }
    }
}

/// Returns the error for nodes whose leaders sent no frame within the limit.
fn silence_error(shared: &TcpMeshShared, silent: &[(usize, Duration)]) -> Error {
    let leader = |node: usize| -> Rank {
        shared.control_channel(node).map_or(shared.leaders[node], |channel| channel.leader)
    };
    let describe = |&(node, silence): &(usize, Duration)| {
        let name = shared.name(leader(node));
        format!(
            "{name} does not respond: no frame received for {:.1} s (its host cannot be reached, or it is stopped \
             or overloaded)",
            silence.as_secs_f64()
        )
    };
    let message = silent.iter().map(describe).collect::<Vec<_>>().join("; ");
    let error = Error::new(ErrorKind::PeerFailed, message).with_fault(RankFault::Silent);
    silent.first().into_iter().fold(error, |error, &(node, _)| error.with_culprit(leader(node)))
}
