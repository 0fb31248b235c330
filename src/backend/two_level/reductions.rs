//! The steps of the reductions.

use super::average::StepOperators;
use super::call::TwoLevelCall;
use super::scratch::SCRATCH_BYTES;
use super::steps::Step;
use crate::backend::OpKind;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;

/// The length of a vector in bytes from which each rank of a host reduces a part of the vector.
/// Shorter vectors are reduced by the leaders, with fewer steps.
const MIN_SPLIT_BYTES: usize = 64 << 10;

/// The alignment of pieces. It is a multiple of the size of every element type.
const PIECE_ALIGN_BYTES: usize = 64;

/// Returns the length of a piece. The scratch memory has room for `copies` pieces.
fn piece_bytes(copies: usize) -> usize {
    (SCRATCH_BYTES / copies / PIECE_ALIGN_BYTES).max(1) * PIECE_ALIGN_BYTES
}

/// Returns the offset and the length of each piece of `bytes`. Without bytes there is one empty
/// piece, so that ranks detect a mismatch.
fn pieces(bytes: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes.max(1)).step_by(piece).map(move |start| (start, piece.min(bytes - start)))
}

fn first_step<'a>(kind: OpKind, with: StepOperators, send: Src<'a>, recv: Dst<'a>) -> Step<'a> {
    Step { op: Some(with.first), factor: with.factor, ..Step::of(kind, send, recv) }
}

fn second_step<'a>(kind: OpKind, with: StepOperators, send: Src<'a>, recv: Dst<'a>) -> Step<'a> {
    Step { op: Some(with.second), ..Step::of(kind, send, recv).at_stage(1) }
}

/// Runs an all_reduce. A part of the vector is reduced in three steps in `recv` itself, so the
/// operation needs no scratch memory. The last elements, fewer than a host has ranks, and short
/// vectors are reduced by the leaders.
pub(super) fn all_reduce(call: &TwoLevelCall<'_>) -> Result<()> {
    let (groups, whole) = (call.groups(), call.steps.whole);
    let (send, recv, with) = (whole.send, whole.recv, call.operators()?);
    if groups.hosts.node_count() == 1 {
        return call.steps.inside(&first_step(OpKind::AllReduce, with, send, recv));
    }
    let local_size = groups.inside.ranks.len();
    let is_split = groups.is_even && local_size > 1 && send.len() >= MIN_SPLIT_BYTES;
    let part = match is_split {
        true => send.len() / whole.element_bytes() / local_size * whole.element_bytes(),
        false => 0,
    };
    let main = part * local_size;
    if main > 0 {
        let (from, all) = (send.slice(0, main), recv.slice(0, main));
        let own = all.slice(call.own_local() * part, part);
        call.steps.inside(&first_step(OpKind::ReduceScatter, with, from, own))?;
        call.steps.between(&second_step(OpKind::AllReduce, with, own.as_src(), own))?;
        call.steps.inside(&Step::of(OpKind::AllGather, own.as_src(), all).at_stage(2))?;
    }
    if main < send.len() || send.is_empty() {
        let rest = send.len() - main;
        let (from, into) = (send.slice(main, rest), recv.slice(main, rest));
        all_reduce_by_leaders(call, with, from, into)?;
    }
    Ok(())
}

fn all_reduce_by_leaders(
    call: &TwoLevelCall<'_>,
    with: StepOperators,
    send: Src<'_>,
    recv: Dst<'_>,
) -> Result<()> {
    let is_leader = call.own_local() == 0;
    let result = if is_leader { recv } else { Dst::empty() };
    call.steps.inside(&first_step(OpKind::Reduce, with, send, result).rooted(0))?;
    if is_leader {
        call.steps.between(&second_step(OpKind::AllReduce, with, recv.as_src(), recv))?;
    }
    call.steps.inside(&broadcast_step(0, is_leader, recv))
}

