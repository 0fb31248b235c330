//! `cargo xtask wheel`: builds the wheel of the Python package for older systems.
//!
//! cargo-zigbuild links against glibc 2.28, so that the wheel is `manylinux_2_28`. auditwheel
//! checks the name. All tools come from a virtual environment, which the command creates.

use crate::{Arguments, CommandResult, licences, run, tools, workspace};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const CHECK_LIMIT: Duration = Duration::from_secs(300);

/// The version of glibc that the wheel needs, and the name for it in the name of the wheel.
const GLIBC: &str = "2.28";
const POLICY: &str = "manylinux_2_28";

/// How auditwheel begins the names of platforms in its report.
const PLATFORM: &str = "\"manylinux_2_";

/// The tools, with versions that were tested together.
const TOOLS: &[&str] =
    &["cargo-zigbuild==0.24.1", "ziglang==0.17.1", "auditwheel==6.8.2", "hatchling"];

/// Builds the wheel, and checks it with auditwheel.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let into = arguments.value("--into")?.map(PathBuf::from);
    arguments.finish()?;
    let environment = tool_environment()?;
    let folder = into.unwrap_or_else(|| workspace::repository_root().join("python/dist"));
    let built = workspace::scratch_folder("wheel")?;
    tools::recreate_folder(&built)?;
    let target = format!("{}.{GLIBC}", tools::host_target()?);
    let mut build = run::command(environment.join("bin/python"));
    build.args(["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "./python", "-w"]);
    build.arg(&built).current_dir(workspace::repository_root());
    build
        .env("LIBDIST_TARGET", target)
        .env("LIBDIST_LICENSES", licences::write(&workspace::scratch_folder("licences")?)?)
        .env("PATH", tools::search_path_with(&environment.join("bin"))?);
    if !run::run_visibly(&mut build, BUILD_LIMIT)?.success() {
        return Err("the wheel was not built".into());
    }
    let wheel = only_file(&built)?;
    let mut audit = run::command(environment.join("bin/auditwheel"));
    let text = run::run_checked(audit.arg("show").arg(&wheel), CHECK_LIMIT)?.text;
    println!("{text}");
    if !has_policy(&text) {
        return Err(format!("auditwheel does not call the wheel {POLICY} or older"));
    }
    std::fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let target = folder.join(wheel.file_name().ok_or("the wheel has no name")?);
    let size =
        std::fs::copy(&wheel, &target).map_err(|cause| format!("{}: {cause}", target.display()))?;
    println!("{}: {size} bytes", target.display());
    Ok(true)
}

/// Returns whether a report of auditwheel gives the wheel a platform with at most this glibc.
fn has_policy(report: &str) -> bool {
    let limit = POLICY.rsplit('_').next().and_then(|digits| digits.parse::<u32>().ok());
    let found = report
        .split(PLATFORM)
        .nth(1)
        .and_then(|rest| rest.split('_').next().and_then(|digits| digits.parse::<u32>().ok()));
    found.zip(limit).is_some_and(|(found, limit)| found <= limit)
}

/// Returns a virtual environment with the tools.
fn tool_environment() -> Result<PathBuf, String> {
    let folder = workspace::scratch_folder("wheel-venv")?;
    if !folder.join("bin/auditwheel").is_file() {
        run::run_checked(run::command("python3").args(["-m", "venv"]).arg(&folder), CHECK_LIMIT)?;
        let mut pip = run::command(folder.join("bin/pip"));
        run::run_checked(pip.args(["install", "--quiet"]).args(TOOLS), BUILD_LIMIT)?;
    }
    Ok(folder)
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(folder).map_err(|cause| cause.to_string())?;
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(format!("{} has not exactly one file", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_of_a_report_is_compared_with_the_limit() {
        let report = |tag: &str| {
            format!("x.whl is consistent with the following platform tag: \n\"{tag}\".")
        };
        assert!(has_policy(&report("manylinux_2_28_x86_64")));
        assert!(has_policy(&report("manylinux_2_17_aarch64")));
        assert!(!has_policy(&report("manylinux_2_34_x86_64")));
        assert!(!has_policy(&report("linux_x86_64")));
    }
}
