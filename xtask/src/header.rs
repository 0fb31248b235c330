//! `cargo xtask header`: updates the headers in `include/`.
//!
//! The build script generates the headers in its own folder, and only this command copies them into
//! the tree. A test compares the two versions, so a change of the interface always changes the
//! file.

use crate::{Arguments, CommandResult, run, workspace};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const HEADERS: [&str; 2] = ["dist.h", "dist_backend.h"];

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    let generated = generated_headers()?;
    for name in HEADERS {
        let (generated, committed) =
            (generated.join(name), workspace::repository_root().join("include").join(name));
        let text = fs::read(&generated)
            .map_err(|cause| format!("cannot read {}: {cause}", generated.display()))?;
        if fs::read(&committed).is_ok_and(|present| present == text) {
            println!("include/{name} is up to date");
            continue;
        }
        fs::write(&committed, text)
            .map_err(|cause| format!("cannot write {}: {cause}", committed.display()))?;
        println!("include/{name} has changed; add an entry to CHANGELOG.md under \"ABI\"");
    }
    Ok(true)
}

/// Builds the library, and returns the build script's output folder from cargo's messages.
fn generated_headers() -> Result<PathBuf, String> {
    let mut build = workspace::cargo();
    build.args(["check", "--package", "dist", "--lib", "--message-format", "json"]);
    let text = run::run_checked(&mut build, Duration::from_secs(1800))?.text;
    text.lines()
        .filter(|line| line.contains("\"reason\":\"build-script-executed\""))
        .filter_map(|line| workspace::json_string(line, "out_dir"))
        .map(PathBuf::from)
        .find(|folder| HEADERS.iter().all(|name| folder.join(name).is_file()))
        .ok_or_else(|| "the build script wrote no headers".to_string())
}
