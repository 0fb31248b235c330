//! A rank that gives up while others may write to its memory.

use crate::algo::shared::{Lane, Steps, all_reduce};
use crate::algo::{Algorithm, Body, Operation};
use crate::base::buffer::Dst;
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{GroupId, Nonce};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::process::this;
use crate::transport::arena::{self, Block};
use crate::transport::inproc::Domain;
use crate::transport::progress::Purpose;
use crate::transport::{Descriptor, Extent, Geometry, OpKind, PeerName, Reuse, SharedDomain};
use crate::wait::Pace;
use std::time::{Duration, Instant};

const BYTES: usize = 64 << 10;

pub(super) fn domains() -> [Domain; 2] {
    let group: GroupId = this::fresh_nonce().unwrap();
    [0, 1].map(|rank| {
        let name = |rank| PeerName { rank, pid: std::process::id(), host: "here".into() };
        let geometry = Geometry { ranks: 2, slot_bytes: 4096, reuse: Reuse::Soon };
        let pace = Pace { spin: Duration::ZERO, crowded: true };
        Domain::join(Nonce(group.0), 0, rank, vec![name(0), name(1)], geometry, pace).unwrap()
    })
}

/// Of an all_reduce of so many bytes.
pub(super) fn descriptor() -> Descriptor {
    Descriptor {
        kind: OpKind::AllReduce,
        dtype: Some(DataType::U8),
        op: Some(ReduceOp::Sum),
        root: None,
        extent: Extent::Count(BYTES as u64),
        sequence: 0,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

/// What rank 0 says whom nobody meets, and how long it took.
fn in_vain(domain: &Domain, block: &Block) -> (ErrorKind, Duration) {
    let (error, took) = alone(domain, &all_reduce::two_shot::ROW, bytes(block));
    (error.kind(), took)
}

/// The same of any memory and algorithm.
fn alone(domain: &Domain, row: &Algorithm, room: Dst<'_>) -> (Error, Duration) {
    let deadline = LateDeadline::from(Deadline::after(Duration::from_millis(20)));
    let operation = Operation::of(descriptor(), room.as_src(), room, &deadline);
    let mut lane = Lane::new(Nonce::default(), 2);
    let mut steps = Steps::begin(domain, &mut lane, &operation, (row.name, 1));
    let Body::Shared(run) = row.body else { panic!("it is shared") };
    let began = Instant::now();
    let error = run(&mut steps, &operation).unwrap_err();
    (error, began.elapsed())
}

#[allow(unsafe_code, reason = "memory of an arena")]
fn bytes(block: &Block) -> Dst<'_> {
    // SAFETY: as long as the block lives, and nobody makes references to it.
    unsafe { Dst::new(block.as_mut_ptr(), block.len()) }
}

#[test]
fn what_somebody_alive_may_still_write_to_is_in_doubt() {
    let [domain, other] = domains();
    let block = arena::allocate(BYTES).unwrap();
    let _stopped = other.region().progress(1).reach(Purpose::Collective);
    let (kind, took) = in_vain(&domain, &block);
    assert_eq!(kind, ErrorKind::Timeout);
    assert!(block.is_in_doubt() && took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn whoever_stops_writing_in_time_leaves_no_doubt() {
    let [domain, other] = domains();
    let block = arena::allocate(BYTES).unwrap();
    std::thread::scope(|scope| {
        let writes = other.region().progress(1).reach(Purpose::Collective);
        let other = &other;
        scope.spawn(move || {
            while other.failure().is_none() {
                std::thread::yield_now();
            }
            // Longer than from one look to the next.
            std::thread::sleep(Duration::from_millis(2));
            drop(writes);
        });
        in_vain(&domain, &block);
        assert!(!other.region().progress(1).is_reaching(Purpose::Collective));
    });
    assert!(!block.is_in_doubt());
    // Nobody ever wrote here.
    let [domain, _other] = domains();
    in_vain(&domain, &block);
    assert!(!block.is_in_doubt());
}

#[test]
fn what_a_call_writes_to_is_waited_for_and_what_is_not_known_is_said() {
    let mut room = vec![0; BYTES];
    let push =
        |domain: &Domain, room: &mut [u8]| alone(domain, &all_reduce::push::ROW, Dst::from(room));
    // Nobody writes.
    let [domain, _other] = domains();
    let (error, took) = push(&domain, &mut room);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        took < Duration::from_secs(1) && !error.message().contains("write"),
        "{took:?}: {error}"
    );
    // Somebody ends later.
    let [domain, other] = domains();
    std::thread::scope(|scope| {
        let writes = other.region().progress(1).reach(Purpose::Collective);
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(writes);
        });
        let (error, took) = push(&domain, &mut room);
        assert!(!error.message().contains("write"), "{error}");
        assert!(took >= Duration::from_millis(300), "{took:?}");
    });
    // Somebody does not.
    let [domain, other] = domains();
    let _stopped = other.region().progress(1).reach(Purpose::Collective);
    let (error, took) = push(&domain, &mut room);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("may still write there"), "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
