//! `cargo xtask header`: writes `include/dist.h` anew.
//!
//! The build script generates the header into its own folder; this command is the only thing that copies it into the
//! tree. A test compares the two, so that a change of the interface is a visible change of the file.

use crate::{Arguments, Outcome, run, workspace};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> Outcome {
    Arguments::new(rest).finish()?;
    let generated = generated_header()?;
    let committed = workspace::root().join("include/dist.h");
    let text = fs::read(&generated)
        .map_err(|cause| format!("reading {}: {cause}", generated.display()))?;
    if fs::read(&committed).is_ok_and(|present| present == text) {
        println!("include/dist.h is up to date");
        return Ok(true);
    }
    fs::write(&committed, text)
        .map_err(|cause| format!("writing {}: {cause}", committed.display()))?;
    println!(
        "include/dist.h is written anew; an entry under \"ABI\" in CHANGELOG.md belongs to it"
    );
    Ok(true)
}

/// Builds, and asks cargo where the build script wrote.
fn generated_header() -> Result<PathBuf, String> {
    let mut build = workspace::cargo();
    build.args(["check", "--package", "dist", "--lib", "--message-format", "json"]);
    let text = run::must(&mut build, Duration::from_secs(1800))?.text;
    text.lines()
        .filter(|line| line.contains("\"reason\":\"build-script-executed\""))
        .filter_map(|line| workspace::json_string(line, "out_dir"))
        .map(|folder| PathBuf::from(folder).join("dist.h"))
        .find(|file| file.is_file())
        .ok_or_else(|| "the build script wrote no dist.h".to_string())
}
