//! `cargo xtask package`: makes the packages of libdist, and installs and uses each of them.
//!
//! `packaging/README.md` lists the packages. Each is installed into an empty folder. Programs
//! are compiled with it there, and run.

mod bill_of_materials;
mod conan;
mod debian;
mod tarball;
mod use_checks;

use crate::{Arguments, CommandResult, licences, run, test, tools, wheel, workspace};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit for a build of CMake, which includes a build of cargo.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The time limit for commands that only copy or check files.
const COPY_LIMIT: Duration = Duration::from_secs(600);

/// Makes a package and uses it.
type PackageMaker = fn(&PackageRequest) -> Result<(), String>;

/// The packages, as `--only` names them.
const PACKAGES: &[(&str, PackageMaker)] = &[
    ("sbom", |request| bill_of_materials::make(request).map(|_| ())),
    ("tarball", tarball::make),
    ("debian", debian::make),
    ("wheel", make_wheel),
    ("conan", conan::make),
];

/// The folder for the packages, and the files in them that CMake does not make.
pub(crate) struct PackageRequest {
    folder: PathBuf,
    /// The files about the contents of the binaries: the licences of the packages of Rust, and the
    /// bills of materials, if they were made.
    contents: Vec<PathBuf>,
}

impl PackageRequest {
    fn into_folder(folder: PathBuf) -> Result<Self, String> {
        let mut contents = vec![licences::write(&folder)?];
        contents.extend(bill_of_materials::made_earlier(&folder));
        Ok(Self { folder, contents })
    }
}

/// Makes all packages, or the one that `--only` names.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let only = arguments.value("--only")?;
    let into = arguments.value("--into")?.map(PathBuf::from);
    arguments.finish()?;
    let folder = match into {
        Some(folder) => folder,
        None => workspace::target_folder()?.join("package"),
    };
    std::fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let folder = folder.canonicalize().map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let wanted: Vec<_> = PACKAGES.iter().filter(|(name, _)| is_wanted(name)).collect();
    if wanted.is_empty() {
        let names: Vec<&str> = PACKAGES.iter().map(|(name, _)| *name).collect();
        return Err(format!("--only takes one of {}", names.join(", ")));
    }
    let mut request = PackageRequest::into_folder(folder)?;
    for (name, make) in wanted {
        println!("\n== {name}");
        make(&request).map_err(|problem| format!("{name}: {problem}"))?;
        request = PackageRequest::into_folder(request.folder)?;
    }
    println!("\nthe packages are in {}", request.folder.display());
    Ok(true)
}

/// Makes the archive in a scratch folder and uses it, for `cargo xtask test`.
pub(crate) fn check_tarball() -> Result<(), String> {
    let folder = workspace::scratch_folder("package-check")?;
    tools::recreate_folder(&folder)?;
    tarball::make(&PackageRequest::into_folder(folder)?)
}

/// Makes the wheel, installs it into a fresh virtual environment, and runs the first command of its
/// guide.
fn make_wheel(request: &PackageRequest) -> Result<(), String> {
    let into = request.folder.to_string_lossy().into_owned();
    wheel::main(&["--into".to_owned(), into])?;
    let version = env!("CARGO_PKG_VERSION");
    let wheels = files(&request.folder, |name| {
        name.starts_with(&format!("libdist-{version}-")) && name.ends_with(".whl")
    })?;
    let [wheel] = wheels.as_slice() else {
        return Err(format!("{} has {} wheels", request.folder.display(), wheels.len()));
    };
    let mut list = run::command("python3");
    list.args(["-m", "zipfile", "--list"]).arg(wheel);
    if !run::run_checked(&mut list, COPY_LIMIT)?.text.contains(licences::FILE_NAME) {
        return Err("the wheel does not have the licences of the packages of Rust".into());
    }
    test::use_wheel(wheel)
}

/// Returns the files of a folder with such names, in order.
fn files(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let entries =
        std::fs::read_dir(folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| is_wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    Ok(found)
}

/// Prints the name and the size of each file.
fn print_sizes(made: &[PathBuf]) -> Result<(), String> {
    for file in made {
        let size = file.metadata().map_err(|cause| format!("{}: {cause}", file.display()))?.len();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("{name}: {size} bytes");
    }
    Ok(())
}

/// Returns the arguments of CMake that all packages have.
fn cmake_settings(request: &PackageRequest) -> Result<Vec<String>, String> {
    let contents: Vec<String> =
        request.contents.iter().map(|file| file.display().to_string()).collect();
    Ok(vec![
        // The release build of the other commands is used again.
        format!("-DDIST_CARGO_TARGET_DIR={}", workspace::target_folder()?.display()),
        format!("-DDIST_CONTENTS_FILES={}", contents.join(";")),
    ])
}
