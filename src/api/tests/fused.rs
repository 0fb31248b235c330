//! Tests of batches with small collectives, which are fused to one operation.

use super::ranks::{TRANSPORTS, run};
use super::*;
use crate::api::collective::batch;
use crate::base::op::ReduceOp;

/// Returns the contents of the buffers as integers.
fn numbers(memory: &[Dst<'static>]) -> Vec<Vec<i32>> {
    let read = |memory_part: &Dst<'static>| {
        let mut bytes = vec![0; memory_part.len()];
        Dst::from(bytes.as_mut_slice()).copy_from(memory_part.as_src());
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|&word| i32::from_le_bytes(word)).collect()
    };
    memory.iter().map(read).collect()
}

fn vector(count: usize, value: impl Fn(usize) -> i32) -> Dst<'static> {
    let bytes: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    Dst::from(leak_bytes(&bytes))
}

/// Runs calls in one batch. Returns its outcome and the works of the calls.
fn run_in_one_batch(
    group: &Arc<Group>,
    calls: Vec<Call<'static>>,
) -> (Result<WorkProgress>, Vec<Arc<Work>>) {
    batch::begin(None).unwrap();
    let add = |call| {
        let call = group.prepare(call, CallOptions::default()).unwrap();
        let work = Arc::clone(call.work());
        batch::collect_or_issue(call).unwrap();
        work
    };
    let works = calls.into_iter().map(add).collect();
    let batch = batch::end().unwrap();
    let whole = Arc::clone(batch.work());
    batch.issue(false);
    (whole.wait(&Deadline::never()), works)
}

const COUNTS: [usize; 5] = [3, 0, 1, 700, 5];

#[test]
fn fused_calls_equal_separate_calls() {
    for transport in TRANSPORTS {
        for size in [1, 2, 3, 4] {
            run(transport, size, |group| {
                let (me, dtype, sum) = (group.rank(), DataType::I32, ReduceOp::Sum);
                let word = |number: usize| i32::try_from(number).unwrap();
                let own = |of: usize, blocks: usize| {
                    vector(COUNTS[of] * blocks, |i| word(1000 * me + 10 * of + i))
                };
                let room = |of: usize, blocks: usize| vector(COUNTS[of] * blocks, |_| -1);
                // The first closure returns the element of rank r at index i of call `of`. `sum_at`
                // returns the sum of this element over all ranks.
                let at = |r: usize, of: usize, i: usize| word(1000 * r + 10 * of + i);
                let sum_at = |of, i| (0..size).map(|r| at(r, of, i)).sum::<i32>();
                let all = |f: &dyn Fn(usize) -> Dst<'static>| (0..COUNTS.len()).map(f).collect();
                let sends: Vec<Dst<'static>> = all(&|of| own(of, 1));
                let recvs: Vec<Dst<'static>> = all(&|of| room(of, 1));
                // The fourth call (index 3) is in place.
                let into = |of: usize| if of == 3 { sends[of] } else { recvs[of] };
                let calls = (0..COUNTS.len())
                    .map(|of| Call::all_reduce(sends[of].as_src(), into(of), dtype, sum));
                let (outcome, works) = run_in_one_batch(group, calls.collect());
                assert_eq!(outcome, Ok(WorkProgress::Done), "{transport}");
                assert!(works.iter().all(|work| work.sequence() == Some(1)), "not fused");
                let results: Vec<_> = (0..COUNTS.len()).map(into).collect();
                let expected = |blocks: usize, f: &dyn Fn(usize, usize) -> i32| -> Vec<Vec<i32>> {
                    let of = |of: usize| (0..blocks * COUNTS[of]).map(|i| f(of, i)).collect();
                    (0..COUNTS.len()).map(of).collect()
                };
                assert_eq!(numbers(&results), expected(1, &sum_at), "{transport}, {size} ranks");

                let root = size - 1;
                let sends: Vec<Dst<'static>> = all(&|of| own(of, 1));
                let recvs: Vec<Dst<'static>> =
                    all(&|of| if me == root { room(of, 1) } else { Dst::empty() });
                let calls = (0..COUNTS.len())
                    .map(|of| Call::reduce(sends[of].as_src(), recvs[of], dtype, sum, root));
                assert_eq!(run_in_one_batch(group, calls.collect()).0, Ok(WorkProgress::Done));
                if me == root {
                    assert_eq!(numbers(&recvs), expected(1, &sum_at), "{transport}, {size} ranks");
                }

                let calls = sends.iter().map(|&buf| Call::broadcast(buf, dtype, root, me));
                assert_eq!(run_in_one_batch(group, calls.collect()).0, Ok(WorkProgress::Done));
                assert_eq!(numbers(&sends), expected(1, &|of, i| at(root, of, i)), "{transport}");

                let sends: Vec<Dst<'static>> = all(&|of| own(of, 1));
                let recvs: Vec<Dst<'static>> = all(&|of| room(of, size));
                let calls = (0..COUNTS.len())
                    .map(|of| Call::all_gather(sends[of].as_src(), recvs[of], dtype));
                let (outcome, works) = run_in_one_batch(group, calls.collect());
                assert_eq!((outcome, works[4].sequence()), (Ok(WorkProgress::Done), Some(4)));
                let gathered = |of: usize, i: usize| at(i / COUNTS[of], of, i % COUNTS[of]);
                assert_eq!(numbers(&recvs), expected(size, &gathered), "{transport}, {size} ranks");

                let sends: Vec<Dst<'static>> = all(&|of| own(of, size));
                let recvs: Vec<Dst<'static>> = all(&|of| room(of, 1));
                let calls = (0..COUNTS.len())
                    .map(|of| Call::reduce_scatter(sends[of].as_src(), recvs[of], dtype, sum));
                assert_eq!(run_in_one_batch(group, calls.collect()).0, Ok(WorkProgress::Done));
                let scattered = |of: usize, i: usize| sum_at(of, me * COUNTS[of] + i);
                assert_eq!(numbers(&recvs), expected(1, &scattered), "{transport}, {size} ranks");
            });
        }
    }
}

