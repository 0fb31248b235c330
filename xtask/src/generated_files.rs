//! The files that are generated and also committed:
//!
//! - the headers in `include/` (`cargo xtask header`),
//! - the interface for Python's ctypes in `python/src/libdist/` (`cargo xtask python`),
//! - the reference in `docs/reference` (`cargo xtask reference`),
//! - the plots of the summary in `BENCHMARKS.md` (`cargo xtask plots`),
//! - the table of supported features in `docs/backends.md` (`cargo xtask support-table`).
//!
//! The package `dist-headers` generates the headers and the interface for Python from the source.
//! The package `dist-manual` generates the reference and the plots. A test program generates the
//! table by asking the back ends. Other tests check that the committed files agree with the
//! generated text.

use crate::{Arguments, CommandResult, run, workspace};
use std::fs;
use std::time::Duration;

const BEGIN: &str = "<!-- support:begin -->\n";
const END: &str = "<!-- support:end -->";

/// Generates the headers and writes the files that have changed.
pub(crate) fn update_headers(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    run_generator("dist-headers", &[])
}

/// Generates the interface for Python's ctypes and writes the files that have changed.
pub(crate) fn update_python(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    run_generator("dist-headers", &["python"])
}

/// Generates the reference and writes the pages that have changed.
pub(crate) fn update_reference(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    run_generator("dist-manual", &["reference"])
}

/// Draws the plots of the summary in `BENCHMARKS.md`.
pub(crate) fn update_plots(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    run_generator("dist-manual", &["plots"])
}

fn run_generator(package: &str, arguments: &[&str]) -> CommandResult {
    let mut generator = workspace::cargo();
    generator.args(["run", "--quiet", "--package", package, "--"]).args(arguments);
    Ok(workspace::run_cargo_checked(&mut generator)?.success())
}

/// Writes the table of supported features.
pub(crate) fn update_support_table(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    let mut test = workspace::cargo();
    test.args(["test", "--test", "support_table", "--"]);
    test.args(["--ignored", "--exact", "print", "--nocapture"]);
    let text = run::run_checked(&mut test, Duration::from_secs(1800))?.text;
    let table = between_markers(&text).ok_or("the test printed no table")?;
    let file = workspace::repository_root().join("docs/backends.md");
    let page = fs::read_to_string(&file).map_err(|cause| format!("{}: {cause}", file.display()))?;
    let present =
        between_markers(&page).ok_or("docs/backends.md lacks the marker lines of the table")?;
    if present == table {
        println!("docs/backends.md is up to date");
        return Ok(true);
    }
    let (old, new) = (format!("{BEGIN}{present}{END}"), format!("{BEGIN}{table}{END}"));
    fs::write(&file, page.replace(&old, &new))
        .map_err(|cause| format!("{}: {cause}", file.display()))?;
    println!("docs/backends.md has a new table");
    Ok(true)
}

/// Returns the text between the markers.
fn between_markers(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(BEGIN)?;
    Some(rest.split_once(END)?.0)
}
