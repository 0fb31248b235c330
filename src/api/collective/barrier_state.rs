//! The state that a rank keeps between the monitored barriers of a group. A monitored barrier is a
//! barrier that names the missing ranks. The state has the received messages of the other ranks,
//! and the sender of this rank's messages.
//!
//! If a receive is still posted at the end of a barrier, it stays posted for the next barrier.

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

/// The tag of all messages of monitored barriers: notices to the coordinator and results from it.
const BARRIER_TAG: u32 = LARGEST_TAG + 2;

/// The state that a rank keeps between the monitored barriers of a group.
#[derive(Debug)]
pub(super) struct MonitoredBarrierState {
    /// The number of barriers that this rank has entered. The lock is held during a barrier, so
    /// that a second thread cannot enter another barrier.
    pub(super) entered_count: Mutex<u64>,
    /// The messages of the other ranks.
    pub(super) received: Arc<BarrierMessages>,
    /// The sender, which keeps only the newest unsent message for each rank.
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

/// The received messages, for each peer.
#[derive(Debug, Default)]
pub(super) struct BarrierMessages {
    peers: Mutex<HashMap<Rank, BarrierPeer>>,
    /// Incremented at every change of `peers`, so that a wait can detect a change.
    pub(super) changes: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct BarrierPeer {
    /// True if a receive is posted.
    is_receive_posted: bool,
    /// The received messages that no barrier has read, oldest first.
    pub(super) unread: VecDeque<Vec<u8>>,
    /// The last result that this rank has read. Only used for the coordinator.
    pub(super) last_result: Option<BarrierResult>,
    /// The error of the last receive, if it failed: the peer has departed or sent a message that
    /// was not accepted.
    pub(super) departure: Option<Error>,
    /// The number of the last barrier that the peer has entered.
    pub(super) last_arrived: u64,
    /// The number of the last barrier for which the peer has stopped waiting.
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

    /// Posts a receive for the next message of a rank. Does nothing if a receive is already posted
    /// or the rank has departed.
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
        // The engine may complete the receive within this call. Therefore the lock is not held
        // here.
        engine.receive(message, Arc::new(receive)).inspect_err(|_| {
            self.with_peer(from, |peer| peer.is_receive_posted = false);
        })
    }
}

/// The completion of a posted receive. It stores the message, or the error of the receive.
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
