//! Tests of a rank whose operation fails while peers may write to its memory.

use crate::algo::operation::RunningAlgorithm;
use crate::algo::shared::in_arenas::run_in_arenas_or;
use crate::algo::shared::{ShmCursor, ShmSequencer, all_reduce};
use crate::algo::table::algorithm_name;
use crate::algo::{Algorithm, AlgorithmBody, Operation};
use crate::base::buffer::Dst;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::{GroupId, Nonce};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::process::this_process;
use crate::transport::arena::{self, ArenaBlock};
use crate::transport::inproc::InprocDomain;
use crate::transport::rank_progress::RemoteWritePurpose;
use crate::transport::{
    CountSpec, Descriptor, OpKind, PeerName, RegionGeometry, ReusePolicy, SharedDomain,
};
use crate::wait::WaitPolicy;
use std::time::{Duration, Instant};

const BYTES: usize = 64 << 10;

pub(super) fn domains() -> [InprocDomain; 2] {
    let group: GroupId = this_process::random_nonce().unwrap();
    [0, 1].map(|rank| {
        let name = |rank| PeerName::new(rank, std::process::id(), "here".into());
        let geometry = RegionGeometry::within_host(2, 4096, ReusePolicy::WhileCached);
        let wait_policy = WaitPolicy { spin_time: Duration::ZERO, is_oversubscribed: true };
        InprocDomain::join(Nonce(group.0), 0, rank, vec![name(0), name(1)], geometry, wait_policy)
            .unwrap()
    })
}

/// Returns the descriptor of an all_reduce of `BYTES` bytes.
pub(super) fn descriptor() -> Descriptor {
    Descriptor {
        kind: OpKind::AllReduce,
        dtype: Some(DataType::U8),
        op: Some(ReduceOp::Sum),
        root: None,
        count_spec: CountSpec::Count(BYTES as u64),
        sequence: 0,
        algorithm: 0,
        part: 0,
        label: Label::NONE,
    }
}

/// Runs rank 0 without a peer, in an arena block. Returns the kind of its error and the elapsed
/// time.
fn run_alone_in_arena(domain: &InprocDomain, block: &ArenaBlock) -> (ErrorKind, Duration) {
    let (error, took) = run_alone(domain, &all_reduce::two_shot::ROW, block_bytes(block));
    (error.kind(), took)
}

/// Runs rank 0 without a peer, with any algorithm and buffer. Returns its error and the elapsed
/// time.
fn run_alone(domain: &InprocDomain, row: &Algorithm, buffer: Dst<'_>) -> (Error, Duration) {
    let deadline = LazyDeadline::from(Deadline::after(Duration::from_millis(20)));
    let operation = Operation::of(descriptor(), buffer.as_src(), buffer, &deadline);
    let mut cursor = ShmCursor::new(Nonce::default(), 2, algorithm_name);
    let algorithm = RunningAlgorithm { name: row.name, number: 1 };
    let mut steps = ShmSequencer::begin(domain, &mut cursor, &operation, algorithm);
    let AlgorithmBody::Shared(run) = row.body else { panic!("not a shared-memory algorithm") };
    let began = Instant::now();
    let error = run_in_arenas_or(&mut steps, &operation, run).unwrap_err();
    (error, began.elapsed())
}

#[allow(unsafe_code, reason = "the view refers to arena memory by its address")]
fn block_bytes(block: &ArenaBlock) -> Dst<'_> {
    // SAFETY: the borrow of the block keeps its memory alive, and no thread makes references into
    // it.
    unsafe { Dst::new(block.as_mut_ptr(), block.len()) }
}

#[test]
fn block_is_suspect_while_a_live_peer_may_write() {
    let [domain, other] = domains();
    let block = arena::allocate(BYTES).unwrap();
    let _stopped = other.region().progress(1).begin_remote_write(RemoteWritePurpose::Collective);
    let (kind, took) = run_alone_in_arena(&domain, &block);
    assert_eq!(kind, ErrorKind::Timeout);
    assert!(block.is_quarantined() && took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn block_is_clean_after_the_writer_stops_in_time() {
    let [domain, other] = domains();
    let block = arena::allocate(BYTES).unwrap();
    std::thread::scope(|scope| {
        let writes = other.region().progress(1).begin_remote_write(RemoteWritePurpose::Collective);
        let other = &other;
        scope.spawn(move || {
            while other.failure().is_none() {
                std::thread::yield_now();
            }
            // This time is longer than the poll interval of the waiting rank.
            std::thread::sleep(Duration::from_millis(2));
            drop(writes);
        });
        run_alone_in_arena(&domain, &block);
        assert!(!other.region().progress(1).is_writing_remotely(RemoteWritePurpose::Collective));
    });
    assert!(!block.is_quarantined());
    // In this group, no peer has ever written.
    let [domain, _other] = domains();
    run_alone_in_arena(&domain, &block);
    assert!(!block.is_quarantined());
}

#[test]
fn timeout_waits_for_writers_or_reports_them() {
    let mut buffer = vec![0; BYTES];
    let run_cma_write = |domain: &InprocDomain, buffer: &mut [u8]| {
        run_alone(domain, &all_reduce::cma_write::ROW, Dst::from(buffer))
    };
    // No peer writes.
    let [domain, _other] = domains();
    let (error, took) = run_cma_write(&domain, &mut buffer);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        took < Duration::from_secs(1) && !error.message().contains("write"),
        "{took:?}: {error}"
    );
    // The peer ends its write after 300 ms.
    let [domain, other] = domains();
    std::thread::scope(|scope| {
        let writes = other.region().progress(1).begin_remote_write(RemoteWritePurpose::Collective);
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(writes);
        });
        let (error, took) = run_cma_write(&domain, &mut buffer);
        assert!(!error.message().contains("write"), "{error}");
        assert!(took >= Duration::from_millis(300), "{took:?}");
    });
    // The peer does not end its write.
    let [domain, other] = domains();
    let _stopped = other.region().progress(1).begin_remote_write(RemoteWritePurpose::Collective);
    let (error, took) = run_cma_write(&domain, &mut buffer);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("may still write to it"), "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
