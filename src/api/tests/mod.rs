//! Asynchronous calls over a back end that does what a test tells it.

mod arena;
mod attached;
mod batches;
mod bytes;
mod collectives;
mod fused;
mod messages;
mod monitored;
mod outbox;
mod prompt;
pub(super) mod ranks;
mod recorder;
mod values;
mod works;

use super::CallOptions;
use super::call::Call;
use super::group::Group;
use super::work::{Progress, Work};
use crate::algo::{Operation, Wanted};
use crate::backend::{Backend, Place};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::{
    Completion, Delivery, Incoming, OpKind, Outgoing, PeerName, PointToPoint, Room,
};
use crate::wait::bell::Bell;
use crate::wait::{Interrupt, Pace, until};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const LONG: u64 = 20_000;

fn long() -> Deadline {
    Deadline::after_ms(LONG)
}

/// Runs operations while its gate is open, and carries messages of this rank to itself.
#[derive(Debug, Default)]
pub(super) struct Fake {
    places: Vec<Place>,
    gate: AtomicBool,
    panics: AtomicBool,
    bell: Bell,
    failure: OnceLock<Error>,
    ran: Mutex<Vec<u64>>,
    pub(super) posted: Mutex<Posted>,
    /// So much is outstanding that no more may be posted.
    pub(super) is_full: AtomicBool,
    /// What was posted, in that order.
    order: Mutex<Vec<&'static str>>,
}

type Sent = (Outgoing, Arc<dyn Completion>);
type Awaited = (Incoming, Arc<dyn Completion>);

#[derive(Debug, Default)]
pub(super) struct Posted {
    pub(super) sends: Vec<Sent>,
    pub(super) receives: Vec<Awaited>,
}

impl Fake {
    /// A group of this rank and one that does not exist, with its back end.
    pub(super) fn group(name: &str, gate: bool) -> (Arc<Group>, Arc<Self>) {
        let place = |rank| Place {
            name: PeerName { rank, pid: 1, host: "h".into() },
            host_index: 0,
            local_rank: rank,
        };
        let places = vec![place(0), place(1)];
        let fake = Arc::new(Self { places, gate: AtomicBool::new(gate), ..Self::default() });
        (Arc::new(Group::over(name, Arc::clone(&fake) as Arc<dyn Backend>)), fake)
    }

    fn open(&self) {
        self.gate.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn ran(&self) -> Vec<u64> {
        self.ran.lock().unwrap().clone()
    }

    fn deliver(&self) {
        loop {
            let pair = {
                let mut posted = self.posted.lock().unwrap();
                let Posted { sends, receives } = &mut *posted;
                let found = receives.iter().enumerate().find_map(|(r, (receive, _))| {
                    let fits = |(send, _): &Sent| receive.tag.is_none_or(|tag| tag == send.tag);
                    sends.iter().position(fits).map(|s| (s, r))
                });
                found.map(|(s, r)| (sends.remove(s), receives.remove(r)))
            };
            let Some(((send, sent), (receive, received))) = pair else { return };
            let mut grown = vec![0; send.bytes.len()];
            let into = match receive.into {
                Room::Lent(into) => into.slice(0, send.bytes.len()),
                Room::Grows { .. } => Dst::from(grown.as_mut_slice()),
            };
            into.copy_from(send.bytes);
            let delivery = Delivery { peer: 0, tag: send.tag, bytes: send.bytes.len() };
            sent.complete(Ok(delivery));
            match receive.into {
                Room::Lent(_) => received.complete(Ok(delivery)),
                Room::Grows { .. } => received.complete_grown(delivery, grown),
            }
            self.bell.ring();
        }
    }

    fn check_room(&self) -> Result<()> {
        match self.is_full.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::OutOfMemory, "too much is outstanding")),
            false => Ok(()),
        }
    }

    fn end_late(&self) {
        let late: Vec<_> = {
            let mut posted = self.posted.lock().unwrap();
            let sends = posted.sends.extract_if(.., |(send, _)| send.deadline.has_passed());
            let mut late: Vec<_> = sends.map(|(_, done)| done).collect();
            let receives = posted.receives.extract_if(.., |(r, _)| r.deadline.has_passed());
            late.extend(receives.map(|(_, done)| done));
            late
        };
        late.iter()
            .for_each(|done| done.complete(Err(Error::new(ErrorKind::Timeout, "nobody came"))));
    }
}

impl PointToPoint for Fake {
    fn send(&self, message: Outgoing, done: Arc<dyn Completion>) -> Result<()> {
        self.check_room()?;
        self.order.lock().unwrap().push("send");
        self.posted.lock().unwrap().sends.push((message, done));
        self.deliver();
        Ok(())
    }

    fn receive(&self, message: Incoming, done: Arc<dyn Completion>) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.check_room()?;
        self.order.lock().unwrap().push("receive");
        self.posted.lock().unwrap().receives.push((message, done));
        self.deliver();
        Ok(())
    }

    fn departed(&self, _: Rank) -> Option<Error> {
        None
    }

    fn attend(&self, over: &dyn Fn() -> bool, limit: &Deadline) {
        while !over() && !limit.has_passed() {
            self.end_late();
            let slice = limit.capped(std::time::Duration::from_millis(1));
            let ready = || over().then_some(());
            drop(until(&self.bell, Pace::PATIENT, &slice, || None, ready));
        }
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn check_wanted(&self, _: OpKind, _: usize, _: Wanted<'_>) -> Result<()> {
        Ok(())
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        assert!(!self.panics.load(Ordering::Relaxed), "as asked");
        let ready = || self.gate.load(Ordering::Acquire).then_some(());
        match until(&self.bell, Pace::PATIENT, operation.deadline(), || self.failure(), ready) {
            Ok(()) => {}
            Err(Interrupt::Halted(error)) => return Err(error),
            Err(Interrupt::Deadline) => {
                let late = Error::new(ErrorKind::Timeout, "the gate stayed shut");
                self.abort(&late);
                return Err(late);
            }
        }
        if !operation.recv.is_empty() && !operation.send.is_empty() {
            operation.recv.copy_from(operation.send);
        }
        self.ran.lock().unwrap().push(operation.descriptor.sequence);
        Ok(())
    }

    fn messages(&self) -> Option<&dyn PointToPoint> {
        Some(self)
    }

    fn abort(&self, reason: &Error) {
        drop(self.failure.set(reason.clone()));
        self.bell.ring();
    }

    fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    fn places(&self) -> &[Place] {
        &self.places
    }

    fn describe(&self) -> Value {
        Value::Null
    }
}

/// Bytes that may be lent for ever.
fn lent(bytes: &[u8]) -> &'static mut [u8] {
    Box::leak(bytes.to_vec().into_boxed_slice())
}

fn timeout(timeout_ms: u64) -> CallOptions {
    CallOptions { timeout_ms, ..CallOptions::default() }
}

fn issue(group: &Arc<Group>) -> Arc<Work> {
    group.issue(Call::barrier(), CallOptions::default()).unwrap()
}

fn kind_of(outcome: Result<Progress>) -> ErrorKind {
    outcome.unwrap_err().kind()
}
