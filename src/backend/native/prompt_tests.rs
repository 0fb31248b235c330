//! The short way of small operations and the long one go into each other: what one begins the other
//! ends, on one rank as among several. Two ranks of a domain, on one thread, so that it is certain
//! who comes first.

use crate::algo::shared::steps::prompt::{Prompt, Routine};
use crate::algo::shared::{Lane, Steps, all_reduce, broadcast, one_step, reduce};
use crate::algo::{Algorithm, Body, Operation, Plain};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::process::this;
use crate::transport::inproc::Domain;
use crate::transport::region::{LINES, SLOTS};
use crate::transport::{Descriptor, Extent, Geometry, OpKind, PeerName, Reuse};
use crate::wait::Pace;
use std::time::Duration;

/// How many lines a rank has, and how many slots.
const MANY: usize = 64;
const FEW: usize = 4;
const _: () = assert!(MANY as u64 == LINES && FEW as u64 == SLOTS);

/// One of two ranks.
struct Member {
    domain: Domain,
    lane: Lane,
    sequence: u64,
    deadline: LateDeadline,
}

fn members(crowded: bool) -> [Member; 2] {
    let group: GroupId = this::fresh_nonce().unwrap();
    [0, 1].map(|rank| {
        let name = |rank| PeerName { rank, pid: std::process::id(), host: "here".into() };
        let geometry = Geometry { ranks: 2, slot_bytes: 4096, reuse: Reuse::Soon };
        let pace = Pace { spin: Duration::ZERO, crowded };
        let peers = vec![name(0), name(1)];
        let domain = Domain::join(Nonce(group.0), 0, rank, peers, geometry, pace).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60)).into();
        Member { domain, lane: Lane::new(group, 2), sequence: 0, deadline }
    })
}

