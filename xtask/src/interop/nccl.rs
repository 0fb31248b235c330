//! Loads a real libnccl by its path, and checks that it has all functions that libdist uses. The
//! test only calls the version function of NCCL, so it needs neither a GPU nor a driver.

use super::{CaseProblem, CaseResult, InteropCase, InteropContext, PROCESS_TIMEOUT};
use crate::{run, workspace};
use std::path::PathBuf;

/// A Python script that prints the path of the installed NCCL wheel.
const FIND_WHEEL_SCRIPT: &str = "import nvidia.nccl as wheel; print(next(iter(wheel.__path__)))";

/// The name of the test that checks the functions. It runs in a process that gets the path of NCCL.
const SYMBOL_TEST: &str = "a_real_library_has_all_that_is_used";

/// The cases, in the order in which they run.
pub(super) fn cases() -> Vec<InteropCase> {
    vec![InteropCase::new("NCCL: all required functions", |context| {
        let file = find_nccl(context)?;
        let mut test = workspace::cargo();
        test.args(["test", "--package", "dist", "--test", "nccl", "--", "--ignored", "--exact"]);
        test.args([SYMBOL_TEST, "--nocapture"]).env("DIST_NCCL_LIB", &file);
        let text = run::run_checked(&mut test, PROCESS_TIMEOUT * 10)?.text;
        let version_line = text.lines().find(|line| line.starts_with("NCCL "));
        version_line.map(str::to_owned).ok_or_else(|| {
            CaseProblem::Failed(format!(
                "the test {SYMBOL_TEST} did not print NCCL's version:\n{text}"
            ))
        })
    })]
}

/// Returns the file that the user named, otherwise the file of the wheel in Python's path.
fn find_nccl(context: &InteropContext) -> CaseResult<PathBuf> {
    if let Some(file) = &context.nccl {
        return Ok(std::path::absolute(file).map_err(|cause| cause.to_string())?);
    }
    let mut find_wheel = run::command("python3");
    let wheel_output =
        run::run_checked(find_wheel.args(["-c", FIND_WHEEL_SCRIPT]), PROCESS_TIMEOUT).ok();
    let folder = wheel_output.map(|found| PathBuf::from(found.text.trim()));
    let file = folder.map(|folder| folder.join("lib/libnccl.so.2")).filter(|file| file.is_file());
    file.ok_or_else(|| {
        let reason = "NCCL not found: name its file with --nccl, or `pip install nvidia-nccl-cu12`";
        CaseProblem::Skipped(reason.to_owned())
    })
}
