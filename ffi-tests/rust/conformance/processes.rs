//! A back end whose ranks are processes that a launcher starts: `cargo xtask conformance
//! --launcher`. Each process runs this test as one rank and compares its results with the oracle of
//! the threaded ranks.
//!
//! The processes meet in a file store and exchange through it the data that threads exchange in
//! memory. In addition to the variables of `backends.rs`, the environment has `CONFORMANCE_STORE`,
//! the path of the file. The launcher sets the rank.
#![allow(clippy::print_stdout, reason = "what has been done of what there is")]

use crate::backends::{
    BackendCase, load, one_rank_per_node, pairwise_subset, supported_cases, variable,
};
use crate::matrix::CallScene;
use crate::matrix_runner::{BackendUnderTest, MatrixRun};
use crate::ranks::LIMIT_MS;
use crate::run_monitor::RunMonitor;
use dist::api::environment::identity_from_environment;
use dist::base::deadline::Deadline;
use dist::store::file::FileOptions;
use dist::store::{FileStore, Store};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The link from a rank to the other processes.
pub(crate) struct ProcessRank {
    pub(crate) rank: usize,
    ranks: usize,
    store: Arc<FileStore>,
    /// The number of barriers that this rank has called.
    barriers: AtomicUsize,
    /// The hashes of results that must be the same on all ranks, by case.
    digests: Mutex<Vec<(String, u64)>>,
}

fn deadline() -> Deadline {
    Deadline::after_ms(LIMIT_MS)
}

impl ProcessRank {
    fn join(rank: usize, ranks: usize, path: &str) -> Self {
        let options = FileOptions { world_size: Some(ranks), ..FileOptions::default() };
        let store = FileStore::open(Path::new(path), &options, &deadline()).unwrap();
        let (store, barriers, agreed) = (Arc::new(store), AtomicUsize::new(0), Mutex::default());
        Self { rank, ranks, store, barriers, digests: agreed }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    /// Returns, before a barrier, the number of calls that all ranks together must have begun
    /// before it returns.
    pub(crate) fn record_arrival(&self, ranks: usize) -> usize {
        self.store.add(b"conformance/arrived", 1, &deadline()).unwrap();
        (self.barriers.fetch_add(1, Ordering::Relaxed) + 1) * ranks
    }

    /// Returns the number of barrier calls that have begun.
    pub(crate) fn arrivals(&self) -> usize {
        let arrivals = self.store.add(b"conformance/arrived", 0, &deadline()).unwrap();
        usize::try_from(arrivals).unwrap()
    }

    /// Records the hash of a result that must be the same on all ranks.
    pub(crate) fn record_digest(&self, case: String, digest: u64) {
        self.digests.lock().unwrap().push((case, digest));
    }

    /// Compares the recorded hashes with those of rank 0, and returns the first case that differs.
    fn first_difference(&self) -> Option<String> {
        let agreed = self.digests.lock().unwrap();
        let own: Vec<u8> = agreed.iter().flat_map(|(_, digest)| digest.to_le_bytes()).collect();
        let key = b"conformance/agreed";
        if self.rank == 0 {
            self.store.set(key, &own, &deadline()).unwrap();
            return None;
        }
        let first = self.store.get(key, &deadline()).unwrap();
        let pairs = own.chunks(8).zip(first.chunks(8));
        let at = pairs.into_iter().position(|(own, first)| own != first);
        let differs = at.map(|at| format!("{}: other bits than on rank 0", agreed[at].0));
        differs.or_else(|| (own.len() != first.len()).then(|| "other cases than rank 0".into()))
    }

    /// Waits until all ranks have compared their results.
    fn wait_until_all_compared(&self) {
        let key = b"conformance/done";
        let mut done = self.store.add(key, 1, &deadline()).unwrap();
        let limit = deadline();
        while usize::try_from(done).unwrap() < self.ranks && !limit.has_passed() {
            std::thread::sleep(Duration::from_millis(5));
            done = self.store.add(key, 0, &deadline()).unwrap();
        }
    }
}

#[test]
#[ignore = "one rank of a job: cargo xtask conformance --backend NAME --launcher PROGRAM"]
fn a_rank_of_a_back_end() {
    variable("PLUGIN").iter().for_each(|path| load(path));
    let identity = identity_from_environment().unwrap();
    let (rank, ranks) = (identity.rank.unwrap(), identity.size.unwrap());
    let name = variable("BACKEND").unwrap();
    let served = BackendUnderTest { name, options: variable("OPTIONS").unwrap_or_default() };
    let kind = variable("KIND");
    let calls = variable("CALLS").map_or(usize::MAX, |text| text.parse().unwrap());
    let minutes = variable("MINUTES").map_or(60, |text| text.parse().unwrap());
    let monitor = RunMonitor::new(Some(Duration::from_secs(60 * minutes)));
    let apart = ProcessRank::join(rank, ranks, &variable("STORE").unwrap());
    let (mut all, refused) =
        supported_cases(&served, ranks, |size| size.applies(&one_rank_per_node(), ranks));
    all.retain(|(scene, _)| kind.as_deref().is_none_or(|kind| kind == scene.kind.name()));
    let chosen: Vec<BackendCase> =
        if calls < all.len() { pairwise_subset(all, calls) } else { all };
    if rank == 0 {
        let cases = chosen.len();
        println!(
            "{ranks} ranks: {cases} cases; {refused} combinations of operation, type, operator and size are refused"
        );
    }
    let scenes: Vec<CallScene> = chosen.iter().map(|(scene, _)| *scene).collect();
    let variants = |number: usize, _: &CallScene| vec![chosen[number].1];
    MatrixRun {
        ranks,
        scenes: &scenes,
        variants: &variants,
        monitor: &monitor,
        backend: Some(&served),
    }
    .run_as_process(&apart);
    assert!(!monitor.is_over() || !monitor.failures().is_empty(), "the time is up");
    let mut failures = monitor.failures();
    if failures.is_empty() {
        failures.extend(apart.first_difference());
    }
    let done = monitor.with_tally(|tally| tally.total());
    assert!(failures.is_empty(), "rank {rank}: {}", failures.join("\n"));
    apart.wait_until_all_compared();
    // Only rank 0 keeps a tally.
    if rank == 0 {
        assert_eq!(done, chosen.len() as u64);
        println!("{done} cases on {ranks} ranks are as the oracle says");
    }
}