fn reduction() -> Descriptor {
    Descriptor {
        kind: OpKind::AllReduce,
        dtype: Some(DataType::U8),
        op: Some(ReduceOp::Sum),
        root: None,
        extent: Extent::Count(1),
        sequence: 0,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

fn from_root(root: Rank) -> Descriptor {
    Descriptor { kind: OpKind::Broadcast, op: None, root: Some(root), ..reduction() }
}

impl Member {
    /// Begins the next operation the short way; how far it came, and how often it was told that it
    /// begins.
    fn tries(&mut self, row: &Algorithm, of: Descriptor, send: u8, recv: &mut u8) -> (Prompt, u32) {
        match self.begins(row, of, send, recv) {
            (Prompt::Unheard, told) => (Prompt::Done, told),
            found => found,
        }
    }

    /// The same with what is left to ring for.
    fn begins(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
    ) -> (Prompt, u32) {
        self.sequence += 1;
        self.with(row, of, send, recv, false, |member, operation, step| {
            let mut told = 0;
            let number = row.number(operation.descriptor.kind);
            let Self { domain, lane, .. } = member;
            let plain = &Plain::of(operation);
            let key = plain.key().unwrap();
            let routine = Routine::of((plain, key), (step, number), domain).unwrap();
            let sequence = operation.descriptor.sequence;
            let found = routine.run(domain, lane, (plain, sequence), |words| {
                assert_eq!(*words, operation.descriptor.encode_with(number));
                told += 1;
            });
            (found.unwrap(), told)
        })
    }

    /// Ends what it has begun, or not, the long way.
    fn ends(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        (send, recv): (u8, &mut u8),
        is_published: bool,
    ) -> Result<()> {
        self.with(row, of, send, recv, is_published, |member, operation, step| {
            let number = row.number(operation.descriptor.kind);
            let Self { domain, lane, .. } = member;
            let mut steps = Steps::begin(domain, lane, operation, (row.name, number));
            one_step::run(&mut steps, operation, step)?;
            steps.finish();
            Ok(())
        })
    }

    fn with<T>(
        &mut self,
        row: &Algorithm,
        of: Descriptor,
        send: u8,
        recv: &mut u8,
        is_published: bool,
        act: impl FnOnce(&mut Self, &Operation<'_>, &'static one_step::OneStep) -> T,
    ) -> T {
        let Body::OneStep(step) = row.body else { panic!("{} is no row of one step", row.name) };
        let (send, mut result) = ([send], [*recv]);
        let deadline = std::mem::replace(&mut self.deadline, LateDeadline::after_ms(60_000));
        let descriptor = Descriptor { sequence: self.sequence, ..of };
        let is_root = of.root == Some(self.domain_rank());
        let (from, into) = match of.kind {
            OpKind::Broadcast if is_root => (Src::from(&send[..]), Dst::empty()),
            OpKind::Broadcast => (Src::empty(), Dst::from(&mut result[..])),
            OpKind::Reduce if !is_root => (Src::from(&send[..]), Dst::empty()),
            _ => (Src::from(&send[..]), Dst::from(&mut result[..])),
        };
        let operation = Operation::of(descriptor, from, into, &deadline);
        let outcome = act(self, &Operation { is_published, ..operation }, step);
        [*recv] = result;
        outcome
    }

    fn domain_rank(&self) -> Rank {
        use crate::transport::SharedDomain as _;
        self.domain.rank()
    }
}

#[test]
fn what_is_published_promptly_is_ended_the_long_way() {
    let rows = [&all_reduce::inline::ROW, &all_reduce::short::ROW];
    for (row, crowded) in rows.map(|row| [(row, false), (row, true)]).concat() {
        let [mut zero, mut one] = members(crowded);
        // Longer than there are lines, with either of them first, by either way.
        for turn in 0..3 * MANY {
            let (first, second) = match turn % 2 {
                0 => (&mut zero, &mut one),
                _ => (&mut one, &mut zero),
            };
            let (mut a, mut b) = (0, 0);
            assert_eq!(first.tries(row, reduction(), 1, &mut a), (Prompt::Published, 1));
            if turn % 3 == 0 {
                second.sequence += 1;
                second.ends(row, reduction(), (2, &mut b), false).unwrap();
            } else {
                assert_eq!(second.tries(row, reduction(), 2, &mut b), (Prompt::Done, 1));
            }
            assert_eq!((a, b), (0, 3), "{turn}");
            first.ends(row, reduction(), (1, &mut a), true).unwrap();
            assert_eq!(a, 3, "{turn}");
        }
    }
}

#[test]
fn a_root_runs_ahead_as_far_as_its_lines_and_slots_reach() {
    for (row, reach) in [(&broadcast::inline::ROW, MANY), (&broadcast::short::ROW, FEW)] {
        let [mut root, mut reader] = members(false);
        let mut nothing = 0;
        for value in (0..).take(reach) {
            let sent = root.tries(row, from_root(0), value, &mut nothing);
            assert_eq!(sent, (Prompt::Done, 1), "{value}");
        }
        assert_eq!(root.tries(row, from_root(0), 99, &mut nothing), (Prompt::Untouched, 0));
        for value in (0..).take(reach) {
            let mut got = 255;
            assert_eq!(reader.tries(row, from_root(0), 0, &mut got), (Prompt::Done, 1));
            assert_eq!(got, value);
        }
        // The same operation, which nothing has happened of.
        root.sequence -= 1;
        assert_eq!(root.tries(row, from_root(0), 99, &mut nothing), (Prompt::Done, 1));
        let mut got = 255;
        assert_eq!(reader.tries(row, from_root(0), 0, &mut got), (Prompt::Done, 1));
        assert_eq!(got, 99);
    }
}

#[test]
fn who_has_read_a_slot_rings_for_those_who_want_to_write_to_it() {
    let reduction = Descriptor { kind: OpKind::Reduce, root: Some(0), ..reduction() };
    for crowded in [false, true] {
        let [mut root, mut other] = members(crowded);
        let mut sum = 0;
        assert_eq!(other.tries(&reduce::short::ROW, reduction, 2, &mut 0).0, Prompt::Done);
        let found = root.begins(&reduce::short::ROW, reduction, 1, &mut sum);
        assert_eq!((found, sum), ((Prompt::Unheard, 1), 3));
    }
}

#[test]
fn who_called_something_else_is_left_to_the_long_way() {
    let [mut zero, mut one] = members(false);
    let (mut a, mut b) = (0, 0);
    let other = Descriptor { op: Some(ReduceOp::Max), ..reduction() };
    let row = &all_reduce::inline::ROW;
    assert_eq!(zero.tries(row, reduction(), 1, &mut a), (Prompt::Published, 1));
    assert_eq!(one.tries(row, other, 2, &mut b), (Prompt::Published, 1));
    let error = one.ends(row, other, (2, &mut b), true).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(0)));
    assert!(error.message().contains("MAX") && error.message().contains("SUM"), "{error:?}");
    assert_eq!((a, b), (0, 0));
}
