//! Algorithm selection: calls that need a reduction in rank order on every placement of the ranks,
//! and overrides by name.

use crate::matrix::shape_of;
use crate::ranks::{RankUnderTest, run_ranks};
use dist::algo::algorithms;
use dist::api::{Call, CallOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::nodes::NodeMap;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;
use std::collections::HashMap;
use std::sync::Mutex;

const KINDS: [OpKind; 6] = [
    OpKind::AllReduce,
    OpKind::Reduce,
    OpKind::ReduceScatter,
    OpKind::ReduceScatterV,
    OpKind::Scan,
    OpKind::Exscan,
];

/// Types and operators whose results depend on the order of the roundings.
const ORDER_DEPENDENT_REDUCTIONS: [(DataType, ReduceOp); 6] = [
    (DataType::F32, ReduceOp::Sum),
    (DataType::F32, ReduceOp::PremulSum),
    (DataType::Bf16, ReduceOp::Avg),
    (DataType::F16, ReduceOp::Sum),
    (DataType::F16, ReduceOp::PremulSum),
    (DataType::F8E5M2, ReduceOp::Avg),
];

fn run_on_layout(transport: &str, layout: &str, more: &str, body: impl Fn(&RankUnderTest) + Sync) {
    let hosts: Vec<char> = layout.chars().collect();
    let options = |rank: usize| {
        let host = hosts[rank];
        format!("transport={transport};slot_bytes=4096;host_id={host};{more}")
    };
    run_ranks(options, hosts.len(), body);
}

/// Returns positive numbers below 2, so that the sum of several ranks does not overflow.
fn values(dtype: DataType, rank: usize, count: usize) -> Vec<u8> {
    let bits = |i: usize| {
        let noise = (i * 4 + rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        match dtype {
            DataType::F32 => vec![noise[0], noise[1], noise[2] & 0x7f, 0x3f],
            DataType::F8E5M2 => vec![0x38 | noise[3] & 7],
            DataType::F16 => vec![noise[0], 0x38 | noise[1] & 7],
            _ => vec![noise[0] & 0x7f, 0x3f],
        }
    };
    (0..count).flat_map(bits).collect()
}

/// Makes one call and returns this rank's result.
fn fold(
    rank: &RankUnderTest,
    kind: OpKind,
    (dtype, op): (DataType, ReduceOp),
    count: usize,
    algorithm: Option<&str>,
) -> Vec<u8> {
    let (me, size) = (rank.group().rank(), rank.group().size());
    let is_vector = matches!(kind, OpKind::AllReduce | OpKind::Reduce) || kind.is_prefix();
    let blocks = if is_vector { 1 } else { size };
    let input = values(dtype, me, blocks * count);
    let bytes = count * dtype.size();
    let mut output = vec![0; bytes];
    let (send, recv) = (Src::from(input.as_slice()), Dst::from(output.as_mut_slice()));
    let root = size - 1;
    let call = match kind {
        OpKind::AllReduce => Call::all_reduce(send, recv, dtype, op),
        OpKind::Reduce if me == root => Call::reduce(send, recv, dtype, op, root),
        OpKind::Reduce => Call::reduce(send, Dst::empty(), dtype, op, root),
        OpKind::ReduceScatter => Call::reduce_scatter(send, recv, dtype, op),
        OpKind::Scan => Call::scan(send, recv, dtype, op),
        OpKind::Exscan if me == 0 => Call::exscan(send, Dst::empty(), dtype, op),
        OpKind::Exscan => Call::exscan(send, recv, dtype, op),
        _ => {
            let sends = (0..size).map(|to| send.slice(to * bytes, bytes)).collect();
            Call::reduce_scatter_v(sends, recv, dtype, op)
        }
    };
    let options = CallOptions {
        premul_scale: 0.3 + me as f64,
        canonical: true,
        algorithm: algorithm.map(str::to_owned),
        ..CallOptions::default()
    };
    rank.group().run(call, &options).unwrap();
    output
}

#[test]
fn canonical_results_do_not_depend_on_placement() {
    let first: Mutex<HashMap<_, Vec<u8>>> = Mutex::default();
    for (transport, layout) in [
        ("inproc", "aaaa"),
        ("shm", "aaaa"),
        ("inproc", "abcd"),
        ("tcp", "aaaa"),
        ("auto", "aabb"),
        ("inproc", "abab"),
        ("inproc", "abbb"),
    ] {
        let hosts: Vec<char> = layout.chars().collect();
        let nodes =
            if transport == "tcp" { NodeMap::one_per_rank(4) } else { NodeMap::by_label(&hosts) };
        let shape = shape_of(&nodes);
        run_on_layout(transport, layout, "", |rank| {
            let all = KINDS
                .into_iter()
                .flat_map(|kind| ORDER_DEPENDENT_REDUCTIONS.map(|with| (kind, with)));
            for (kind, with) in all.filter(|(kind, (_, op))| kind.check_op(*op).is_ok()) {
                for count in [1, 12, 1001, 20_011] {
                    let able = |row: &&dist::algo::Algorithm| {
                        row.ordered && row.can_run(count * with.0.size(), &shape)
                    };
                    let names = algorithms(kind).filter(able).map(|row| Some(row.name));
                    for name in names.chain([None]) {
                        let got = fold(rank, kind, with, count, name);
                        let key =
                            (rank.group().rank(), kind as u8, with.0 as u8, with.1 as u8, count);
                        let mut first = first.lock().unwrap();
                        let same = first.entry(key).or_insert_with(|| got.clone()) == &got;
                        assert!(same, "{} {with:?} {count} in {layout} by {name:?}", kind.name());
                    }
                }
            }
        });
    }
}

#[test]
fn call_overrides_precede_overrides_of_rank_0() {
    let file = std::env::temp_dir().join(format!("dist-tuning-{}.json", std::process::id()));
    let rows = r#"{"rows": [{"operation": "all_reduce", "algorithm": "recursive_doubling", "max_bytes": 999},
        {"operation": "reduce", "algorithm": "ordered"}]}"#;
    std::fs::write(&file, rows).unwrap();
    let options = |rank: usize| match rank {
        0 => {
            let list = "all_reduce=two_shot,all_reduce=rabenseifner,broadcast=chain";
            format!("transport=inproc;host_id=0;algorithm={list};tuning_file={}", file.display())
        }
        _ => format!("transport=inproc;host_id={rank};algorithm=broadcast=binomial"),
    };
    run_ranks(options, 3, |rank| {
        let described = rank.group().describe();
        let chosen = |kind: &str| {
            let first = &described["native"]["algorithms"][kind]["chosen"][0];
            (first["algorithm"].as_str().unwrap(), first["source"].as_str().unwrap())
        };
        assert_eq!(chosen("all_reduce"), ("rabenseifner", "options"), "{described}");
        assert_eq!(chosen("broadcast"), ("chain", "options"));
        assert_eq!(chosen("reduce"), ("ordered", "tuning file, row 2"));
        assert_eq!(chosen("all_gather"), ("bruck", "table"));
        for name in [None, Some("recursive_doubling".to_owned())] {
            let mut output = [0; 4];
            let (send, recv) = (Src::from(&[1_u8; 4][..]), Dst::from(&mut output[..]));
            let options = CallOptions { algorithm: name, ..CallOptions::default() };
            let call = Call::all_reduce(send, recv, DataType::U8, ReduceOp::Sum);
            rank.group().run(call, &options).unwrap();
            assert_eq!(output, [3; 4]);
        }
    });
    std::fs::remove_file(&file).unwrap();
}

