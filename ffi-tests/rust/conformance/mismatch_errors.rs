//! The errors on ranks of several nodes when their calls do not match or a call comes too late.

use crate::multi_node_groups::TRANSPORTS;
use crate::ranks::{self, RankUnderTest};
use dist::api::{Call, CallOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::{Error, ErrorKind, Result};
use dist::base::op::ReduceOp;
use std::sync::Mutex;

/// The call that a rank makes.
type RankCall = fn(&RankUnderTest) -> Result<()>;
type CallOnRank<'a> = &'a (dyn Fn(&RankUnderTest) -> Result<()> + Sync);

fn options() -> CallOptions {
    CallOptions { timeout_ms: 20_000, ..CallOptions::default() }
}

fn all_reduce(rank: &RankUnderTest, count: usize, op: ReduceOp) -> Result<()> {
    let (input, mut output) = (vec![0; 4 * count], vec![0; 4 * count]);
    let (send, recv) = (Src::from(input.as_slice()), Dst::from(output.as_mut_slice()));
    rank.group().run(Call::all_reduce(send, recv, DataType::I32, op), &options())
}

fn broadcast(rank: &RankUnderTest, root: usize) -> Result<()> {
    let mut data = vec![0; 400];
    let data = Dst::from(data.as_mut_slice());
    let call = Call::broadcast(data, DataType::I32, root, rank.group().rank());
    rank.group().run(call, &options())
}

fn barrier(rank: &RankUnderTest) -> Result<()> {
    rank.group().run(Call::barrier(), &options())
}

/// Makes one call on each rank, `different_call` on rank `differing_rank`, and two barriers if it
/// succeeded. Returns the error of each rank.
fn rank_errors(
    transport: &str,
    layout: &str,
    differing_rank: usize,
    usual: CallOnRank<'_>,
    different_call: CallOnRank<'_>,
) -> Vec<Error> {
    let letters: Vec<char> = layout.chars().collect();
    // No rank leaves before all ranks have their error; otherwise a slower rank might report the
    // departure instead.
    let done = std::sync::Barrier::new(letters.len());
    let errors: Vec<Mutex<Option<Error>>> = letters.iter().map(|_| Mutex::new(None)).collect();
    let options = |rank: usize| format!("transport={transport};host_id={}", letters[rank]);
    ranks::run_ranks(options, letters.len(), |rank| {
        let me = rank.group().rank();
        let outcome = if me == differing_rank { different_call(rank) } else { usual(rank) };
        // A root may return before the other ranks arrive; it gets the error in its next call.
        let outcome = outcome.and_then(|()| barrier(rank)).and_then(|()| barrier(rank));
        *errors[me].lock().unwrap() = outcome.err();
        done.wait();
    });
    errors.into_iter().map(|error| error.into_inner().unwrap().unwrap()).collect()
}

/// Asserts that the error of every rank has both descriptions.
fn check_mismatch(
    layout: &str,
    differing_rank: usize,
    usual: RankCall,
    different_call: RankCall,
    both: [&str; 2],
) {
    for transport in TRANSPORTS {
        let errors = rank_errors(transport, layout, differing_rank, &usual, &different_call);
        for (rank, error) in errors.iter().enumerate() {
            let what = format!("{layout} over {transport}, rank {rank}: {error}");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}");
            assert!(both.iter().all(|text| error.message().contains(text)), "{what}");
            assert!(error.message().contains(&format!("rank {differing_rank} (pid ")), "{what}");
        }
    }
}

/// As [`rank_errors`], with the same call on every rank.
fn check_all_ranks_report(layout: &str, body: CallOnRank<'_>, texts: [&str; 2]) {
    for transport in TRANSPORTS {
        for (rank, error) in rank_errors(transport, layout, 0, body, body).iter().enumerate() {
            let what = format!("{layout} over {transport}, rank {rank}: {error}");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}");
            assert!(texts.iter().all(|text| error.message().contains(text)), "{what}");
        }
    }
}

const LAYOUTS: [&str; 4] = ["ab", "abcde", "aabb", "abaacc"];

#[test]
fn different_operation_is_reported_on_all_ranks() {
    let other: RankCall = |rank| all_reduce(rank, 10, ReduceOp::Sum);
    for layout in LAYOUTS {
        for differing_rank in [0, layout.len() - 1] {
            let both = ["called barrier #1", "called all_reduce #1 (i32, SUM, count 10)"];
            check_mismatch(layout, differing_rank, barrier, other, both);
        }
    }
}

#[test]
fn different_count_or_operator_is_reported_on_all_ranks() {
    let usual: RankCall = |rank| all_reduce(rank, 10, ReduceOp::Sum);
    for layout in LAYOUTS {
        let other: RankCall = |rank| all_reduce(rank, 100_000, ReduceOp::Sum);
        check_mismatch(layout, 1, usual, other, ["count 10)", "count 100000)"]);
        let other: RankCall = |rank| all_reduce(rank, 10, ReduceOp::Max);
        check_mismatch(layout, 1, usual, other, ["i32, SUM", "i32, MAX"]);
    }
}

