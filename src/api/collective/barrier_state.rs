//! The state that a rank keeps between the monitored barriers of a group: the messages of the other
//! ranks, and the sender of its own messages.
//!
//! A receive that is still posted at the end of a barrier stays posted for the next barrier.

use crate::api::collective::barrier_messages::BarrierResult;
use crate::api::work::latest_only_sender::LatestOnlySender;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::transport::{
    Completion, Delivery, LARGEST_TAG, PointToPoint, ReceiveBuffer, ReceiveRequest,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The tag of the messages in both directions.
const BARRIER_TAG: u32 = LARGEST_TAG + 2;

/// The state that a rank keeps between the monitored barriers of a group.
#[derive(Debug)]
pub(super) struct MonitoredBarrierState {
    /// The number of barriers that this rank has entered. Locked during a barrier.
    pub(super) entered_count: Mutex<u64>,
    pub(super) received: Arc<BarrierMessages>,
    pub(super) sender: Arc<LatestOnlySender>,
}

impl Default for MonitoredBarrierState {
    fn default() -> Self {
        Self {
            entered_count: Mutex::default(),
            received: Arc::default(),
            sender: Arc::new(LatestOnlySender::new(BARRIER_TAG)),
        }
    }
}

/// The messages received from other ranks.
#[derive(Debug, Default)]
pub(super) struct BarrierMessages {
    peers: Mutex<HashMap<Rank, BarrierPeer>>,
    /// Incremented at every change.
    pub(super) changes: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct BarrierPeer {
    /// True if a receive is posted.
    is_receive_posted: bool,
    pub(super) unread: VecDeque<Vec<u8>>,
    /// The last result that was read from the coordinator.
    pub(super) last_result: Option<BarrierResult>,
    /// The reason why this rank sends no more messages.
    pub(super) departure: Option<Error>,
    /// The last barrier that the rank has entered, and the last that it has given up.
    pub(super) last_arrived: u64,
    pub(super) last_given_up: u64,
}

impl BarrierMessages {
    pub(super) fn peers(&self) -> MutexGuard<'_, HashMap<Rank, BarrierPeer>> {
        lock(&self.peers)
    }

    pub(super) fn with_peer<T>(&self, peer: Rank, act: impl FnOnce(&mut BarrierPeer) -> T) -> T {
        act(self.peers().entry(peer).or_default())
    }

    fn update_peer(&self, peer: Rank, act: impl FnOnce(&mut BarrierPeer)) {
        self.with_peer(peer, act);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Posts a receive for the next message of a rank, unless one is posted or the rank has
    /// departed.
    pub(super) fn post_receive(
        self: &Arc<Self>,
        engine: &dyn PointToPoint,
        from: Rank,
    ) -> Result<()> {
        let is_posted = |peer: &mut BarrierPeer| {
            peer.departure.is_some() || std::mem::replace(&mut peer.is_receive_posted, true)
        };
        if self.with_peer(from, is_posted) {
            return Ok(());
        }
        let into = ReceiveBuffer::Allocated { max_bytes: BarrierResult::MAX_BYTES };
        let (tag, dtype, deadline) = (Some(BARRIER_TAG), DataType::U8, Deadline::never());
        let message = ReceiveRequest { from: Some(from), tag, dtype, buffer: into, deadline };
        let receive = BarrierReceive { received: Arc::clone(self), from };
        // No lock is held here: the engine may complete the receive within the call.
        engine.receive(message, Arc::new(receive)).inspect_err(|_| {
            self.with_peer(from, |peer| peer.is_receive_posted = false);
        })
    }
}

/// The completion of a posted receive.
#[derive(Debug)]
struct BarrierReceive {
    received: Arc<BarrierMessages>,
    from: Rank,
}

impl Completion for BarrierReceive {
    fn complete(&self, outcome: Result<Delivery>) {
        self.received.update_peer(self.from, |peer| {
            peer.is_receive_posted = false;
            peer.departure = outcome.err();
        });
    }

    fn complete_allocated(&self, _: Delivery, bytes: Vec<u8>) {
        self.received.update_peer(self.from, |peer| {
            peer.is_receive_posted = false;
            peer.unread.push_back(bytes);
        });
    }
}
