//! Tests of collectives on lists of tensors.

use super::ranks::{TRANSPORTS, run};
use super::*;
use crate::api::collective::batch;
use crate::api::collective::tensor_list::{ListCall, ListTensor, tensor_bytes};
use crate::base::debug::NanCheck;
use crate::base::op::ReduceOp;

/// The element types and the shapes of a list with small and long tensors, and without elements.
/// The number of elements is a multiple of 1, 2 and 4.
const SHAPES: [(DataType, &[usize]); 12] = [
    (DataType::I32, &[4]),
    (DataType::U8, &[4, 3]),
    (DataType::I64, &[]),
    (DataType::I32, &[0, 7]),
    (DataType::I32, &[8, 500]),
    (DataType::U8, &[12]),
    (DataType::I64, &[4, 2, 2]),
    (DataType::I32, &[4, 4_103]),
    (DataType::U8, &[65_540]),
    (DataType::I32, &[16]),
    (DataType::U16, &[4, 4]),
    (DataType::I64, &[8_196]),
];

/// Returns the byte at this position of the data of a rank. Sums of 4 ranks fit an element.
fn byte_at(tensor: usize, index: usize, rank: usize) -> u8 {
    u8::try_from((index * 7 + index / 61 + tensor * 5 + rank * 3) % 13).unwrap()
}

fn element(tensor: usize, index: usize, rank: usize, dtype: DataType) -> Vec<u8> {
    let mut bytes = vec![0; dtype.size()];
    bytes[0] = byte_at(tensor, index, rank);
    bytes
}

fn data(tensor: usize, rank: usize) -> Vec<u8> {
    let (dtype, shape) = SHAPES[tensor];
    let count: usize = shape.iter().product();
    (0..count).flat_map(|index| element(tensor, index, rank, dtype)).collect()
}

fn sum(tensor: usize, size: usize) -> Vec<u8> {
    let ranks: Vec<Vec<u8>> = (0..size).map(|rank| data(tensor, rank)).collect();
    let len = ranks[0].len();
    (0..len).map(|at| ranks.iter().map(|bytes| bytes[at]).sum()).collect()
}

/// Returns the list of a rank without the tensors that cannot be divided into `blocks`.
fn list(rank: usize, blocks: usize) -> (Vec<usize>, Vec<ListTensor<'static>>) {
    let fits = |&index: &usize| SHAPES[index].1.iter().product::<usize>() % blocks == 0;
    let indices: Vec<usize> = (0..SHAPES.len()).filter(fits).collect();
    let tensor = |&index: &usize| {
        let (dtype, shape) = SHAPES[index];
        let bytes = Dst::from(leak_bytes(&data(index, rank)));
        assert_eq!(tensor_bytes(shape, dtype), Ok(bytes.len()));
        let (name, shape) = (format!("tensor.{index}"), shape.to_vec());
        ListTensor { name, dtype, shape, device: None, data: bytes }
    };
    let tensors = indices.iter().map(tensor).collect();
    (indices, tensors)
}

fn contents(tensor: &ListTensor<'_>) -> Vec<u8> {
    let mut bytes = vec![0; tensor.data.len()];
    Dst::from(bytes.as_mut_slice()).copy_from(tensor.data.as_src());
    bytes
}

/// The way in which a test makes a call.
#[derive(Clone, Copy, Debug)]
enum CallForm {
    Blocking,
    Async,
    Batched,
}

const FORMS: [CallForm; 3] = [CallForm::Blocking, CallForm::Async, CallForm::Batched];

fn make_call(group: &Arc<Group>, call: ListCall<'static>, form: CallForm) -> Result<()> {
    let options = CallOptions::default();
    match form {
        CallForm::Blocking => group.run_list(call, &options),
        CallForm::Async => {
            let prepared = group.prepare_list(call, options)?;
            let work = Arc::clone(prepared.work());
            prepared.issue()?;
            work.wait(&long_deadline()).map(drop)
        }
        CallForm::Batched => {
            batch::begin(None)?;
            batch::collect_or_issue(group.prepare_list(call, options)?)?;
            let batch = batch::end()?;
            let work = Arc::clone(batch.work());
            batch.issue(false);
            work.wait(&long_deadline()).map(drop)
        }
    }
}

/// Returns the expected contents of a tensor after a call.
fn expected(kind: OpKind, tensor: usize, rank: usize, size: usize, root: usize) -> Vec<u8> {
    match kind {
        OpKind::Broadcast => data(tensor, root),
        OpKind::AllReduce => sum(tensor, size),
        OpKind::AllGather => {
            let block = data(tensor, 0).len() / size;
            (0..size)
                .flat_map(|from| data(tensor, from)[from * block..][..block].to_vec())
                .collect()
        }
        _ => {
            let (mut result, sums) = (data(tensor, rank), sum(tensor, size));
            let block = result.len() / size;
            let own = rank * block..(rank + 1) * block;
            result[own.clone()].copy_from_slice(&sums[own]);
            result
        }
    }
}

