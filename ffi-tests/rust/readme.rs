//! The tables of environment variables (`docs/environment.md`) and of status numbers
//! (`docs/errors.md`) match the source, and the index of the examples matches the files on disk.
//! The names in `docs/choosing.md` and `docs/c10d.md` exist. Links lead to existing files and
//! headings.
#![allow(clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "readme/c10d_table.rs"]
mod c10d_table;
#[path = "readme/links.rs"]
mod links;

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

/// Returns the words between back quotes, without those in the code blocks of the page.
fn quoted_words(page: &str) -> Vec<&str> {
    page.split('`').skip(1).step_by(2).flat_map(str::split_whitespace).collect()
}

/// Returns the environment variables that a page names, without their values.
fn variables(page: &str) -> BTreeSet<&str> {
    let name = |word: &str| word.split('=').next().unwrap_or(word).len();
    let names = quoted_words(page).into_iter().map(|word| &word[..name(word)]);
    let is_variable = |word: &&str| {
        let is_upper =
            |byte: u8| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit();
        word.contains('_') && word.bytes().all(is_upper) && !word.starts_with("DIST_ERR_")
    };
    names.filter(is_variable).collect()
}

#[test]
fn advice_names_existing_variables() {
    let table = section(&read("docs/environment.md"), "env");
    let page = read("docs/choosing.md");
    let named = variables(&page);
    assert!(named.len() > 12, "only {named:?}");
    let unknown: Vec<_> =
        named.into_iter().filter(|name| !table.contains(&format!("| `{name}` |"))).collect();
    assert!(unknown.is_empty(), "docs/choosing.md names unknown variables: {unknown:?}");
}

#[test]
fn advice_names_valid_back_ends() {
    let page = read("docs/choosing.md");
    let is_backend = |word: &&str| {
        let parts = ["inside=", "cpu:", "cuda:"];
        parts.iter().any(|part| word.starts_with(part))
    };
    let named: BTreeSet<&str> = quoted_words(&page).into_iter().filter(is_backend).collect();
    assert!(named.len() >= 5, "only {named:?}");
    for name in named {
        // A library that is missing on this machine is no mistake of the page.
        if let Err(error) = dist::backend::check_name(name) {
            assert!(!error.message().contains("is not a map"), "{name}: {error}");
            let hosts = dist::backend::host_backend_names(name);
            let known = ["native", "gloo", "mpi"];
            assert!(hosts.iter().all(|host| known.contains(&host.as_str())), "{name}: {error}");
        }
    }
}

#[test]
fn advice_names_existing_functions_and_programs() {
    let (page, header) = (read("docs/choosing.md"), read("include/dist.h"));
    let functions = quoted_words(&page).into_iter().filter(|word| word.starts_with("dist_"));
    let missing: Vec<_> = functions.filter(|name| !header.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "docs/choosing.md names unknown functions: {missing:?}");
    assert_eq!(variables("`A_B=1` and `DIST_X`, not `native` or A_C"), ["A_B", "DIST_X"].into());
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
