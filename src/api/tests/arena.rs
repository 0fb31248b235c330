//! Tests of reductions and copies on vectors in arena memory (memory of the library that all ranks
//! of a node have mapped), which ranks access in place.

use super::ranks;
use crate::api::{Call, CallOptions, Group};
use crate::backend::BackendMemory;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::sync::Arc;

const TRANSPORTS: [&str; 2] = ["transport=inproc", "transport=shm"];

/// The number of 4-byte elements of a vector that is long enough for the arena path. The number of
/// ranks does not divide it, so the last ranks have shorter slices.
const COUNT: usize = (64 << 10) / 4 + 5;

/// A buffer in arena memory or ordinary memory.
enum TestBuffer {
    Arena(Box<dyn BackendMemory>),
    Ordinary(Vec<u8>),
}

impl TestBuffer {
    fn new(group: &Group, count: usize, is_arena: bool) -> Self {
        match is_arena {
            true => Self::Arena(group.backend.allocate(4 * count).unwrap()),
            false => Self::Ordinary(vec![0; 4 * count]),
        }
    }

    #[allow(unsafe_code, reason = "memory of the back end's")]
    fn bytes(&mut self) -> Dst<'_> {
        match self {
            // SAFETY: the pointer is valid while the memory lives, and no reference to the bytes
            // exists.
            Self::Arena(memory) => unsafe { Dst::new(memory.as_mut_ptr(), memory.len()) },
            Self::Ordinary(bytes) => Dst::from(bytes.as_mut_slice()),
        }
    }

    fn fill(&mut self, value: impl Fn(usize) -> [u8; 4]) {
        let bytes = self.bytes();
        let values: Vec<u8> = (0..bytes.len() / 4).flat_map(value).collect();
        bytes.copy_from(Src::from(values.as_slice()));
    }

    fn contents(&mut self) -> Vec<u8> {
        let bytes = self.bytes();
        let mut copy = vec![0; bytes.len()];
        Dst::from(copy.as_mut_slice()).copy_from(bytes.as_src());
        copy
    }
}

/// Returns the number of operations that ran without copies.
fn zero_copy_operations(group: &Arc<Group>) -> u64 {
    group.describe()["native"]["zero_copy_operations"].as_u64().unwrap()
}

fn element_value(rank: usize, index: usize) -> [u8; 4] {
    i32::try_from(index % 1000 * (rank + 1)).unwrap().to_le_bytes()
}

fn expected_sum(size: usize, index: usize) -> [u8; 4] {
    let factor = size * (size + 1) / 2;
    i32::try_from(index % 1000 * factor).unwrap().to_le_bytes()
}

#[test]
fn arena_vectors_are_reduced_without_copies() {
    // The groups without CMA (cross-memory attach) are also tested. Their ranks cannot read
    // ordinary memory of their peers.
    let no_cma = "transport=shm;cma=0";
    for (transport, size) in
        [(TRANSPORTS[0], 2), (no_cma, 2), (TRANSPORTS[0], 5), (TRANSPORTS[1], 3)]
    {
        ranks::run(transport, size, |group| {
            for count in [COUNT, 16 << 10, 500_001] {
                let before = zero_copy_operations(group);
                let [mut send, mut recv] = [0, 1].map(|_| TestBuffer::new(group, count, true));
                for in_place in [false, true, false] {
                    send.fill(|index| element_value(group.rank(), index));
                    recv.fill(|_| [0xff; 4]);
                    let from = send.bytes();
                    let into = if in_place { from } else { recv.bytes() };
                    let call = Call::all_reduce(from.as_src(), into, DataType::I32, ReduceOp::Sum);
                    group.run(call, &CallOptions::default()).unwrap();
                    let result = if in_place { &mut send } else { &mut recv };
                    let expected: Vec<u8> =
                        (0..count).flat_map(|index| expected_sum(size, index)).collect();
                    assert!(result.contents() == expected, "{transport}, {count}, {in_place}");
                }
                assert_eq!(
                    zero_copy_operations(group),
                    before + 3,
                    "{transport}, {size} ranks, {count}"
                );
            }
        });
    }
}

#[test]
fn arena_reduction_is_bitwise_equal_for_all_operators() {
    ranks::run(TRANSPORTS[1], 3, |group| {
        let value = |index: usize| ((index % 97 + group.rank()) as f32 / 7.0).to_le_bytes();
        let ops = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Avg];
        for (op, scale) in ops.map(|op| (op, 0.0)).into_iter().chain([(ReduceOp::PremulSum, 3.0)]) {
            let before = zero_copy_operations(group);
            let run = |is_arena: bool| {
                let mut buffer = TestBuffer::new(group, COUNT, is_arena);
                buffer.fill(value);
                let bytes = buffer.bytes();
                let call = Call::all_reduce(bytes.as_src(), bytes, DataType::F32, op);
                let options = CallOptions { premul_scale: scale, ..CallOptions::default() };
                group.run(call, &options).unwrap();
                buffer.contents()
            };
            assert!(run(true) == run(false), "{op:?}");
            // Vectors with a scale factor are not reduced in place.
            let expected_direct = u64::from(op != ReduceOp::PremulSum);
            assert_eq!(zero_copy_operations(group) - before, expected_direct, "{op:?}");
        }
    });
}

