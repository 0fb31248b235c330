//! A real libnccl, loaded by its path and never called but for its version: all functions that the
//! library uses are there. No GPU is needed, and no driver.

use super::{Case, Context, LIMIT, Problem, Result};
use crate::{run, workspace};
use std::path::PathBuf;

/// Says where the wheel of NCCL is.
const LOOK: &str = "import nvidia.nccl as wheel; print(next(iter(wheel.__path__)))";

/// The test that looks, in a process that was told where NCCL is.
const TEST: &str = "a_real_library_has_all_that_is_used";

/// The cases, in the order in which they run.
pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("NCCL: all functions that are used", |context| {
        let file = find(context)?;
        let mut test = workspace::cargo();
        test.args(["test", "--package", "dist", "--test", "nccl", "--", "--ignored", "--exact"]);
        test.args([TEST, "--nocapture"]).env("DIST_NCCL_LIB", &file);
        let text = run::must(&mut test, LIMIT * 10)?.text;
        let said = text.lines().find(|line| line.starts_with("NCCL "));
        said.map(str::to_owned).ok_or_else(|| {
            Problem::Failed(format!("the test {TEST} did not say what it found:\n{text}"))
        })
    })]
}

/// The file that was named, else that of the wheel in Python's path.
fn find(context: &Context) -> Result<PathBuf> {
    if let Some(file) = &context.nccl {
        return Ok(std::path::absolute(file).map_err(|cause| cause.to_string())?);
    }
    let mut look = run::command("python3");
    let found = run::must(look.args(["-c", LOOK]), LIMIT).ok();
    let folder = found.map(|found| PathBuf::from(found.text.trim()));
    let file = folder.map(|folder| folder.join("lib/libnccl.so.2")).filter(|file| file.is_file());
    file.ok_or_else(|| {
        let reason = "no NCCL: name its file with --nccl, or `pip install nvidia-nccl-cu12`";
        Problem::Skipped(reason.to_owned())
    })
}
