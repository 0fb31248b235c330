//! Groups on several nodes: ranks with one letter share memory, the others exchange messages. Whatever way the
//! vectors go, the result is what the oracle says: inputs are such that the order of folding does not matter.

use crate::cases::Case;
use crate::{defined, ranks};
use dist::algo::Shape;
use dist::base::dtype::DataType;
use dist::base::nodes::Nodes;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;

/// Nodes joined by queues in memory.
const QUEUES: &str = "inproc";

/// What joins nodes: queues, and TCP.
pub(crate) const TRANSPORTS: [&str; 2] = [QUEUES, "auto"];

/// Runs `body` on one rank for each letter.
fn run(
    transport: &str,
    layout: &str,
    slot_bytes: usize,
    body: impl Fn(&ranks::RankUnderTest<'_>) + Sync,
) {
    let letters: Vec<char> = layout.chars().collect();
    let options = |rank: usize| {
        format!("transport={transport};slot_bytes={slot_bytes};host_id={}", letters[rank])
    };
    ranks::run_with(options, letters.len(), &body);
}

fn shape(layout: &str) -> Shape {
    Shape::of(&Nodes::by_label(&layout.chars().collect::<Vec<_>>()), false)
}

/// Every collective with these operators; in place, and not.
fn check(
    rank: &ranks::RankUnderTest<'_>,
    dtype: DataType,
    ops: impl Iterator<Item = ReduceOp>,
    count: usize,
) {
    let (algorithm, exact) = (None, true);
    let check = |kind, op| {
        for in_place in [false, true] {
            rank.check(&Case { kind, dtype, op, count, in_place, algorithm, exact });
        }
    };
    check(OpKind::Broadcast, None);
    check(OpKind::AllGather, None);
    for op in ops {
        check(OpKind::AllReduce, Some(op));
        check(OpKind::Reduce, Some(op));
        check(OpKind::ReduceScatter, Some(op));
    }
}

/// All types and operators.
fn table(layout: &str) {
    run(QUEUES, layout, 4096, |rank| {
        for dtype in DataType::ALL {
            for count in [0, 3, 17] {
                check(rank, dtype, defined(dtype), count);
            }
            check(rank, dtype, defined(dtype).take(2), 1023);
        }
    });
}

/// Some types and operators around the sizes where another algorithm is chosen, or a message is cut.
fn sizes(layout: &str, slot_bytes: usize) {
    run(QUEUES, layout, slot_bytes, |rank| {
        for dtype in [DataType::F32, DataType::Bf16, DataType::I32, DataType::C64] {
            let sum = || [ReduceOp::Sum].into_iter();
            for bytes in [4 << 10, 32 << 10] {
                let count = bytes / dtype.size();
                (count..=count + 1).for_each(|count| check(rank, dtype, sum(), count));
            }
            check(rank, dtype, sum(), (256 << 10) / dtype.size() + 1);
        }
        for count in [(1 << 20) / 4, 600_011] {
            check(rank, DataType::F32, [ReduceOp::Max].into_iter(), count);
        }
    });
}

/// Every algorithm that the layout has, by its name.
fn by_name(layout: &str) {
    TRANSPORTS.into_iter().for_each(|transport| by_name_over(transport, layout));
}

fn by_name_over(transport: &str, layout: &str) {
    let shape = shape(layout);
    run(transport, layout, 4096, |rank| {
        for kind in Case::KINDS {
            let ops = match kind {
                OpKind::Broadcast | OpKind::AllGather => [None; 3],
                _ => [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PremulSum].map(Some),
            };
            for algorithm in dist::algo::algorithms(kind) {
                for (i, count) in [0, 1, 5, 12, 100, 1024, 5000, 70_001].into_iter().enumerate() {
                    let (dtype, op, in_place) = (DataType::F32, ops[i % 3], i % 2 == 0);
                    if !algorithm.can(count * dtype.size(), &shape) {
                        continue;
                    }
                    let (algorithm, exact) = (Some(algorithm.name), true);
                    rank.check(&Case { kind, dtype, op, count, in_place, algorithm, exact });
                }
            }
        }
        for algorithm in dist::algo::algorithms(OpKind::Barrier).filter(|row| row.can(0, &shape)) {
            let algorithm = Some(algorithm.name.to_owned());
            let options = dist::api::CallOptions { algorithm, ..Default::default() };
            (0..20).for_each(|_| rank.group().run(dist::api::Call::barrier(), &options).unwrap());
        }
    });
}

macro_rules! layouts {
    ($test:ident: $($name:ident $layout:literal $(, $slot:expr)?;)+) => {
        mod $test {
            $(
                #[test]
                fn $name() {
                    super::$test($layout $(, $slot)?);
                }
            )+
        }
    };
}

layouts! { table:
    two_apart "ab";
    five_apart "abcde";
    two_and_two "aabb";
    one_and_three "abbb";
    interleaved "abaacc";
    four_nodes "aabcccdd";
}

layouts! { sizes:
    two_apart "ab", 4096;
    three_apart "abc", 4096;
    two_and_two "aabb", 256 << 10;
    three_one_two "aaabcc", 64 << 10;
}

layouts! { by_name:
    two_apart "ab";
    five_apart "abcde";
    seven_apart "abcdefg";
    two_and_two "aabb";
    one_and_three "abbb";
    three_one_two "aaabcc";
    interleaved "abab";
    mixed "abaacc";
    four_nodes "aabcccdd";
}

#[test]
fn averages_of_narrow_floats_fit_where_their_sums_do_not() {
    use dist::api::{Call, CallOptions};
    use dist::base::buffer::{Dst, Src};
    // 40 000, 288 and 40 960.
    let large: [(DataType, &[u8]); 3] =
        [(DataType::F16, &[0xe2, 0x78]), (DataType::F8E4M3, &[0x79]), (DataType::F8E5M2, &[0x79])];
    for layout in ["ab", "abcd", "aabb", "abbb"] {
        let shape = shape(layout);
        run(QUEUES, layout, 4096, |rank| {
            let (me, size) = (rank.group().rank(), rank.group().size());
            for (dtype, element) in large {
                let input = element.repeat(size * 3001);
                let part = &input[..element.len() * 3001];
                for kind in [OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter] {
                    let able = |row: &&dist::algo::Algorithm| row.can(part.len(), &shape);
                    for algorithm in dist::algo::algorithms(kind).filter(able) {
                        let mut output = vec![0x77; part.len()];
                        let recv = Dst::from(output.as_mut_slice());
                        let (all, one) = (Src::from(input.as_slice()), Src::from(part));
                        let call = match kind {
                            OpKind::AllReduce => Call::all_reduce(one, recv, dtype, ReduceOp::Avg),
                            OpKind::Reduce => {
                                let recv = if me == 0 { recv } else { Dst::empty() };
                                Call::reduce(one, recv, dtype, ReduceOp::Avg, 0)
                            }
                            _ => Call::reduce_scatter(all, recv, dtype, ReduceOp::Avg),
                        };
                        let name = Some(algorithm.name.to_owned());
                        let options = CallOptions { algorithm: name, ..CallOptions::default() };
                        rank.group().run(call, &options).unwrap();
                        let gets = kind != OpKind::Reduce || me == 0;
                        assert!(!gets || output == part, "{dtype}, {layout}, {}", algorithm.name);
                    }
                }
            }
        });
    }
}

#[test]
fn repeated_calls_give_the_same_bits_on_all_ranks() {
    use dist::base::buffer::{Dst, Src};
    use std::sync::Mutex;
    for layout in ["abcde", "abaacc"] {
        for count in [100, 3000, 50_001, 600_001] {
            // Sums that depend on the order.
            let value = |rank: usize, i: usize| 1.0 / (rank * 7 + i % 1000 + 1) as f32;
            let first: Mutex<Option<Vec<u8>>> = Mutex::new(None);
            run(QUEUES, layout, 16 << 10, |rank| {
                let own = |i| value(rank.group().rank(), i).to_le_bytes();
                let input: Vec<u8> = (0..count).flat_map(own).collect();
                for _ in 0..3 {
                    let mut output = vec![0; input.len()];
                    let (send, recv) =
                        (Src::from(input.as_slice()), Dst::from(output.as_mut_slice()));
                    let options = Default::default();
                    let call =
                        dist::api::Call::all_reduce(send, recv, DataType::F32, ReduceOp::Sum);
                    rank.group().run(call, &options).unwrap();
                    let mut first = first.lock().unwrap();
                    assert!(*first.get_or_insert_with(|| output.clone()) == output);
                }
            });
        }
    }
}
