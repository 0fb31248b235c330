//! What the creation of a group by its members waits for, for the search for deadlocks.

use super::send_window::message_engine;
use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::{BlockedCallGuard, Need, PublishedNeeds};
use crate::api::observe::recorder::short_group_id;
use crate::base::ids::Rank;
use crate::transport::MessageTraffic;
use crate::wait::blocked_thread::BlockedWatch;
use std::cell::RefCell;

/// A wait for ranks of the parent that have not joined.
#[derive(Debug)]
pub(super) struct JoinNeeds<'a> {
    parent: &'a Group,
    /// The name of the new group.
    name: &'a str,
    missing: &'a [Rank],
    /// Whether this rank is the coordinator, for which the other members wait.
    is_coordinator: bool,
    /// The traffic at the last poll. All messages in it have been handled since then.
    last_traffic: RefCell<Option<MessageTraffic>>,
}

impl<'a> JoinNeeds<'a> {
    pub(super) fn new(
        parent: &'a Group,
        name: &'a str,
        missing: &'a [Rank],
        is_coordinator: bool,
    ) -> Self {
        Self { parent, name, missing, is_coordinator, last_traffic: RefCell::default() }
    }

    /// Publishes what the creation needs, if its call is blocked. Called at each poll of the wait.
    pub(super) fn publish(&self, call: &BlockedCallGuard, watch: &RefCell<BlockedWatch>) {
        watch.borrow_mut().check();
        if !call.is_blocked() {
            return;
        }
        let Ok(engine) = message_engine(self.parent) else { return };
        let traffic = engine.traffic(0);
        // A message that is just being delivered counts as processed in the traffic.
        let traffic = (!engine.is_completing()).then_some(traffic);
        let Some(traffic) = self.last_traffic.replace(traffic) else { return };
        let parent = short_group_id(self.parent.id());
        let need = |&rank: &Rank| match self.is_coordinator {
            // A member that joins also answers, without a further call.
            true => Need::joining(rank, &traffic, parent, self.name),
            false => Need::message_of(rank, &traffic),
        };
        call.publish(PublishedNeeds {
            title: format!("creation of group {}", self.name),
            needs: self.missing.iter().filter_map(need).collect(),
            joining: Some((parent, self.name.to_owned())),
        });
    }
}
