//! Tests of repeated small calls. From the second call on, they take the fast path.

use super::ranks;
use crate::api::{Call, CallOptions, Group};
use crate::backend::FastCallKey;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use std::time::Duration;

fn run(group: &Group, call: Call<'_>) -> Result<()> {
    group.run(call, &CallOptions::default())
}

fn issued(group: &Group) -> u64 {
    group.describe()["operations_issued"].as_u64().unwrap()
}

/// Repeats more different calls than the fast path has slots, in an interleaved order.
#[test]
fn repeated_calls_give_equal_results() {
    const CALL_COUNT: usize = 3 * FastCallKey::SLOTS;
    for transport in ranks::TRANSPORTS {
        ranks::run(transport, 2, |group| {
            let me = u8::try_from(group.rank()).unwrap();
            for round in 0..6 {
                for count in 1..=CALL_COUNT {
                    // Each call runs twice in a row, and again in the next round.
                    for again in 0..2 {
                        let value = round + again + me;
                        let (own, mut sum, mut all) =
                            ([value; CALL_COUNT], [0; CALL_COUNT], [9; 2 * CALL_COUNT]);
                        let (send, into) = (Src::from(&own[..count]), Dst::from(&mut sum[..count]));
                        let dtype = DataType::U8;
                        run(group, Call::all_reduce(send, into, dtype, ReduceOp::Sum)).unwrap();
                        assert_eq!(
                            sum[..count],
                            vec![2 * (round + again) + 1; count],
                            "{transport}"
                        );
                        let into = Dst::from(&mut all[..2 * count]);
                        run(group, Call::all_gather(send, into, dtype)).unwrap();
                        let [low, high] = [0, 1].map(|rank| vec![round + again + rank; count]);
                        assert_eq!(all[..2 * count], [low, high].concat(), "{transport}");
                        let mut buffer = own;
                        let root = count % 2;
                        let buf = Dst::from(&mut buffer[..count]);
                        run(group, Call::broadcast(buf, dtype, root, group.rank())).unwrap();
                        let expected = round + again + u8::try_from(root).unwrap();
                        assert_eq!(buffer[..count], vec![expected; count], "{transport}");
                        run(group, Call::barrier()).unwrap();
                    }
                }
            }
        });
    }
}

/// The root of small broadcasts runs ahead of its receiver until all its slots are in use. The next
/// broadcast cannot start on the fast path, and waits on the full path.
#[test]
fn call_without_a_free_slot_takes_the_full_path() {
    // Payloads in control slots and in data slots.
    for len in [8, 1024] {
        ranks::run("transport=inproc", 2, |group| {
            for value in 0..200_u8 {
                if group.rank() == 1 && value % 100 == 50 {
                    std::thread::sleep(Duration::from_millis(50));
                }
                let mut buffer = vec![if group.rank() == 0 { value } else { 0 }; len];
                let buf = Dst::from(&mut buffer[..]);
                run(group, Call::broadcast(buf, DataType::U8, 0, group.rank())).unwrap();
                assert_eq!(buffer, vec![value; len]);
            }
        });
    }
}

#[test]
fn fast_path_checks_changed_buffers() {
    ranks::run("transport=inproc", 2, |group| {
        let mut memory = [1_u8; 64];
        let own = [1; 8];
        for _ in 0..3 {
            let (send, recv) = (Src::from(&own[..]), Dst::from(&mut memory[..8]));
            run(group, Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum)).unwrap();
        }
        let before = issued(group);
        let memory = Dst::from(&mut memory[..]);
        let (send, recv) = (memory.slice(0, 8).as_src(), memory.slice(4, 8));
        let error =
            run(group, Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with("all_reduce: the buffers overlap"), "{error:?}");
        // The call was refused locally, so the other ranks are not affected.
        assert_eq!(issued(group), before);
        run(group, Call::barrier()).unwrap();
    });
}

/// The options of a call have an effect, even if the same call without options has taken the fast
/// path before.
#[test]
fn call_with_options_leaves_the_fast_path() {
    ranks::run("transport=inproc", 2, |group| {
        let (own, mut sum) = ([2_u8; 4], [0; 4]);
        let mut call = |options: &CallOptions| {
            let (send, recv) = (Src::from(&own[..]), Dst::from(&mut sum[..]));
            group.run(Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum), options)
        };
        for _ in 0..3 {
            call(&CallOptions::default()).unwrap();
        }
        let wrong = CallOptions { algorithm: Some("no such".into()), ..CallOptions::default() };
        assert_eq!(call(&wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let limited = CallOptions { timeout_ms: 20_000, ..CallOptions::default() };
        call(&limited).unwrap();
        let other = CallOptions { algorithm: Some("one_shot".into()), ..CallOptions::default() };
        call(&other).unwrap();
        call(&CallOptions::default()).unwrap();
    });
}

/// A training loop gives each bucket another label. All these calls have one key, so labels do not
/// displace each other from the fast path.
#[test]
fn labelled_calls_take_the_fast_path_whatever_their_labels() {
    ranks::run("transport=inproc", 2, |group| {
        for number in 0..300 {
            let text = if number % 10 == 9 { String::new() } else { format!("b{}", number % 100) };
            let label = Label::new(&text).unwrap();
            let options = CallOptions { label, ..CallOptions::default() };
            let (own, mut sum) = ([1_u8; 4], [0; 4]);
            let (send, recv) = (Src::from(&own[..]), Dst::from(&mut sum[..]));
            let call = Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum);
            let small_call = group.small_call(&call, &options).unwrap();
            let outcome = group.run_fast_path(&call, &options, &small_call);
            assert_eq!(outcome.is_some(), number > 0, "{label}");
            outcome.unwrap_or_else(|| group.run(call, &options)).unwrap();
            assert_eq!(sum, [2; 4]);
        }
    });
}

#[test]
fn fast_path_detects_label_mismatch() {
    for transport in ranks::TRANSPORTS {
        ranks::run(transport, 2, |group| {
            let reduce = |text: &str| {
                let label = Label::new(text).unwrap();
                let options = CallOptions { label, ..CallOptions::default() };
                let (own, mut sum) = ([1_u8; 4], [0; 4]);
                let (send, recv) = (Src::from(&own[..]), Dst::from(&mut sum[..]));
                group.run(Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum), &options)
            };
            for text in ["a", "b", "", "a"] {
                reduce(text).unwrap();
            }
            let error = reduce(["bucket x", "bucket y"][group.rank()]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{transport}: {error}");
            for text in ["all_reduce #5 \"bucket x\"", "all_reduce #5 \"bucket y\""] {
                assert!(error.message().contains(text), "{transport}: {error}");
            }
        });
    }
}
