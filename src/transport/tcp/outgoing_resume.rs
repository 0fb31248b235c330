//! The replacement of a broken connection at the sending end of a link.
//!
//! A connection may break although both processes live: a router has forgotten it, or a firewall
//! resets it. The sending end then connects again. The other side says up to which position it has
//! received the bytes of the link, and the sending end continues there, with bytes that it has kept
//! ([`kept_bytes`](super::kept_bytes)).
//!
//! If no process listens at the address of the other one, the other process is gone, and the break
//! was the end of it.

use super::link_events::LinkEvent;
use super::link_user::LinkEnd;
use super::outgoing_channel::{Connection, LinkBreak, OutgoingState};
use super::outgoing_link::OutgoingLink;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::{SocketStream, is_transient};
use crate::sys::tcp_state::ConnectionEnds;
use std::io;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// The length of the position that the other side sends.
const POSITION_BYTES: usize = size_of::<u64>();

impl OutgoingLink {
    /// Handles an error of the connection: begins to replace it, or ends the link.
    pub(super) fn break_off(&self, mut state: MutexGuard<'_, OutgoingState>, cause: io::Error) {
        let OutgoingState { connection, queue, .. } = &mut *state;
        let (mut ends, mut was_reset) = (None, false);
        if let Connection::Open(stream) = connection {
            ends = stream.ends();
            was_reset = stream.was_reset();
            queue.kept.review(stream.unacknowledged());
        }
        // Without a reset, this error means that the other process has ended the connection.
        let is_end = cause.kind() == io::ErrorKind::BrokenPipe && !was_reset;
        let is_replaced = !self.retry_time.is_zero() && LinkEnd::is_break(&cause) && !is_end;
        let is_needed = !state.is_closing || state.queue.has_rest();
        let owner = self.owner.upgrade().filter(|_| is_replaced && is_needed);
        let Some(owner) = owner else {
            return self.end(state, LinkEnd::of(Some(cause)));
        };
        crate::log!(LogLevel::Warn, "a connection broke, and is replaced: {cause}");
        let old =
            (std::mem::replace(&mut state.connection, Connection::Broken), state.watch.take());
        state.watches_room = false;
        state.position.clear();
        state.broken.get_or_insert(LinkBreak { cause, since: Instant::now(), ends });
        drop(state);
        drop(old);
        owner.push_event(LinkEvent::Broken { key: self.key });
    }

    /// Breaks the connection off, if the link has one, because it broke at the other end.
    pub(super) fn break_off_open(&self) {
        let state = lock(&self.state);
        if matches!(state.connection, Connection::Open(_)) {
            let text = "it broke at the other end";
            self.break_off(state, io::Error::new(io::ErrorKind::ConnectionReset, text));
        }
    }

    /// Connects the broken link again. `connector` creates the attempt; its last argument is the
    /// attempt before.
    pub(super) fn reconnect(
        &self,
        connector: impl FnOnce(
            Deadline,
            Weak<dyn PeerConnectHandler>,
            Option<Arc<PeerConnector>>,
        ) -> Result<Arc<PeerConnector>, Error>,
    ) {
        let state = lock(&self.state);
        let (Some(broken), Connection::Broken) = (&state.broken, &state.connection) else { return };
        let left = self.retry_time.saturating_sub(broken.since.elapsed());
        if left.is_zero() {
            drop(state);
            return self.fail_to_resume(false);
        }
        let (limit, last) = (Deadline::after(left), state.last_connector.clone());
        if self.begin_connect(state, |handler| connector(limit, handler, last)).is_err() {
            self.fail_to_resume(true);
        }
    }

    /// Ends the broken link, because the attempt to replace it has failed. `is_gone` tells whether
    /// the other process is gone.
    pub(super) fn fail_to_resume(&self, is_gone: bool) {
        let mut state = lock(&self.state);
        let Some(LinkBreak { cause, since, ends }) = state.broken.take() else { return };
        let end = if is_gone {
            LinkEnd::Broken(cause)
        } else {
            let in_flight = state.queue.kept.len() + state.queue.pending.len();
            LinkEnd::Lost(lost_text(&cause, since.elapsed(), ends, Some(in_flight)))
        };
        self.end(state, end);
    }

    /// Reads the position of the other side on a new connection, and continues there.
    pub(super) fn read_position(&self, stream: &Arc<SocketStream>) {
        let mut state = lock(&self.state);
        let is_current = matches!(&state.connection, Connection::Resuming { stream: it, .. } if Arc::ptr_eq(it, stream));
        while is_current && state.position.len() < POSITION_BYTES {
            let mut bytes = [0; POSITION_BYTES];
            let room = POSITION_BYTES - state.position.len();
            match stream.receive(&mut bytes[..room]) {
                Ok(0) => {
                    let cause = io::ErrorKind::ConnectionReset.into();
                    return self.break_off(state, cause);
                }
                Ok(got) => state.position.extend(&bytes[..got]),
                Err(cause) if is_transient(&cause) => return,
                Err(cause) => return self.break_off(state, cause),
            }
        }
        let Some(&position) = state.position.first_chunk().filter(|_| is_current) else { return };
        match state.queue.kept.rewind(u64::from_le_bytes(position)) {
            Some(bytes) => {
                state.queue.pending.push_front(&bytes);
                state.connection = Connection::Open(Arc::clone(stream));
                state.broken = None;
                crate::log!(
                    LogLevel::Warn,
                    "a connection was replaced; {} bytes again",
                    bytes.len()
                );
                self.flush(state);
                self.report_change();
            }
            None => {
                let text = "the connection broke and was replaced, but bytes were lost that the \
                            other host had acknowledged: a proxy is on the path";
                self.end(state, LinkEnd::Lost(text.to_owned()));
            }
        }
    }
}

/// Describes a link that could not be replaced. `in_flight` is the number of bytes that may not
/// have arrived, where it is known.
pub(super) fn lost_text(
    cause: &io::Error,
    after: Duration,
    ends: Option<ConnectionEnds>,
    in_flight: Option<usize>,
) -> String {
    let ends = ends.map_or_else(String::new, |ends| format!(" {ends}"));
    let in_flight =
        in_flight.map_or_else(String::new, |bytes| format!(", with {bytes} bytes in flight"));
    format!(
        "the connection{ends} broke ({cause}), and could not be replaced within {} ms \
         (DIST_LINK_RETRY_MS){in_flight}. Both processes may live. Likely causes: a router or a \
         cloud has forgotten the connection (see DIST_LINK_KEEPALIVE_MS), the path drops large \
         packets (compare the MTU of both hosts), or a firewall has closed the port",
        after.as_millis()
    )
}
