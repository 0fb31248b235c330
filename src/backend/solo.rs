//! A group of one rank: every operation is a copy.

use super::{Backend, Fate, Memory, Place};
use crate::algo::rules::Rules;
use crate::algo::{Operation, Shape, Wanted, select};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::log::Level;
use crate::base::nodes::Nodes;
use crate::base::op::ReduceOp;
use crate::kernel;
use crate::sys::host;
use crate::transport::inproc::Domain;
use crate::transport::matching::Engine;
use crate::transport::{
    Geometry, Listener, OpKind, PeerName, PointToPoint, Reuse, SharedDomain, arena,
};
use crate::wait::Pace;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock, Weak};

/// The back end of a group of one rank.
#[derive(Debug)]
pub struct Solo {
    places: [Place; 1],
    state: Arc<State>,
}

/// What is shared with groups that were made from this one.
#[derive(Debug, Default)]
struct State {
    failure: OnceLock<Error>,
    /// Made when it is first asked for; `None` where that failed.
    messages: OnceLock<Option<Messages>>,
}

/// The messages of the rank to itself.
#[derive(Debug)]
struct Messages {
    engine: Engine,
    domain: Arc<Domain>,
}

impl Messages {
    fn new(name: &PeerName) -> Result<Self> {
        let geometry = Geometry { ranks: 1, slot_bytes: 4096, reuse: Reuse::Soon };
        let group = host::random_nonce()?;
        let peers = vec![name.clone()];
        let domain = Arc::new(Domain::join(group, 0, 0, peers, geometry, Pace::PATIENT)?);
        let engine = Engine::new(Arc::clone(&domain) as Arc<dyn SharedDomain>, None, true)?;
        Ok(Self { engine, domain })
    }
}

impl Solo {
    /// A new one.
    pub fn new() -> Self {
        let name = PeerName { rank: 0, pid: host::pid(), host: host::name().into() };
        let places = [Place { name, host_index: 0, local_rank: 0 }];
        Self { places, state: Arc::default() }
    }
}

impl Fate for State {
    fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    fn fail(&self, reason: &Error) {
        // The first reason stays.
        drop(self.failure.set(reason.clone()));
        let messages = self.messages.get().and_then(Option::as_ref);
        messages.into_iter().for_each(|messages| messages.domain.fail(reason));
    }

    /// There is no other rank.
    fn add_listener(&self, _: Weak<dyn Listener>) {}
}

impl Default for Solo {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of one rank is its own contribution, taken through the operator all the same, so that
/// a bool comes out as 0 or 1 and a NaN as it would with more ranks.
fn reduce(operation: &Operation<'_>, op: ReduceOp, dst: Dst<'_>, src: Src<'_>) {
    if op == ReduceOp::PremulSum {
        kernel::scale_copy(operation.dtype(), operation.factor, dst, src);
    } else {
        kernel::fold(operation.dtype(), op, dst, &[src]);
    }
}

impl Backend for Solo {
    fn name(&self) -> &'static str {
        "native"
    }

    /// A name that is right or wrong with more ranks is so with one.
    fn check_wanted(&self, kind: OpKind, bytes: usize, wanted: Wanted<'_>) -> Result<()> {
        let shape = |labels: &[usize]| Shape::of(&Nodes::by_label(labels), false);
        let rules = Rules::default();
        let choose =
            |labels: &[usize]| select(kind, bytes, &shape(labels), wanted, &rules).map(drop);
        choose(&[0]).or_else(|error| choose(&[0, 0, 1]).map_err(|_| error))
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let src = operation.sends.map_or(operation.send, |_| operation.send_block(0));
        let dst = operation.recvs.map_or(operation.recv, |_| operation.recv_block(0));
        match operation.descriptor.op {
            _ if src.is_empty() || dst.is_empty() => {}
            Some(op) => reduce(operation, op, dst, src),
            None => kernel::copy(dst, src),
        }
        Ok(())
    }

    fn messages(&self) -> Option<&dyn PointToPoint> {
        let make = || {
            let made = Messages::new(&self.places[0].name);
            made.inspect_err(|error| crate::log!(Level::Error, "no messages: {error}")).ok()
        };
        let messages = self.state.messages.get_or_init(make).as_ref()?;
        // It may have been aborted before there were any.
        self.state.failure.get().into_iter().for_each(|reason| messages.domain.fail(reason));
        Some(&messages.engine)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(arena::allocate(bytes)?))
    }

    fn abort(&self, reason: &Error) {
        self.state.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.state.failure()
    }

    fn fate(&self) -> Option<Arc<dyn Fate>> {
        Some(Arc::clone(&self.state) as Arc<dyn Fate>)
    }

    fn places(&self) -> &[Place] {
        &self.places
    }

    fn describe(&self) -> Value {
        json!({ "transport": "none (one rank)", "algorithms": {} })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::base::dtype::DataType;
    use crate::base::error::ErrorKind;
    use crate::transport::{Completion, Delivery, Incoming, Outgoing};
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Outcome(Mutex<Option<Result<Delivery>>>);

    impl Completion for Outcome {
        fn complete(&self, outcome: Result<Delivery>) {
            *self.0.lock().unwrap() = Some(outcome);
        }
    }

    #[test]
    fn one_rank_sends_to_itself_until_it_is_aborted() {
        let solo = Solo::new();
        let engine = solo.messages().unwrap();
        let deadline = Deadline::after_ms(60_000);
        let (tag, dtype) = (3, DataType::U8);
        let bytes = Src::from(&b"to myself"[..]);
        let into = Dst::from(Box::leak(vec![0; 9].into_boxed_slice()));
        let room = into.into();
        let receive = Incoming { from: None, tag: Some(tag), dtype, into: room, deadline };
        let (sent, got) = (Arc::new(Outcome::default()), Arc::new(Outcome::default()));
        engine
            .send(Outgoing { to: 0, tag, dtype, bytes, deadline, synchronous: false }, sent.clone())
            .unwrap();
        engine.receive(receive, got.clone()).unwrap();
        engine.attend(&|| got.0.lock().unwrap().is_some(), &deadline);
        let delivery = Delivery { peer: 0, tag, bytes: 9 };
        assert_eq!(*got.0.lock().unwrap(), Some(Ok(delivery)));
        assert_eq!(*sent.0.lock().unwrap(), Some(Ok(delivery)));
        let mut back = [0; 9];
        Dst::from(&mut back[..]).copy_from(into.as_src());
        assert_eq!(&back, b"to myself");
        solo.abort(&Error::new(ErrorKind::Aborted, "enough"));
        let late = Arc::new(Outcome::default());
        let posted = solo.messages().unwrap().receive(receive, late.clone());
        // Refused, or ended as soon as somebody looks.
        if posted.is_ok() {
            engine.attend(&|| late.0.lock().unwrap().is_some(), &deadline);
            assert!(late.0.lock().unwrap().as_ref().unwrap().is_err());
        }
    }
}
