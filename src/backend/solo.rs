//! The back end of groups of one rank. Every operation is a local copy or a reduction of one input.

use super::{Backend, FastPath, GroupFailureState, RankLocation};
use crate::algo::rules::AlgorithmRules;
use crate::algo::{AlgorithmRequest, GroupShape, Operation, select};
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::nodes::NodeMap;
use crate::base::op::ReduceOp;
use crate::kernel;
use crate::sys::host;
use crate::transport::inproc::InprocDomain;
use crate::transport::matching::MatchingEngine;
use crate::transport::{
    DoorbellListener, OpKind, PeerName, PointToPoint, RegionGeometry, ReusePolicy, SharedDomain,
};
use crate::wait::WaitPolicy;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock, Weak};

/// The back end of a group of one rank.
#[derive(Debug)]
pub struct SingleRankBackend {
    rank_locations: [RankLocation; 1],
    state: Arc<SingleRankState>,
}

/// The state of the group. A group from which this group was made holds a reference to the state
/// ([`Backend::failure_state`]), and fails this group through it.
#[derive(Debug, Default)]
struct SingleRankState {
    failure: OnceLock<Error>,
    /// The messaging engine. The first message creates it. The inner value is `None` if the
    /// creation failed.
    messages: OnceLock<Option<LoopbackMessages>>,
}

/// The messages of the rank to itself.
#[derive(Debug)]
struct LoopbackMessages {
    engine: MatchingEngine,
    domain: Arc<InprocDomain>,
}

impl LoopbackMessages {
    fn new(name: &PeerName) -> Result<Self> {
        let geometry = RegionGeometry::within_host(1, 4096, ReusePolicy::WhileCached);
        let group = host::random_nonce()?;
        let peers = vec![name.clone()];
        let domain =
            Arc::new(InprocDomain::join(group, 0, 0, peers, geometry, WaitPolicy::SLEEP_SOON)?);
        let engine = MatchingEngine::new(Arc::clone(&domain) as Arc<dyn SharedDomain>, None, true)?;
        Ok(Self { engine, domain })
    }
}

impl SingleRankBackend {
    /// Creates the back end of a new group.
    pub fn new() -> Self {
        Self::with_shown_rank(0)
    }

    /// Creates the back end of a new group whose rank has this number in texts.
    pub fn with_shown_rank(shown_rank: Rank) -> Self {
        let name = PeerName::new(0, host::pid(), host::name().into()).shown_as(shown_rank);
        let rank_locations = [RankLocation { name, host_index: 0, local_rank: 0 }];
        Self { rank_locations, state: Arc::default() }
    }
}

impl GroupFailureState for SingleRankState {
    fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    fn fail(&self, reason: &Error) {
        // `set` keeps the first reason.
        drop(self.failure.set(reason.clone()));
        let messages = self.messages.get().and_then(Option::as_ref);
        messages.into_iter().for_each(|messages| messages.domain.fail(reason));
    }

    /// Does nothing. A listener is called if another rank has failed the group, and this group has
    /// no other rank.
    fn add_listener(&self, _: Weak<dyn DoorbellListener>) {}
}

impl Default for SingleRankBackend {
    fn default() -> Self {
        Self::new()
    }
}

/// Reduces the rank's own contribution to `dst`. The function runs the reduction kernel, because
/// the kernel normalises values as in a group of several ranks: a bool becomes 0 or 1, and a NaN
/// becomes the canonical NaN.
fn reduce_own_input(operation: &Operation<'_>, op: ReduceOp, dst: Dst<'_>, src: Src<'_>) {
    if op == ReduceOp::PremulSum {
        kernel::scale_copy(operation.dtype(), operation.factor, dst, src);
    } else {
        kernel::fold(operation.dtype(), op, dst, &[src]);
    }
}

impl FastPath for SingleRankBackend {}

impl Backend for SingleRankBackend {
    fn name(&self) -> &'static str {
        "native"
    }

    /// Accepts the name of an algorithm if the name is valid in a group of one rank, or in a group
    /// of three ranks on two nodes.
    fn check_algorithm_request(
        &self,
        kind: OpKind,
        bytes: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        let shape = |labels: &[usize]| GroupShape::of(&NodeMap::by_label(labels), false);
        let rules = AlgorithmRules::default();
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
            Some(op) => reduce_own_input(operation, op, dst, src),
            None => kernel::copy(dst, src),
        }
        Ok(())
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        let make = || {
            let created = LoopbackMessages::new(&self.rank_locations[0].name);
            created
                .inspect_err(|error| {
                    crate::log!(LogLevel::Error, "the group of one rank has no messages: {error}")
                })
                .ok()
        };
        let messages = self.state.messages.get_or_init(make).as_ref()?;
        // The group may have been aborted before the messages were created.
        self.state.failure.get().into_iter().for_each(|reason| messages.domain.fail(reason));
        Some(&messages.engine)
    }

    fn abort(&self, reason: &Error) {
        self.state.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.state.failure()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        Some(Arc::clone(&self.state) as Arc<dyn GroupFailureState>)
    }

    fn rank_locations(&self) -> &[RankLocation] {
        &self.rank_locations
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
    use crate::transport::{Completion, Delivery, ReceiveRequest, SendRequest};
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct RecordedCompletion(Mutex<Option<Result<Delivery>>>);

    impl Completion for RecordedCompletion {
        fn complete(&self, outcome: Result<Delivery>) {
            *self.0.lock().unwrap() = Some(outcome);
        }
    }

    #[test]
    fn single_rank_sends_to_itself_until_aborted() {
        let solo = SingleRankBackend::new();
        let engine = solo.point_to_point().unwrap();
        let deadline = Deadline::after_ms(60_000);
        let (tag, dtype) = (3, DataType::U8);
        let bytes = Src::from(&b"to myself"[..]);
        let into = Dst::from(Box::leak(vec![0; 9].into_boxed_slice()));
        let receive_buffer = into.into();
        let receive =
            ReceiveRequest { from: None, tag: Some(tag), dtype, buffer: receive_buffer, deadline };
        let (sent, got) =
            (Arc::new(RecordedCompletion::default()), Arc::new(RecordedCompletion::default()));
        engine
            .send(
                SendRequest { to: 0, tag, dtype, bytes, deadline, is_synchronous: false },
                sent.clone(),
            )
            .unwrap();
        engine.receive(receive, got.clone()).unwrap();
        engine.progress_until(&|| got.0.lock().unwrap().is_some(), &deadline);
        let delivery = Delivery { peer: 0, tag, bytes: 9 };
        assert_eq!(*got.0.lock().unwrap(), Some(Ok(delivery)));
        assert_eq!(*sent.0.lock().unwrap(), Some(Ok(delivery)));
        let mut back = [0; 9];
        Dst::from(&mut back[..]).copy_from(into.as_src());
        assert_eq!(&back, b"to myself");
        solo.abort(&Error::new(ErrorKind::Aborted, "enough"));
        let late = Arc::new(RecordedCompletion::default());
        let posted = solo.point_to_point().unwrap().receive(receive, late.clone());
        // The receive is refused, or completes with an error at the next poll.
        if posted.is_ok() {
            engine.progress_until(&|| late.0.lock().unwrap().is_some(), &deadline);
            assert!(late.0.lock().unwrap().as_ref().unwrap().is_err());
        }
    }
}
