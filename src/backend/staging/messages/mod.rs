//! Staged messages: point-to-point messages in device memory. A worker thread of the group
//! transfers them piece by piece through its own staging buffers (pinned host memory with two
//! halves per direction).
//!
//! ```text
//! sender                                        receiver
//!   RTS (request to send)   ----------------->    matches the RTS with a posted receive
//!                                                 posts a receive for one piece into a free half
//!                           <-----------------    CTS (clear to send), one per piece
//!   device copies the piece to a free half
//!   sends the piece         ----------------->    device copies the piece to the buffer
//! ```
//!
//! 1. The sender sends an RTS ([`control`]). If the receiver has a matching receive ([`matching`])
//!    and a free half of its staging buffer, it posts a receive for one piece in host memory and
//!    sends a CTS.
//! 2. For each CTS, the sender lets the device copy one piece to a free half of its own staging
//!    buffer. Then it sends the piece as a message in host memory, with a tag that only this staged
//!    message uses.
//! 3. The receiver lets the device copy the arrived piece to the caller's buffer. The message is
//!    complete for the sender when its last piece was sent. It is complete for the receiver when
//!    all pieces are in device memory.
//!
//! A sender occupies a half only for a piece whose receive is already posted. Every occupied half
//! therefore becomes free again, whatever the order in which the ranks post their messages. Before
//! its first CTS, a message may time out without an effect on other messages or ranks. After the
//! first CTS, any error fails the group.
//!
//! Staged messages never match messages in host memory, because their tags differ.

mod control;
mod inbox;
mod matching;
mod receiving;
mod sending;
mod shutdown;
mod worker;
mod worker_state;

use super::buffers::StagingBuffers;
use super::host::StagingHost;
use crate::backend::message_counter::{CountedCompletion, MessageCounter, MessageDirection};
use crate::backend::{
    Completion, DevicePointToPoint, DoorbellListener, GroupFailureState, MessageTraffic,
    ReceiveBuffer, ReceiveRequest, SendRequest,
};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::log::LogLevel;
use crate::base::plural::Plural;
use crate::base::sync::lock;
use crate::device::CudaEvent;
use crate::process::thread;
use crate::wait::{WaitPolicy, wait_until};
use inbox::{PostedCompletion, WorkerEvent, WorkerInbox};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use worker_state::StagingWorker;

/// The maximum time for which a closing group waits for the end of its worker thread.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// The staged messages of a group on its device.
#[derive(Debug)]
pub(super) struct StagingMessages {
    host: StagingHost,
    chunk: usize,
    size: WorldSize,
    inbox: Arc<WorkerInbox>,
    counter: Arc<MessageCounter>,
    /// True if the worker thread was started.
    is_started: Mutex<bool>,
}

impl StagingMessages {
    pub(super) fn new(host: &StagingHost, chunk: usize, size: WorldSize) -> Self {
        Self {
            host: host.clone(),
            chunk,
            size,
            inbox: Arc::default(),
            counter: Arc::default(),
            is_started: Mutex::new(false),
        }
    }

    /// Prepares a message: checks the peer, records the CUDA event after which the buffer is ready,
    /// and starts the worker thread if it is not running. Returns the event.
    fn prepare_post(&self, peer: Option<Rank>, stream: Option<usize>) -> Result<CudaEvent> {
        self.host.failure_state.check_failure()?;
        if let Some(peer) = peer.filter(|&peer| peer >= self.size) {
            let message =
                format!("there is no rank {peer}: the group has {}", Plural(self.size, "rank"));
            return Err(Error::invalid(message));
        }
        let ready_event = self.host.record_event(stream)?;
        self.start_worker()?;
        Ok(ready_event)
    }

    /// Starts the worker thread. Only the first call has an effect.
    fn start_worker(&self) -> Result<()> {
        let mut is_started = lock(&self.is_started);
        if *is_started {
            return Ok(());
        }
        let buffers = StagingBuffers::new(&self.host.context, self.chunk)?;
        let worker =
            StagingWorker::new(self.chunk, buffers, self.host.clone(), Arc::clone(&self.inbox));
        let (inbox, failure_state) =
            (Arc::clone(&self.inbox), Arc::clone(&self.host.failure_state));
        thread::start("dist-staging", move || {
            let _end_guard = WorkerEndGuard(inbox, failure_state);
            worker.run();
        })?;
        let listener = Arc::clone(&self.inbox) as Arc<dyn DoorbellListener>;
        self.host.failure_state.add_listener(Arc::downgrade(&listener));
        *is_started = true;
        Ok(())
    }

    /// Wakes the worker thread after a failure of the group, in case its listener was not called.
    pub(super) fn on_group_failure(&self) {
        self.inbox.doorbell.notify();
    }
}

impl DevicePointToPoint for StagingMessages {
    fn send(
        &self,
        message: SendRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let ready_event = self.prepare_post(Some(message.to), stream)?;
        let (counter, peer_and_tag) = (&self.counter, (Some(message.to), Some(message.tag)));
        CountedCompletion::submit(counter, MessageDirection::Send, peer_and_tag, done, |done| {
            let posted = PostedCompletion { ready_event, completion: Some(done) };
            self.inbox.push(WorkerEvent::Send(message, posted));
        });
        Ok(())
    }

    fn receive(
        &self,
        message: ReceiveRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let ReceiveBuffer::Borrowed(into) = message.buffer else {
            return Err(Error::internal("a growable receive buffer in device memory"));
        };
        let ready_event = self.prepare_post(message.from, stream)?;
        let (counter, peer_and_tag) = (&self.counter, (message.from, message.tag));
        CountedCompletion::submit(counter, MessageDirection::Receive, peer_and_tag, done, |done| {
            let posted = PostedCompletion { ready_event, completion: Some(done) };
            self.inbox.push(WorkerEvent::Receive(message, into, posted));
        });
        Ok(())
    }

    fn traffic(&self, work_id: usize) -> MessageTraffic {
        self.counter.traffic(work_id)
    }
}

impl Drop for StagingMessages {
    fn drop(&mut self) {
        let is_started = *lock(&self.is_started);
        if !is_started {
            return;
        }
        self.inbox.is_closing.store(true, Ordering::Release);
        self.inbox.doorbell.notify();
        let limit = Deadline::after(CLOSE_WAIT);
        let ended = || self.inbox.has_ended.load(Ordering::Acquire).then_some(());
        if wait_until(&self.inbox.doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, ended).is_err()
        {
            crate::log!(
                LogLevel::Error,
                "the staging worker of the messages in device memory does not end"
            );
        }
    }
}

/// A guard of the worker thread. When the thread ends for any reason, the guard marks it as ended.
/// If the thread has panicked, the guard fails the group.
struct WorkerEndGuard(Arc<WorkerInbox>, Arc<dyn GroupFailureState>);

impl Drop for WorkerEndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "a defect in libdist, please report it: the staging worker panicked";
            self.1.fail(&Error::internal(message));
        }
        self.0.has_ended.store(true, Ordering::Release);
        self.0.doorbell.notify();
    }
}
