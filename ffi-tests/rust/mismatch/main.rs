//! The mismatch matrix: ranks whose calls differ, in every argument of a call, over every
//! transport, with each rank as the differing one. A rank inside of the operation gets an error
//! with both descriptions. A rank that has completed the operation (a root or a sender) gets this
//! error from its next call. If ranks have completed it, the error may describe the next call of
//! such a rank instead.
//!
//! The ranks are threads; `faults.rs` and `multi_host` have some of these tests with processes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test says what it has covered")]

mod call_descriptions;
#[path = "../conformance/ranks.rs"]
mod ranks;

use call_descriptions::CallDescription;
use dist::base::dtype::DataType;
use dist::base::error::{Error, ErrorKind, Result};
use dist::base::op::ReduceOp;
use dist::transport::OpKind;
use std::sync::{Barrier, Mutex};

/// The transport, and the hosts of the ranks as a repeated pattern.
type NodeLayout = (&'static str, &'static str);

/// The consecutive calls of the other ranks, and the calls of the differing rank.
type MismatchCase = (Vec<CallDescription>, Vec<CallDescription>);

/// Returns all ways in which a call can differ from the usual call.
fn cases() -> Vec<(&'static str, MismatchCase)> {
    let mut all = Vec::new();
    let mut add = |name, usual: CallDescription, odd: CallDescription| {
        all.push((name, (vec![usual], vec![odd])))
    };
    for (number, kind) in OpKind::ALL.into_iter().enumerate() {
        let usual = CallDescription::typical(kind, 10);
        let next = OpKind::ALL[(number + 1) % OpKind::ALL.len()];
        add("kind", usual, CallDescription::typical(next, 10));
        add(
            "label",
            CallDescription { label: "bucket a", ..usual },
            CallDescription { label: "bucket b", ..usual },
        );
        add("label on one rank", usual, CallDescription { label: "b\u{fc}cket {}", ..usual });
        if kind == OpKind::Barrier {
            continue;
        }
        add("dtype", usual, CallDescription { dtype: DataType::F64, ..usual });
        add("dtype of the same size", usual, CallDescription { dtype: DataType::I32, ..usual });
        if kind.is_reduction() {
            add("op", usual, CallDescription { op: ReduceOp::Max, ..usual });
        }
        if usual.has_root() {
            add("root", usual, CallDescription { root: 1, ..usual });
        }
        if usual.has_count() {
            add("count", usual, CallDescription { count: 11, ..usual });
            add("count by far", usual, CallDescription { count: 100_000, ..usual });
            let large = CallDescription { count: 100_000, ..usual };
            add("large count", large, CallDescription { count: 100_001, ..usual });
            let label = "a label of thirty-two bytes: abc";
            add("label of a large call", large, CallDescription { label, ..large });
        }
    }
    for (first, second) in [
        (OpKind::Barrier, OpKind::Broadcast),
        (OpKind::AllReduce, OpKind::AllGather),
        (OpKind::ReduceScatter, OpKind::AllReduce),
    ] {
        let (first, second) =
            (CallDescription::typical(first, 10), CallDescription::typical(second, 10));
        all.push(("order", (vec![first, second], vec![second, first])));
    }
    for kind in [OpKind::AllReduce, OpKind::Barrier, OpKind::AllToAllV] {
        let [a, b] = ["bucket a", "bucket b"]
            .map(|label| CallDescription { label, ..CallDescription::typical(kind, 10) });
        all.push(("order of labels", (vec![a, b], vec![b, a])));
    }
    all
}

/// The number of findings at which the test stops.
const MAX_FINDINGS: usize = 10;

/// The result of one rank's calls: the number of successful calls, and the error.
type RankOutcome = (usize, Option<Error>);

