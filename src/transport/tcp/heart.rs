//! The heartbeat between nodes: each leader beats on its control connections, and takes anything
//! that comes on them as a sign of life. A leader that nothing is heard of for the limit is
//! stopped, or cannot be reached: this fails the group, on both sides of a network that has parted.
//! What stops inside a node is found by those of the node.

use super::control::Line;
use super::door::lock;
use super::mesh::Shared;
use crate::base::error::{Error, ErrorKind, Fault, Result};
use crate::base::ids::Rank;
use crate::transport::pulse::{Rhythm, Vigil};
use crate::wait::service::{self, Alarmed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// What beats for a leader.
#[derive(Debug)]
struct Heart {
    shared: Weak<Shared>,
    vigil: Mutex<Vigil>,
}

/// Begins to beat on all connections there are and will be, and to watch them.
pub(super) fn start(shared: &Arc<Shared>, rhythm: Rhythm) -> Result<()> {
    let now = Instant::now();
    let vigil = Mutex::new(Vigil::new(rhythm, shared.leaders.len(), now));
    let alarm = service::alarm(Arc::new(Heart { shared: Arc::downgrade(shared), vigil }))?;
    // There before its time comes, since that is when it is set again.
    shared.heart.get_or_init(|| alarm).set(Some(now));
    Ok(())
}

impl Alarmed for Heart {
    fn on_alarm(&self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let lines: Vec<Option<Arc<Line>>> = lock(&shared.lines).clone();
        lines.iter().flatten().for_each(|line| line.beat());
        let is_over = shared.domain.region().failure().is_set();
        let signs = |node: usize| lines.get(node)?.as_ref()?.signs().filter(|_| !is_over);
        let mut vigil = lock(&self.vigil);
        let silent = vigil.look(Instant::now(), signs);
        let due = vigil.due();
        drop(vigil);
        if !silent.is_empty() {
            shared.fail_here(&lost(&shared, &silent));
        }
        if let Some(alarm) = shared.heart.get() {
            alarm.set(Some(due));
        }
    }
}

/// Nothing is heard of the leaders of these nodes.
fn lost(shared: &Shared, silent: &[(usize, Duration)]) -> Error {
    let leader = |node: usize| -> Rank { shared.leaders[node] };
    let describe = |&(node, silence): &(usize, Duration)| {
        let name = shared.name(leader(node));
        format!(
            "{name} does not respond: nothing heard of it for {:.1} s (its host cannot be reached, or it is stopped or overloaded)",
            silence.as_secs_f64()
        )
    };
    let message = silent.iter().map(describe).collect::<Vec<_>>().join("; ");
    let error = Error::new(ErrorKind::PeerFailed, message).with_fault(Fault::Unreachable);
    silent.first().into_iter().fold(error, |error, &(node, _)| error.with_culprit(leader(node)))
}
