//! Generates documents from the sources of libdist. These are the reference pages of the book
//! (`docs/reference`), the manual pages, the shell completions, and the plots of the benchmarks.
//!
//! | file | content |
//! |---|---|
//! | `c_header` | parses the headers in `include/` into sections and items |
//! | `doc_comment` | the parts of a comment in a header |
//! | `reference` | the reference pages of the C interface |
//! | `links` | links from the names in a comment to their sections |
//! | `algorithm_page`, `program_pages` | the reference pages of algorithms and programs |
//! | `function_manual`, `program_manual` | manual pages of functions and programs |
//! | `completions` | completions for bash, zsh and fish |
//! | `plots` | the plots of the summary in `BENCHMARKS.md` |
//!
//! The headers are the source for the C interface. A test of the library compares them with the
//! Rust source, so this package need not read Rust.
#![allow(clippy::panic, clippy::expect_used, reason = "a generator fails by panicking")]

mod algorithm_page;
mod c_header;
mod completions;
mod doc_comment;
mod function_manual;
mod links;
mod plots;
mod program_manual;
mod program_pages;
mod reference;

use c_header::ParsedHeader;
use std::path::Path;

/// The version of libdist.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// The path below the folder of its kind.
    pub path: String,
    /// The content.
    pub text: String,
}

impl GeneratedFile {
    fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// Returns the programs of libdist as descriptions of their command lines.
pub fn programs() -> Vec<clap::Command> {
    vec![
        bundled_distrun::command(),
        bundled_dist_store::command(),
        bundled_dist_doctor::command(),
        bundled_dist_bench::command(),
    ]
}

/// Reads both headers of the source tree at `root`.
fn read_headers(root: &Path) -> Vec<ParsedHeader> {
    let read = |name: &str| {
        let path = root.join("include").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        c_header::parse_header(name, &text)
    };
    vec![read("dist.h"), read("dist_backend.h")]
}

/// Returns the pages of the folder `docs/reference`.
pub fn reference_pages(root: &Path) -> Vec<GeneratedFile> {
    let headers = read_headers(root);
    let mut pages = reference::interface_pages(&headers);
    pages.push(algorithm_page::algorithm_page());
    pages.extend(programs().iter().map(program_pages::program_page));
    pages
}

/// Returns the plots of the summary in `BENCHMARKS.md`, by their paths below `docs/plots`.
pub fn summary_plots(root: &Path) -> Vec<GeneratedFile> {
    plots::summary_plots(root)
}

/// Returns the manual pages, by their paths below the folder `man`.
pub fn manual_pages(root: &Path) -> Vec<GeneratedFile> {
    let mut pages = function_manual::function_pages(&read_headers(root));
    pages.extend(programs().into_iter().flat_map(program_manual::program_pages));
    pages
}

/// Returns the completions, by their paths below the folder for shared data (`share`).
pub fn completions() -> Vec<GeneratedFile> {
    programs().into_iter().flat_map(completions::completions_of).collect()
}

/// Returns the names of all functions of the headers.
pub fn function_names(root: &Path) -> Vec<String> {
    let headers = read_headers(root);
    let items = headers.iter().flat_map(ParsedHeader::items);
    items
        .filter(|item| item.kind == c_header::ItemKind::Function)
        .map(|it| it.name.clone())
        .collect()
}