/// Returns the element of a rank at an index of a vector with one block for each rank.
fn block_value(rank: usize, index: usize) -> [u8; 4] {
    i32::try_from(index % 1009 + 100_000 * rank).unwrap().to_le_bytes()
}

/// Runs a call whose input has `blocks.0` blocks and whose output has `blocks.1` blocks. `expected`
/// returns the element at an index of the output.
fn check_blocks(
    group: &Arc<Group>,
    are_arenas: (bool, bool),
    blocks: (usize, usize),
    call: impl for<'b> Fn(Src<'b>, Dst<'b>) -> Call<'b>,
    expected: impl Fn(usize) -> [u8; 4],
) {
    let mut send = TestBuffer::new(group, blocks.0 * COUNT, are_arenas.0);
    let mut recv = TestBuffer::new(group, blocks.1 * COUNT, are_arenas.1);
    send.fill(|index| block_value(group.rank(), index));
    recv.fill(|_| [0xff; 4]);
    group.run(call(send.bytes().as_src(), recv.bytes()), &CallOptions::default()).unwrap();
    let wanted: Vec<u8> = (0..blocks.1 * COUNT).flat_map(expected).collect();
    assert!(recv.contents() == wanted);
}

fn check_all_blocks(group: &Arc<Group>, are_arenas: (bool, bool)) {
    let (me, size) = (group.rank(), group.size());
    check_blocks(
        group,
        are_arenas,
        (1, size),
        |send, recv| Call::all_gather(send, recv, DataType::I32),
        |index| block_value(index / COUNT, index % COUNT),
    );
    check_blocks(
        group,
        are_arenas,
        (size, size),
        |send, recv| Call::all_to_all(send, recv, DataType::I32, size),
        |index| block_value(index / COUNT, me * COUNT + index % COUNT),
    );
    let sum = |index: usize| {
        let each = |rank| i32::from_le_bytes(block_value(rank, me * COUNT + index));
        (0..size).map(each).sum::<i32>().to_le_bytes()
    };
    check_blocks(
        group,
        are_arenas,
        (size, 1),
        |send, recv| Call::reduce_scatter(send, recv, DataType::I32, ReduceOp::Sum),
        sum,
    );
}

#[test]
fn arena_blocks_are_read_without_copies() {
    for (algorithm, slot_bytes) in [("staged", 65_536), ("cma_read", 65_536), ("staged", 8192)] {
        let rules =
            ["all_gather", "reduce_scatter", "all_to_all"].map(|op| format!("{op}={algorithm}"));
        let transport =
            format!("transport=shm;algorithm={};slot_bytes={slot_bytes}", rules.join(","));
        ranks::run(&transport, 3, |group| {
            for (are_arenas, direct_calls) in
                [((true, true), 3), ((true, false), 3), ((false, true), 0)]
            {
                let before = zero_copy_operations(group);
                check_all_blocks(group, are_arenas);
                assert_eq!(
                    zero_copy_operations(group) - before,
                    direct_calls,
                    "{transport}, {are_arenas:?}"
                );
            }
            let before = zero_copy_operations(group);
            // In each round, either one rank sends from ordinary memory or all ranks except one do.
            for round in 0..6 {
                let is_selected = group.rank() == round % 3;
                check_all_blocks(group, (is_selected == (round >= 3), true));
            }
            assert_eq!(zero_copy_operations(group), before, "{transport}");
        });
    }
}

#[test]
fn one_ordinary_vector_disables_zero_copy_for_all() {
    let algorithms = ["one_shot", "two_shot", "cma_read", "two_shot;slot_bytes=8192"];
    for transport in
        algorithms.map(|algorithm| format!("transport=shm;algorithm=all_reduce={algorithm}"))
    {
        ranks::run(&transport, 3, |group| {
            let before = zero_copy_operations(group);
            // These buffers are in ordinary memory; all others are in arena memory. Rounds 0 to 2:
            // the vector and the result of one rank. Rounds 3 to 5: the result of one rank. Rounds
            // 6 to 8: the results of all ranks except one.
            for round in 0..9 {
                let is_selected = group.rank() == round % 3;
                let mut send = TestBuffer::new(group, COUNT, !(is_selected && round < 3));
                let mut recv = TestBuffer::new(group, COUNT, is_selected == (round >= 6));
                send.fill(|index| element_value(group.rank(), index));
                let (from, into) = (send.bytes().as_src(), recv.bytes());
                let call = Call::all_reduce(from, into, DataType::I32, ReduceOp::Sum);
                group.run(call, &CallOptions::default()).unwrap();
                let expected: Vec<u8> =
                    (0..COUNT).flat_map(|index| expected_sum(3, index)).collect();
                assert!(recv.contents() == expected, "{transport}, round {round}");
            }
            assert_eq!(zero_copy_operations(group), before);
            let mut buffer = TestBuffer::new(group, COUNT, true);
            buffer.fill(|index| element_value(group.rank(), index));
            let bytes = buffer.bytes();
            let call = Call::all_reduce(bytes.as_src(), bytes, DataType::I32, ReduceOp::Sum);
            group.run(call, &CallOptions::default()).unwrap();
            assert_eq!(zero_copy_operations(group), before + 1, "{transport}");
        });
    }
}
