//! Rules that keep the source readable: one meaning for each type name, comments of at most 100
//! columns, and an architecture page whose paths exist.

use super::scan::{SourceFile, source_files};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const COMMENT_COLUMNS: usize = 100;

/// Names that several types have, each with the reason.
const SHARED_NAMES: &[(&str, &str)] =
    &[("FutexWord", "the model checker replaces the futex by a model of it, under the same name")];

/// Folders with Rust source of this project.
const FOLDERS: &[&str] = &["src", "ffi-tests", "fuzz", "headers", "plugins", "tools", "xtask"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn repeated_types(files: &[SourceFile]) -> Vec<String> {
    let mut paths_by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        for name in file.types() {
            paths_by_name.entry(name).or_default().push(&file.path);
        }
    }
    paths_by_name.retain(|name, paths| {
        paths.len() > 1 && !SHARED_NAMES.iter().any(|(shared, _)| shared == name)
    });
    paths_by_name.iter().map(|(name, paths)| format!("{name}: {}", paths.join(", "))).collect()
}

#[test]
fn a_type_name_has_one_meaning() {
    assert!(SHARED_NAMES.len() <= 10, "too many exceptions");
    let repeated = repeated_types(&source_files());
    assert!(repeated.is_empty(), "\n{}\n", repeated.join("\n"));
}

#[test]
fn repeated_type_names_are_found() {
    let files = [
        SourceFile::new("src/store/x.rs", "struct Peer { rank: u32 } trait Stored { type Value; }"),
        SourceFile::new("src/algo/x.rs", "enum Peer { None } impl A for B { type Value = u8; }"),
        SourceFile::new(
            "src/wait/x.rs",
            "// struct Stored;\n#[cfg(test)] mod tests { struct Peer; }",
        ),
    ];
    assert_eq!(repeated_types(&files), ["Peer: src/store/x.rs, src/algo/x.rs"]);
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The numbers of the comment lines that are too long.
fn long_comments(text: &str) -> Vec<usize> {
    let is_long =
        |line: &str| line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS;
    text.lines().zip(1..).filter(|(line, _)| is_long(line)).map(|(_, number)| number).collect()
}

#[test]
fn comments_stay_within_100_columns() {
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| rust_files(&root().join(folder), &mut files));
    assert!(files.len() > 500, "only {} files", files.len());
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        let name = file.strip_prefix(root()).expect("below the root").display();
        found.extend(long_comments(&text).iter().map(|number| format!("{name}:{number}")));
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn long_comments_are_found() {
    let long = "x".repeat(COMMENT_COLUMNS);
    let text = format!("// short\nlet s = \"{long}\";\n    // {long}\n");
    assert_eq!(long_comments(&text), [3]);
}

/// The words in back quotes that look like paths.
fn paths_of(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_path = |word: &&str| {
        let has_end =
            [".rs", ".md", ".h", ".hpp", ".toml", "/"].iter().any(|end| word.ends_with(end));
        has_end && word.chars().all(is_path_part)
    };
    quoted.filter(is_path).collect()
}

#[test]
fn paths_of_the_architecture_exist() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let paths = paths_of(&page);
    assert!(paths.len() > 20, "only {} paths", paths.len());
    let exists = |path: &&str| root().join(path).exists() || root().join("src").join(path).exists();
    let missing: Vec<_> = paths.into_iter().filter(|path| !exists(path)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names paths that do not exist: {missing:#?}");
}

#[test]
fn paths_are_found_in_a_page() {
    let page = "See `algo/table.rs` and `src/`, not `Call::new` or `a / b.rs`.";
    assert_eq!(paths_of(page), ["algo/table.rs", "src/"]);
}
