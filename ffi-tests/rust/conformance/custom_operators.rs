//! Operators that the caller defines: compares every reduction, with elements of many sizes and
//! over every transport, with a reduction in rank order.
#![allow(unsafe_code, reason = "an operator gets views of memory")]

use crate::input_values::mix_bits;
use crate::matrix::LAYOUTS;
use crate::ranks::{RankUnderTest, run_ranks};
use dist::api::collective::operator::Combine;
use dist::api::{Call, CallOptions, Operator, OperatorCall};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::{ErrorKind, Result};
use dist::base::op::ReduceOp;
use dist::transport::OpKind;
use std::sync::{Arc, Barrier};

const KINDS: [OpKind; 6] = [
    OpKind::AllReduce,
    OpKind::Reduce,
    OpKind::ReduceScatter,
    OpKind::ReduceScatterV,
    OpKind::Scan,
    OpKind::Exscan,
];

/// Reduces one element: the lower rank's element into the higher rank's element, which becomes the
/// result.
type FoldFn = fn(&[u8], &mut [u8]);

/// Composes affine maps over the numbers below 16. The factor is in the lower half of the byte, the
/// summand in the upper half. The lower rank's map applies first, so the result depends on the
/// order.
fn compose_small(lower: &[u8], higher: &mut [u8]) {
    let (a, b) = (lower[0] & 15, lower[0] >> 4);
    let (c, d) = (higher[0] & 15, higher[0] >> 4);
    higher[0] = ((a * c) & 15) | ((c * b + d) & 15) << 4;
}

/// Composes affine maps over the other bytes of the element; the factor is the first byte. Every
/// byte of the result depends on the first one, so that a split element gives a wrong result.
fn compose(lower: &[u8], higher: &mut [u8]) {
    let factor = higher[0];
    for (higher, lower) in higher.iter_mut().zip(lower).skip(1) {
        *higher = factor.wrapping_mul(*lower).wrapping_add(*higher);
    }
    higher[0] = factor.wrapping_mul(lower[0]);
}

/// Selects the larger element by lexicographic comparison.
fn largest(lower: &[u8], higher: &mut [u8]) {
    if lower > &*higher {
        higher.copy_from_slice(lower);
    }
}

#[derive(Debug)]
struct ElementOperator {
    element: usize,
    fold: FoldFn,
}

impl Combine for ElementOperator {
    fn combine(&self, lower: Src<'_>, inout: Dst<'_>, count: usize) {
        assert_eq!((lower.len(), inout.len()), (count * self.element, count * self.element));
        // The expected alignment is the largest power of two that divides the element size, at most
        // 64.
        let alignment = 1 << self.element.trailing_zeros().min(6);
        for address in [lower.as_ptr().addr(), inout.as_mut_ptr().addr()] {
            assert!(address.is_multiple_of(alignment), "{address:#x} for {}", self.element);
        }
        // SAFETY: the memory is readable for its length, and no other thread writes to it during
        // the call.
        let lower = unsafe { std::slice::from_raw_parts(lower.as_ptr(), lower.len()) };
        // SAFETY: the memory is writable for its length and does not overlap `lower`, and no other
        // thread uses it during the call.
        let inout = unsafe { std::slice::from_raw_parts_mut(inout.as_mut_ptr(), inout.len()) };
        let pairs = lower.chunks(self.element).zip(inout.chunks_mut(self.element));
        pairs.for_each(|(lower, higher)| (self.fold)(lower, higher));
    }
}

/// An operator, and the type that its calls pass.
#[derive(Clone)]
struct OperatorCase {
    operator: Arc<Operator>,
    fold: FoldFn,
    dtype: Option<DataType>,
}

fn operator(name: &str, element: usize, is_commutative: bool, fold: FoldFn) -> Arc<Operator> {
    let function = Box::new(ElementOperator { element, fold });
    Arc::new(Operator::new(name, element, is_commutative, function).unwrap())
}

fn cases() -> Vec<OperatorCase> {
    let of = |element: usize, is_commutative, fold: FoldFn, dtype| {
        let name = format!("operator {element} {is_commutative}");
        OperatorCase { operator: operator(&name, element, is_commutative, fold), fold, dtype }
    };
    vec![
        of(1, false, compose_small, None),
        of(3, false, compose, None),
        of(8, true, largest, None),
        of(8, false, compose, Some(DataType::F64)),
        of(12, false, compose, None),
        of(40, false, compose, None),
        of(4096, true, largest, None),
    ]
}

fn input(rank: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| mix_bits((rank << 40 | at) as u64).to_le_bytes()[3]).collect()
}

