//! Tests of collectives and receives of byte strings with lengths that differ between ranks.

use super::ranks::{TRANSPORTS, run};
use super::*;
use crate::api::collective::bytes::{ByteStrings, BytesCall, BytesHandler};
use crate::api::collective::prepared_call::PreparedCall;
use crate::base::label::Label;
use crate::base::progress_observer::NoObserver;
use std::sync::mpsc::{Receiver, channel};

/// Returns the string of a rank in a round. All ranks have different lengths.
fn string(rank: usize, round: usize) -> Vec<u8> {
    let len = [0, 1, 100, 5000, 70_000, 300_001][(rank + round) % 6] + rank;
    (0..len).map(|i| u8::try_from((i * 7 + rank * 13 + round) % 251).unwrap()).collect()
}

fn src(bytes: &[u8]) -> Src<'static> {
    Src::from(&*leak_bytes(bytes))
}

/// Runs a call twice: as a blocking call, and as an asynchronous call with a work.
fn run_blocking_and_async(group: &Arc<Group>, call: &BytesCall<'static>) -> [ByteStrings; 2] {
    let options = CallOptions::default;
    let blocking = group.run_bytes(call, &options()).unwrap();
    let (sender, taken) = channel();
    let deliver = BytesHandler::new(move |strings| {
        sender.send(strings).unwrap();
        Ok(())
    });
    let prepared = group.prepare_bytes(call.clone(), options(), deliver).unwrap();
    let work = Arc::clone(prepared.work());
    prepared.issue().unwrap();
    assert_eq!(work.wait(&Deadline::never()), Ok(WorkProgress::Done));
    // The strings are delivered before the work is done.
    [blocking, taken.try_recv().ok()]
}

#[test]
fn byte_collectives_handle_strings_of_all_lengths() {
    for transport in TRANSPORTS {
        for size in [1, 2, 4] {
            run(transport, size, |group| {
                let me = group.rank();
                for round in 0..6 {
                    let mine = src(&string(me, round));
                    let all: Vec<Vec<u8>> = (0..size).map(|rank| string(rank, round)).collect();
                    let root = round % size;
                    let context = || format!("{transport}, {size} ranks, round {round}, rank {me}");
                    for got in run_blocking_and_async(group, &BytesCall::all_gather(mine)) {
                        assert!(got.unwrap() == all, "{}", context());
                    }
                    for got in run_blocking_and_async(group, &BytesCall::broadcast(mine, root)) {
                        assert!(got.unwrap() == [all[root].clone()], "{}", context());
                    }
                    for got in run_blocking_and_async(group, &BytesCall::gather(mine, root)) {
                        assert!(got == (me == root).then(|| all.clone()), "{}", context());
                    }
                    let blocks = (me == root).then(|| all.iter().map(|it| src(it)).collect());
                    for got in run_blocking_and_async(group, &BytesCall::scatter(blocks, root)) {
                        assert!(got.unwrap() == [all[me].clone()], "{}", context());
                    }
                }
                // Each of the eight calls in each of the six rounds takes two sequence numbers.
                assert_eq!(group.queue.issued(), 6 * 8 * 2);
                group.run(Call::barrier(), &CallOptions::default()).unwrap();
            });
        }
    }
}

#[test]
fn impossible_length_fails_all_ranks_with_one_culprit() {
    for transport in TRANSPORTS {
        run(transport, 3, |group| {
            let call = BytesCall::gather(src(&[7; 100]), 2);
            let options = CallOptions::default();
            let outcome = if group.rank() == 1 {
                // This rank announces a length that exceeds any memory, and does not continue the
                // call.
                let ticket = group.queue.issue_several(2);
                let turn =
                    group.queue.wait_turn(&ticket, &long_deadline().into(), || None).unwrap();
                let length = (u64::MAX / 4).to_le_bytes();
                let false_length =
                    Call::gather(Src::from(&length[..]), Dst::empty(), DataType::U64, 2);
                let deadline = long_deadline().into();
                let descriptor = call.length_descriptor(ticket.sequence(), Label::NONE);
                let call = false_length.operation(descriptor, &options, "", &deadline, &NoObserver);
                let run_outcome = group.backend.run(&call);
                drop(turn);
                run_outcome
            } else {
                group.run_bytes(&call, &options).map(drop)
            };
            // A rank that waits for no peer may have finished already; its next call then returns
            // the error. Rank 1 skipped an operation, so another call on it would be a mismatch.
            let limit = long_deadline();
            let next_outcome = || match group.rank() {
                1 => loop {
                    match group.failure() {
                        Some(failure) => return Err(failure),
                        None if limit.has_passed() => return Ok(()),
                        None => std::thread::yield_now(),
                    }
                },
                _ => group.run(Call::barrier(), &options),
            };
            let error = outcome.and_then(|()| next_outcome()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{transport}: {error}");
            assert!(error.message().contains("gather_bytes #1 of rank 2"), "{error}");
            assert_eq!(error.culprit(), Some(2));
        });
    }
}

#[test]
fn invalid_byte_calls_take_no_sequence_number() {
    let (group, _fake) = FakeBackend::group("bytes-refused", true);
    let refused = |call: BytesCall<'static>, options: CallOptions| {
        group.run_bytes(&call, &options).unwrap_err().to_string()
    };
    let default = CallOptions::default;
    assert!(refused(BytesCall::broadcast(Src::empty(), 2), default()).contains("root 2"));
    let three = Some(vec![Src::empty(); 3]);
    assert!(refused(BytesCall::scatter(three, 0), default()).contains("3 strings"));
    let named = CallOptions { algorithm: Some("ring".into()), ..default() };
    assert!(refused(BytesCall::all_gather(Src::empty()), named).contains("ring"));
    assert_eq!(group.queue.issued(), 0);
}

