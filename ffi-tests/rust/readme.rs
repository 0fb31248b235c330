//! The tables of environment variables (`docs/environment.md`) and of status numbers
//! (`docs/errors.md`) match the source, and the index of the examples matches the files on disk.
#![allow(clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// Returns the text between `<!-- name:begin -->` and `<!-- name:end -->`.
fn section(page: &str, name: &str) -> String {
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let (_, rest) = page.split_once(&begin).expect("the section begins");
    let (text, _) = rest.split_once(&end).expect("the section ends");
    text.to_string()
}

#[test]
fn variable_table_matches_the_configuration() {
    let expected = dist::base::config::markdown_table();
    let found = section(&read("docs/environment.md"), "env");
    assert!(
        found == expected,
        "docs/environment.md needs this between env:begin and env:end:\n\n{expected}"
    );
}

#[test]
fn every_status_is_in_the_table_with_its_number() {
    let table = section(&read("docs/errors.md"), "errors");
    let header = read("include/dist.h");
    let mut known = 0;
    for line in header.lines() {
        let mut words = line.split_whitespace();
        let (Some("#define"), Some(name), Some(value)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let number = value.trim_matches(['(', ')']);
        if name == "DIST_OK" || name == "DIST_IN_PROGRESS" || name.starts_with("DIST_ERR_") {
            known += 1;
            let row = format!("| `{name}` | {number} |");
            assert!(table.contains(&row), "docs/errors.md lacks \"{row} … |\"");
        }
    }
    assert!(known > 10, "dist.h defines only {known} statuses");
    assert_eq!(table.lines().filter(|line| line.starts_with("| `")).count(), known);
}

/// Returns the names in the first column of a table; each is a link of the form `` [`name`](name)
/// ``.
fn linked_names(table: &str) -> BTreeSet<String> {
    let rows = table.lines().filter(|line| line.starts_with("| ["));
    let names = rows.map(|row| {
        let (link, _) = row[2..].split_once(" | ").expect("a row has columns");
        let name = link.trim_start_matches("[`").split('`').next().unwrap_or_default();
        assert_eq!(link, format!("[`{name}`]({name})"), "the first column links the example");
        name.to_owned()
    });
    names.collect()
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ["c", "cpp", "h"].iter().any(|&known| ending == known))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    entries.map(|entry| entry.expect("a readable entry").path()).collect()
}

#[test]
fn index_of_examples_lists_exactly_the_files_on_disk() {
    let index = read("c-examples/README.md");
    let examples = linked_names(&section(&index, "examples"));
    let shared = linked_names(&section(&index, "shared"));
    let listed: BTreeSet<String> = examples.union(&shared).cloned().collect();
    assert_eq!(listed.len(), examples.len() + shared.len(), "a name is in both tables");

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("c-examples");
    // A folder without sources is a build folder of the user.
    let is_listed = |path: &PathBuf| {
        is_source(path) || path.is_dir() && entries(path).iter().any(|file| is_source(file))
    };
    let existing: BTreeSet<String> = entries(&folder)
        .iter()
        .filter(|path| is_listed(path))
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let missing: Vec<&String> = existing.difference(&listed).collect();
    let stale: Vec<&String> = listed.difference(&existing).collect();
    assert!(missing.is_empty(), "c-examples/README.md has no row for {missing:?}");
    assert!(stale.is_empty(), "c-examples/README.md has rows without a file: {stale:?}");
}
