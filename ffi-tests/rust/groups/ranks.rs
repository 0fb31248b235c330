//! Runs ranks as threads, and checks the members of a group.

use dist::api::{Call, CallOptions, Group, GroupOptions, SubgroupOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;
use dist::store::HashStore;
use std::sync::Arc;

/// The tested combinations: the transport, and a letter for the host of each rank.
pub(crate) const WORLDS: [(&str, &str); 5] =
    [("inproc", "aaaa"), ("shm", "aaaa"), ("tcp", "aaaa"), ("auto", "aabb"), ("inproc", "abba")];

/// Runs `body` on one rank per letter of `layout`.
pub(crate) fn run_ranks(transport: &str, layout: &str, body: impl Fn(Arc<Group>) + Sync) {
    let letters: Vec<char> = layout.chars().collect();
    let options =
        |rank: usize| format!("transport={transport};host_id={};slot_bytes=8192", letters[rank]);
    run_ranks_with(options, letters.len(), body);
}

/// Runs `body` on `size` ranks; `options` gives the options of each rank.
pub(crate) fn run_ranks_with(
    options: impl Fn(usize) -> String,
    size: usize,
    body: impl Fn(Arc<Group>) + Sync,
) {
    let store = Arc::new(HashStore::new());
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, body) = (Arc::clone(&store), &body);
            let backend_options = options(rank);
            scope.spawn(move || {
                let group = Group::create(GroupOptions {
                    device: None,
                    store,
                    rank,
                    size,
                    backend: None,
                    backend_options,
                    name: "world".into(),
                    timeout_ms: 60_000,
                    connect_timeout_ms: 60_000,
                    global_ranks: None,
                    job_secret: dist::api::environment::job_secret().unwrap(),
                });
                body(Arc::new(group.unwrap()));
            });
        }
    });
}

/// Runs `body` on four ranks, with each combination of transport and hosts.
pub(crate) fn run_in_all_layouts(body: impl Fn(Arc<Group>) + Sync) {
    WORLDS.iter().for_each(|(transport, layout)| run_ranks(transport, layout, &body));
}

/// Returns options for all ranks, with a connect timeout of 8 s.
pub(crate) fn options() -> SubgroupOptions {
    SubgroupOptions { connect_timeout_ms: 8_000, ..SubgroupOptions::default() }
}

/// Returns options for a group that only its members create.
pub(crate) fn members_only_options(name: &str) -> SubgroupOptions {
    SubgroupOptions { name: Some(name.to_owned()), members_only: true, ..options() }
}

/// Returns the sum of one bit of each rank.
pub(crate) fn sum_of_bits(group: &Group, bit: usize) -> u64 {
    let own_bits = (1_u64 << bit).to_le_bytes();
    let mut sum = [0; 8];
    let (send, recv) = (Src::from(&own_bits[..]), Dst::from(&mut sum[..]));
    let call = Call::all_reduce(send, recv, DataType::U64, ReduceOp::Sum);
    group.run(call, &CallOptions::default()).unwrap();
    u64::from_le_bytes(sum)
}

/// Checks that a group works and has exactly these ranks of the world, in this order.
pub(crate) fn check_members(group: &Group, world_rank: usize, ranks: &[usize]) {
    assert_eq!(group.global_ranks(), ranks);
    assert_eq!((group.size(), ranks[group.rank()]), (ranks.len(), world_rank));
    let bits = ranks.iter().map(|&rank| 1 << rank).sum::<u64>();
    for _ in 0..3 {
        assert_eq!(sum_of_bits(group, world_rank), bits);
    }
}

/// Waits for all ranks of the group.
pub(crate) fn barrier(group: &Group) {
    group.run(Call::barrier(), &CallOptions::default()).unwrap();
}
