//! Averages near the limits of every type, in groups on one and on several nodes. The numbers of
//! the matrix do not reach these limits.

use crate::matrix::shape_of;
use crate::ranks;
use dist::algo::GroupShape;
use dist::base::dtype::DataType;
use dist::base::nodes::NodeMap;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;

/// The transport option for nodes that exchange messages through queues in memory.
const INPROC: &str = "inproc";

/// The transports between nodes: queues, and TCP.
pub(crate) const TRANSPORTS: [&str; 2] = [INPROC, "auto"];

/// Runs `body` on one rank for each letter.
fn run_ranks(
    transport: &str,
    layout: &str,
    slot_bytes: usize,
    body: impl Fn(&ranks::RankUnderTest) + Sync,
) {
    let letters: Vec<char> = layout.chars().collect();
    let options = |rank: usize| {
        format!("transport={transport};slot_bytes={slot_bytes};host_id={}", letters[rank])
    };
    ranks::run_ranks(options, letters.len(), &body);
}

fn node_shape(layout: &str) -> GroupShape {
    shape_of(&NodeMap::by_label(&layout.chars().collect::<Vec<_>>()))
}

/// Elements whose sum over two ranks overflows.
fn large_elements() -> Vec<(DataType, Vec<u8>)> {
    let (f32, f64) = (3e38f32.to_le_bytes().to_vec(), 1.5e308f64.to_le_bytes().to_vec());
    vec![
        // 40 000, 288 and 40 960.
        (DataType::F16, vec![0xe2, 0x78]),
        (DataType::F8E4M3, vec![0x79]),
        (DataType::F8E5M2, vec![0x79]),
        // The largest finite number.
        (DataType::Bf16, vec![0x7f, 0x7f]),
        (DataType::F32, f32.clone()),
        (DataType::F64, f64.clone()),
        (DataType::C64, f32.repeat(2)),
        (DataType::C128, f64.repeat(2)),
        (DataType::I8, vec![100]),
        (DataType::I8, vec![0x80]),
        (DataType::U8, vec![0xff]),
        (DataType::I16, i16::MIN.to_le_bytes().to_vec()),
        (DataType::U16, u16::MAX.to_le_bytes().to_vec()),
        (DataType::I32, i32::MAX.to_le_bytes().to_vec()),
        (DataType::U32, u32::MAX.to_le_bytes().to_vec()),
        (DataType::I64, i64::MIN.to_le_bytes().to_vec()),
        (DataType::U64, u64::MAX.to_le_bytes().to_vec()),
    ]
}

#[test]
fn averages_of_large_elements_do_not_overflow() {
    use dist::api::{Call, CallOptions};
    use dist::base::buffer::{Dst, Src};
    let large = large_elements();
    for layout in ["aa", "ab", "aaaa", "abcd", "aabb", "abbb"] {
        let shape = node_shape(layout);
        run_ranks(INPROC, layout, 4096, |rank| {
            let (me, size) = (rank.group().rank(), rank.group().size());
            for (dtype, element) in &large {
                let dtype = *dtype;
                let input = element.repeat(size * 3001);
                let part = &input[..element.len() * 3001];
                for kind in [OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter] {
                    let able = |row: &&dist::algo::Algorithm| {
                        row.can_run(part.len(), &shape) && (dtype.is_float() || row.ordered)
                    };
                    let rows = dist::algo::algorithms(kind).filter(able);
                    let names = rows.map(|row| Some(row.name.to_owned()));
                    for name in names.chain([None]) {
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
                        let text = format!("{dtype}, {layout}, {name:?}");
                        let options = CallOptions { algorithm: name, ..CallOptions::default() };
                        rank.group().run(call, &options).unwrap();
                        let gets = kind != OpKind::Reduce || me == 0;
                        assert!(!gets || output == part, "{text}");
                    }
                }
            }
        });
    }
}

#[test]
fn unordered_algorithms_refuse_averages_of_integers() {
    use dist::api::{Call, CallOptions};
    use dist::base::buffer::{Dst, Src};
    run_ranks(INPROC, "aabb", 4096, |rank| {
        let mut output = [0_u8; 8];
        let recv = Dst::from(&mut output[..]);
        let run = |name: &str| {
            let send = Src::from(&[100_u8; 8][..]);
            let call = Call::all_reduce(send, recv, DataType::U8, ReduceOp::Avg);
            let algorithm = Some(name.to_owned());
            rank.group().run(call, &CallOptions { algorithm, ..CallOptions::default() })
        };
        let error = run("ring").unwrap_err();
        for words in ["\"ring\" that computes exact averages of integers", "linear, ordered"] {
            assert!(error.message().contains(words), "{error}");
        }
        run("ordered").unwrap();
        assert_eq!(output, [100; 8]);
    });
}