#[test]
fn list_collectives_match_their_oracle() {
    for transport in TRANSPORTS {
        for size in [1, 2, 4] {
            run(transport, size, |group| {
                let (rank, root) = (group.rank(), size / 2);
                for (round, form) in FORMS.into_iter().enumerate() {
                    let calls = |tensors: Vec<ListTensor<'static>>, kind| match kind {
                        OpKind::Broadcast => ListCall::broadcast(tensors, root),
                        OpKind::AllReduce => ListCall::all_reduce(tensors, ReduceOp::Sum),
                        OpKind::AllGather => ListCall::all_gather(tensors),
                        _ => ListCall::reduce_scatter(tensors, ReduceOp::Sum),
                    };
                    let kinds = [
                        OpKind::Broadcast,
                        OpKind::AllReduce,
                        OpKind::AllGather,
                        OpKind::ReduceScatter,
                    ];
                    for (position, kind) in kinds.into_iter().enumerate() {
                        let has_blocks = matches!(kind, OpKind::AllGather | OpKind::ReduceScatter);
                        let (indices, tensors) = list(rank, if has_blocks { size } else { 1 });
                        make_call(group, calls(tensors.clone(), kind), form).unwrap();
                        for (&index, tensor) in indices.iter().zip(&tensors) {
                            let right = expected(kind, index, rank, size, root);
                            let equal = contents(tensor) == right;
                            assert!(equal, "{transport} {size} {form:?} {kind:?} tensor {index}");
                        }
                        // Each call has one sequence number.
                        assert_eq!(group.collectives_issued(), (round * 4 + position + 1) as u64);
                    }
                }
                make_call(group, ListCall::broadcast(Vec::new(), 0), CallForm::Blocking).unwrap();
            });
        }
    }
}

type Change = fn(&mut Vec<ListTensor<'static>>);

#[test]
fn all_ranks_name_the_first_difference() {
    let changes: [(Change, &str); 6] = [
        (
            |list| list[1].name = "other".to_owned(),
            "tensor 1: the names differ: \"other\" on rank 2",
        ),
        (
            |list| list[4].shape = vec![500, 8],
            "tensor 4 \"tensor.4\": the shapes differ: [500, 8] on",
        ),
        (
            |list| list[5].dtype = DataType::I8,
            "tensor 5 \"tensor.5\": the types differ: i8 on rank 2",
        ),
        (
            |list| drop(list.pop()),
            "tensor 11: the lists have different lengths: only 11 tensors on",
        ),
        (|list| list.swap(0, 1), "tensor 0: the names differ: \"tensor.1\" on rank 2"),
        (Vec::clear, "tensor 0: the lists have different lengths: only 0 tensors on rank 2"),
    ];
    for transport in TRANSPORTS {
        run(transport, 3, |group| {
            for (form, (change, text)) in FORMS.into_iter().cycle().zip(changes) {
                let (_, mut tensors) = list(group.rank(), 1);
                let before: Vec<_> = tensors.iter().map(contents).collect();
                let unchanged = tensors.clone();
                if group.rank() == 2 {
                    change(&mut tensors);
                }
                let error = make_call(group, ListCall::broadcast(tensors, 0), form).unwrap_err();
                let message = error.message();
                assert_eq!(
                    (error.kind(), error.culprit()),
                    (ErrorKind::Mismatch, Some(2)),
                    "{error}"
                );
                assert!(
                    message.contains(text) && message.contains("on rank 0"),
                    "{transport}: {error}"
                );
                assert!(message.contains("broadcast_list #"), "{transport}: {error}");
                let after: Vec<_> = unchanged.iter().map(contents).collect();
                assert!(before == after, "{transport}: a tensor has changed");
            }
            // Other operators, roots and kinds of calls are differences too.
            let (_, tensors) = list(group.rank(), 1);
            let call = match group.rank() {
                1 => ListCall::all_reduce(tensors, ReduceOp::Max),
                _ => ListCall::all_reduce(tensors, ReduceOp::Sum),
            };
            let error = make_call(group, call, CallForm::Blocking).unwrap_err();
            let text = "the operations differ: all_reduce_list (MAX) on rank 1";
            assert!(error.message().contains(text), "{transport}: {error}");
            assert_eq!(group.failure(), None);
            group.run(Call::barrier(), &CallOptions::default()).unwrap();
        });
    }
}

#[test]
fn a_list_and_another_call_mismatch() {
    for transport in TRANSPORTS {
        run(transport, 2, |group| {
            let outcome = match group.rank() {
                0 => make_call(group, ListCall::broadcast(list(0, 1).1, 0), CallForm::Blocking),
                _ => group.run(
                    Call::all_reduce(
                        Src::from(&[1][..]),
                        Dst::from(leak_bytes(&[0])),
                        DataType::U8,
                        ReduceOp::Sum,
                    ),
                    &CallOptions::default(),
                ),
            };
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{transport}: {error}");
            assert!(error.message().contains("list of tensors"), "{transport}: {error}");
        });
    }
}

#[test]
fn a_list_has_one_entry_in_the_flight_recorder() {
    run("transport=inproc", 2, |group| {
        make_call(group, ListCall::broadcast(list(group.rank(), 1).1, 0), CallForm::Async).unwrap();
        let record = group.flight_record();
        let entries = record["entries"].as_array().unwrap();
        let own: Vec<_> = entries.iter().filter(|it| it["rank"] == group.rank()).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own[0]["description"], "broadcast #1 (root 0, list of tensors)");
        assert_eq!(own[0]["state"], "done");
    });
}