/// Returns the reduction of the vectors of ranks 0 to `number` - 1.
fn expected(case: &OperatorCase, number: usize, input: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let element = case.operator.element_bytes();
    let mut all = (0..number).map(input);
    let first = all.next().unwrap_or_default();
    all.fold(first, |lower, mut higher| {
        let pairs = lower.chunks(element).zip(higher.chunks_mut(element));
        pairs.for_each(|(lower, higher)| (case.fold)(lower, higher));
        higher
    })
}

/// Returns the number of elements in the block of a rank in the `_v` form.
fn block_len(count: usize, rank: usize) -> usize {
    [count, 0, count / 2, count.saturating_sub(1)][rank % 4]
}

/// Makes one call on one rank and returns its result and the expected result.
fn fold(
    rank: &RankUnderTest,
    case: &OperatorCase,
    kind: OpKind,
    (count, in_place): (usize, bool),
) -> (Vec<u8>, Vec<u8>) {
    let (me, size, element) =
        (rank.group().rank(), rank.group().size(), case.operator.element_bytes());
    let bytes = count * element;
    let root = count % size;
    let (byte, any) = (DataType::U8, ReduceOp::Sum);
    let lens: Vec<usize> = match kind {
        OpKind::ReduceScatterV => (0..size).map(|to| block_len(count, to) * element).collect(),
        OpKind::ReduceScatter => vec![bytes; size],
        _ => vec![bytes],
    };
    let own = if lens.len() == 1 { 0 } else { lens[..me].iter().sum() };
    let len = if lens.len() == 1 { bytes } else { lens[me] };
    let whole = |rank| input(rank, lens.iter().sum());
    let part = |rank| whole(rank)[own..own + len].to_vec();
    let number = match kind {
        OpKind::Reduce if me != root => 0,
        _ if kind.is_prefix() => kind.prefix_len(me),
        _ => size,
    };
    let (mut memory, mut apart) = (whole(me), vec![0x5a; len]);
    let all = Dst::from(memory.as_mut_slice());
    let send = all.as_src();
    let recv = if in_place { all.slice(own, len) } else { Dst::from(apart.as_mut_slice()) };
    let result = if number == 0 { Dst::empty() } else { recv };
    let call = match kind {
        OpKind::AllReduce => Call::all_reduce(send, recv, byte, any),
        OpKind::Reduce => Call::reduce(send, result, byte, any, root),
        OpKind::ReduceScatter => Call::reduce_scatter(send, recv, byte, any),
        OpKind::Scan => Call::scan(send, recv, byte, any),
        OpKind::Exscan => Call::exscan(send, result, byte, any),
        _ => {
            let mut from = 0;
            let block = |&len: &usize| {
                from += len;
                send.slice(from - len, len)
            };
            Call::reduce_scatter_v(lens.iter().map(block).collect(), recv, byte, any)
        }
    };
    let call = OperatorCall::new(call, Arc::clone(&case.operator), case.dtype).unwrap();
    rank.group().run_operator(call, &CallOptions::default()).unwrap();
    let got = if in_place { memory[own..own + len].to_vec() } else { apart };
    match (number, in_place) {
        (0, true) => (got, part(me)),
        (0, false) => (got, vec![0x5a; len]),
        _ => (got, expected(case, number, part)),
    }
}

#[test]
fn operators_fold_in_rank_order_over_every_transport() {
    let cases = cases();
    for layout in LAYOUTS {
        for ranks in (1..=5).filter(|&ranks| layout.applies(ranks)) {
            run_ranks(
                |rank| layout.options(rank, 4096),
                ranks,
                |rank| {
                    for case in &cases {
                        let element = case.operator.element_bytes();
                        // The counts: none, one, seven, and enough elements to reuse the slots.
                        for count in [0, 1, 7, 70_000 / element + 3] {
                            for (kind, in_place) in
                                KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
                            {
                                let (got, wanted) = fold(rank, case, kind, (count, in_place));
                                assert!(
                                    got == wanted,
                                    "{} of {count} x {element} bytes, in place {in_place}, {ranks} ranks, {layout}",
                                    kind.name()
                                );
                            }
                        }
                    }
                },
            );
        }
    }
}

#[test]
fn long_vectors_are_split_into_chunks() {
    let case =
        OperatorCase { operator: operator("long", 12, false, compose), fold: compose, dtype: None };
    run_ranks(
        |_| "transport=inproc".to_owned(),
        2,
        |rank| {
            for kind in [OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Scan] {
                let (got, wanted) = fold(rank, &case, kind, ((33 << 20) / 12, false));
                assert!(got == wanted, "{}", kind.name());
            }
        },
    );
}

