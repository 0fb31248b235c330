//! Runs ranks as threads, each with its own group object over a shared store.

use dist::api::{Group, GroupOptions};
use dist::store::HashStore;
use std::sync::Arc;

/// The deadline of every call, long enough for a busy machine.
pub(crate) const LIMIT_MS: u64 = 60_000;

/// One rank of a running group.
pub(crate) struct RankUnderTest {
    group: Group,
}

/// Runs `body` on every rank of a group of `size` ranks; `options` gives the options of each rank.
pub(crate) fn run_ranks(
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
                    device: None,
                    store,
                    rank,
                    size,
                    backend: None,
                    backend_options,
                    name: "conformance".into(),
                    timeout_ms: LIMIT_MS,
                    connect_timeout_ms: LIMIT_MS,
                    global_ranks: None,
                    job_secret: dist::api::environment::job_secret().unwrap(),
                })
                .unwrap();
                body(&RankUnderTest { group });
            });
        }
    });
}

impl RankUnderTest {
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }
}