#[test]
fn nan_error_names_the_tensor() {
    run("transport=inproc", 3, |group| {
        let tensor = |index: usize| {
            let is_nan = group.rank() == 1 && index == 2;
            let values = [1.0, 1.0, if is_nan { f32::NAN } else { 1.0 }];
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let (name, shape) = (format!("w{index}"), vec![3]);
            let data = Dst::from(leak_bytes(&bytes));
            ListTensor { name, dtype: DataType::F32, shape, device: None, data }
        };
        let call = ListCall::all_reduce((0..4).map(tensor).collect(), ReduceOp::Sum);
        let options = CallOptions { nan_check: NanCheck::RejectNan, ..CallOptions::default() };
        drop(group.run_list(call, &options));
        drop(group.run(Call::barrier(), &CallOptions::default()));
        let error = group.failure().unwrap();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Aborted, Some(1)));
        let text = "all_reduce_list #1: input: tensor 2 \"w2\": element 2 is NaN";
        assert!(error.message().contains(text), "{error}");
    });
}

#[test]
fn impossible_lists_take_no_sequence_number() {
    let (group, _fake) = FakeBackend::group("lists-refused", true);
    let tensor = |len: usize| {
        let data = Dst::from(leak_bytes(&vec![0; len]));
        let name = "odd".to_owned();
        ListTensor { name, dtype: DataType::U8, shape: vec![len], device: None, data }
    };
    let refused = |call: ListCall<'static>, options: CallOptions, text: &str| {
        let error = group.run_list(call, &options).unwrap_err();
        assert!(error.message().contains(text), "{error}");
    };
    let default = CallOptions::default;
    refused(ListCall::broadcast(vec![], 2), default(), "root 2 does not exist");
    refused(
        ListCall::all_gather(vec![tensor(2), tensor(3)]),
        default(),
        "tensor 1 \"odd\": 3 elements",
    );
    let both = tensor(8);
    let part = ListTensor {
        name: "part".into(),
        data: both.data.slice(7, 1),
        shape: vec![1],
        ..tensor(1)
    };
    let text = "tensor 0 \"odd\" and tensor 1 \"part\" overlap";
    refused(ListCall::broadcast(vec![both, part], 0), default(), text);
    let long = ListTensor { name: "n".repeat(256), ..tensor(1) };
    refused(ListCall::broadcast(vec![long], 0), default(), "the name has 256 bytes");
    let deep = ListTensor { shape: vec![1; 65], ..tensor(1) };
    refused(ListCall::broadcast(vec![deep], 0), default(), "65 dimensions");
    let on_device = ListTensor { device: Some(0), ..tensor(1) };
    refused(ListCall::broadcast(vec![on_device], 0), default(), "the group has no device");
    let undefined = ListCall::all_reduce(
        vec![ListTensor { dtype: DataType::C64, shape: vec![1], ..tensor(8) }],
        ReduceOp::Max,
    );
    refused(undefined, default(), "tensor 0 \"odd\"");
    let named = CallOptions { algorithm: Some("ring".into()), ..default() };
    refused(ListCall::broadcast(vec![tensor(1)], 0), named, "no choice of algorithms");
    let streamed = CallOptions { stream: Some(1), ..default() };
    refused(ListCall::broadcast(vec![tensor(1)], 0), streamed, "a stream was given");
    let many = vec![tensor(0); crate::api::collective::tensor_list::MAX_LIST_TENSORS + 1];
    refused(ListCall::broadcast(many, 0), default(), "32769 tensors");
    assert_eq!(group.collectives_issued(), 0);
}
