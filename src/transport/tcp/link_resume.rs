//! The part of the link table that replaces broken connections.
//!
//! The sending end of a link connects again. The receiving end cannot connect for it, so it waits.
//! Until then it *probes* the other process with a short connection, which tells the sending end of
//! the break. If no process listens there, the other process is gone.

use super::hello::{ConnectionPurpose, HelloRefusal};
use super::link_owner::LinkOwner as _;
use super::link_proof::LinkAcceptance;
use super::link_table::LinkTable;
use super::link_user::{LinkEnd, LinkKey, LinkUser, SuspensionEnd};
use super::outgoing_resume::lost_text;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use super::suspended_link::SuspendedLink;
use crate::base::deadline::Deadline;
use crate::base::error::Error;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use std::io;
use std::sync::{Arc, Weak};

impl LinkTable {
    /// Connects the outgoing links with this key again whose connections broke.
    pub(super) fn reconnect(&self, key: &LinkKey) {
        let users = lock(&self.state).users.all();
        let purpose = ConnectionPurpose::Resume(key.channel);
        for link in self.all_outgoing_to(key) {
            link.reconnect(|limit, handler, last| {
                let known = connector_for(&users, key, purpose, limit, &handler);
                // The link may live longer than its users.
                let again = || match last {
                    Some(last) => Ok(last.again(purpose, limit, handler.clone())),
                    None => Err(Error::internal("a link without a connection broke")),
                };
                known.unwrap_or_else(again)
            });
        }
    }

    /// Checks that the link exists for which another process asks because its connection broke.
    ///
    /// # Errors
    /// `NoSuchLink`.
    pub(super) fn check_replacement(
        &self,
        key: &LinkKey,
        purpose: ConnectionPurpose,
    ) -> Result<(), HelloRefusal> {
        let is_known = match purpose {
            ConnectionPurpose::Resume(_) => self.incoming(key).is_some(),
            ConnectionPurpose::Probe(_) => self.all_outgoing_to(key).any(|it| it.is_needed()),
            ConnectionPurpose::Stream(_) | ConnectionPurpose::Reconnect => false,
        };
        if is_known { Ok(()) } else { Err(HelloRefusal::NoSuchLink) }
    }

    /// Accepts a connection of another process that concerns a link whose connection broke.
    pub(super) fn accept_replacement(
        &self,
        key: &LinkKey,
        purpose: ConnectionPurpose,
        stream: &Arc<SocketStream>,
        acceptance: &LinkAcceptance,
    ) {
        match purpose {
            ConnectionPurpose::Resume(_) => {
                self.resume_incoming(key, stream, |position| {
                    acceptance.send(stream);
                    // A new connection has room for the position.
                    drop(stream.send(&position.to_le_bytes()));
                });
            }
            ConnectionPurpose::Probe(_) => {
                acceptance.send(stream);
                stream.close_gracefully();
                self.replace_broken(key);
            }
            ConnectionPurpose::Stream(_) | ConnectionPurpose::Reconnect => {}
        }
    }

    /// Replaces the connection of an outgoing link, because the process at the other end says that
    /// it broke there.
    pub(super) fn replace_broken(&self, key: &LinkKey) {
        self.all_outgoing_to(key).for_each(|link| link.break_off_open());
    }

    /// Waits until the connection of an incoming link, which broke, is replaced.
    pub(super) fn suspend(&self, key: &LinkKey, number: u64, cause: io::Error) {
        let Some(link) = self.incoming(key).filter(|it| it.number == number && it.is_suspended())
        else {
            return;
        };
        crate::log!(LogLevel::Warn, "a connection from another process broke: {cause}");
        self.unwatch(&link);
        let suspended = SuspendedLink::new(self.weak.clone(), *key, number, cause);
        let mut state = lock(&self.state);
        state.suspended.insert(*key, Arc::clone(&suspended));
        let users = state.users.all();
        drop(state);
        let retry_time = self.retry_time(key.own);
        if let Err(error) = suspended.start(retry_time) {
            crate::log!(LogLevel::Error, "waiting for a new connection: {error}");
            return self.give_up(key, number, SuspensionEnd::ProcessGone);
        }
        let limit = Deadline::after(retry_time);
        let handler: Weak<dyn PeerConnectHandler> =
            Arc::downgrade(&suspended) as Weak<dyn PeerConnectHandler>;
        let purpose = ConnectionPurpose::Probe(key.channel);
        match connector_for(&users, key, purpose, limit, &handler) {
            Some(Ok(probe)) => suspended.start_probe(probe),
            _ => self.give_up(key, number, SuspensionEnd::ProcessGone),
        }
    }

    /// Ends an incoming link whose connection was not replaced.
    pub(super) fn give_up(&self, key: &LinkKey, number: u64, reason: SuspensionEnd) {
        let link = self.incoming(key).filter(|it| it.number == number && it.is_suspended());
        let Some(link) = link else { return };
        let Some(suspended) = lock(&self.state).suspended.remove(key) else { return };
        suspended.cancel();
        let Some(cause) = lock(&suspended.cause).take() else { return };
        let all = || match reason {
            SuspensionEnd::LinkOver => Vec::new(),
            SuspensionEnd::ProcessGone | SuspensionEnd::NotReplaced => self.users_of(key.peer),
        };
        let users = link.give_up().unwrap_or_else(all);
        let end = match reason {
            SuspensionEnd::ProcessGone => LinkEnd::Broken(cause),
            SuspensionEnd::LinkOver => LinkEnd::Closed,
            SuspensionEnd::NotReplaced => {
                let (after, ends) = (suspended.since.elapsed(), link.stream().ends());
                LinkEnd::Lost(lost_text(&cause, after, ends, None))
            }
        };
        self.end_link(key, number, end, users);
    }

    /// Continues an incoming link on a new connection. `accept` sends the end of the handshake; its
    /// argument is the number of bytes that have arrived.
    pub(super) fn resume_incoming(
        &self,
        key: &LinkKey,
        stream: &Arc<SocketStream>,
        accept: impl FnOnce(u64),
    ) {
        let Some(link) = self.incoming(key) else { return stream.close_gracefully() };
        if let Err(cause) = stream.set_reset_on_close(true) {
            crate::log!(LogLevel::Error, "watching a connection: {cause}");
        }
        let suspended = lock(&self.state).suspended.remove(key);
        suspended.iter().for_each(|it| it.cancel());
        let was_watched = !link.is_suspended();
        if was_watched {
            self.unwatch(&link);
        }
        if link.replace_stream(stream, accept).is_none() {
            return stream.close_gracefully();
        }
        crate::log!(LogLevel::Warn, "a connection from another process was replaced");
        if let Err(cause) = self.watch(&link) {
            crate::log!(LogLevel::Error, "watching a connection: {cause}");
        }
        for (user, rank) in self.users_of(key.peer) {
            user.on_input(rank, key.channel);
        }
    }
}

/// Returns an attempt to connect because the connection of a link broke, in the name of a group
/// that both processes have. A link outlives the departure of its ranks, so a group that a rank of
/// the other process has left comes last.
fn connector_for(
    users: &[Arc<dyn LinkUser>],
    key: &LinkKey,
    purpose: ConnectionPurpose,
    limit: Deadline,
    handler: &Weak<dyn PeerConnectHandler>,
) -> Option<Result<Arc<PeerConnector>, Error>> {
    let find = |to_former: bool| {
        let connect = |user: &Arc<dyn LinkUser>| {
            user.connector_to(key, purpose, Some(limit), handler.clone(), to_former)
        };
        users.iter().find_map(connect)
    };
    find(false).or_else(|| find(true))
}
