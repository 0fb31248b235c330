//! Tests of the debug check that searches buffers for NaN.

use super::ranks::{TRANSPORTS, run};
use super::*;
use crate::api::collective::batch;
use crate::base::debug::NanCheck;
use crate::base::op::ReduceOp;

fn vector(count: usize, nan_at: Option<usize>) -> Dst<'static> {
    let value = |index| if nan_at == Some(index) { f32::NAN } else { 1.0 };
    let bytes: Vec<u8> = (0..count).flat_map(|index| value(index).to_le_bytes()).collect();
    Dst::from(leak_bytes(&bytes))
}

fn nan_checked() -> CallOptions {
    CallOptions { nan_check: NanCheck::RejectNan, ..CallOptions::default() }
}

/// Checks that the group's failure is equal on all ranks.
fn assert_group_failure(group: &Group, parts: &[&str]) {
    // A rank that is not the culprit may have completed the operation, so the barrier waits for the
    // failure.
    drop(group.run(Call::barrier(), &CallOptions::default()));
    let error = group.failure().unwrap();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Aborted, Some(1)));
    for part in parts {
        assert!(error.message().contains(part), "\"{part}\" is missing: {error}");
    }
}

#[test]
fn nan_error_names_the_call_within_a_batch() {
    for transport in TRANSPORTS {
        run(transport, 3, |group| {
            batch::begin(None).unwrap();
            for call in 0..4 {
                let nan = (group.rank() == 1 && call == 2).then_some(5);
                let (send, recv) = (vector(10, nan).as_src(), vector(10, None));
                let call = Call::all_reduce(send, recv, DataType::F32, ReduceOp::Sum);
                batch::collect_or_issue(group.prepare(call, nan_checked()).unwrap()).unwrap();
            }
            let batch = batch::end().unwrap();
            let whole = Arc::clone(batch.work());
            batch.issue(false);
            assert_eq!(kind_of(whole.wait(&long_deadline())), ErrorKind::Aborted, "{transport}");
            assert_group_failure(group, &["rank 1 (pid ", "input of call 2: element 5 is NaN"]);
        });
    }
}

#[test]
fn nan_error_names_the_block_of_a_list() {
    for transport in TRANSPORTS {
        run(transport, 3, |group| {
            let nan = |block| (group.rank() == 1 && block == 2).then_some(block);
            let sends = (0..3).map(|block| vector(3, nan(block)).as_src()).collect();
            let recvs = (0..3).map(|_| vector(3, None)).collect();
            let call = Call::all_to_all_v(sends, recvs, DataType::F32);
            drop(group.run(call, &nan_checked()));
            assert_group_failure(
                group,
                &["all_to_all_v #1", "block 2 of the input: element 2 is NaN"],
            );
        });
    }
}

#[test]
fn results_are_checked_only_on_ranks_that_ask() {
    for transport in TRANSPORTS {
        run(transport, 2, |group| {
            // Only rank 1 asks for the check, and only rank 0 sends a NaN.
            let nan = (group.rank() == 0).then_some(3);
            let (send, recv) = (vector(4, nan).as_src(), vector(8, None));
            let options = if group.rank() == 1 { nan_checked() } else { CallOptions::default() };
            drop(group.run(Call::all_gather(send, recv, DataType::F32), &options));
            while group.failure().is_none() {
                drop(group.run(Call::barrier(), &CallOptions::default()));
            }
            assert_group_failure(group, &["all_gather #1", ": result: element 3 is NaN"]);
        });
    }
}

#[test]
fn message_with_nan_is_not_sent() {
    for transport in TRANSPORTS {
        run(transport, 2, |group| {
            if group.rank() == 1 {
                let bytes = vector(4, Some(1)).as_src();
                let send = group.send(bytes, DataType::F32, 0, 7, nan_checked()).unwrap();
                assert_eq!(send.issue().unwrap_err().kind(), ErrorKind::Aborted);
            } else {
                let options = CallOptions::default();
                let into = vector(4, None);
                let receive = group.receive(into, DataType::F32, Some(1), Some(7), options);
                let receive = receive.unwrap();
                let work = Arc::clone(receive.work());
                // The other rank may have failed the group before this receive was issued.
                let ended = receive.issue().and_then(|()| work.wait(&long_deadline()));
                assert_eq!(kind_of(ended), ErrorKind::Aborted, "{transport}");
            }
            assert_group_failure(
                group,
                &["send to rank 0, tag 7", "the message: element 1 is NaN"],
            );
        });
    }
}
