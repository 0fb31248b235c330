//! Tests of the fast path together with the full path. A call that one path begins can be finished
//! by the other path, and the two ranks of a call may use different paths. Both ranks run on one
//! thread, so that their order is deterministic.

use crate::algo::fast_path::{FastCall, FastPathState, FastProgress};
use crate::algo::group_state::GroupState;
use crate::algo::shared::{ShmSequencer, all_reduce, broadcast, one_step, reduce};
use crate::algo::{Algorithm, AlgorithmBody, ArgumentsHash, CallArguments, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::label::Label;
use crate::base::nodes::NodeMap;
use crate::base::op::ReduceOp;
use crate::process::this_process;
use crate::transport::inproc::InprocDomain;
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{
    CountSpec, Descriptor, OpKind, PeerName, RegionGeometry, ReusePolicy, SharedDomain,
};
use crate::wait::WaitPolicy;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// The number of control slots and the number of data slots of a rank.
const CTRL_SLOTS: usize = 64;
const DATA_SLOTS: usize = 4;
const _: () = assert!(CTRL_SLOTS as u64 == CTRL_SLOT_COUNT && DATA_SLOTS as u64 == DATA_SLOT_COUNT);

/// The state of one of the two ranks.
struct FastPathRank {
    domain: Arc<dyn SharedDomain>,
    state: FastPathState,
    sequence: Cell<u64>,
}

/// The state in which the fast path left a call.
#[derive(Debug)]
enum FastOutcome<'a> {
    NotStarted,
    Waiting(FastCall<'a>),
    Done,
    /// The call is complete, and the peers have not been woken.
    WakeupPending,
}

impl FastOutcome<'_> {
    /// Returns whether the call is complete.
    fn is_done(&self) -> bool {
        matches!(self, Self::Done | Self::WakeupPending)
    }
}

fn rank_pair(is_oversubscribed: bool) -> [FastPathRank; 2] {
    let group: GroupId = this_process::random_nonce().unwrap();
    let nodes = NodeMap::by_label(&[0, 0]);
    [0, 1].map(|rank| {
        let name = |rank| PeerName::new(rank, std::process::id(), "here".into());
        let geometry = RegionGeometry::within_host(2, 4096, ReusePolicy::WhileCached);
        let wait_policy = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed };
        let peers = vec![name(0), name(1)];
        let domain = InprocDomain::join(Nonce(group.0), 0, rank, peers, geometry, wait_policy);
        let domain: Arc<dyn SharedDomain> = Arc::new(domain.unwrap());
        let state = GroupState::new(group, &nodes, rank);
        let state = FastPathState::new(state, Arc::clone(&domain));
        FastPathRank { domain, state, sequence: Cell::new(0) }
    })
}

