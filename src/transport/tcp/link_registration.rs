//! The part of the link table that knows the groups: registered ranks, the channels to them, and
//! what arrives for groups that have not registered yet.

use super::incoming_channel::IncomingChannel;
use super::link_events::EarlyControl;
use super::link_frame::ChannelRanks;
use super::link_table::LinkTable;
use super::link_user::{LinkKey, LinkUser, UserKey, no_user};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::Channel;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The number of groups that have ended, and whose late bytes are dropped.
const MAX_DEPARTED: usize = 4096;

/// The maximum number of channels of groups that this process does not know yet.
const MAX_UNKNOWN_CHANNELS: usize = 4096;

/// The maximum number of control frames for groups that this process does not know yet.
const MAX_EARLY_CONTROL: usize = 4096;

impl LinkTable {
    /// Registers a rank of a group, and gives it the channels on which bytes have arrived already.
    pub(super) fn register(&self, key: UserKey, user: &Weak<dyn LinkUser>) {
        let mut state = lock(&self.state);
        state.departed.retain(|departed| *departed != key);
        if state.users.is_empty() {
            let incoming = state.incoming.values();
            incoming.for_each(|link| drop(link.stream().set_reset_on_close(true)));
        }
        state.users.insert(key, user.clone());
        let early: Vec<_> =
            state.channels.get(&key).into_iter().flat_map(|it| it.values().cloned()).collect();
        state.unknown_channels -= early.len();
        drop(state);
        for channel in early {
            channel.set_user(user.clone());
            if let Some(user) = user.upgrade()
                && channel.has_bytes()
            {
                user.on_input(channel.from, channel.channel);
            }
        }
    }

    /// Removes a rank of a group. Bytes that still arrive for it are dropped.
    pub(super) fn unregister(&self, key: UserKey) {
        let mut state = lock(&self.state);
        state.users.remove(key);
        state.control_users.remove(&key);
        let channels = state.channels.remove(&key);
        if let Some(early) = state.early_control.remove(&key) {
            state.early_control_count -= early.len();
        }
        if state.departed.len() == MAX_DEPARTED {
            state.departed.pop_front();
        }
        state.departed.push_back(key);
        let is_last = state.users.is_empty();
        let incoming: Vec<_> = state.incoming.values().cloned().collect();
        drop(state);
        channels.iter().flat_map(HashMap::values).for_each(|channel| channel.abandon());
        if is_last {
            // The end of a process without groups is no death.
            incoming.iter().for_each(|link| drop(link.stream().set_reset_on_close(false)));
        }
    }

    /// Returns the channel from a rank to a registered rank.
    pub(super) fn channel(
        &self,
        key: UserKey,
        from: Rank,
        channel: Channel,
        user: &Weak<dyn LinkUser>,
    ) -> Arc<IncomingChannel> {
        let mut state = lock(&self.state);
        let entry = state.channels.entry(key).or_default().entry((from, channel));
        Arc::clone(entry.or_insert_with(|| IncomingChannel::new(from, channel, user.clone())))
    }

    /// Returns the channel that the process at the other end of a link opens. Returns `None` if the
    /// receiving rank has left the group.
    ///
    /// # Errors
    /// A description of the malformed part.
    pub(super) fn find_or_open_channel(
        &self,
        key: &LinkKey,
        ranks: &ChannelRanks,
    ) -> Result<Option<Arc<IncomingChannel>>, &'static str> {
        let user_key = (ranks.group, ranks.to);
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if state.departed.contains(&user_key) {
            return Ok(None);
        }
        let user = state.users.get(user_key).cloned();
        let registered = user.as_ref().and_then(Weak::upgrade);
        if let Some(registered) = &registered
            && registered.process_of(ranks.from) != Some(key.peer)
        {
            return Err("a channel of another process");
        }
        let channels = state.channels.entry(user_key).or_default();
        if let Some(known) = channels.get(&(ranks.from, key.channel)) {
            return Ok(Some(Arc::clone(known)));
        }
        if user.is_none() {
            if state.unknown_channels == MAX_UNKNOWN_CHANNELS {
                return Err("channels of too many unknown groups");
            }
            state.unknown_channels += 1;
        }
        let user = user.unwrap_or_else(no_user);
        let channel = IncomingChannel::new(ranks.from, key.channel, user);
        channels.insert((ranks.from, key.channel), Arc::clone(&channel));
        drop(guard);
        // Dropped without the lock, because the last reference may be this one.
        drop(registered);
        Ok(Some(channel))
    }

    /// Gives the control frames that have arrived already to a leader that can handle them.
    pub(super) fn accept_control(&self, key: UserKey) {
        loop {
            let mut state = lock(&self.state);
            let early = state.early_control.remove(&key).unwrap_or_default();
            state.early_control_count -= early.len();
            let user = state.users.find(key);
            if early.is_empty() {
                state.control_users.insert(key);
                return;
            }
            drop(state);
            let Some(user) = user else { return };
            for EarlyControl { process, from, link, bytes } in early {
                if user.process_of(from) == Some(process) {
                    user.on_control(from, link, &bytes);
                }
            }
        }
    }

    /// Takes a control frame to the leader to which it is addressed.
    pub(super) fn deliver_control(
        &self,
        key: &LinkKey,
        link: u64,
        ranks: &ChannelRanks,
        bytes: Vec<u8>,
    ) {
        let user_key = (ranks.group, ranks.to);
        let mut state = lock(&self.state);
        let user = match state.control_users.contains(&user_key) {
            true => state.users.find(user_key),
            false => None,
        };
        if let Some(user) = user {
            drop(state);
            if user.process_of(ranks.from) == Some(key.peer) {
                user.on_control(ranks.from, link, &bytes);
            }
        } else if !state.departed.contains(&user_key)
            && state.early_control_count < MAX_EARLY_CONTROL
        {
            state.early_control_count += 1;
            let early = EarlyControl { process: key.peer, from: ranks.from, link, bytes };
            state.early_control.entry(user_key).or_default().push(early);
        }
    }
}
