//! A level-triggered endpoint: it calls its progress handler repeatedly until its streams are
//! polled.

use super::test_ranks::{
    TEST_TIMEOUT_MS, TEST_WAIT_POLICY, TestCompletion, peer_name, receive_request, test_geometry,
};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::sys::host;
use crate::transport::inproc::InprocDomain;
use crate::transport::matching::MatchingEngine;
use crate::transport::{
    Channel, Endpoint, PeerName, PointToPoint, ProgressHandler, SharedDomain, StreamInterest,
};
use crate::wait::WaitPolicy;
use crate::wait::doorbell::Doorbell;
use crate::wait::service_task::ServiceTask;
use crate::wait::wait_until;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Rank 0's streams to and from rank 1, which sends nothing.
#[derive(Debug)]
struct LevelTriggeredEndpoint {
    domain: Arc<dyn SharedDomain>,
    peers: [PeerName; 2],
    handler: Mutex<Option<Weak<dyn ProgressHandler>>>,
    is_paused: AtomicBool,
    /// Whether an event has occurred after which no thread has polled the streams.
    has_event: AtomicBool,
    /// Notified when a thread polls the streams.
    doorbell: Doorbell,
    service_wakeup: OnceLock<ServiceTask>,
}

impl LevelTriggeredEndpoint {
    fn new(domain: Arc<dyn SharedDomain>) -> Arc<Self> {
        let endpoint = Arc::new(Self {
            domain,
            peers: [peer_name(0), peer_name(1)],
            handler: Mutex::default(),
            is_paused: AtomicBool::new(false),
            has_event: AtomicBool::new(false),
            doorbell: Doorbell::default(),
            service_wakeup: OnceLock::new(),
        });
        let task = Arc::downgrade(&endpoint);
        let service_task = ServiceTask::new(move || {
            task.upgrade().into_iter().for_each(|level| level.call_handler())
        });
        endpoint.service_wakeup.set(service_task.unwrap()).unwrap();
        endpoint
    }

    /// Signals an event on a stream.
    fn raise_event(&self) {
        self.has_event.store(true, Ordering::Release);
        self.service_wakeup.get().unwrap().wake();
    }

    /// Calls the progress handler. If the handler has not polled the streams, schedules another
    /// call.
    fn call_handler(&self) {
        if self.is_paused.load(Ordering::Acquire) || !self.has_event.load(Ordering::Acquire) {
            return;
        }
        let handler = self.handler.lock().unwrap().clone();
        handler.and_then(|it| it.upgrade()).into_iter().for_each(|it| it.on_streams_ready());
        self.service_wakeup.get().unwrap().wake();
    }
}

impl Endpoint for LevelTriggeredEndpoint {
    fn rank(&self) -> Rank {
        0
    }

    fn size(&self) -> WorldSize {
        2
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.peers[rank]
    }

    fn collective_streams(&self) -> u8 {
        1
    }

    fn wait_policy(&self) -> WaitPolicy {
        TEST_WAIT_POLICY
    }

    fn try_send(&self, _: Rank, _: Channel, _: &[Src<'_>]) -> Result<usize> {
        Ok(0)
    }

    fn try_receive(&self, _: Rank, _: Channel, _: Dst<'_>) -> Result<usize> {
        Ok(0)
    }

    fn wait_for_streams(&self, _: &[StreamInterest], _: Duration) {}

    fn collect_ready_peers(&self, peers: &mut Vec<Rank>) {
        if self.has_event.swap(false, Ordering::AcqRel) {
            peers.push(1);
            self.doorbell.notify();
        }
    }

    fn set_progress_handler(&self, handler: Weak<dyn ProgressHandler>) {
        *self.handler.lock().unwrap() = Some(handler);
    }

    fn pause_progress_handler(&self, paused: bool) {
        self.is_paused.store(paused, Ordering::Release);
        if !paused {
            self.service_wakeup.get().unwrap().wake();
        }
    }

    fn describe(&self) -> Value {
        Value::Null
    }

    fn failure(&self) -> Option<Error> {
        self.domain.failure()
    }

    fn fail(&self, error: &Error) {
        self.domain.fail(error);
    }
}

#[test]
fn failed_engine_pauses_the_progress_handler() {
    for attended in [false, true] {
        let geometry = test_geometry(1);
        let group = host::random_nonce().unwrap();
        let domain =
            InprocDomain::join(group, 0, 0, vec![peer_name(0)], geometry, TEST_WAIT_POLICY)
                .unwrap();
        let domain: Arc<dyn SharedDomain> = Arc::new(domain);
        let endpoint = LevelTriggeredEndpoint::new(Arc::clone(&domain));
        let engine =
            MatchingEngine::new(Arc::clone(&domain), Some(endpoint.clone()), true).unwrap();
        let post = || {
            let outcome = Arc::new(TestCompletion::default());
            engine.receive(receive_request(Some(1), None, 1), outcome.clone()).unwrap();
            outcome
        };
        let outcome = post();
        let attend = || engine.progress_until(&|| outcome.get().is_some(), &Deadline::after_ms(1));
        if attended {
            attend();
        }
        // Before the failure, the handler is called and polls the streams.
        endpoint.raise_event();
        let limit = Deadline::after_ms(TEST_TIMEOUT_MS);
        let looked = || (!endpoint.has_event.load(Ordering::Acquire)).then_some(());
        wait_until(&endpoint.doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, looked).unwrap();
        domain.fail(&Error::new(ErrorKind::Aborted, "aborted by the test"));
        assert_eq!(outcome.error().0, ErrorKind::Aborted);
        // A waiting caller does not resume the handler.
        attend();
        engine.progress_until(&|| false, &Deadline::after_ms(1));
        assert!(endpoint.is_paused.load(Ordering::Acquire), "makes progress: {attended}");
    }
}