/// Returns the broadcast of a buffer from the rank `root` of an inner group. `is_root` says whether
/// this rank is the root.
fn broadcast_step(root: Rank, is_root: bool, buffer: Dst<'_>) -> Step<'_> {
    let (send, recv) = match is_root {
        true => (buffer.as_src(), Dst::empty()),
        false => (Src::empty(), buffer),
    };
    Step::of(OpKind::Broadcast, send, recv).rooted(root).at_stage(2)
}

/// Runs a reduce, one piece at a time. On each host one rank, the *collector*, reduces the vectors
/// of the host, and the collectors reduce their results. The collectors have the root's local rank,
/// or are the leaders. If the collector of the root's host is not the root, it passes the result
/// on.
pub(super) fn reduce(call: &TwoLevelCall<'_>) -> Result<()> {
    let (groups, whole) = (call.groups(), call.steps.whole);
    let (with, (root_host, root_local)) = (call.operators()?, call.root()?);
    let is_root = whole.root()? == groups.rank;
    if groups.hosts.node_count() == 1 {
        let step = first_step(OpKind::Reduce, with, whole.send, whole.recv);
        return call.steps.inside(&step.rooted(root_local));
    }
    let collector = if groups.is_even { root_local } else { 0 };
    let is_collector = call.own_local() == collector;
    let passes_on = collector != root_local && call.own_host() == root_host;
    let piece = piece_bytes(1);
    let needs_scratch = !is_root && (is_collector || passes_on);
    let scratch_bytes = if needs_scratch { piece.min(whole.send.len()) } else { 0 };
    call.scratch.with(scratch_bytes, |scratch| {
        for (start, len) in pieces(whole.send.len(), piece) {
            let own = match (is_root, needs_scratch) {
                (true, _) => whole.recv.slice(start, len),
                (false, true) => scratch.slice(0, len),
                (false, false) => Dst::empty(),
            };
            let collected = if is_collector { own } else { Dst::empty() };
            let send = whole.send.slice(start, len);
            call.steps
                .inside(&first_step(OpKind::Reduce, with, send, collected).rooted(collector))?;
            if is_collector {
                let into = if call.own_host() == root_host { own } else { Dst::empty() };
                let step = second_step(OpKind::Reduce, with, own.as_src(), into);
                call.steps.between(&step.rooted(root_host))?;
            }
            if passes_on {
                call.steps.inside(&broadcast_step(collector, is_collector, own))?;
            }
        }
        Ok(())
    })
}

/// Runs a reduce_scatter, one piece of each block at a time.
pub(super) fn reduce_scatter(call: &TwoLevelCall<'_>) -> Result<()> {
    let (groups, whole) = (call.groups(), call.steps.whole);
    let with = call.operators()?;
    if groups.hosts.node_count() == 1 {
        return call.steps.inside(&first_step(OpKind::ReduceScatter, with, whole.send, whole.recv));
    }
    match groups.is_even {
        true => reduce_scatter_on_rails(call, with),
        false => reduce_scatter_by_leaders(call, with),
    }
}

/// Returns the piece of the block of a rank.
fn block_piece<'a>(call: &TwoLevelCall<'a>, rank: Rank, start: usize, len: usize) -> Src<'a> {
    call.steps.whole.send_block(rank).slice(start, len)
}

/// For each host, the ranks of this host reduce the blocks of that host's ranks: local rank `l`
/// gets the block of the rank with local rank `l`. Then each rail reduces these results.
fn reduce_scatter_on_rails(call: &TwoLevelCall<'_>, with: StepOperators) -> Result<()> {
    let (hosts, recv) = (&call.groups().hosts, call.steps.whole.recv);
    let host_count = hosts.node_count();
    let piece = piece_bytes(host_count).min(recv.len());
    call.scratch.with(piece * host_count, |scratch| {
        for (start, len) in pieces(recv.len(), piece.max(1)) {
            let partial = scratch.slice(0, len * host_count);
            for host in 0..host_count {
                let members = hosts.members(host);
                let blocks: Vec<Src<'_>> =
                    members.iter().map(|&rank| block_piece(call, rank, start, len)).collect();
                let into = partial.slice(host * len, len);
                let is_contiguous = len == recv.len() && is_consecutive(members);
                let step = match is_contiguous {
                    true => {
                        let first = members[0] * len;
                        let send = call.steps.whole.send.slice(first, len * members.len());
                        first_step(OpKind::ReduceScatter, with, send, into)
                    }
                    false => Step {
                        sends: Some(&blocks),
                        ..first_step(OpKind::ReduceScatterV, with, Src::empty(), into)
                    },
                };
                call.steps.inside(&step)?;
            }
            let (from, into) = (partial.as_src(), recv.slice(start, len));
            call.steps.between(&second_step(OpKind::ReduceScatter, with, from, into))?;
        }
        Ok(())
    })
}

