//! Groups on several nodes with values near the limits of narrow types; the numbers of the matrix
//! do not reach these limits.

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

#[test]
fn averages_of_narrow_floats_do_not_overflow() {
    use dist::api::{Call, CallOptions};
    use dist::base::buffer::{Dst, Src};
    // The elements are 40 000, 288 and 40 960.
    let large: [(DataType, &[u8]); 3] =
        [(DataType::F16, &[0xe2, 0x78]), (DataType::F8E4M3, &[0x79]), (DataType::F8E5M2, &[0x79])];
    for layout in ["ab", "abcd", "aabb", "abbb"] {
        let shape = node_shape(layout);
        run_ranks(INPROC, layout, 4096, |rank| {
            let (me, size) = (rank.group().rank(), rank.group().size());
            for (dtype, element) in large {
                let input = element.repeat(size * 3001);
                let part = &input[..element.len() * 3001];
                for kind in [OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter] {
                    let able = |row: &&dist::algo::Algorithm| row.can_run(part.len(), &shape);
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
