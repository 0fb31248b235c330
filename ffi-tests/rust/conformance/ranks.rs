//! Ranks that are threads, each with its own group object over a shared store.

use dist::algo::Shape;
use dist::api::{Group, GroupOptions};
use dist::base::nodes::Nodes;
use dist::store::HashStore;
use dist::sys::host;
use dist::transport::attach;
use std::sync::Arc;

/// The deadline of every call, however busy the machine.
pub(crate) const LIMIT_MS: u64 = 60_000;

/// One rank of a running group.
pub(crate) struct RankUnderTest {
    group: Group,
}

/// Runs `body` on every rank of a group of `size` ranks, with options for each.
pub(crate) fn run_with(
    options: impl Fn(usize) -> String,
    size: usize,
    body: impl Fn(&RankUnderTest) + Sync,
) {
    let store = Arc::new(HashStore::new());
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (store, body) = (Arc::clone(&store), &body);
            let backend_options = options(rank);
            scope.spawn(move || {
                let group = Group::create(GroupOptions {
                    store,
                    rank,
                    size,
                    backend: None,
                    backend_options,
                    name: "conformance".into(),
                    timeout_ms: LIMIT_MS,
                    connect_timeout_ms: LIMIT_MS,
                    global_ranks: None,
                })
                .unwrap();
                body(&RankUnderTest { group });
            });
        }
    });
}

impl RankUnderTest {
    /// The group.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }
}

/// The shape of groups with these nodes, as their ranks find it: whether the system lets processes read each other's memory is
/// seen by trying.
pub(crate) fn shape_of(nodes: &Nodes) -> Shape {
    let nonce = host::process_nonce().unwrap();
    let address = host::process_nonce_address().unwrap();
    let attached = attach::recognises(std::process::id(), address, &nonce);
    Shape { attached, ..Shape::of(nodes, false) }
}
