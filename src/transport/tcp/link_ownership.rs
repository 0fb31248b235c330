//! What the ends of links need of the table of all links.

use super::incoming_channel::{DueGrant, IncomingChannel};
use super::link_events::LinkEvent;
use super::link_frame::{ChannelRanks, Frame};
use super::link_owner::LinkOwner;
use super::link_table::LinkTable;
use super::link_user::{ChannelUser, LinkEnd, LinkKey, LinkUser, UserKey};
use crate::base::ids::Nonce;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use std::sync::Arc;

impl LinkOwner for LinkTable {
    fn open_channel(
        &self,
        key: &LinkKey,
        ranks: &ChannelRanks,
    ) -> Result<Option<Arc<IncomingChannel>>, &'static str> {
        self.find_or_open_channel(key, ranks)
    }

    fn known_channel(&self, key: &LinkKey, ranks: &ChannelRanks) -> Option<Arc<IncomingChannel>> {
        let state = lock(&self.state);
        state.channels.get(&(ranks.group, ranks.to))?.get(&(ranks.from, key.channel)).cloned()
    }

    fn user(&self, key: UserKey) -> Option<Arc<dyn LinkUser>> {
        lock(&self.state).users.find(key)
    }

    fn accept_grant(&self, key: &LinkKey, number: u32, total: u64) {
        if let Some(link) = self.outgoing(key) {
            link.grant(number, total);
        }
    }

    fn push_event(&self, event: LinkEvent) {
        self.events.push(event);
    }

    fn end_incoming(
        &self,
        key: &LinkKey,
        number: u64,
        cause: Option<std::io::Error>,
        users: Vec<ChannelUser>,
    ) {
        if let Some(cause) = &cause
            && cause.kind() == std::io::ErrorKind::InvalidData
        {
            crate::log!(LogLevel::Error, "a connection between processes is unusable: {cause}");
        }
        self.end_link(key, number, LinkEnd::of(cause), users);
    }

    fn end_outgoing(&self, key: &LinkKey, end: LinkEnd, users: Vec<ChannelUser>) {
        let mut state = lock(&self.state);
        let removed = match state.outgoing.get(key).is_some_and(|link| link.has_ended()) {
            true => state.outgoing.remove(key),
            false => None,
        };
        drop(state);
        drop(removed);
        self.events.push(LinkEvent::Ended { key: *key, number: None, end, users });
    }

    fn replaces_links(&self, own: Nonce) -> bool {
        !self.retry_time(own).is_zero()
    }

    fn send_grant(&self, key: &LinkKey, grant: DueGrant) {
        let DueGrant { number, total } = grant;
        self.send_frame_logged(key, &Frame::Grant { channel: number, total });
    }

    fn repeat_departure(&self, key: &LinkKey, ranks: &ChannelRanks) {
        self.send_frame_logged(key, &Frame::Leave { ranks: ranks.reversed(), payload: 0 });
    }

    fn answer_query(&self, key: &LinkKey, ranks: &ChannelRanks) {
        let state = lock(&self.state);
        let has_left = state.departed.contains(&(ranks.group, ranks.to));
        let link = state.outgoing.get(key).filter(|_| has_left).cloned();
        drop(state);
        if let Some(link) = link {
            link.send_frame(&Frame::Leave { ranks: ranks.reversed(), payload: 0 }, &[]);
        }
    }

    fn users_of(&self, process: Nonce) -> Vec<ChannelUser> {
        lock(&self.state).users.with_rank_in(process)
    }
}
