//! Tests of asynchronous calls over a fake back end that the tests control.

mod arena;
mod batches;
mod bytes;
mod cma;
mod collectives;
mod fast_path;
mod fused;
mod lists;
mod messages;
mod monitored;
mod nan_check;
mod outbox;
pub(super) mod ranks;
mod recorder;
mod works;

use super::CallOptions;
use crate::algo::{AlgorithmRequest, Operation};
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::api::work::handle::Work;
use crate::api::work::progress::WorkProgress;
use crate::backend::{Backend, FastPath, RankLocation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{
    Completion, Delivery, OpKind, PeerName, PointToPoint, ReceiveBuffer, ReceiveRequest,
    SendRequest,
};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const LONG_MS: u64 = 20_000;

fn long_deadline() -> Deadline {
    Deadline::after_ms(LONG_MS)
}

/// A fake back end. Operations wait until its gate is open. It delivers the messages of this rank
/// to this rank itself.
#[derive(Debug, Default)]
pub(super) struct FakeBackend {
    locations: Vec<RankLocation>,
    gate: AtomicBool,
    panics: AtomicBool,
    doorbell: Doorbell,
    failure: OnceLock<Error>,
    executed: Mutex<Vec<u64>>,
    pub(super) posted: Mutex<PostedMessages>,
    /// If true, the engine refuses to post further messages.
    pub(super) is_full: AtomicBool,
    /// The posted operations, in order.
    post_order: Mutex<Vec<&'static str>>,
}

type PostedSend = (SendRequest, Arc<dyn Completion>);
type PostedReceive = (ReceiveRequest, Arc<dyn Completion>);

#[derive(Debug, Default)]
pub(super) struct PostedMessages {
    pub(super) sends: Vec<PostedSend>,
    pub(super) receives: Vec<PostedReceive>,
}

impl FakeBackend {
    /// Creates a group of this rank and a second rank that does not exist. Returns the group and
    /// its back end.
    pub(super) fn group(name: &str, gate: bool) -> (Arc<Group>, Arc<Self>) {
        let location = |rank| RankLocation {
            name: PeerName::new(rank, 1, "h".into()),
            host_index: 0,
            local_rank: rank,
        };
        let locations = vec![location(0), location(1)];
        let fake = Arc::new(Self { locations, gate: AtomicBool::new(gate), ..Self::default() });
        (Arc::new(Group::with_backend(name, Arc::clone(&fake) as Arc<dyn Backend>)), fake)
    }

    fn open_gate(&self) {
        self.gate.store(true, Ordering::Release);
        self.doorbell.notify();
    }

    fn executed(&self) -> Vec<u64> {
        self.executed.lock().unwrap().clone()
    }

    fn match_messages(&self) {
        loop {
            let pair = {
                let mut posted = self.posted.lock().unwrap();
                let PostedMessages { sends, receives } = &mut *posted;
                let found = receives.iter().enumerate().find_map(|(r, (receive, _))| {
                    let fits =
                        |(send, _): &PostedSend| receive.tag.is_none_or(|tag| tag == send.tag);
                    sends.iter().position(fits).map(|s| (s, r))
                });
                found.map(|(s, r)| (sends.remove(s), receives.remove(r)))
            };
            let Some(((send, sent), (receive, received))) = pair else { return };
            let mut grown = vec![0; send.bytes.len()];
            let into = match receive.buffer {
                ReceiveBuffer::Borrowed(into) => into.slice(0, send.bytes.len()),
                ReceiveBuffer::Allocated { .. } => Dst::from(grown.as_mut_slice()),
            };
            into.copy_from(send.bytes);
            let delivery = Delivery { peer: 0, tag: send.tag, bytes: send.bytes.len() };
            sent.complete(Ok(delivery));
            match receive.buffer {
                ReceiveBuffer::Borrowed(_) => received.complete(Ok(delivery)),
                ReceiveBuffer::Allocated { .. } => received.complete_allocated(delivery, grown),
            }
            self.doorbell.notify();
        }
    }

    fn check_not_full(&self) -> Result<()> {
        match self.is_full.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::OutOfMemory, "too much is outstanding")),
            false => Ok(()),
        }
    }

    fn expire_overdue(&self) {
        let overdue: Vec<_> = {
            let mut posted = self.posted.lock().unwrap();
            let sends = posted.sends.extract_if(.., |(send, _)| send.deadline.has_passed());
            let mut overdue: Vec<_> = sends.map(|(_, done)| done).collect();
            let receives = posted.receives.extract_if(.., |(r, _)| r.deadline.has_passed());
            overdue.extend(receives.map(|(_, done)| done));
            overdue
        };
        overdue
            .iter()
            .for_each(|done| done.complete(Err(Error::new(ErrorKind::Timeout, "no peer arrived"))));
    }
}

impl PointToPoint for FakeBackend {
    fn send(&self, message: SendRequest, done: Arc<dyn Completion>) -> Result<()> {
        self.check_not_full()?;
        self.post_order.lock().unwrap().push("send");
        self.posted.lock().unwrap().sends.push((message, done));
        self.match_messages();
        Ok(())
    }

    fn receive(&self, message: ReceiveRequest, done: Arc<dyn Completion>) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.check_not_full()?;
        self.post_order.lock().unwrap().push("receive");
        self.posted.lock().unwrap().receives.push((message, done));
        self.match_messages();
        Ok(())
    }

    fn departure_error(&self, _: Rank) -> Option<Error> {
        None
    }

    fn progress_until(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        while !over() && !limit.has_passed() {
            self.expire_overdue();
            let slice = limit.capped(std::time::Duration::from_millis(1));
            let ready = || over().then_some(());
            drop(wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, &slice, || None, ready));
        }
    }
}

impl FastPath for FakeBackend {}

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn check_algorithm_request(&self, _: OpKind, _: usize, _: AlgorithmRequest<'_>) -> Result<()> {
        Ok(())
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        assert!(!self.panics.load(Ordering::Relaxed), "as asked");
        let ready = || self.gate.load(Ordering::Acquire).then_some(());
        match wait_until(
            &self.doorbell,
            WaitPolicy::SLEEP_SOON,
            operation.deadline(),
            || self.failure(),
            ready,
        ) {
            Ok(()) => {}
            Err(WaitInterrupt::Aborted(error)) => return Err(error),
            Err(WaitInterrupt::Deadline) => {
                let late = Error::new(ErrorKind::Timeout, "the gate stayed shut");
                self.abort(&late);
                return Err(late);
            }
        }
        if !operation.recv.is_empty() && !operation.send.is_empty() {
            operation.recv.copy_from(operation.send);
        }
        self.executed.lock().unwrap().push(operation.descriptor.sequence);
        Ok(())
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        Some(self)
    }

    fn abort(&self, reason: &Error) {
        drop(self.failure.set(reason.clone()));
        self.doorbell.notify();
    }

    fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    fn rank_locations(&self) -> &[RankLocation] {
        &self.locations
    }

    fn describe(&self) -> Value {
        Value::Null
    }
}

/// Leaks a copy of the bytes, so that an operation may use it forever.
fn leak_bytes(bytes: &[u8]) -> &'static mut [u8] {
    Box::leak(bytes.to_vec().into_boxed_slice())
}

fn timeout(timeout_ms: u64) -> CallOptions {
    CallOptions { timeout_ms, ..CallOptions::default() }
}

fn issue_barrier(group: &Arc<Group>) -> Arc<Work> {
    group.issue(Call::barrier(), CallOptions::default()).unwrap()
}

fn kind_of(outcome: Result<WorkProgress>) -> ErrorKind {
    outcome.unwrap_err().kind()
}
