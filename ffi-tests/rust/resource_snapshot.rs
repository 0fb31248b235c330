//! Resource snapshot of a process: descriptors, threads and mapped shared files. Tests compare two
//! snapshots to check that a finalized library has released all its resources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A snapshot: the open descriptors with their targets, the threads, and the mapped memfd files.
#[derive(Debug)]
pub(crate) struct ResourceSnapshot(BTreeSet<String>);

impl ResourceSnapshot {
    pub(crate) fn take() -> Self {
        let mut all = BTreeSet::new();
        for fd in folder_entries("/proc/self/fd") {
            // If `read_link` fails, the descriptor is the one that listed the folder; it is already
            // closed.
            let target = fs::read_link(Path::new("/proc/self/fd").join(&fd));
            // After the first `dist_mem_alloc`, the process keeps the arena's descriptor. The
            // snapshot ignores this descriptor but counts the arena's mappings.
            if let Ok(target) = target
                && !target.to_string_lossy().contains("libdist-arena")
            {
                all.insert(format!("descriptor {fd} of {}", target.display()));
            }
        }
        for thread in folder_entries("/proc/self/task") {
            let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            if let Ok(name) = name {
                all.insert(format!("thread {thread} called {}", name.trim()));
            }
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        all.extend(maps.lines().filter(|line| line.contains("memfd:")).map(str::to_owned));
        Self(all)
    }

    /// Returns the resources that this snapshot lacks. Repeats the comparison for up to `grace`,
    /// since the process may still be releasing some of them.
    pub(crate) fn leaked_since(&self, grace: Duration) -> Vec<String> {
        let began = Instant::now();
        loop {
            let more: Vec<_> = Self::take().0.difference(&self.0).cloned().collect();
            if more.is_empty() || began.elapsed() >= grace {
                return more;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn folder_entries(folder: &str) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
