//! The tables of `docs/c10d.md`: each row names a capability of c10d, what offers it in libdist,
//! and the tests. All names must exist.

use super::{quoted_words, read, section};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const HEAD: &str = "| c10d | libdist | tests |";
const NOT_YET: &str = "**not yet**";

/// The minimum length of the text that says what to use in place of a missing capability.
const MIN_ADVICE_CHARS: usize = 20;

/// Prefixes of the variables of other projects that libdist reads.
const FOREIGN_PREFIXES: [&str; 3] = ["TORCH", "NCCL_", "GLOO_"];

/// The names that the rows may use.
struct CapabilityNames {
    /// All words of the headers, comments included.
    headers: BTreeSet<String>,
    /// The table of environment variables.
    variables: String,
}

impl CapabilityNames {
    fn new() -> Self {
        let headers = [read("include/dist.h"), read("include/dist_backend.h")].concat();
        let words = headers.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let variables = section(&read("docs/environment.md"), "env");
        Self { headers: words.map(str::to_owned).collect(), variables }
    }

    fn is_in_headers(&self, name: &str) -> bool {
        self.headers.contains(name)
    }

    fn is_variable(&self, name: &str) -> bool {
        self.variables.contains(&format!("| `{name}` |"))
    }

    /// Returns the mistakes of a row; an empty list for a correct row.
    fn mistakes(&self, row: &str) -> Vec<String> {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let &[capability, offer, tests] = cells.as_slice() else {
            return vec![format!("{} cells: {row}", cells.len())];
        };
        let mut mistakes = Vec::new();
        if [capability, offer, tests].contains(&"") {
            mistakes.push(format!("an empty cell: {row}"));
        }
        for name in identifiers(&[capability, offer, tests].join(" ")) {
            let is_own = name.starts_with("dist_") || name.starts_with("DIST_");
            if is_own && !self.is_in_headers(name) && !self.is_variable(name) {
                mistakes.push(format!("unknown name {name}"));
            }
        }
        mistakes.extend(self.unknown_words_of_offer(offer));
        match offer.strip_prefix(NOT_YET) {
            Some(advice) if advice.trim().chars().count() < MIN_ADVICE_CHARS => {
                mistakes.push(format!("no advice: {row}"));
            }
            Some(_) => {}
            None => mistakes.extend(mistakes_of_tests(tests)),
        }
        mistakes
    }

    /// Returns the variables of other projects and the names of fields that libdist lacks.
    fn unknown_words_of_offer(&self, offer: &str) -> Vec<String> {
        let is_unknown = |name: &&str| {
            let is_field = name.contains('_') && name.chars().all(|c| !c.is_ascii_uppercase());
            let is_foreign = FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            is_field && !self.is_in_headers(name) || is_foreign && !self.is_variable(name)
        };
        let unknown = identifiers(offer).into_iter().filter(is_unknown);
        unknown.map(|name| format!("libdist has no {name}")).collect()
    }
}

/// Returns the quoted words without arguments and values. Words with another sign, such as names
/// of files, are left out.
fn identifiers(cell: &str) -> Vec<&str> {
    let words = quoted_words(cell).into_iter().map(|word| {
        let end = word.find(['(', '=', ',']).unwrap_or(word.len());
        &word[..end]
    });
    let is_identifier = |word: &&str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    words.filter(is_identifier).collect()
}

/// Returns the missing files and functions. A word with a `/` is a file; the other words are test
/// functions in the file before them.
fn mistakes_of_tests(cell: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut file: Option<(PathBuf, String)> = None;
    for word in quoted_words(cell) {
        if word.contains('/') {
            file = find_file(word).and_then(|path| {
                let text = fs::read_to_string(&path).ok()?;
                Some((path, text))
            });
            if file.is_none() {
                mistakes.push(format!("no file {word}"));
            }
        } else if let Some((path, text)) = &file {
            if !has_test_function(path, text, word) {
                mistakes.push(format!("no test {word} in {}", path.display()));
            }
        } else {
            mistakes.push(format!("no file before {word}"));
        }
    }
    if file.is_none() && mistakes.is_empty() {
        mistakes.push(format!("no test: \"{cell}\""));
    }
    mistakes
}

fn find_file(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    [root.join("ffi-tests").join(name), root.join(name)].into_iter().find(|path| path.is_file())
}

