//! The repository's paths, and the builds that cargo makes in it.

use crate::run;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The time limit for a cargo command. After this time, the command counts as hanging. The Rust
/// tests and their build take 20 to 30 minutes on two busy cores.
const BUILD_LIMIT: Duration = Duration::from_secs(2700);

/// Returns the root of the repository.
pub(crate) fn repository_root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// Returns a command for the cargo that started this program. The command runs in the root of the
/// repository.
pub(crate) fn cargo() -> Command {
    let mut cargo = run::command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(repository_root());
    cargo
}

/// Returns the target folder of cargo. Asks cargo for it, because the user may have configured
/// another folder.
pub(crate) fn target_folder() -> Result<PathBuf, String> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
    let text = run::run_checked(&mut metadata, Duration::from_secs(120))?.text;
    let path = json_string(&text, "target_directory")
        .ok_or("the output of cargo metadata names no target folder")?;
    Ok(PathBuf::from(path))
}

/// Returns the text of the first `"key":"…"` in a line of JSON from cargo. Paths must not contain
/// quotes or backslashes.
pub(crate) fn json_string<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let start = json.find(&format!("\"{key}\":\""))? + key.len() + 4;
    json[start..].split('"').next()
}

/// Returns a folder for the files of the named command.
pub(crate) fn scratch_folder(name: &str) -> Result<PathBuf, String> {
    Ok(target_folder()?.join("xtask").join(name))
}

/// The paths of a staged build: the library, its header and its launcher in folders, as if they
/// were installed.
#[derive(Debug)]
pub(crate) struct StagedBuild {
    pub(crate) include: PathBuf,
    pub(crate) lib: PathBuf,
    pub(crate) distrun: PathBuf,
}

/// All programs of the project, and the file that contains several of them for the Python package.
const PROGRAMS: &[&str] = &["distrun", "dist-store", "dist-doctor", "dist-bench", BUNDLE];

/// The package and the program of the bundle.
const BUNDLE: &str = "dist-programs";

/// During a long build, a message with the elapsed time is printed at this interval.
const BUILD_REPORT_INTERVAL: Duration = Duration::from_secs(15);

/// Builds the library and all programs in release mode, and stages them. Shows cargo's progress.
pub(crate) fn stage_release_build() -> Result<StagedBuild, String> {
    stage_build("release", PROGRAMS)
}

/// Builds the library and the launcher, and stages them. The build uses few optimisations, so that
/// a first demo starts sooner.
pub(crate) fn stage_demo_build() -> Result<StagedBuild, String> {
    stage_build("demo", &["distrun"])
}

/// Builds the library and these programs with a cargo profile, and stages them.
fn stage_build(profile: &str, programs: &[&str]) -> Result<StagedBuild, String> {
    let mut build = cargo();
    build.args(["build", "--profile", profile]);
    build.args(["--package", "dist", "--package", "dist-tools", "--lib"]);
    if programs.contains(&BUNDLE) {
        build.args(["--package", BUNDLE]);
    }
    programs.iter().for_each(|program| _ = build.args(["--bin", program]));
    let is_built = run::run_with_reports(&mut build, BUILD_REPORT_INTERVAL, |elapsed| {
        println!("  still building after {} s", elapsed.as_secs());
    })?;
    if !is_built {
        return Err(format!("the {profile} build failed"));
    }
    let built = target_folder()?.join(profile);
    let stage = scratch_folder("stage")?.join(profile);
    stage_files(&built, &stage, programs)
        .map_err(|cause| format!("cannot stage the build in {}: {cause}", stage.display()))?;
    Ok(StagedBuild {
        include: repository_root().join("include"),
        lib: stage.clone(),
        distrun: stage.join("distrun"),
    })
}

/// Copies the files to the stage. Also creates a link to the library with its soname as the name,
/// because programs request the library by this name at run time.
fn stage_files(built: &Path, stage: &Path, programs: &[&str]) -> std::io::Result<()> {
    fs::create_dir_all(stage)?;
    for name in ["libdist.so", "libdist.a"].iter().chain(programs) {
        // Copy to a temporary name and rename the file: the file of a running program cannot be
        // written, but it can be replaced.
        let temporary_path = stage.join(format!("{name}.new"));
        fs::copy(built.join(name), &temporary_path)?;
        fs::rename(&temporary_path, stage.join(name))?;
    }
    let link = stage.join("libdist.so.0");
    if fs::symlink_metadata(&link).is_err() {
        symlink("libdist.so", &link)?;
    }
    Ok(())
}

/// Runs a cargo command of a check, with a time limit.
pub(crate) fn run_cargo_checked(cargo: &mut Command) -> Result<run::FinishedProcess, String> {
    run::run_visibly(cargo, BUILD_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_is_found_in_json_of_cargo() {
        let json = r#"{"reason":"build-script-executed","out_dir":"/a/b/out"}"#;
        assert_eq!(json_string(json, "out_dir"), Some("/a/b/out"));
        assert_eq!(json_string(json, "target"), None);
    }

    #[test]
    fn the_root_is_this_repository() {
        assert!(repository_root().join("xtask").is_dir());
    }
}