/// Returns a receive for a message of any length, and the channel that gets the message.
fn receive(
    group: &Arc<Group>,
    max_bytes: usize,
    tag: Option<u32>,
) -> (PreparedCall, Receiver<Vec<Vec<u8>>>) {
    let (sender, taken) = channel();
    let deliver = BytesHandler::new(move |strings| {
        sender.send(strings).unwrap();
        Ok(())
    });
    let options = CallOptions::default();
    (group.receive_bytes(max_bytes, deliver, None, tag, options).unwrap(), taken)
}

fn send(group: &Arc<Group>, bytes: &[u8], peer: usize, tag: u32) -> Arc<Work> {
    let call = group.send(src(bytes), DataType::U8, peer, tag, CallOptions::default()).unwrap();
    let work = Arc::clone(call.work());
    call.issue().unwrap();
    work
}

#[test]
fn receive_bytes_accepts_any_length() {
    for transport in TRANSPORTS {
        run(transport, 2, |group| {
            let peer = 1 - group.rank();
            for round in 0..6 {
                let (call, taken) = receive(group, usize::MAX, None);
                let received = Arc::clone(call.work());
                call.issue().unwrap();
                let sent = send(group, &string(group.rank(), round), peer, 5);
                assert_eq!(received.wait(&Deadline::never()), Ok(WorkProgress::Done));
                let expected = string(peer, round);
                assert_eq!(received.source(), Some(peer));
                assert_eq!(
                    (received.tag(), received.received_count()),
                    (Some(5), Some(expected.len()))
                );
                assert!(taken.try_recv().unwrap() == [expected], "{transport}");
                assert_eq!(sent.wait(&Deadline::never()), Ok(WorkProgress::Done));
            }
        });
    }
}

#[test]
fn failing_delivery_callback_fails_the_work() {
    let (group, _fake) = FakeBackend::group("bytes-taken", true);
    let deliver = BytesHandler::new(|_| Err(Error::new(ErrorKind::OutOfMemory, "no handle")));
    let call = group.receive_bytes(9, deliver, None, None, CallOptions::default()).unwrap();
    let work = Arc::clone(call.work());
    call.issue().unwrap();
    send(&group, b"message", 0, 3);
    let error = work.wait(&long_deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let text =
        "receive from any rank, any tag (u8, count 9) on group bytes-taken, rank 0: no handle";
    assert_eq!((error.message(), group.outstanding_works()), (text, 0));
}

/// Gathers more than 4 GiB in memory that is shared with other tests, so it is run by hand.
#[test]
#[ignore = "needs 12 GiB of memory"]
fn all_gather_bytes_beyond_4_gib() {
    run("transport=shm", 2, |group| {
        let len = (2_usize << 30) + 300_000_000 + group.rank();
        let mine = vec![u8::try_from(group.rank() + 1).unwrap(); len];
        let call = BytesCall::all_gather(Src::from(mine.as_slice()));
        let got = group.run_bytes(&call, &CallOptions::default()).unwrap().unwrap();
        assert!(got.iter().map(Vec::len).sum::<usize>() > 4 << 30);
        for (rank, bytes) in got.iter().enumerate() {
            assert_eq!(bytes.len(), (2 << 30) + 300_000_000 + rank);
            let value = u8::try_from(rank + 1).unwrap();
            assert!(bytes.iter().all(|&byte| byte == value), "rank {rank}'s");
        }
    });
}
