//! What ranks on several nodes hear when they do not call the same, or not in time.

use crate::ranks::{self, RankUnderTest};
use dist::api::CallOptions;
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::{Error, ErrorKind};
use dist::base::op::ReduceOp;
use std::sync::Mutex;

/// What a rank calls.
type Call = fn(&RankUnderTest<'_>) -> dist::base::error::Result<()>;

fn options() -> CallOptions {
    CallOptions { timeout_ms: 20_000, ..CallOptions::default() }
}

fn all_reduce(
    rank: &RankUnderTest<'_>,
    count: usize,
    op: ReduceOp,
) -> dist::base::error::Result<()> {
    let (input, mut output) = (vec![0; 4 * count], vec![0; 4 * count]);
    let (send, recv) = (Src::from(input.as_slice()), Dst::from(output.as_mut_slice()));
    rank.group().all_reduce(send, recv, DataType::I32, op, &options())
}

fn broadcast(rank: &RankUnderTest<'_>, root: usize) -> dist::base::error::Result<()> {
    let mut data = vec![0; 400];
    rank.group().broadcast(Dst::from(data.as_mut_slice()), DataType::I32, root, &options())
}

fn barrier(rank: &RankUnderTest<'_>) -> dist::base::error::Result<()> {
    rank.group().barrier(&options())
}

/// Runs one call on each rank, the odd one on `odd`, and another barrier where it succeeded; what each rank heard.
fn heard(layout: &str, odd: usize, usual: Call, odd_one: Call) -> Vec<Error> {
    let letters: Vec<char> = layout.chars().collect();
    let errors: Vec<Mutex<Option<Error>>> = letters.iter().map(|_| Mutex::new(None)).collect();
    let options = |rank: usize| format!("transport=inproc;host_id={}", letters[rank]);
    ranks::run_with(options, letters.len(), |rank| {
        let me = rank.group().rank();
        let outcome = if me == odd { odd_one(rank) } else { usual(rank) };
        // A root may be gone before the others come; it hears at its next call.
        let outcome = outcome.and_then(|()| barrier(rank)).and_then(|()| barrier(rank));
        *errors[me].lock().unwrap() = outcome.err();
    });
    errors.into_iter().map(|error| error.into_inner().unwrap().unwrap()).collect()
}

/// Every rank must hear of both descriptions.
fn mismatch(layout: &str, odd: usize, usual: Call, odd_one: Call, both: [&str; 2]) {
    for (rank, error) in heard(layout, odd, usual, odd_one).iter().enumerate() {
        let what = format!("{layout}, rank {rank}: {error}");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}");
        assert!(both.iter().all(|text| error.message().contains(text)), "{what}");
        assert!(error.message().contains(&format!("rank {odd} (pid ")), "{what}");
    }
}

const LAYOUTS: [&str; 4] = ["ab", "abcde", "aabb", "abaacc"];

#[test]
fn another_operation_is_named_on_all_sides() {
    let other: Call = |rank| all_reduce(rank, 10, ReduceOp::Sum);
    for layout in LAYOUTS {
        for odd in [0, layout.len() - 1] {
            let both = ["called barrier #1", "called all_reduce #1 (i32, SUM, count 10)"];
            mismatch(layout, odd, barrier, other, both);
        }
    }
}

#[test]
fn another_count_or_operator_is_named_on_all_sides() {
    let usual: Call = |rank| all_reduce(rank, 10, ReduceOp::Sum);
    for layout in LAYOUTS {
        let other: Call = |rank| all_reduce(rank, 100_000, ReduceOp::Sum);
        mismatch(layout, 1, usual, other, ["count 10)", "count 100000)"]);
        let other: Call = |rank| all_reduce(rank, 10, ReduceOp::Max);
        mismatch(layout, 1, usual, other, ["i32, SUM", "i32, MAX"]);
    }
}

#[test]
fn another_root_or_order_is_named_on_all_sides() {
    for layout in LAYOUTS {
        mismatch(
            layout,
            1,
            |rank| broadcast(rank, 0),
            |rank| broadcast(rank, 1),
            ["root 0", "root 1"],
        );
        let swapped: Call = |rank| broadcast(rank, 0).and_then(|()| barrier(rank));
        let usual: Call = |rank| barrier(rank).and_then(|()| broadcast(rank, 0));
        mismatch(layout, 1, usual, swapped, ["barrier #", "broadcast #"]);
    }
}

/// The late rank calls nothing until all others have given up.
#[test]
fn at_the_deadline_the_late_rank_is_named() {
    for (layout, late) in
        [("ab", 1), ("abcde", 3), ("abcde", 0), ("aabb", 3), ("aabb", 0), ("abaacc", 1)]
    {
        for large in [false, true] {
            let letters: Vec<char> = layout.chars().collect();
            let options = |rank: usize| format!("transport=inproc;host_id={}", letters[rank]);
            let done = std::sync::Barrier::new(letters.len());
            ranks::run_with(options, letters.len(), |rank| {
                barrier(rank).unwrap();
                if rank.group().rank() != late {
                    let bytes = if large { 2 << 20 } else { 8 };
                    let (input, mut output) = (vec![0; bytes], vec![0; bytes]);
                    let (send, recv) =
                        (Src::from(input.as_slice()), Dst::from(output.as_mut_slice()));
                    let soon = CallOptions { timeout_ms: 300, ..CallOptions::default() };
                    let outcome =
                        rank.group().all_reduce(send, recv, DataType::I32, ReduceOp::Sum, &soon);
                    let error = outcome.unwrap_err();
                    let what =
                        format!("{layout}, large {large}, rank {}: {error}", rank.group().rank());
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{what}");
                    assert_eq!(error.culprit(), Some(late), "{what}");
                    let name = format!("waiting for rank {late} (pid ");
                    assert!(error.message().contains(&name), "{what}");
                    assert!(error.message().contains("(allowed: 300 ms)"), "{what}");
                }
                done.wait();
            });
        }
    }
}
