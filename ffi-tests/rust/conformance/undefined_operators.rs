//! Operators that are undefined for a type: every reduction refuses them with an error that names
//! the operator, the type and the back end. The group stays usable.

use crate::ranks;
use dist::api::{Call, CallOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::ErrorKind;
use dist::base::op::ReduceOp;

#[test]
fn undefined_pairs_are_refused_by_every_reduction() {
    for size in [1, 2] {
        ranks::run_ranks(
            |_| "transport=inproc".to_owned(),
            size,
            |rank| {
                let mut refused = 0;
                for dtype in DataType::ALL {
                    for op in ReduceOp::ALL.into_iter().filter(|op| !op.is_defined_for(dtype)) {
                        assert_refused(rank, dtype, op);
                        refused += 1;
                    }
                }
                // There are 17 types, 9 operators and 113 defined pairs.
                assert_eq!(refused, 17 * 9 - 113);
                rank.group().run(Call::barrier(), &CallOptions::default()).unwrap();
            },
        );
    }
}

fn assert_refused(rank: &ranks::RankUnderTest, dtype: DataType, op: ReduceOp) {
    let size = rank.group().size();
    let width = dtype.size();
    let (input, mut output) = (vec![0; size * width], vec![7; width]);
    let blocks = || input.chunks(width).map(Src::from).collect();
    let (all, one) = (Src::from(&input[..]), Src::from(&input[..width]));
    for which in 0..6 {
        let recv = Dst::from(&mut output[..]);
        let call = match which {
            0 => Call::all_reduce(one, recv, dtype, op),
            1 if rank.group().rank() == 0 => Call::reduce(one, recv, dtype, op, 0),
            1 => Call::reduce(one, Dst::empty(), dtype, op, 0),
            2 => Call::reduce_scatter(all, recv, dtype, op),
            3 => Call::scan(one, recv, dtype, op),
            4 => Call::exscan(one, recv, dtype, op),
            _ => Call::reduce_scatter_v(blocks(), recv, dtype, op),
        };
        let options = CallOptions { premul_scale: 1.0, ..CallOptions::default() };
        let error = rank.group().run(call, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for word in [op.name(), dtype.name(), "native"] {
            assert!(error.message().contains(word), "{word}: {error}");
        }
        assert!(output.iter().all(|&byte| byte == 7), "{error}");
    }
}

#[test]
fn averages_of_prefixes_are_refused() {
    ranks::run_ranks(
        |_| "transport=inproc".to_owned(),
        2,
        |rank| {
            let (input, mut output) = ([1_u8; 4], [7_u8; 4]);
            for is_inclusive in [true, false] {
                let (send, recv) = (Src::from(&input[..]), Dst::from(&mut output[..]));
                let (dtype, op) = (DataType::U8, ReduceOp::Avg);
                let call = match is_inclusive {
                    true => Call::scan(send, recv, dtype, op),
                    false => Call::exscan(send, recv, dtype, op),
                };
                let error = rank.group().run(call, &CallOptions::default()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.message().contains("AVG in "), "{error}");
            }
            assert_eq!(output, [7; 4]);
            rank.group().run(Call::barrier(), &CallOptions::default()).unwrap();
        },
    );
}
