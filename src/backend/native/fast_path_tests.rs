//! Tests the interplay of the fast path and the slow path: a call that one path begins can be
//! finished by the other, on one rank and across ranks. Two ranks of one domain run on one thread,
//! so that their order is deterministic.

use crate::algo::shared::sequencer::fast_path::{FastPathOutcome, FastPathPlan};
use crate::algo::shared::{ShmCursor, ShmSequencer, all_reduce, broadcast, one_step, reduce};
use crate::algo::{Algorithm, AlgorithmBody, CallArguments, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::process::this_process;
use crate::transport::inproc::InprocDomain;
use crate::transport::region::{CTRL_SLOT_COUNT, DATA_SLOT_COUNT};
use crate::transport::{CountSpec, Descriptor, OpKind, PeerName, RegionGeometry, ReusePolicy};
use crate::wait::WaitPolicy;
use std::time::Duration;

/// The numbers of control slots and data slots of a rank.
const CTRL_SLOTS: usize = 64;
const DATA_SLOTS: usize = 4;
const _: () = assert!(CTRL_SLOTS as u64 == CTRL_SLOT_COUNT && DATA_SLOTS as u64 == DATA_SLOT_COUNT);

/// The state of one of the two ranks.
struct FastPathRank {
    domain: InprocDomain,
    cursor: ShmCursor,
    sequence: u64,
    deadline: LazyDeadline,
}

fn rank_pair(is_oversubscribed: bool) -> [FastPathRank; 2] {
    let group: GroupId = this_process::random_nonce().unwrap();
    [0, 1].map(|rank| {
        let name = |rank| PeerName { rank, pid: std::process::id(), host: "here".into() };
        let geometry =
            RegionGeometry { ranks: 2, slot_bytes: 4096, reuse_policy: ReusePolicy::WhileCached };
        let wait_policy = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed };
        let peers = vec![name(0), name(1)];
        let domain =
            InprocDomain::join(Nonce(group.0), 0, rank, peers, geometry, wait_policy).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60)).into();
        FastPathRank { domain, cursor: ShmCursor::new(group, 2), sequence: 0, deadline }
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
    /// Begins the next operation on the fast path. Returns the outcome and the number of `on_begin`
    /// calls. A pending wakeup counts as done.
    fn run_fast_path(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
    ) -> (FastPathOutcome, u32) {
        match self.begin_fast_path(row, of, send, recv) {
            (FastPathOutcome::WakeupPending, begin_calls) => (FastPathOutcome::Done, begin_calls),
            found => found,
        }
    }

    /// As `run_fast_path`, but keeps [`FastPathOutcome::WakeupPending`] apart from `Done`.
    fn begin_fast_path(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
    ) -> (FastPathOutcome, u32) {
        self.sequence += 1;
        self.with_operation(row, of, send, recv, false, |member, operation, step| {
            let mut begin_calls = 0;
            let number = row.number(operation.descriptor.kind);
            let Self { domain, cursor, .. } = member;
            let plain = &CallArguments::of(operation);
            let key = plain.key().unwrap();
            let routine = FastPathPlan::of((plain, key), (step, number), domain).unwrap();
            let sequence = operation.descriptor.sequence;
            let found = routine.run(domain, cursor, (plain, sequence), |words| {
                assert_eq!(*words, operation.descriptor.encode_with(number));
                begin_calls += 1;
            });
            (found.unwrap(), begin_calls)
        })
    }

    /// Runs the current operation on the slow path. If `is_published`, it finishes the call that
    /// the fast path began.
    fn finish_slow_path(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        (send, recv): (u8, &mut u8),
        is_published: bool,
    ) -> Result<()> {
        self.with_operation(row, of, send, recv, is_published, |member, operation, step| {
            let number = row.number(operation.descriptor.kind);
            let Self { domain, cursor, .. } = member;
            let mut steps = ShmSequencer::begin(domain, cursor, operation, (row.name, number));
            one_step::run(&mut steps, operation, step)?;
            steps.finish();
            Ok(())
        })
    }

    fn with_operation<T>(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
        is_published: bool,
        body: impl FnOnce(&mut Self, &Operation<'_>, &'static one_step::OneStepAlgorithm) -> T,
    ) -> T {
        let AlgorithmBody::OneStep(step) = row.body else {
            panic!("{} is not a one-step algorithm", row.name)
        };
        let (send, mut result) = ([send], [*recv]);
        let deadline = std::mem::replace(&mut self.deadline, LazyDeadline::after_ms(60_000));
        let descriptor = Descriptor { sequence: self.sequence, ..of };
        let is_root = of.root == Some(self.domain_rank());
        let (from, into) = match of.kind {
            OpKind::Broadcast if is_root => (Src::from(&send[..]), Dst::empty()),
            OpKind::Broadcast => (Src::empty(), Dst::from(&mut result[..])),
            OpKind::Reduce if !is_root => (Src::from(&send[..]), Dst::empty()),
            _ => (Src::from(&send[..]), Dst::from(&mut result[..])),
        };
        let operation = Operation::of(descriptor, from, into, &deadline);
        let outcome = body(self, &Operation { is_published, ..operation }, step);
        [*recv] = result;
        outcome
    }

    fn domain_rank(&self) -> Rank {
        use crate::transport::SharedDomain as _;
        self.domain.rank()
    }
}