fn all_reduce(count: usize) -> Call<'static> {
    let buf = vector(count, |_| 1);
    Call::all_reduce(buf.as_src(), buf, DataType::I32, ReduceOp::Sum)
}

#[test]
fn ranks_that_batch_differently_get_a_mismatch() {
    for transport in TRANSPORTS {
        run(transport, 2, |group| {
            // Both ranks reduce four elements, split differently. In the second run, one rank makes
            // a single call outside a batch.
            let counts: &[usize] = if group.rank() == 0 { &[2, 2] } else { &[3, 1] };
            let calls = counts.iter().map(|&count| all_reduce(count)).collect();
            let (outcome, works) = run_in_one_batch(group, calls);
            assert_eq!(kind_of(outcome), ErrorKind::Mismatch, "{transport}");
            assert!(works.iter().all(|work| work.outcome().unwrap().is_err()));
        });
        run(transport, 2, |group| {
            let outcome = match group.rank() {
                0 => run_in_one_batch(group, vec![all_reduce(2), all_reduce(2)]).0.map(drop),
                _ => group.run(all_reduce(4), &CallOptions::default()),
            };
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Mismatch, "{transport}");
        });
    }
}

#[test]
fn fused_failure_ends_all_its_works() {
    let (group, fake) = FakeBackend::group("fused-failure", false);
    let (calls, gate) = (vec![all_reduce(2), all_reduce(3)], Arc::clone(&fake));
    let watcher = std::thread::Builder::new().spawn(move || {
        // The abort happens before the operation, or during the operation while it waits for the
        // gate of the fake back end.
        gate.abort(&Error::new(ErrorKind::PeerFailed, "rank 1 died"));
    });
    let (outcome, works) = run_in_one_batch(&group, calls);
    watcher.unwrap().join().unwrap();
    assert_eq!(kind_of(outcome), ErrorKind::PeerFailed);
    for work in works {
        let error = work.outcome().unwrap().unwrap_err();
        assert!(error.message().contains("rank 1 died"), "{error}");
        assert_eq!(work.sequence(), Some(1));
    }
    assert!(group.wait_for_works(&long_deadline()));
}

