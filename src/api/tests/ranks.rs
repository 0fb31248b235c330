//! Ranks that are threads of this process, each with its own group over the native back end.

use crate::api::{Group, GroupOptions};
use crate::store::HashStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tested placements of ranks: in the memory of one process; in a shared segment, as between
/// processes; one rank per node; and two ranks per node.
pub(in crate::api) const TRANSPORTS: [&str; 4] =
    ["transport=inproc", "transport=shm", "transport=tcp", TWO_PER_NODE];

const TWO_PER_NODE: &str = "two on each node";

fn options(transport: &str, rank: usize) -> String {
    match transport {
        TWO_PER_NODE => format!("host_id=node{}", rank / 2),
        other => other.to_owned(),
    }
}

/// Creates the group of a rank.
pub(in crate::api) fn create(
    store: Arc<HashStore>,
    transport: &str,
    rank: usize,
    size: usize,
) -> Arc<Group> {
    let group = Group::create(GroupOptions {
        store,
        rank,
        size,
        backend: None,
        backend_options: options(transport, rank),
        device: None,
        name: "ranks".into(),
        timeout_ms: 30_000,
        connect_timeout_ms: 30_000,
        global_ranks: None,
        job_secret: None,
    });
    Arc::new(group.unwrap())
}

/// Counts the rank as arrived when this object is dropped, even if the creation of the group
/// panicked.
struct ArrivalGuard<'a>(&'a AtomicUsize);

impl Drop for ArrivalGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Runs `body` on every rank of a group. `body` starts when all ranks have created the group:
/// otherwise a failure on one rank could fail another rank that is still creating the group. No
/// rank releases its group before all ranks have finished, except a rank that panicked.
pub(in crate::api) fn run(transport: &str, size: usize, body: impl Fn(&Arc<Group>) + Sync) {
    let (store, arrived) = (Arc::new(HashStore::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let (store, arrived, body) = (Arc::clone(&store), &arrived, &body);
            scope.spawn(move || {
                let guard = ArrivalGuard(arrived);
                let group = create(store, transport, rank, size);
                drop(guard);
                while arrived.load(Ordering::Acquire) < size {
                    std::thread::yield_now();
                }
                body(&group);
                group
            })
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        let groups: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        assert!(groups.iter().all(|group| group.is_ok()), "a rank failed");
    });
}
