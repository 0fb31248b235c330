//! Tests the errors when two ranks disagree about the length of a block, in operations where only
//! those two ranks know the length.

use crate::ranks::{RankUnderTest, run_ranks};
use dist::api::{Call, CallOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::{ErrorKind, Result};
use dist::transport::OpKind;
use std::sync::Barrier;

const DTYPE: DataType = DataType::I32;
const ROOT: usize = 0;

/// Returns the number of elements that one rank sends to another.
fn sent_count(from: usize, to: usize) -> usize {
    70_000 * (from + 1) + to
}

/// Makes one call on one rank; `expects` gives the number of elements from each peer.
fn call(rank: &RankUnderTest, kind: OpKind, expects: impl Fn(usize) -> usize) -> Result<()> {
    let (me, size) = (rank.group().rank(), rank.group().size());
    let is_root = me == ROOT;
    let memory = |count: usize| vec![0; count * DTYPE.size()];
    let inputs: Vec<Vec<u8>> = (0..size).map(|to| memory(sent_count(me, to))).collect();
    let mut outputs: Vec<Vec<u8>> = (0..size).map(|from| memory(expects(from))).collect();
    let sends: Vec<Src<'_>> = inputs.iter().map(|block| Src::from(block.as_slice())).collect();
    let recvs: Vec<Dst<'_>> =
        outputs.iter_mut().map(|block| Dst::from(block.as_mut_slice())).collect();
    let (one_in, one_out) = (sends[ROOT], recvs[ROOT]);
    let call = match kind {
        OpKind::GatherV => Call::gather_v(one_in, is_root.then_some(recvs), DTYPE, ROOT),
        OpKind::ScatterV => Call::scatter_v(is_root.then_some(sends), one_out, DTYPE, ROOT),
        _ => Call::all_to_all_v(sends, recvs, DTYPE),
    };
    rank.group().run(call, &CallOptions::default())
}

/// A rank expects one element more than its peer sends. The error names both ranks and both
/// lengths.
fn check_conflict(transport: &str, layout: &str) {
    let hosts: Vec<char> = layout.chars().collect();
    let options =
        |rank: usize| format!("transport={transport};slot_bytes=4096;host_id={}", hosts[rank]);
    for kind in [OpKind::GatherV, OpKind::ScatterV, OpKind::AllToAllV] {
        let (from, to) = if kind == OpKind::ScatterV { (0, 1) } else { (1, 0) };
        // No rank leaves before all ranks have got their results.
        let all_reported = Barrier::new(hosts.len());
        run_ranks(options, hosts.len(), |rank| {
            let me = rank.group().rank();
            let more = |peer| usize::from((peer, me) == (from, to));
            let outcome = call(rank, kind, |peer| sent_count(peer, me) + more(peer));
            all_reported.wait();
            // A rank that has finished its part may not know of the conflict; the rank that finds
            // it must report it.
            let is_shared = transport != "tcp" && !layout.contains('b');
            let finds = if kind == OpKind::ScatterV && is_shared { from } else { to };
            let Err(error) = outcome else {
                assert_ne!(me, finds, "{} in {layout}", kind.name());
                return;
            };
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let sent = sent_count(from, to);
            for part in [
                format!("rank {from} "),
                format!("sends {sent} elements to rank {to} "),
                format!("expects {}", sent + 1),
            ] {
                assert!(error.message().contains(&part), "{part}: {error}");
            }
        });
    }
}

#[test]
fn length_conflict_names_both_ranks_and_lengths() {
    let layouts = [
        ("inproc", "aa"),
        ("inproc", "aaaaa"),
        ("shm", "aaa"),
        ("tcp", "aaa"),
        ("auto", "ab"),
        ("inproc", "aab"),
        ("auto", "abab"),
        ("inproc", "abcbcc"),
    ];
    for (transport, layout) in layouts {
        check_conflict(transport, layout);
    }
}