#[test]
fn overlapping_buffers_in_a_batch_fail_the_group() {
    let [a, b, c] = [1, 2, 3].map(|value| vector(4, |_| value));
    let sum =
        |from: Dst<'static>, to| Call::all_reduce(from.as_src(), to, DataType::I32, ReduceOp::Sum);
    // This call has another kind, so it is not fused with the reductions.
    let alone = Call::all_gather(b.slice(0, 8).as_src(), c, DataType::I32);
    for calls in [
        [sum(a, a), sum(b, c), sum(c, c)],
        [sum(a, b), sum(c, c), sum(b, a)],
        [sum(a, a), sum(b, b), sum(a.slice(4, 8), c.slice(0, 8))],
        [sum(a, b), sum(c, b), sum(c, Dst::empty())],
        [sum(a, b), sum(a, Dst::empty()), alone],
    ] {
        let (group, _fake) = FakeBackend::group("fused-overlap", true);
        let (outcome, works) = run_in_one_batch(&group, calls.to_vec());
        assert_eq!(kind_of(outcome), ErrorKind::InvalidArgument);
        for work in works {
            let error = work.outcome().unwrap().unwrap_err();
            assert!(error.message().contains("of 3 collectives"), "{error}");
        }
        assert!(group.failure().is_some());
        assert!(group.wait_for_works(&long_deadline()));
    }
    // Several calls may read the same buffer.
    let (group, _fake) = FakeBackend::group("fused-apart", true);
    let calls = vec![sum(a, b), sum(a, c)];
    assert_eq!(run_in_one_batch(&group, calls).0, Ok(WorkProgress::Done));
    assert_eq!(group.queue.issued(), 1);
    assert!(group.wait_for_works(&long_deadline()));
}

#[test]
fn dependence_seen_by_one_rank_fails_all() {
    // The counts are below and above the limit for fusion.
    for count in [4, 8192] {
        for transport in TRANSPORTS {
            run(transport, 3, |group| {
                let me = group.rank();
                let [a, b, c] = [0; 3].map(|value| vector(count, |_| value));
                let into = |to| if me == 0 { to } else { Dst::empty() };
                let (dtype, sum) = (DataType::I32, ReduceOp::Sum);
                let calls = vec![
                    Call::reduce(a.as_src(), into(b), dtype, sum, 0),
                    Call::reduce(b.as_src(), into(c), dtype, sum, 0),
                ];
                let (outcome, _) = run_in_one_batch(group, calls);
                if me == 0 {
                    let error = outcome.unwrap_err();
                    assert!(error.message().contains("end the batch"), "{transport}: {error}");
                }
                // The other ranks may have completed their reductions before they receive the
                // error.
                let error = group.run(Call::barrier(), &CallOptions::default()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{transport}: {error}");
            });
            run(transport, 3, |group| {
                let buf = vector(count, |_| 0);
                let calls =
                    (0..2).map(|_| Call::broadcast(buf, DataType::I32, 0, group.rank())).collect();
                assert_eq!(kind_of(run_in_one_batch(group, calls).0), ErrorKind::InvalidArgument);
            });
        }
    }
}

#[test]
fn fused_calls_use_the_shortest_timeout() {
    let (group, _fake) = FakeBackend::group("fused-late", false);
    batch::begin(None).unwrap();
    for timeout_ms in [60_000, 5] {
        let call = group.prepare(all_reduce(1), timeout(timeout_ms)).unwrap();
        batch::collect_or_issue(call).unwrap();
    }
    let batch = batch::end().unwrap();
    let whole = Arc::clone(batch.work());
    batch.issue(false);
    assert_eq!(kind_of(whole.wait(&Deadline::never())), ErrorKind::Timeout);
    assert_eq!(group.queue.issued(), 1);
}
