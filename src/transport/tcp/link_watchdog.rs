//! The watchdog of outgoing links: it finds connections that carry no data any more, although
//! nothing has reset them. A router that has forgotten a connection may drop its packets silently.
//!
//! The system sends unacknowledged bytes again after 0.2 s, 0.4 s, 0.8 s and so on. If it has done
//! so three times, and nothing was acknowledged for [`STALL_TIME`], the connection is replaced. A
//! receiver that does not read causes no such repetition: the system asks it for room at growing
//! intervals, and its host answers. If it does not answer, the connection is replaced, too. So is a
//! new connection on which the other end does not name its position in this time.

use super::link_table::LinkTable;
use super::outgoing_channel::{Connection, Stall};
use super::outgoing_link::OutgoingLink;
use crate::base::error::Result;
use crate::base::sync::lock;
use crate::wait::service::{self, Alarm, AlarmHandler};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time without progress after which a connection is replaced.
const STALL_TIME: Duration = Duration::from_millis(1500);
/// The time between two looks at the connections.
const INTERVAL: Duration = Duration::from_millis(500);

/// The alarm handler of a link table.
#[derive(Debug)]
struct Watchdog(Weak<LinkTable>);

impl LinkTable {
    /// Creates the alarm of the watchdog, which is off.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new_watchdog(weak: Weak<Self>) -> Result<Alarm> {
        service::alarm(Arc::new(Watchdog(weak)))
    }

    /// Starts the watchdog, which runs while there are outgoing links and broken ones are replaced.
    pub(super) fn start_watchdog(&self) {
        if !self.retry_time.is_zero()
            && let Some(alarm) = self.watchdog.get()
        {
            alarm.set(Some(Instant::now() + INTERVAL));
        }
    }
}

impl AlarmHandler for Watchdog {
    fn on_alarm(&self) {
        let Some(table) = self.0.upgrade() else { return };
        let links = table.all_outgoing();
        links.iter().for_each(|link| link.check_progress(Instant::now()));
        if !links.is_empty() {
            table.start_watchdog();
        }
    }
}

impl OutgoingLink {
    /// Breaks the connection off if it has carried no data for some time, so that it is replaced.
    fn check_progress(&self, now: Instant) {
        if self.retry_time.is_zero() {
            return;
        }
        let mut state = lock(&self.state);
        let stream = match &state.connection {
            Connection::Open(stream) => stream,
            Connection::Resuming { since, .. } if now - *since >= STALL_TIME => {
                let text = "the other end did not say what has arrived";
                return self.break_off(state, io::Error::new(io::ErrorKind::TimedOut, text));
            }
            _ => return,
        };
        let seen = stream.retransmission().filter(|seen| seen.unanswered() > 0);
        let Some(seen) = seen else {
            state.stall = None;
            if state.is_closing && state.queue.pending.is_empty() {
                self.end_if_arrived(state);
            }
            return;
        };
        let acknowledged = seen.acknowledged;
        match state.stall {
            Some(stall) if stall.acknowledged == acknowledged => {
                if seen.is_silent() && now - stall.since >= STALL_TIME {
                    state.stall = None;
                    self.break_off(state, stall_error(seen.unanswered(), now - stall.since));
                }
            }
            _ => state.stall = Some(Stall { acknowledged, since: now }),
        }
    }
}

fn stall_error(repetitions: u8, lasted: Duration) -> io::Error {
    let text = format!(
        "the other end acknowledged nothing for {} ms, and the system sent {repetitions} times again",
        lasted.as_millis()
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}