/// If the sum were rounded after each rank, it would stay at 16, since the next representable
/// number is 18.
#[test]
fn narrow_sums_of_many_ranks_keep_small_values() {
    let cases = [
        (DataType::F8E4M3, ReduceOp::Sum, vec![0x38], vec![0x5a]),
        (DataType::F8E4M3, ReduceOp::PremulSum, vec![0x38], vec![0x52]),
        (DataType::F8E4M3, ReduceOp::Avg, vec![0x38], vec![0x38]),
        (DataType::Bf16, ReduceOp::Sum, vec![0x80, 0x3f], vec![0xa0, 0x41]),
    ];
    let options = |rank: usize| format!("transport=inproc;slot_bytes=4096;host_id={rank}");
    run_ranks(options, 20, |rank| {
        for (dtype, op, one, sum) in &cases {
            // With these counts some slices are empty.
            for count in [1, 700, 3000] {
                let input = one.repeat(count);
                let is_root = rank.group().rank() == 7;
                let mut output = vec![0; if is_root { input.len() } else { 0 }];
                let (send, recv) = (Src::from(&input[..]), Dst::from(&mut output[..]));
                let algorithm = Some("reduce_scatter_gather".to_owned());
                let options =
                    CallOptions { algorithm, premul_scale: 0.5, ..CallOptions::default() };
                rank.group().run(Call::reduce(send, recv, *dtype, *op, 7), &options).unwrap();
                assert!(!is_root || output == sum.repeat(count), "{dtype} {op} {count}");
            }
        }
    });
}