#[test]
fn slow_path_finishes_a_published_fast_call() {
    let rows = [&all_reduce::inline::ROW, &all_reduce::eager::ROW];
    for (row, crowded) in rows.map(|row| [(row, false), (row, true)]).concat() {
        let [mut zero, mut one] = rank_pair(crowded);
        // The loop runs longer than the ring of control slots, with either rank first and with both
        // paths.
        for turn in 0..3 * CTRL_SLOTS {
            let (first, second) = match turn % 2 {
                0 => (&mut zero, &mut one),
                _ => (&mut one, &mut zero),
            };
            let (mut a, mut b) = (0, 0);
            assert_eq!(
                first.run_fast_path(row, all_reduce_descriptor(), 1, &mut a),
                (FastPathOutcome::Published, 1)
            );
            if turn % 3 == 0 {
                second.sequence += 1;
                second.finish_slow_path(row, all_reduce_descriptor(), (2, &mut b), false).unwrap();
            } else {
                assert_eq!(
                    second.run_fast_path(row, all_reduce_descriptor(), 2, &mut b),
                    (FastPathOutcome::Done, 1)
                );
            }
            assert_eq!((a, b), (0, 3), "{turn}");
            first.finish_slow_path(row, all_reduce_descriptor(), (1, &mut a), true).unwrap();
            assert_eq!(a, 3, "{turn}");
        }
    }
}

#[test]
fn root_runs_ahead_by_its_control_and_data_slots() {
    for (row, reach) in
        [(&broadcast::inline::ROW, CTRL_SLOTS), (&broadcast::eager::ROW, DATA_SLOTS)]
    {
        let [mut root, mut reader] = rank_pair(false);
        let mut nothing = 0;
        for value in (0..).take(reach) {
            let sent = root.run_fast_path(row, broadcast_descriptor(0), value, &mut nothing);
            assert_eq!(sent, (FastPathOutcome::Done, 1), "{value}");
        }
        assert_eq!(
            root.run_fast_path(row, broadcast_descriptor(0), 99, &mut nothing),
            (FastPathOutcome::NotStarted, 0)
        );
        for value in (0..).take(reach) {
            let mut got = 255;
            assert_eq!(
                reader.run_fast_path(row, broadcast_descriptor(0), 0, &mut got),
                (FastPathOutcome::Done, 1)
            );
            assert_eq!(got, value);
        }
        // Repeats the operation that did not start, with the same sequence number.
        root.sequence -= 1;
        assert_eq!(
            root.run_fast_path(row, broadcast_descriptor(0), 99, &mut nothing),
            (FastPathOutcome::Done, 1)
        );
        let mut got = 255;
        assert_eq!(
            reader.run_fast_path(row, broadcast_descriptor(0), 0, &mut got),
            (FastPathOutcome::Done, 1)
        );
        assert_eq!(got, 99);
    }
}

#[test]
fn slot_reader_must_wake_the_waiting_writer() {
    let reduction = Descriptor { kind: OpKind::Reduce, root: Some(0), ..all_reduce_descriptor() };
    for crowded in [false, true] {
        let [mut root, mut other] = rank_pair(crowded);
        let mut sum = 0;
        assert_eq!(
            other.run_fast_path(&reduce::eager::ROW, reduction, 2, &mut 0).0,
            FastPathOutcome::Done
        );
        let found = root.begin_fast_path(&reduce::eager::ROW, reduction, 1, &mut sum);
        assert_eq!((found, sum), ((FastPathOutcome::WakeupPending, 1), 3));
    }
}

#[test]
fn mismatched_call_falls_back_to_the_slow_path() {
    let [mut zero, mut one] = rank_pair(false);
    let (mut a, mut b) = (0, 0);
    let other = Descriptor { op: Some(ReduceOp::Max), ..all_reduce_descriptor() };
    let row = &all_reduce::inline::ROW;
    assert_eq!(
        zero.run_fast_path(row, all_reduce_descriptor(), 1, &mut a),
        (FastPathOutcome::Published, 1)
    );
    assert_eq!(one.run_fast_path(row, other, 2, &mut b), (FastPathOutcome::Published, 1));
    let error = one.finish_slow_path(row, other, (2, &mut b), true).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(0)));
    assert!(error.message().contains("MAX") && error.message().contains("SUM"), "{error:?}");
    assert_eq!((a, b), (0, 0));
}
