//! Compares the tables of `docs/internals/memory-ordering.md` with the source: every file with an
//! atomic operation has a place there, and a model or an argument with it.

use super::scan::source_files;
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/internals/memory-ordering.md");

/// Returns the paths of source files in the rows of all tables.
fn listed_files(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let words = rows.flat_map(|row| row.split('`'));
    words.filter(|word| word.starts_with("src/") && word.ends_with(".rs")).collect()
}

#[test]
fn every_file_with_atomics_is_reviewed() {
    let files = source_files();
    let with_atomics: BTreeSet<&str> = files
        .iter()
        .filter(|file| file.has_atomic_operations() && !file.module.contains("fuzz"))
        .map(|file| file.path.as_str())
        .collect();
    assert!(with_atomics.len() > 50, "{with_atomics:?}");
    let listed = listed_files(PAGE);
    let missing: Vec<_> = with_atomics.difference(&listed).collect();
    let outdated: Vec<_> = listed.difference(&with_atomics).collect();
    assert!(
        missing.is_empty() && outdated.is_empty(),
        "without a place in docs/internals/memory-ordering.md: {missing:#?}; \
         without atomic operations: {outdated:#?}"
    );
}
