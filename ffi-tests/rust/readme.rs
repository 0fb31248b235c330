//! README's tables say what the source says: the environment variables, and the status numbers.
#![allow(clippy::panic, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// What stands between `<!-- name:begin -->` and `<!-- name:end -->`.
fn section(readme: &str, name: &str) -> String {
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let (_, rest) = readme.split_once(&begin).expect("the section begins");
    let (text, _) = rest.split_once(&end).expect("the section ends");
    text.to_string()
}

#[test]
fn the_table_of_variables_is_the_configurations() {
    let expected = dist::base::config::markdown_table();
    let found = section(&read("README.md"), "env");
    assert!(found == expected, "README.md needs this between env:begin and env:end:\n\n{expected}");
}

#[test]
fn every_status_is_in_the_table_with_its_number() {
    let table = section(&read("README.md"), "errors");
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
            assert!(table.contains(&row), "README.md's table of statuses lacks \"{row} … |\"");
        }
    }
    assert!(known > 10, "dist.h defines only {known} statuses");
    assert_eq!(table.lines().filter(|line| line.starts_with("| `")).count(), known);
}