/// Lets every rank make a matching call, its calls from `calls`, and two barriers.
fn run_calls(layout: NodeLayout, calls: &[Vec<CallDescription>]) -> Vec<RankOutcome> {
    let hosts: Vec<char> = layout.1.chars().cycle().take(calls.len()).collect();
    let options = |rank: usize| format!("transport={};host_id=h{}", layout.0, hosts[rank]);
    // No rank leaves before all ranks have their error; otherwise a slower rank might report the
    // departure instead.
    let done = Barrier::new(calls.len());
    let outcomes: Vec<Mutex<RankOutcome>> = calls.iter().map(|_| Mutex::default()).collect();
    ranks::run_ranks(options, calls.len(), |rank| {
        let me = rank.group().rank();
        // A rank that is still in the first call may get the error about the next call from it.
        let alike = [CallDescription::typical(OpKind::AllReduce, 3)];
        let behind = [CallDescription::typical(OpKind::Barrier, 0); 2];
        let mut succeeded = 0;
        let mut each = alike.iter().chain(&calls[me]).chain(&behind);
        let outcome: Result<()> = each.try_for_each(|what| {
            what.call(rank)?;
            succeeded += 1;
            Ok(())
        });
        *outcomes[me].lock().unwrap() = (succeeded, outcome.err());
        done.wait();
    });
    outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap()).collect()
}

/// Runs one case with one differing rank of `size` and returns the first finding.
fn check_case(
    layout: NodeLayout,
    (name, case): &(&str, MismatchCase),
    size: usize,
    differing_rank: usize,
) -> Option<String> {
    let (usual, other) = case;
    let calls: Vec<Vec<CallDescription>> = (0..size)
        .map(|rank| if rank == differing_rank { other.clone() } else { usual.clone() })
        .collect();
    let first: Vec<CallDescription> = calls.iter().map(|calls| calls[0]).collect();
    // The matching call is #1, so the differing call is #2.
    let both = [usual[0].error_text(2), other[0].error_text(2)];
    for (me, (succeeded, error)) in run_calls(layout, &calls).into_iter().enumerate() {
        let what =
            format!("{name}, {layout:?}, {size} ranks, odd {differing_rank}, rank {me}: {both:?}");
        let Some(error) = error else { return Some(format!("{what}: it was told nothing")) };
        let text = error.message();
        // If a rank has completed the operation, its peers may only know its next call, or that it
        // and a third rank agree on that call but not on the previous calls.
        let somebody_left = (0..size).any(|rank| first[rank].may_finish_early(rank, &first));
        let says_next = text.contains("agree on barrier #3, but not on the calls before it")
            || (text.contains("barrier #3") && both.iter().any(|both| text.contains(both)));
        // If the mismatch is in an earlier operation than the one in which it was found, the rank
        // knows only the label of its peer's operation.
        let says_labels = usual[0].label != other[0].label
            && [&usual[0], &other[0]].iter().all(|call| text.contains(&call.quoted_label()));
        let says_next = says_next || says_labels;
        let says_both = both.iter().all(|both| text.contains(both))
            && text.contains(&format!("rank {differing_rank} (pid "));
        let is_right =
            error.kind() == ErrorKind::Mismatch && (says_both || (somebody_left && says_next));
        let most = 1 + usize::from(first[me].may_finish_early(me, &first));
        if !is_right || succeeded > most {
            return Some(format!("{what}: after {succeeded} calls: {error}"));
        }
    }
    None
}

/// Runs all cases over these layouts.
fn check_layouts(layouts: &[NodeLayout]) {
    let (mut checked, mut wrong) = (0, Vec::new());
    for &layout in layouts {
        for case in cases() {
            if wrong.len() >= MAX_FINDINGS {
                break;
            }
            for size in 2..=4 {
                for differing_rank in 0..size {
                    checked += 1;
                    wrong.extend(check_case(layout, &case, size, differing_rank));
                }
            }
        }
    }
    println!("{checked} mismatches, {} not told as they must be", wrong.len());
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn mismatch_over_inproc() {
    check_layouts(&[("inproc", "a")]);
}

#[test]
fn mismatch_over_shared_memory() {
    check_layouts(&[("shm", "a")]);
}

#[test]
fn mismatch_over_tcp() {
    check_layouts(&[("tcp", "abcd")]);
}

#[test]
fn mismatch_over_shared_memory_and_tcp() {
    check_layouts(&[("shm", "aab")]);
}

#[test]
fn different_algorithm_is_a_mismatch() {
    let cases = [(("shm", "a"), ["inline", "one_shot"]), (("tcp", "abcd"), ["linear", "ring"])];
    for (layout, names) in cases {
        let by = |name| CallDescription {
            algorithm: Some(name),
            ..CallDescription::typical(OpKind::AllReduce, 10)
        };
        let case = ("algorithm", (vec![by(names[0])], vec![by(names[1])]));
        for (size, odd) in [(2, 0), (3, 1), (4, 3)] {
            assert_eq!(check_case(layout, &case, size, odd), None);
        }
    }
}
