//! Operations that move blocks, with a length of its own for every two ranks: what each rank holds at the end, by every
//! algorithm, in every layout; and what is said where two ranks disagree about a length.

use crate::ranks::{RankUnderTest, run_with};
use dist::algo::{Shape, algorithms};
use dist::api::{Call, CallOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::{ErrorKind, Result};
use dist::base::nodes::Nodes;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;

const KINDS: [OpKind; 10] = [
    OpKind::AllGather,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::AllToAll,
    OpKind::ReduceScatter,
    OpKind::AllGatherV,
    OpKind::GatherV,
    OpKind::ScatterV,
    OpKind::AllToAllV,
    OpKind::ReduceScatterV,
];

const DTYPE: DataType = DataType::I32;
const GUARD: usize = 16;

/// How many elements one rank has for another.
type Count = fn(usize, usize) -> usize;

/// The same for all, around a slot of 4096 bytes and its shares; uneven; nothing from some, or to some.
const EVEN: [Count; 6] = [|_, _| 0, |_, _| 1, |_, _| 12, |_, _| 1023, |_, _| 1025, |_, _| 70_001];
const UNEVEN: [Count; 5] = [
    |from, to| (from * 7 + to * 3) % 5,
    |from, _| from % 2 * 3,
    |_, to| 4001 * to,
    |from, to| if (from, to) == (1, 0) { 90_001 } else { 0 },
    |from, to| (from * 577 + to * 1031) % 1500,
];

/// A block with guards around it.
struct Block(Vec<u8>);

impl Block {
    fn new(len: usize) -> Self {
        Self(vec![0x5a; len + 2 * GUARD])
    }

    fn dst(&mut self) -> Dst<'_> {
        let end = self.0.len() - GUARD;
        Dst::from(&mut self.0[GUARD..end])
    }

    fn check(&self, expected: &[u8], what: &str) {
        let guard = [0x5a; GUARD].as_slice();
        assert!(self.0 == [guard, expected, guard].concat(), "{what}");
    }
}

