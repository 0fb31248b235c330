//! The recipe for Conan: `conan create` builds the package from the source, and runs the program of
//! `packaging/conan/test_package` with it.

use super::{BUILD_LIMIT, COPY_LIMIT, PackageRequest};
use crate::{run, tools, workspace};
use std::path::PathBuf;

const CONAN: &str = "conan==2.9.3";

/// Runs the recipe. It leaves no file in the folder of the packages, because Conan keeps the result
/// in a cache.
pub(super) fn make(_: &PackageRequest) -> Result<(), String> {
    let conan = installed_conan()?;
    let home = workspace::scratch_folder("conan-home")?;
    tools::recreate_folder(&home)?;
    let command = |words: &[&str]| {
        let mut command = run::command(&conan);
        command.args(words).env("CONAN_HOME", &home).current_dir(workspace::repository_root());
        command
    };
    run::run_checked(&mut command(&["profile", "detect"]), COPY_LIMIT)?;
    // The profile with few optimisations suffices to check the recipe.
    let mut create = command(&["create", "packaging/conan", "--options", "&:cargo_profile=demo"]);
    let finished = run::run_visibly(&mut create, BUILD_LIMIT)?;
    let is_used = finished.text.contains("sum 2");
    tools::recreate_folder(&home)?;
    if !finished.success() || !is_used {
        return Err("`conan create` failed; its output is above".into());
    }
    Ok(())
}

/// Returns Conan from the search path, or from a virtual environment that this command creates.
fn installed_conan() -> Result<PathBuf, String> {
    if let Some(program) = tools::find_program("conan") {
        return Ok(program);
    }
    let folder = workspace::scratch_folder("conan-venv")?;
    let program = folder.join("bin/conan");
    if !program.is_file() {
        run::run_checked(run::command("python3").args(["-m", "venv"]).arg(&folder), COPY_LIMIT)?;
        let mut pip = run::command(folder.join("bin/pip"));
        run::run_checked(pip.args(["install", "--quiet", CONAN]), BUILD_LIMIT)?;
    }
    Ok(program)
}