/// How the call of the differing rank differs from the calls of the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperatorDifference {
    Name,
    Element,
    Flags,
    Type,
    Kind,
    Builtin,
}

fn call_with_difference(
    rank: &RankUnderTest,
    difference: Option<OperatorDifference>,
) -> Result<()> {
    let (input, mut output) = ([1_u8; 64], [0_u8; 64]);
    let (send, recv) = (Src::from(&input[..]), Dst::from(&mut output[..]));
    let (byte, any) = (DataType::U8, ReduceOp::Sum);
    let options = CallOptions { timeout_ms: 20_000, ..CallOptions::default() };
    if difference == Some(OperatorDifference::Builtin) {
        return rank.group().run(Call::all_reduce(send, recv, byte, any), &options);
    }
    let name = if difference == Some(OperatorDifference::Name) { "other" } else { "usual" };
    let element = if difference == Some(OperatorDifference::Element) { 16 } else { 8 };
    let operator = operator(name, element, difference == Some(OperatorDifference::Flags), compose);
    let dtype = (difference == Some(OperatorDifference::Type)).then_some(DataType::F64);
    let call = match difference {
        Some(OperatorDifference::Kind) => Call::scan(send, recv, byte, any),
        _ => Call::all_reduce(send, recv, byte, any),
    };
    rank.group().run_operator(OperatorCall::new(call, operator, dtype).unwrap(), &options)
}

#[test]
fn operator_mismatch_names_both_operators() {
    for (transport, layout) in [("inproc", "aaa"), ("shm", "aaa"), ("tcp", "abc"), ("auto", "aab")]
    {
        let hosts: Vec<char> = layout.chars().collect();
        for difference in [
            OperatorDifference::Name,
            OperatorDifference::Element,
            OperatorDifference::Flags,
            OperatorDifference::Type,
            OperatorDifference::Kind,
            OperatorDifference::Builtin,
        ] {
            let all_reported = Barrier::new(hosts.len());
            let options = |rank: usize| format!("transport={transport};host_id={}", hosts[rank]);
            run_ranks(options, hosts.len(), |rank| {
                let error =
                    call_with_difference(rank, (rank.group().rank() == 1).then_some(difference))
                        .unwrap_err();
                all_reported.wait();
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{difference:?}: {error}");
                let words: &[&str] = match difference {
                    OperatorDifference::Name => &["\"usual\"", "\"other\"", "rank 1"],
                    OperatorDifference::Element => &["of 8 bytes", "of 16 bytes", "rank 1"],
                    OperatorDifference::Flags => &["commutative", "rank 1"],
                    OperatorDifference::Type => &["f64", "rank 1"],
                    OperatorDifference::Kind => &["scan (", "all_reduce (", "rank 1"],
                    OperatorDifference::Builtin => &["caller's operator", "SUM", "rank 1"],
                };
                for word in words {
                    assert!(error.message().contains(word), "{difference:?}: {word}: {error}");
                }
                assert!(rank.group().failure().is_some());
            });
        }
    }
}

#[test]
fn calls_unsupported_by_an_operator_are_refused() {
    run_ranks(
        |_| "transport=inproc".to_owned(),
        2,
        |rank| {
            let (input, mut output) = ([1_u8; 64], [0_u8; 64]);
            let (send, recv) = (Src::from(&input[..]), Dst::from(&mut output[..]));
            let call = || Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum);
            let eight = operator("eight", 8, false, compose);
            let error =
                OperatorCall::new(call(), Arc::clone(&eight), Some(DataType::F32)).unwrap_err();
            for word in ["\"eight\"", "8 bytes", "f32 has 4"] {
                assert!(error.message().contains(word), "{error}");
            }
            let named = CallOptions { algorithm: Some("ring".into()), ..CallOptions::default() };
            let call = OperatorCall::new(call(), eight, None).unwrap();
            let error = rank.group().run_operator(call.clone(), &named).unwrap_err();
            assert!(error.message().contains("\"ring\""), "{error}");
            let canonical = CallOptions { canonical: true, ..CallOptions::default() };
            rank.group().run_operator(call, &canonical).unwrap();
            for (name, element) in [("", 1), (&*"n".repeat(49), 1), ("none", 0), ("much", 2 << 20)]
            {
                let function = Box::new(ElementOperator { element, fold: compose });
                assert!(Operator::new(name, element, false, function).is_err(), "{name}");
            }
        },
    );
}
