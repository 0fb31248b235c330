//! [`FormerRank`]: a rank that has left its group.
//!
//! The links of a process outlive its groups: the last bytes of a rank may still be on their way
//! when it leaves. If the connection of such a link breaks, the other process asks for it in the
//! name of the group that it knows.

use super::hello::{Hello, HelloRefusal};
use super::incoming_connection::ConnectionAcceptor;
use super::link_proof::{LinkAcceptance, LinkTerms};
use super::link_table::LinkTable;
use super::link_user::LinkKey;
use super::members::{ExpectedPeers, TcpMember};
use crate::base::ids::Rank;
use crate::security::LinkSecurity;
use crate::sys::stream::SocketStream;
use std::sync::Arc;

/// A rank that has left its group. It accepts no new links, but it answers where a connection of an
/// existing link broke.
#[derive(Debug)]
pub(super) struct FormerRank {
    pub(super) epoch: u32,
    pub(super) me: Rank,
    pub(super) members: Arc<[TcpMember]>,
    pub(super) lanes: u8,
    pub(super) security: LinkSecurity,
    pub(super) links: Arc<LinkTable>,
}

impl FormerRank {
    fn link_key(&self, hello: &Hello) -> Option<LinkKey> {
        let channel = hello.purpose.broken_link()?;
        let (own, peer) = (self.members[self.me].process, self.members[hello.from].process);
        Some(LinkKey { own, peer, channel })
    }
}

impl ConnectionAcceptor for FormerRank {
    fn check_hello(&self, hello: &Hello) -> Result<LinkTerms, HelloRefusal> {
        let Self { epoch, me, lanes, ref members, .. } = *self;
        ExpectedPeers { epoch, me, members, lanes }.check(hello)?;
        let key = self.link_key(hello).ok_or(HelloRefusal::NoSuchRank)?;
        self.links.check_replacement(&key, hello.purpose)?;
        Ok(LinkTerms::between(&self.security, &members[hello.from], &members[me]))
    }

    fn accept_connection(
        &self,
        hello: &Hello,
        stream: Arc<SocketStream>,
        acceptance: &LinkAcceptance,
    ) {
        if let Some(key) = self.link_key(hello) {
            self.links.accept_replacement(&key, hello.purpose, &stream, acceptance);
        }
    }
}
