//! Tests of the retry of a step: one rank has received the agreement on the step, and another rank
//! has not.

use super::reducer_state::ReducerPhase;
use super::send::StepSender;
use super::step::ReducerStep;
use super::{DividePolicy, MissingPolicy, Param, ParamRole, Reducer, ReducerOptions, VoteDelivery};
use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::api::tests::ranks;
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use crate::store::HashStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Leaks numbers, so that they live as long as the process.
fn numbers(values: &[f64]) -> Dst<'static> {
    Dst::from(Box::leak(values.to_vec().into_boxed_slice()))
}

fn read(view: Dst<'static>) -> f64 {
    f64::from_bits(view.as_src().word(0))
}

/// Creates a parameter, with a caller's gradient if `grad` is set.
fn param(name: &str, grad: Option<f64>) -> Param {
    Param {
        name: name.to_owned(),
        data: numbers(&[0.0]),
        grad: grad.map(|grad| numbers(&[grad])),
        shape: vec![1],
        count: 1,
        dtype: DataType::F64,
        grad_dtype: DataType::F64,
        device: None,
        is_sparse: false,
        role: ParamRole::Trained,
        tag: 0,
    }
}

fn options() -> ReducerOptions {
    ReducerOptions {
        bucket_bytes: 1,
        first_bucket_bytes: 1,
        divide: DividePolicy::None,
        missing: MissingPolicy::Skip,
        is_retryable: true,
        has_fixed_layout: true,
        ..ReducerOptions::default()
    }
}

/// Ends a step; returns the votes of all ranks.
fn end(reducer: &Arc<Reducer>, vote: u64) -> Result<u64> {
    let votes = Arc::new(AtomicU64::new(u64::MAX));
    let taken = Arc::clone(&votes);
    reducer.end(vote, VoteDelivery::new(move |votes| taken.store(votes, Ordering::Release)))?;
    Ok(votes.load(Ordering::Acquire))
}

/// Contributes to the agreement on a step, and then fails as if the outcome of the agreement were
/// unknown.
fn skip_step_end(reducer: &Arc<Reducer>, group: &Arc<Group>) {
    let (mut bytes, step): (Vec<u8>, Box<ReducerStep>) = {
        let mut state = reducer.lock();
        let state = &mut *state;
        let mut step = state.take_open_step().expect("no step is open");
        let sender = StepSender { reducer, state, group };
        sender.send_buckets(&mut step, 0);
        (sender.ballot(&step, 0).bytes().to_vec(), step)
    };
    let view = Dst::from(bytes.as_mut_slice());
    let call = Call::all_reduce(view.as_src(), view, DataType::U8, ReduceOp::BitOr);
    group.run(call, &reducer.call_options()).unwrap();
    let error = Error::new(ErrorKind::PeerFailed, "a test");
    reducer.lock().phase = ReducerPhase::Failed(step, error);
}

/// Rank 1 misses the end of the first step, in which rank 0 casts a vote.
fn recover_step_end_from_peer(
    group: &Arc<Group>,
    next: &Arc<HashStore>,
    transport: &str,
    vote: u64,
) {
    let rank = group.rank();
    let own = if rank == 0 { 3.0 } else { 4.0 };
    // No rank uses the last parameter, and only rank 0 uses the third one.
    let params = vec![
        param("owned", Some(own)),
        param("place", None),
        param("half", Some(7.0)),
        param("idle", Some(8.0)),
    ];
    let owned = [params[0].grad.unwrap(), params[2].grad.unwrap(), params[3].grad.unwrap()];
    let reducer = Reducer::create(group, params, options()).unwrap();
    reducer.begin(0.0, true).unwrap();
    reducer.grad(1).unwrap().0.copy_from(numbers(&[own]).as_src());
    reducer.ready(if rank == 0 { &[0, 1, 2] } else { &[0, 1] }).unwrap();
    if rank == 0 {
        assert_eq!(end(&reducer, vote).unwrap(), vote);
    } else {
        skip_step_end(&reducer, group);
        assert_eq!(read(owned[0]), 4.0, "nothing is copied before the end");
    }
    let next = ranks::create(Arc::clone(next), transport, rank, 2);
    reducer.regroup(&next).unwrap();
    if rank == 1 {
        assert_eq!(end(&reducer, 0).unwrap(), vote, "the votes are those of the other rank");
    }
    assert_eq!((reducer.stats().steps, read(reducer.result(1).unwrap().0)), (1, 7.0));
    assert_eq!(owned.map(read), [7.0, 7.0, 8.0]);
    reducer.begin(0.0, true).unwrap();
    reducer.ready(&[0]).unwrap();
    assert_eq!(end(&reducer, 0).unwrap(), 0);
    assert_eq!((reducer.stats().steps, read(owned[0])), (2, 14.0));
    reducer.retire();
}

#[test]
fn missed_step_end_is_recovered_from_a_peer() {
    for transport in ranks::TRANSPORTS {
        for vote in [0, 5] {
            let next = Arc::new(HashStore::new());
            ranks::run(transport, 2, |group| {
                recover_step_end_from_peer(group, &next, transport, vote)
            });
        }
    }
}

#[test]
fn rank_two_steps_behind_cannot_regroup() {
    let next = Arc::new(HashStore::new());
    ranks::run("transport=inproc", 2, |group| {
        let reducer = Reducer::create(group, vec![param("a", Some(1.0))], options()).unwrap();
        if group.rank() == 0 {
            reducer.lock().steps = 2;
        }
        let next = ranks::create(Arc::clone(&next), "transport=inproc", group.rank(), 2);
        let outcome = reducer.regroup(&next);
        assert_eq!(outcome.is_err(), group.rank() == 1);
        if let Err(error) = outcome {
            assert!(error.message().contains("ended 0 steps, but another rank 2"), "{error}");
        }
    });
}