/// Returns true if the ranks follow each other without a gap.
pub(super) fn is_consecutive(ranks: &[Rank]) -> bool {
    ranks.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

/// The ranks of a host reduce all blocks to their leader. The leaders reduce their results, so that
/// each gets the blocks of its host, and scatter them.
fn reduce_scatter_by_leaders(call: &TwoLevelCall<'_>, with: StepOperators) -> Result<()> {
    let (groups, whole) = (call.groups(), call.steps.whole);
    let (hosts, recv, size) = (&groups.hosts, whole.recv, groups.hosts.rank_count());
    let (own_host, is_leader) = (call.own_host(), call.own_local() == 0);
    let own_count = hosts.members(own_host).len();
    // The blocks of all ranks, ordered by host.
    let order: Vec<Rank> =
        (0..hosts.node_count()).flat_map(|host| hosts.members(host).iter().copied()).collect();
    let is_rank_order = is_consecutive(&order);
    let piece = piece_bytes(2 * size).min(recv.len());
    let scratch_bytes = if is_leader { piece * (size + own_count) } else { 0 };
    call.scratch.with(scratch_bytes, |scratch| {
        for (start, len) in pieces(recv.len(), piece.max(1)) {
            let leader_part = |offset: usize, count: usize| match is_leader {
                true => scratch.slice(offset * len, count * len),
                false => Dst::empty(),
            };
            let (all, own) = (leader_part(0, size), leader_part(size, own_count));
            if is_rank_order && len == recv.len() {
                let step = first_step(OpKind::Reduce, with, whole.send, all);
                call.steps.inside(&step.rooted(0))?;
            } else {
                for (position, &rank) in order.iter().enumerate() {
                    let send = block_piece(call, rank, start, len);
                    let step = first_step(OpKind::Reduce, with, send, leader_part(position, 1));
                    call.steps.inside(&step.rooted(0))?;
                }
            }
            if is_leader {
                let mut next = 0;
                let blocks: Vec<Src<'_>> = (0..hosts.node_count())
                    .map(|host| {
                        let (first, count) = (next, hosts.members(host).len());
                        next += count;
                        all.as_src().slice(first * len, count * len)
                    })
                    .collect();
                let step = second_step(OpKind::ReduceScatterV, with, Src::empty(), own);
                call.steps.between(&Step { sends: Some(&blocks), ..step })?;
            }
            let into = recv.slice(start, len);
            let step = Step::of(OpKind::Scatter, own.as_src(), into);
            call.steps.inside(&step.rooted(0).at_stage(2))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_bytes_and_fit() {
        for copies in [1, 3, 100, 1 << 20] {
            let piece = piece_bytes(copies);
            assert!(piece.is_multiple_of(PIECE_ALIGN_BYTES) && piece > 0);
            assert!(piece == PIECE_ALIGN_BYTES || piece * copies <= SCRATCH_BYTES);
        }
        for bytes in [0, 1, 63, 64, 65, 640] {
            let all: Vec<_> = pieces(bytes, 64).collect();
            assert_eq!(all.len(), bytes.div_ceil(64).max(1));
            assert_eq!(all.iter().map(|(_, len)| len).sum::<usize>(), bytes);
            assert!(all.iter().zip(0..).all(|((start, _), index)| *start == 64 * index));
        }
        assert!(is_consecutive(&[]) && is_consecutive(&[4, 5, 6]) && !is_consecutive(&[4, 6]));
    }
}