#[test]
fn different_root_or_order_is_reported_on_all_ranks() {
    for layout in LAYOUTS {
        check_mismatch(
            layout,
            1,
            |rank| broadcast(rank, 0),
            |rank| broadcast(rank, 1),
            ["root 0", "root 1"],
        );
        let swapped: RankCall = |rank| broadcast(rank, 0).and_then(|()| barrier(rank));
        let usual: RankCall = |rank| barrier(rank).and_then(|()| broadcast(rank, 0));
        check_mismatch(layout, 1, usual, swapped, ["barrier #", "broadcast #"]);
    }
}

#[test]
fn different_algorithm_is_reported_on_all_ranks() {
    let cases = [("aa", ["inline", "one_shot"]), ("ab", ["linear", "ring"])];
    for (layout, names) in cases {
        let name = move |rank: &RankUnderTest| names[rank.group().rank()].to_owned();
        let body = move |rank: &RankUnderTest| {
            let options = CallOptions { algorithm: Some(name(rank)), ..options() };
            let (input, mut output) = ([0; 40], [0; 40]);
            let (send, recv) = (Src::from(&input[..]), Dst::from(&mut output[..]));
            let call = Call::all_reduce(send, recv, DataType::I32, ReduceOp::Sum);
            rank.group().run(call, &options)
        };
        let texts = names.map(|name| format!("(i32, SUM, count 10) with the algorithm \"{name}\""));
        check_all_ranks_report(layout, &body, [&texts[0], &texts[1]]);
    }
}

#[test]
fn mismatched_peers_across_nodes_are_detected() {
    // The ranks of the first node do not wait for the ranks of the other node, which wait for them.
    let body: RankCall = |rank| {
        if rank.group().rank() < 2 {
            return all_reduce(rank, 1 << 18, ReduceOp::Sum);
        }
        let (input, mut output) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let is_root = rank.group().rank() == 3;
        let recv = if is_root { Dst::from(output.as_mut_slice()) } else { Dst::empty() };
        let send = Src::from(input.as_slice());
        let call = Call::reduce(send, recv, DataType::I32, ReduceOp::Sum, 3);
        rank.group().run(call, &options())
    };
    check_all_ranks_report("aabb", &body, ["called all_reduce #1", "called reduce #1"]);
}

#[test]
fn finished_rank_is_not_blamed() {
    for transport in TRANSPORTS {
        let options = |rank: usize| format!("transport={transport};host_id=h{rank}");
        let done = std::sync::Barrier::new(8);
        ranks::run_ranks(options, 8, |rank| {
            let me = rank.group().rank();
            let soon = CallOptions {
                timeout_ms: if me == 7 { 600 } else { 20_000 },
                algorithm: Some("binomial".to_owned()),
                ..CallOptions::default()
            };
            let mut data = vec![0; 400];
            let call = Call::broadcast(Dst::from(data.as_mut_slice()), DataType::I32, 0, me);
            match me {
                // Rank 6 is the parent of rank 7 in the tree.
                6 => {}
                7 => {
                    let error = rank.group().run(call, &soon).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{transport}: {error}");
                    assert_eq!(error.culprit(), Some(6), "{transport}: {error}");
                }
                _ => rank.group().run(call, &soon).unwrap(),
            }
            done.wait();
        });
    }
}

#[test]
fn late_rank_is_named_at_the_deadline() {
    let cases = [("ab", 1), ("abcde", 3), ("abcde", 0), ("aabb", 3), ("aabb", 0), ("abaacc", 1)];
    for transport in TRANSPORTS {
        for (layout, late) in cases {
            [8, 2 << 20]
                .into_iter()
                .for_each(|bytes| check_late_rank(transport, layout, late, bytes));
        }
    }
}

/// The late rank makes no call until all other ranks have given up.
fn check_late_rank(transport: &str, layout: &str, late: usize, bytes: usize) {
    let letters: Vec<char> = layout.chars().collect();
    let options = |rank: usize| format!("transport={transport};host_id={}", letters[rank]);
    let done = std::sync::Barrier::new(letters.len());
    ranks::run_ranks(options, letters.len(), |rank| {
        barrier(rank).unwrap();
        if rank.group().rank() != late {
            let (input, mut output) = (vec![0; bytes], vec![0; bytes]);
            let (send, recv) = (Src::from(input.as_slice()), Dst::from(output.as_mut_slice()));
            let soon = CallOptions { timeout_ms: 300, ..CallOptions::default() };
            let outcome =
                rank.group().run(Call::all_reduce(send, recv, DataType::I32, ReduceOp::Sum), &soon);
            let error = outcome.unwrap_err();
            let me = rank.group().rank();
            let what = format!("{layout} over {transport}, {bytes} bytes, rank {me}: {error}");
            assert_eq!(error.kind(), ErrorKind::Timeout, "{what}");
            assert_eq!(error.culprit(), Some(late), "{what}");
            let name = format!("waiting for rank {late} (pid ");
            assert!(error.message().contains(&name), "{what}");
            assert!(error.message().contains("(allowed: 300 ms)"), "{what}");
        }
        done.wait();
    });
}
