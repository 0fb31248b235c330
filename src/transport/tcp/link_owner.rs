//! [`LinkOwner`]: what the two ends of a link need of the table of all links.

use super::incoming_channel::{DueGrant, IncomingChannel};
use super::link_events::LinkEvent;
use super::link_frame::ChannelRanks;
use super::link_user::{ChannelUser, LinkEnd, LinkKey, LinkUser, UserKey};
use crate::base::ids::Nonce;
use std::fmt::Debug;
use std::sync::Arc;

/// What a link needs of the table of all links.
pub(super) trait LinkOwner: Send + Sync + Debug {
    /// Returns the channel that the other process opens. Returns `None` if the receiving rank has
    /// left the group.
    ///
    /// # Errors
    /// A description of the malformed part.
    fn open_channel(
        &self,
        key: &LinkKey,
        ranks: &ChannelRanks,
    ) -> Result<Option<Arc<IncomingChannel>>, &'static str>;

    /// Returns the channel that carries the bytes of these ranks on a link, if it is open.
    fn known_channel(&self, key: &LinkKey, ranks: &ChannelRanks) -> Option<Arc<IncomingChannel>>;

    /// Returns a registered rank.
    fn user(&self, key: UserKey) -> Option<Arc<dyn LinkUser>>;

    /// Returns the registered ranks whose groups have a rank in a process, each with that rank.
    fn users_of(&self, process: Nonce) -> Vec<ChannelUser>;

    /// Lets the link to the process at the other end of a link send more bytes on a channel.
    fn accept_grant(&self, key: &LinkKey, number: u32, total: u64);

    /// Sends a grant for a channel on the link back to its sender.
    fn send_grant(&self, key: &LinkKey, grant: DueGrant);

    /// Tells a rank again that a rank has left its group.
    fn repeat_departure(&self, key: &LinkKey, ranks: &ChannelRanks);

    /// Tells a rank, on an existing link, that a rank has left its group, if it has.
    fn answer_query(&self, key: &LinkKey, ranks: &ChannelRanks);

    /// Returns true if a link of this process whose connection breaks is continued on a new one.
    fn replaces_links(&self, own: Nonce) -> bool;

    /// Adds an event for the service thread.
    fn push_event(&self, event: LinkEvent);

    /// Removes an incoming link that has ended, after all its bytes were read. `users` have
    /// channels on it.
    fn end_incoming(
        &self,
        key: &LinkKey,
        number: u64,
        cause: Option<std::io::Error>,
        users: Vec<ChannelUser>,
    );

    /// Removes an outgoing link that has ended. `users` have channels on it.
    fn end_outgoing(&self, key: &LinkKey, end: LinkEnd, users: Vec<ChannelUser>);
}