fn all_reduce_descriptor() -> Descriptor {
    Descriptor {
        kind: OpKind::AllReduce,
        dtype: Some(DataType::U8),
        op: Some(ReduceOp::Sum),
        root: None,
        count_spec: CountSpec::Count(1),
        sequence: 0,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

fn broadcast_descriptor(root: Rank) -> Descriptor {
    Descriptor { kind: OpKind::Broadcast, op: None, root: Some(root), ..all_reduce_descriptor() }
}

impl FastPathRank {
    /// Begins the next operation on the fast path.
    fn run_fast_path(
        &self,
        row: &'static Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
    ) -> FastOutcome<'_> {
        self.sequence.set(self.sequence.get() + 1);
        self.with_operation(row, of, send, recv, |operation| {
            let (arguments, sequence) = (CallArguments::of(operation), self.sequence.get());
            let key = arguments.key().unwrap();
            self.state.lock().prepare_plan(&arguments, key, row, &*self.domain);
            let mut started = FastCall::new(&self.state, key);
            let number = row.number(operation.descriptor.kind);
            let check_words = |words: &[u64; 3], hash: ArgumentsHash| {
                assert_eq!(*words, operation.descriptor.encode_with(number));
                assert_eq!(hash, ArgumentsHash::of(words));
            };
            match started.run(&arguments, sequence, check_words).unwrap() {
                FastProgress::NotStarted => FastOutcome::NotStarted,
                FastProgress::Waiting => FastOutcome::Waiting(started),
                FastProgress::Done { leaves_sleepers: true } => FastOutcome::WakeupPending,
                FastProgress::Done { leaves_sleepers: false } => FastOutcome::Done,
                other => panic!("{other:?}"),
            }
        })
    }

    /// Runs the next operation on the full path.
    fn run_slow_path(
        &self,
        row: &'static Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
    ) -> Result<()> {
        self.sequence.set(self.sequence.get() + 1);
        self.with_operation(row, of, send, recv, |operation| {
            let AlgorithmBody::OneStep(step) = row.body else {
                panic!("{} is not a one-step algorithm", row.name)
            };
            let algorithm = row.running(operation.descriptor.kind);
            let cursor = &mut self.state.lock().cursor;
            let mut steps = ShmSequencer::begin(&*self.domain, cursor, operation, algorithm);
            one_step::run(&mut steps, operation, step)?;
            steps.finish();
            Ok(())
        })
    }

    /// Finishes the current operation, which the fast path has begun, on the full path.
    fn finish_slow_path(
        &self,
        begun: FastOutcome<'_>,
        row: &'static Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
    ) -> Result<()> {
        let FastOutcome::Waiting(started) = begun else { panic!("{begun:?}") };
        self.with_operation(row, of, send, recv, |operation| started.wait(operation))
    }

    fn with_operation<T>(
        &self,
        row: &Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
        body: impl FnOnce(&Operation<'_>) -> T,
    ) -> T {
        assert!(matches!(row.body, AlgorithmBody::OneStep(_)), "{}", row.name);
        let (send, mut result) = ([send], [*recv]);
        let deadline = LazyDeadline::after_ms(60_000);
        let descriptor = Descriptor { sequence: self.sequence.get(), ..of };
        let is_root = of.root == Some(self.domain.rank());
        let (from, into) = match of.kind {
            OpKind::Broadcast if is_root => (Src::from(&send[..]), Dst::empty()),
            OpKind::Broadcast => (Src::empty(), Dst::from(&mut result[..])),
            OpKind::Reduce if !is_root => (Src::from(&send[..]), Dst::empty()),
            _ => (Src::from(&send[..]), Dst::from(&mut result[..])),
        };
        let outcome = body(&Operation::of(descriptor, from, into, &deadline));
        [*recv] = result;
        outcome
    }
}

#[test]
fn slow_path_finishes_a_published_fast_call() {
    let rows = [&all_reduce::small::INLINE, &all_reduce::small::EAGER];
    for (row, crowded) in rows.map(|row| [(row, false), (row, true)]).concat() {
        let [zero, one] = rank_pair(crowded);
        // The loop takes more steps than there are control slots. Each rank comes first in some
        // steps, and both paths are used.
        for turn in 0..3 * CTRL_SLOTS {
            let (first, second) = if turn % 2 == 0 { (&zero, &one) } else { (&one, &zero) };
            let (mut a, mut b) = (0, 0);
            let begun = first.run_fast_path(row, all_reduce_descriptor(), 1, &mut a);
            assert!(matches!(begun, FastOutcome::Waiting(_)), "{begun:?}");
            if turn % 3 == 0 {
                second.run_slow_path(row, all_reduce_descriptor(), 2, &mut b).unwrap();
            } else {
                let found = second.run_fast_path(row, all_reduce_descriptor(), 2, &mut b);
                assert!(found.is_done(), "{found:?}");
            }
            assert_eq!((a, b), (0, 3), "{turn}");
            first.finish_slow_path(begun, row, all_reduce_descriptor(), 1, &mut a).unwrap();
            assert_eq!(a, 3, "{turn}");
        }
    }
}

#[test]
fn root_runs_ahead_by_its_control_and_data_slots() {
    for (row, reach) in
        [(&broadcast::small::INLINE, CTRL_SLOTS), (&broadcast::small::EAGER, DATA_SLOTS)]
    {
        let [root, reader] = rank_pair(false);
        let mut nothing = 0;
        for value in (0..).take(reach) {
            let sent = root.run_fast_path(row, broadcast_descriptor(0), value, &mut nothing);
            assert!(sent.is_done(), "{value}: {sent:?}");
        }
        let sent = root.run_fast_path(row, broadcast_descriptor(0), 99, &mut nothing);
        assert!(matches!(sent, FastOutcome::NotStarted), "{sent:?}");
        let read = |expected| {
            let mut got = 255;
            let found = reader.run_fast_path(row, broadcast_descriptor(0), 0, &mut got);
            assert!(found.is_done(), "{found:?}");
            assert_eq!(got, expected);
        };
        (0..).take(reach).for_each(read);
        // Repeats the operation that did not start, with the same sequence number.
        root.sequence.set(root.sequence.get() - 1);
        let sent = root.run_fast_path(row, broadcast_descriptor(0), 99, &mut nothing);
        assert!(sent.is_done(), "{sent:?}");
        read(99);
    }
}

#[test]
fn slot_reader_must_wake_the_waiting_writer() {
    let reduction = Descriptor { kind: OpKind::Reduce, root: Some(0), ..all_reduce_descriptor() };
    for crowded in [false, true] {
        let [root, other] = rank_pair(crowded);
        let mut sum = 0;
        let sent = other.run_fast_path(&reduce::small::EAGER, reduction, 2, &mut 0);
        assert!(sent.is_done(), "{sent:?}");
        let found = root.run_fast_path(&reduce::small::EAGER, reduction, 1, &mut sum);
        assert!(matches!(found, FastOutcome::WakeupPending), "{found:?}");
        assert_eq!(sum, 3);
    }
}

#[test]
fn mismatched_call_falls_back_to_the_slow_path() {
    let [zero, one] = rank_pair(false);
    let (mut a, mut b) = (0, 0);
    let other = Descriptor { op: Some(ReduceOp::Max), ..all_reduce_descriptor() };
    let row = &all_reduce::small::INLINE;
    let found = zero.run_fast_path(row, all_reduce_descriptor(), 1, &mut a);
    assert!(matches!(found, FastOutcome::Waiting(_)), "{found:?}");
    let begun = one.run_fast_path(row, other, 2, &mut b);
    let error = one.finish_slow_path(begun, row, other, 2, &mut b).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(0)));
    assert!(error.message().contains("MAX") && error.message().contains("SUM"), "{error:?}");
    assert_eq!((a, b), (0, 0));
}
