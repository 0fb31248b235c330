//! The steps of the operations that only copy data.

use super::call::TwoLevelCall;
use super::reductions::is_consecutive;
use super::steps::Step;
use crate::backend::OpKind;
use crate::base::buffer::{Dst, Src};
use crate::base::error::Result;
use crate::base::ids::Rank;

/// Runs a broadcast. The data comes to one rank of each host, the *receiver*, and from there to the
/// other ranks of the host. The receivers have the root's local rank, or are the leaders.
pub(super) fn broadcast(call: &TwoLevelCall<'_>) -> Result<()> {
    let (groups, whole) = (call.groups(), call.steps.whole);
    let (root_host, root_local) = call.root()?;
    let is_root_host = call.own_host() == root_host;
    let receiver = if groups.is_even { root_local } else { 0 };
    let inside = |from: Rank, stage: u32| {
        // The rank already has the data in `recv`, except on the root, which has it in `send`.
        let (send, recv) = match call.own_local() == from {
            true if whole.send.is_empty() => (whole.recv.as_src(), Dst::empty()),
            true => (whole.send, Dst::empty()),
            false => (Src::empty(), whole.recv),
        };
        call.steps.inside(&Step::of(OpKind::Broadcast, send, recv).rooted(from).at_stage(stage))
    };
    if is_root_host && receiver != root_local {
        inside(root_local, 0)?;
    }
    if call.own_local() == receiver {
        let (send, recv) = match is_root_host {
            true if whole.send.is_empty() => (whole.recv.as_src(), Dst::empty()),
            true => (whole.send, Dst::empty()),
            false => (Src::empty(), whole.recv),
        };
        let step = Step::of(OpKind::Broadcast, send, recv).rooted(root_host);
        call.steps.between(&step.at_stage(u32::from(receiver != root_local)))?;
    }
    if is_root_host && receiver != root_local { Ok(()) } else { inside(receiver, 2) }
}

/// Runs an all_gather in `recv`, without scratch memory.
pub(super) fn all_gather(call: &TwoLevelCall<'_>) -> Result<()> {
    let (groups, whole) = (call.groups(), call.steps.whole);
    if groups.hosts.node_count() == 1 {
        return call.steps.inside(&Step::of(OpKind::AllGather, whole.send, whole.recv));
    }
    match groups.is_even {
        true => all_gather_on_rails(call),
        false => all_gather_by_leaders(call),
    }
}

/// Gathers blocks of `recv` in an inner group: block `i` comes from rank `i` of the inner group and
/// is the block of the rank `ranks[i]`. `own` is this rank's block.
fn gather_blocks<'a>(
    call: &TwoLevelCall<'a>,
    ranks: &[Rank],
    own: Src<'a>,
    stage: u32,
    gather: impl FnOnce(&Step<'_>) -> Result<()>,
) -> Result<()> {
    let whole = call.steps.whole;
    if is_consecutive(ranks) {
        let (first, count) = (ranks[0] * own.len(), ranks.len());
        let into = whole.recv.slice(first, count * own.len());
        return gather(&Step::of(OpKind::AllGather, own, into).at_stage(stage));
    }
    let blocks: Vec<Dst<'_>> = ranks.iter().map(|&rank| whole.recv_block(rank)).collect();
    let step = Step::of(OpKind::AllGatherV, own, Dst::empty()).at_stage(stage);
    gather(&Step { recvs: Some(&blocks), ..step })
}

/// Each rail gathers its blocks. Then, for each host, the ranks of this host gather the blocks of
/// that host's ranks: local rank `l` has the block of the rank with local rank `l`.
fn all_gather_on_rails(call: &TwoLevelCall<'_>) -> Result<()> {
    let (hosts, whole) = (&call.groups().hosts, call.steps.whole);
    let own_local = call.own_local();
    let rail: Vec<Rank> =
        (0..hosts.node_count()).map(|host| hosts.members(host)[own_local]).collect();
    gather_blocks(call, &rail, whole.send, 0, |step| call.steps.between(step))?;
    for host in 0..hosts.node_count() {
        let members = hosts.members(host);
        let own = whole.recv_block(members[own_local]).as_src();
        gather_blocks(call, members, own, 1, |step| call.steps.inside(step))?;
    }
    Ok(())
}

/// The ranks of each host gather the blocks of the host. The leaders exchange these blocks, and
/// broadcast the blocks of the other hosts.
fn all_gather_by_leaders(call: &TwoLevelCall<'_>) -> Result<()> {
    let (hosts, whole) = (&call.groups().hosts, call.steps.whole);
    let (own_host, is_leader) = (call.own_host(), call.own_local() == 0);
    gather_blocks(call, hosts.members(own_host), whole.send, 0, |step| call.steps.inside(step))?;
    let has_areas = (0..hosts.node_count()).all(|host| is_consecutive(hosts.members(host)));
    // If the blocks of each host are contiguous, one exchange suffices. Otherwise there is one for
    // each local rank.
    let rounds = if has_areas { 1 } else { hosts.max_ranks_per_node() };
    let width = whole.bytes();
    let area = |host: usize, round: usize| match hosts.members(host) {
        members if has_areas => whole.recv.slice(members[0] * width, members.len() * width),
        members => members.get(round).map_or(Dst::empty(), |&rank| whole.recv_block(rank)),
    };
    if is_leader {
        for round in 0..rounds {
            let areas: Vec<Dst<'_>> =
                (0..hosts.node_count()).map(|host| area(host, round)).collect();
            let step = Step::of(OpKind::AllGatherV, areas[own_host].as_src(), Dst::empty());
            call.steps.between(&Step { recvs: Some(&areas), ..step.at_stage(1) })?;
        }
    }
    for (first, count) in foreign_runs(hosts.rank_count(), |rank| hosts.node_of(rank) == own_host) {
        let run = whole.recv.slice(first * width, count * width);
        let (send, recv) = match is_leader {
            true => (run.as_src(), Dst::empty()),
            false => (Src::empty(), run),
        };
        call.steps.inside(&Step::of(OpKind::Broadcast, send, recv).rooted(0).at_stage(2))?;
    }
    Ok(())
}

/// Returns the first rank and the length of each sequence of ranks that are on other hosts.
fn foreign_runs(size: usize, is_own: impl Fn(Rank) -> bool) -> Vec<(Rank, usize)> {
    let mut runs: Vec<(Rank, usize)> = Vec::new();
    for rank in (0..size).filter(|&rank| !is_own(rank)) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == rank => *count += 1,
            _ => runs.push((rank, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_ranks_of_other_hosts() {
        let of = |own: &[Rank]| foreign_runs(6, |rank| own.contains(&rank));
        assert_eq!(of(&[0, 1, 2]), [(3, 3)]);
        assert_eq!(of(&[1, 4]), [(0, 1), (2, 2), (5, 1)]);
        assert_eq!(of(&[]), [(0, 6)]);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5]), []);
    }
}