/// Returns whether a file defines a test.
///
/// In Rust, a test is a function with `#[test]`, or a macro makes it from a line `name: ...`. In C
/// and C++, it is a function that begins in the first column. In Python, it is any function.
fn has_test_function(path: &Path, text: &str, name: &str) -> bool {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("rs") => {
            let begin = format!("fn {name}(");
            let is_test = text.split_once(&begin).is_some_and(|(before, _)| {
                before.rsplit("\n\n").next().is_some_and(|head| head.contains("#[test]"))
            });
            let in_macro = format!("{name}: ");
            is_test || text.lines().any(|line| line.trim_start().starts_with(&in_macro))
        }
        Some("py") => text.contains(&format!("def {name}(")),
        _ => {
            let call = format!("{name}(");
            text.lines().any(|line| {
                let is_named = line.split([' ', '*']).any(|word| word.starts_with(&call));
                is_named && !line.starts_with(char::is_whitespace) && !line.ends_with(';')
            })
        }
    }
}

/// Returns the rows of the tables of capabilities, without the other tables of the page.
fn capability_rows(page: &str) -> Vec<&str> {
    let mut rows = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        is_inside = line == HEAD || is_inside && line.starts_with('|');
        if is_inside && line != HEAD && !line.starts_with("| ---") {
            rows.push(line);
        }
    }
    rows
}

#[test]
fn capabilities_of_c10d_have_functions_and_tests() {
    let page = read("docs/c10d.md");
    let rows = capability_rows(&page);
    assert!(rows.len() > 130, "only {} rows", rows.len());
    let capabilities: BTreeSet<_> = rows.iter().map(|row| row.split(" | ").next()).collect();
    assert_eq!(capabilities.len(), rows.len(), "a capability has two rows");
    let names = CapabilityNames::new();
    let mistakes: Vec<_> = rows.iter().flat_map(|row| names.mistakes(row)).collect();
    assert!(mistakes.is_empty(), "docs/c10d.md:\n{}", mistakes.join("\n"));
}

#[test]
fn links_of_the_capability_page_exist() {
    let page = read("docs/c10d.md");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let missing: Vec<_> = targets.filter(|target| !docs.join(target).exists()).collect();
    assert!(missing.is_empty(), "docs/c10d.md links to {missing:?}");
}

#[test]
fn wrong_rows_of_the_capability_table_are_found() {
    let names = CapabilityNames::new();
    let right = [
        "| `a` | `dist_init` with `world_size`, `DIST_TIMEOUT_MS` | `c/works.c`: `check_batches` |",
        "| `b` | `TORCH_CPP_LOG_LEVEL` | `rust/ctests.rs`: `stubs`, `store_conformance_hash` |",
        "| `c` | `dist_backend_load(\"x\")` | `interop/torch_client.py`: `check_basics`; `c/log.c` |",
        "| `d` | **not yet**: use `dist_spawn` and the like | – |",
    ];
    for row in right {
        assert_eq!(names.mistakes(row), Vec::<String>::new(), "{row}");
    }
    let wrong = [
        ("| `a` | `dist_init` |", "2 cells"),
        ("| `a` |  | `c/log.c` |", "an empty cell"),
        ("| `a` | `dist_ini` | `c/log.c` |", "unknown name dist_ini"),
        ("| `a` | `DIST_TIMEOUT_M` | `c/log.c` |", "unknown name DIST_TIMEOUT_M"),
        ("| `dist_x(1)` | `dist_init` | `c/log.c` |", "unknown name dist_x"),
        ("| `a` | `NCCL_NOTHING=1` | `c/log.c` |", "no NCCL_NOTHING"),
        ("| `a` | `dist_init` with `word_size` | `c/log.c` |", "no word_size"),
        ("| `a` | `dist_init` | – |", "no test"),
        ("| `a` | `dist_init` | `c/nothing.c` |", "no file c/nothing.c"),
        ("| `a` | `dist_init` | `check_batches` |", "no file before check_batches"),
        ("| `a` | `dist_init` | `c/works.c`: `check_batch` |", "no test check_batch"),
        // A function of Rust without `#[test]`, and one of C that the file only calls.
        ("| `a` | `dist_init` | `rust/ctests.rs`: `compile_and_run` |", "no test compile_and_run"),
        ("| `a` | `dist_init` | `c/works.c`: `new_store` |", "no test new_store"),
        ("| `a` | **not yet** | – |", "no advice"),
        ("| `a` | **not yet**: use `dist_nothing` or wait | – |", "unknown name dist_nothing"),
    ];
    for (row, expected) in wrong {
        let mistakes = names.mistakes(row);
        assert!(mistakes.iter().any(|text| text.contains(expected)), "{row}: {mistakes:?}");
    }
    let page = "| x | y |\n\n| c10d | libdist | tests |\n| --- | --- | --- |\n| a |\n\n| b |\n";
    assert_eq!(capability_rows(page), ["| a |"]);
}
