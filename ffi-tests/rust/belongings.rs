//! What a process holds: a library that was left in order has given everything back.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Descriptors with what they are, threads, and shared anonymous files that are mapped.
#[derive(Debug)]
pub(crate) struct Belongings(BTreeSet<String>);

impl Belongings {
    pub(crate) fn now() -> Self {
        let mut all = BTreeSet::new();
        for fd in entries("/proc/self/fd") {
            // The descriptor that lists the folder is gone by now.
            let target = fs::read_link(Path::new("/proc/self/fd").join(&fd));
            // A process that has used `dist_mem_alloc` once keeps its arena's descriptor; what it
            // maps counts.
            if let Ok(target) = target
                && !target.to_string_lossy().contains("libdist-arena")
            {
                all.insert(format!("descriptor {fd} of {}", target.display()));
            }
        }
        for thread in entries("/proc/self/task") {
            let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            if let Ok(name) = name {
                all.insert(format!("thread {thread} called {}", name.trim()));
            }
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        all.extend(maps.lines().filter(|line| line.contains("memfd:")).map(str::to_owned));
        Self(all)
    }

    /// What has come since; some of it may still be on its way out, for a while.
    pub(crate) fn more(&self, patience: Duration) -> Vec<String> {
        let began = Instant::now();
        loop {
            let more: Vec<_> = Self::now().0.difference(&self.0).cloned().collect();
            if more.is_empty() || began.elapsed() >= patience {
                return more;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn entries(folder: &str) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