/// What a rank has for another.
fn values(from: usize, to: usize, count: usize) -> Vec<u8> {
    let value = |i: usize| i32::try_from(from * 1_000_003 + to * 10_007 + i).unwrap();
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn sums(to: usize, size: usize, count: usize) -> Vec<u8> {
    let value = |i: usize| (0..size).map(|from| from * 1_000_003 + to * 10_007 + i).sum::<usize>();
    (0..count).flat_map(|i| i32::try_from(value(i)).unwrap().to_le_bytes()).collect()
}

/// One call on one rank; `expects` is how much it expects of each rank, which may be wrong.
fn call(
    rank: &RankUnderTest<'_>,
    kind: OpKind,
    root: usize,
    (count, expects): (Count, Count),
    options: &CallOptions,
) -> Result<()> {
    use OpKind::*;
    let (me, size) = (rank.group().rank(), rank.group().size());
    // Who gathers gets the same block from a rank as all others do.
    let to = |to| if matches!(kind, AllGather | AllGatherV | Gather | GatherV) { root } else { to };
    let from = |from| if matches!(kind, Scatter | ScatterV) { root } else { from };
    let sent: Vec<Vec<u8>> =
        (0..size).map(|peer| values(me, to(peer), count(me, to(peer)))).collect();
    let sends: Vec<Src<'_>> = sent.iter().map(|block| Src::from(block.as_slice())).collect();
    let all_sent = sent.concat();
    let all_sent = Src::from(all_sent.as_slice());
    let counted = |peer| match kind {
        ReduceScatter | ReduceScatterV => expects(0, me),
        _ => expects(from(peer), to(me)),
    };
    let result = |peer| match kind {
        ReduceScatter | ReduceScatterV => sums(me, size, counted(peer)),
        _ => values(from(peer), to(me), counted(peer)),
    };
    let is_one = matches!(kind, Scatter | ScatterV | ReduceScatter | ReduceScatterV);
    let mut blocks: Vec<Block> = (0..size).map(|peer| Block::new(4 * counted(peer))).collect();
    let mut whole = Block::new((0..size).map(|peer| 4 * counted(peer)).sum());
    let is_root = me == root;
    let mut recvs: Vec<Dst<'_>> = blocks.iter_mut().map(Block::dst).collect();
    let (one, all) = (recvs[0], whole.dst());
    let call = match kind {
        AllGather => Call::all_gather(sends[0], all, DTYPE),
        Gather if is_root => Call::gather(sends[0], all, DTYPE, root),
        Gather => Call::gather(sends[0], Dst::empty(), DTYPE, root),
        Scatter if is_root => Call::scatter(all_sent, one, DTYPE, root),
        Scatter => Call::scatter(Src::empty(), one, DTYPE, root),
        AllToAll => Call::all_to_all(all_sent, all, DTYPE, size),
        ReduceScatter => Call::reduce_scatter(all_sent, one, DTYPE, ReduceOp::Sum),
        AllGatherV => Call::all_gather_v(sends[0], std::mem::take(&mut recvs), DTYPE),
        GatherV => {
            Call::gather_v(sends[0], is_root.then(|| std::mem::take(&mut recvs)), DTYPE, root)
        }
        ScatterV => Call::scatter_v(is_root.then_some(sends), one, DTYPE, root),
        AllToAllV => Call::all_to_all_v(sends, std::mem::take(&mut recvs), DTYPE),
        _ => Call::reduce_scatter_v(sends, one, DTYPE, ReduceOp::Sum),
    };
    rank.group().run(call, options)?;
    let what =
        format!("{} on rank {me} of {size}, root {root}, {:?}", kind.name(), options.algorithm);
    let gets = is_root || !matches!(kind, Gather | GatherV);
    let results: Vec<Vec<u8>> = (0..size).map(result).collect();
    match kind {
        _ if is_one => blocks[0].check(&results[0], &what),
        _ if !gets => {}
        AllGather | Gather | AllToAll => whole.check(&results.concat(), &what),
        _ => blocks.iter().zip(&results).for_each(|(block, result)| block.check(result, &what)),
    }
    Ok(())
}

fn run(transport: &str, layout: &str, body: impl Fn(&RankUnderTest<'_>) + Sync) {
    let hosts: Vec<char> = layout.chars().collect();
    let options =
        |rank: usize| format!("transport={transport};slot_bytes=4096;host_id={}", hosts[rank]);
    run_with(options, hosts.len(), body);
}

/// Every algorithm of every kind, and the one that is chosen.
fn everything(transport: &str, layout: &str) {
    let hosts: Vec<char> = layout.chars().collect();
    let nodes =
        if transport == "tcp" { Nodes::apart(hosts.len()) } else { Nodes::by_label(&hosts) };
    let shape = Shape::of(&nodes, false);
    run(transport, layout, |rank| {
        for kind in KINDS {
            let is_uneven = kind as usize >= OpKind::AllGatherV as usize;
            let uneven = if is_uneven { UNEVEN.as_slice() } else { &[] };
            for (i, &count) in EVEN.iter().chain(uneven).enumerate() {
                let root = i % rank.group().size();
                let size = rank.group().size();
                let counts = (0..size).flat_map(|to| (0..size).map(move |from| count(from, to)));
                let bytes = 4 * counts.max().unwrap_or(0);
                let able = algorithms(kind).filter(|row| row.can(bytes, &shape));
                for name in able.map(|row| Some(row.name)).chain([None]) {
                    let algorithm = name.map(str::to_owned);
                    let options = CallOptions { algorithm, ..CallOptions::default() };
                    // Of what is folded every rank has as much.
                    let count: Count = match kind {
                        OpKind::ReduceScatterV if i % 2 == 0 => |_, to| to * 577 % 1500,
                        OpKind::ReduceScatterV => |_, to| to % 2 * 5000,
                        _ => count,
                    };
                    call(rank, kind, root, (count, count), &options).unwrap();
                }
            }
        }
    });
}

/// A rank expects one element more of another than that sends; both are named, with what they say.
fn conflicts(transport: &str, layout: &str) {
    const COUNT: Count = |from, to| 70_000 * (from + 1) + to;
    for kind in [OpKind::GatherV, OpKind::ScatterV, OpKind::AllToAllV] {
        run(transport, layout, |rank| {
            let (from, to) = if kind == OpKind::ScatterV { (0, 1) } else { (1, 0) };
            let me = rank.group().rank();
            let expects: Count = match kind {
                _ if me != to => COUNT,
                OpKind::ScatterV => |from, to| COUNT(from, to) + 1,
                _ => |from, to| COUNT(from, to) + usize::from(from == 1),
            };
            let outcome = call(rank, kind, 0, (COUNT, expects), &CallOptions::default());
            // Whoever is done may know nothing of it yet; who finds it does.
            let is_shared = transport != "tcp" && !layout.contains('b');
            let finds = if kind == OpKind::ScatterV && is_shared { from } else { to };
            let Err(error) = outcome else {
                assert_ne!(me, finds, "{} in {layout}", kind.name());
                return;
            };
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let sent = COUNT(from, to);
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

macro_rules! layouts {
    ($($name:ident $transport:literal $layout:literal;)+) => {
        mod blocks {
            $(#[test] fn $name() { super::everything($transport, $layout); })+
        }
        mod disagreement {
            $(#[test] fn $name() { super::conflicts($transport, $layout); })+
        }
    };
}

layouts! {
    threads_2 "inproc" "aa";
    threads_5 "inproc" "aaaaa";
    memory_3 "shm" "aaa";
    streams_3 "tcp" "aaa";
    two_apart "auto" "ab";
    two_and_one "inproc" "aab";
    interleaved "auto" "abab";
    mixed "inproc" "abcbcc";
}
