//! An endpoint that calls its attendant without end for a stream at which nobody has looked.

use super::world::{Outcome, PACE, PATIENCE_MS, geometry, incoming, name};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::sys::host;
use crate::transport::inproc::Domain;
use crate::transport::matching::Engine;
use crate::transport::{Attendant, Channel, Endpoint, PeerName, PointToPoint, SharedDomain, Wish};
use crate::wait::Pace;
use crate::wait::bell::Bell;
use crate::wait::nudge::Nudge;
use crate::wait::until;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Rank 0's streams to and from a rank 1 that says nothing.
#[derive(Debug)]
struct Level {
    domain: Arc<dyn SharedDomain>,
    peers: [PeerName; 2],
    attendant: Mutex<Option<Weak<dyn Attendant>>>,
    paused: AtomicBool,
    /// Something has happened at which nobody has looked.
    raised: AtomicBool,
    /// Rung when somebody looks.
    bell: Bell,
    nudge: OnceLock<Nudge>,
}

impl Level {
    fn new(domain: Arc<dyn SharedDomain>) -> Arc<Self> {
        let level = Arc::new(Self {
            domain,
            peers: [name(0), name(1)],
            attendant: Mutex::default(),
            paused: AtomicBool::new(false),
            raised: AtomicBool::new(false),
            bell: Bell::default(),
            nudge: OnceLock::new(),
        });
        let task = Arc::downgrade(&level);
        let nudge = Nudge::new(move || task.upgrade().into_iter().for_each(|level| level.call()));
        level.nudge.set(nudge.unwrap()).unwrap();
        level
    }

    /// A stream has something to say.
    fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.nudge.get().unwrap().nudge();
    }

    /// Calls the attendant, and again soon where it has not looked.
    fn call(&self) {
        if self.paused.load(Ordering::Acquire) || !self.raised.load(Ordering::Acquire) {
            return;
        }
        let attendant = self.attendant.lock().unwrap().clone();
        attendant.and_then(|it| it.upgrade()).into_iter().for_each(|it| it.attend());
        self.nudge.get().unwrap().nudge();
    }
}

impl Endpoint for Level {
    fn rank(&self) -> Rank {
        0
    }

    fn size(&self) -> WorldSize {
        2
    }

    fn peer(&self, rank: Rank) -> &PeerName {
        &self.peers[rank]
    }

    fn lanes(&self) -> u8 {
        1
    }

    fn pace(&self) -> Pace {
        PACE
    }

    fn try_send(&self, _: Rank, _: Channel, _: &[Src<'_>]) -> Result<usize> {
        Ok(0)
    }

    fn try_receive(&self, _: Rank, _: Channel, _: Dst<'_>) -> Result<usize> {
        Ok(0)
    }

    fn rest(&self, _: &[Wish], _: Duration) {}

    fn ready(&self, peers: &mut Vec<Rank>) {
        if self.raised.swap(false, Ordering::AcqRel) {
            peers.push(1);
            self.bell.ring();
        }
    }

    fn set_attendant(&self, attendant: Weak<dyn Attendant>) {
        *self.attendant.lock().unwrap() = Some(attendant);
    }

    fn pause_attendant(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
        if !paused {
            self.nudge.get().unwrap().nudge();
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
fn nobody_is_called_for_the_streams_of_an_engine_that_has_failed() {
    for attended in [false, true] {
        let geometry = geometry(1);
        let group = host::random_nonce().unwrap();
        let domain = Domain::join(group, 0, 0, vec![name(0)], geometry, PACE).unwrap();
        let domain: Arc<dyn SharedDomain> = Arc::new(domain);
        let level = Level::new(Arc::clone(&domain));
        let engine = Engine::new(Arc::clone(&domain), Some(level.clone()), true).unwrap();
        let post = || {
            let outcome = Arc::new(Outcome::default());
            engine.receive(incoming(Some(1), None, 1), outcome.clone()).unwrap();
            outcome
        };
        let outcome = post();
        let attend = || engine.attend(&|| outcome.get().is_some(), &Deadline::after_ms(1));
        if attended {
            attend();
        }
        // Before the failure it is called, and looks.
        level.raise();
        let limit = Deadline::after_ms(PATIENCE_MS);
        let looked = || (!level.raised.load(Ordering::Acquire)).then_some(());
        until(&level.bell, Pace::PATIENT, &limit, || None, looked).unwrap();
        domain.fail(&Error::new(ErrorKind::Aborted, "somebody said so"));
        assert_eq!(outcome.error().0, ErrorKind::Aborted);
        // Whoever attends now changes nothing.
        attend();
        engine.attend(&|| false, &Deadline::after_ms(1));
        assert!(level.paused.load(Ordering::Acquire), "attended: {attended}");
    }
}
