//! The bills of materials: all packages of Rust that the library and the programs contain, with
//! their versions and licences, in the form CycloneDX. cargo-cyclonedx writes them.

use super::{BUILD_LIMIT, COPY_LIMIT, PackageRequest, print_sizes};
use crate::{run, tools, workspace};
use std::path::{Path, PathBuf};

const TOOL_VERSION: &str = "0.5.9";

/// The packages of the workspace with their folders, and the names of their bills.
const BILLS: &[(&str, &str, &str)] =
    &[("dist", ".", "libdist.cdx.json"), ("dist-tools", "tools", "dist-tools.cdx.json")];

/// What cargo-cyclonedx reads. It writes its results next to the manifests, so it works in a copy.
const SOURCES: &[&str] =
    &["Cargo.toml", "Cargo.lock", "build.rs", "src", "headers", "tools", "xtask", "ffi-tests"];

/// Makes the bills, and compares them with the dependencies that cargo prints.
pub(super) fn make(request: &PackageRequest) -> Result<Vec<PathBuf>, String> {
    let tool = match installed_tool()? {
        Some(program) => program,
        None => install_tool()?,
    };
    let source = workspace::scratch_folder("package-sbom")?;
    tools::recreate_folder(&source)?;
    let mut copy = run::command("cp");
    copy.arg("-r").args(SOURCES).arg(&source).current_dir(workspace::repository_root());
    run::run_checked(&mut copy, COPY_LIMIT)?;
    let mut describe = run::command(&tool);
    describe.args(["cyclonedx", "--format", "json", "--no-build-deps", "--spec-version", "1.5"]);
    describe.args(["--override-filename", "bill", "--target", &tools::host_target()?]);
    // The bill depends only on the source.
    describe.env("SOURCE_DATE_EPOCH", "0").current_dir(&source);
    run::run_checked(&mut describe, COPY_LIMIT)?;
    let mut made = Vec::new();
    for (package, folder, name) in BILLS {
        let written = source.join(folder).join("bill.json");
        let text = std::fs::read_to_string(&written)
            .map_err(|cause| format!("{}: {cause}", written.display()))?;
        check(&text, package)?;
        let target = request.folder.join(name);
        std::fs::write(&target, text).map_err(|cause| format!("{}: {cause}", target.display()))?;
        made.push(target);
    }
    print_sizes(&made)?;
    Ok(made)
}

/// Returns the bills in the folder of the packages.
pub(super) fn made_earlier(folder: &Path) -> Vec<PathBuf> {
    let paths = BILLS.iter().map(|(_, _, name)| folder.join(name));
    paths.filter(|path| path.is_file()).collect()
}

/// Checks that a bill contains each package that cargo compiles into a package.
fn check(bill: &str, package: &str) -> Result<(), String> {
    let mut tree = workspace::cargo();
    tree.args(["tree", "--locked", "--package", package, "--edges", "normal", "--prefix", "none"]);
    let text = run::run_checked(tree.args(["--format", "{p}"]), COPY_LIMIT)?.text;
    let missing = missing_packages(bill, &text);
    if !missing.is_empty() {
        return Err(format!("the bill of {package} lacks {}", missing.join(", ")));
    }
    Ok(())
}

/// Returns the packages in the output of `cargo tree` that a bill does not contain. Packages of
/// this workspace have a path in this output.
fn missing_packages(bill: &str, tree: &str) -> Vec<String> {
    let packages = tree.lines().filter(|line| !line.contains('/') && !line.is_empty());
    let references = packages.filter_map(|line| {
        let (name, rest) = line.split_once(" v")?;
        Some(format!("pkg:cargo/{name}@{}", rest.split_whitespace().next()?))
    });
    let mut missing: Vec<String> =
        references.filter(|it| !bill.contains(&format!("\"{it}\""))).collect();
    missing.sort();
    missing.dedup();
    missing
}

/// Returns the folder for the tool, if this command installs it.
fn tool_folder() -> Result<PathBuf, String> {
    workspace::scratch_folder("cyclonedx")
}

fn installed_tool() -> Result<Option<PathBuf>, String> {
    let own = tool_folder()?.join("bin/cargo-cyclonedx");
    Ok(tools::find_program("cargo-cyclonedx").or_else(|| own.is_file().then_some(own)))
}

fn install_tool() -> Result<PathBuf, String> {
    let folder = tool_folder()?;
    println!("cargo-cyclonedx is not installed; building version {TOOL_VERSION}");
    let mut install = workspace::cargo();
    install.args(["install", "cargo-cyclonedx", "--locked", "--version", TOOL_VERSION, "--root"]);
    if !run::run_visibly(install.arg(&folder), BUILD_LIMIT)?.success() {
        return Err("cargo-cyclonedx was not built".into());
    }
    Ok(folder.join("bin/cargo-cyclonedx"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_a_bill_lacks_are_named() {
        let tree = "dist v0.1.0 (/a/b)\nlibc v0.2.186\nmemmap2 v0.9.5\nlibc v0.2.186 (*)\n\n";
        let bill = |name: &str| format!("{{\"purl\": \"pkg:cargo/{name}\"}}");
        let missing = missing_packages(&bill("libc@0.2.186"), tree);
        assert_eq!(missing, ["pkg:cargo/memmap2@0.9.5"]);
        let missing = missing_packages(&bill("memmap2@0.9.5"), tree);
        assert_eq!(missing, ["pkg:cargo/libc@0.2.186"]);
    }
}
