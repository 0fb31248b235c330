//! What the links of a process and the groups that use them know of each other.

use super::hello::ConnectionPurpose;
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result as LocalResult};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::transport::Channel;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

/// A link: this process, the other process, and the kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkKey {
    pub(super) own: Nonce,
    pub(super) peer: Nonce,
    pub(super) channel: Channel,
}

/// A rank of a group in this process.
pub(super) type UserKey = (GroupId, Rank);

/// A rank of this process that has a channel on a link, and the rank at the other end of the
/// channel.
pub(super) type ChannelUser = (Arc<dyn LinkUser>, Rank);

/// How a link has ended.
#[derive(Debug)]
pub(super) enum LinkEnd {
    /// The other process has closed it in order.
    Closed,
    /// It broke, and the other process is gone.
    Broken(std::io::Error),
    /// It broke, and could not be replaced. The text describes it.
    Lost(String),
}

impl LinkEnd {
    /// Returns true if a connection broke, and a new one may take its place.
    pub(super) fn is_break(cause: &std::io::Error) -> bool {
        use std::io::ErrorKind as Io;
        matches!(
            cause.kind(),
            Io::ConnectionReset
                | Io::ConnectionAborted
                // After a reset, the system reports it to one caller, and this to all others.
                | Io::BrokenPipe
                | Io::TimedOut
                | Io::HostUnreachable
                | Io::NetworkUnreachable
        )
    }

    pub(super) fn of(cause: Option<std::io::Error>) -> Self {
        cause.map_or(Self::Closed, Self::Broken)
    }
}

/// Why the wait for the new connection of an incoming link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuspensionEnd {
    /// The other process is gone.
    ProcessGone,
    /// The other process has closed the link: all of its bytes have arrived.
    LinkOver,
    /// The time is over.
    NotReplaced,
}

/// A rank of a group that uses links. The functions are called on any thread and must not block.
pub(super) trait LinkUser: Send + Sync + Debug {
    /// Returns the process of a rank.
    fn process_of(&self, rank: Rank) -> Option<Nonce>;

    /// Called when bytes of a channel have arrived while the caller did not read them.
    fn on_input(&self, from: Rank, channel: Channel);

    /// Called when a channel may have room again, or when its link was connected.
    fn on_room(&self, to: Rank, channel: Channel);

    /// Called when a rank has left the group, with the reason if the group has failed.
    fn on_left(&self, from: Rank, reason: Option<Error>);

    /// Called when a control frame of another leader has arrived on this incoming link.
    fn on_control(&self, from: Rank, link: u64, bytes: &[u8]);

    /// Called when a message link was connected, on which the rank may send control frames.
    fn on_control_open(&self);

    /// Called when a message link has ended: an incoming one with its number, or an outgoing one.
    fn on_control_end(&self, key: &LinkKey, link: Option<u64>, end: &LinkEnd);

    /// Called when a rank cannot be reached.
    fn on_unreachable(&self, to: Rank, channel: Channel, error: Error);

    /// Called when a link has ended on which the rank has a channel to or from `peer`.
    fn on_link_end(&self, peer: Rank, end: &LinkEnd);

    /// Creates an attempt to connect to the process at the other end of a link, if a rank of the
    /// group is there: one that has left if `to_former` is true, else one that is present.
    fn connector_to(
        &self,
        key: &LinkKey,
        purpose: ConnectionPurpose,
        retry_until: Option<Deadline>,
        handler: Weak<dyn PeerConnectHandler>,
        to_former: bool,
    ) -> Option<LocalResult<Arc<PeerConnector>>>;
}

/// A reference to no user.
pub(super) fn no_user() -> Weak<dyn LinkUser> {
    #[derive(Debug)]
    enum Nobody {}
    impl LinkUser for Nobody {
        fn process_of(&self, _: Rank) -> Option<Nonce> {
            match *self {}
        }
        fn on_input(&self, _: Rank, _: Channel) {}
        fn on_room(&self, _: Rank, _: Channel) {}
        fn on_left(&self, _: Rank, _: Option<Error>) {}
        fn on_control(&self, _: Rank, _: u64, _: &[u8]) {}
        fn on_control_open(&self) {}
        fn on_control_end(&self, _: &LinkKey, _: Option<u64>, _: &LinkEnd) {}
        fn on_unreachable(&self, _: Rank, _: Channel, _: Error) {}
        fn on_link_end(&self, _: Rank, _: &LinkEnd) {}
        fn connector_to(
            &self,
            _: &LinkKey,
            _: ConnectionPurpose,
            _: Option<Deadline>,
            _: Weak<dyn PeerConnectHandler>,
            _: bool,
        ) -> Option<LocalResult<Arc<PeerConnector>>> {
            match *self {}
        }
    }
    Weak::<Nobody>::new()
}
