//! Checks that the table in docs/backends.md equals the answers of the back ends. The test needs no
//! MPI and no CUDA.
//!
//! `cargo xtask support-table` writes the table: it runs the test that prints it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the command reads what is printed")]

#[path = "support_table/backend_queries.rs"]
mod backend_queries;
#[path = "support_table/table.rs"]
mod table;

/// The plug-in's file expects these modules at `crate::base`.
mod base {
    pub(crate) use dist::base::{dtype, op};
}

/// The operations that the MPI plug-in declares as supported.
#[allow(dead_code, reason = "the plug-in uses all of it")]
#[path = "../../plugins/mpi/src/abilities.rs"]
mod abilities;

use std::path::Path;

const BEGIN: &str = "<!-- support:begin -->\n";
const END: &str = "<!-- support:end -->";

#[test]
fn backends_page_has_the_generated_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/backends.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(BEGIN).unwrap();
    let (found, _) = rest.split_once(END).unwrap();
    let expected = table::markdown();
    assert!(
        found == expected,
        "docs/backends.md differs from the answers of the back ends; run `cargo xtask support-table`, which writes:\n\n{expected}"
    );
}

#[test]
#[ignore = "prints the table for cargo xtask support-table"]
fn print() {
    println!("{BEGIN}{}{END}", table::markdown());
}
