//! The packages of Debian. lintian must have no error and no warning. The packages are unpacked
//! into an empty folder, and used there.

use super::{BUILD_LIMIT, COPY_LIMIT, PackageRequest, cmake_settings, print_sizes, use_checks};
use crate::{run, tools, workspace};
use std::path::{Path, PathBuf};

/// The programs that make and check the packages, and where they come from.
const TOOLS: &[(&str, &str)] = &[
    ("cmake", "cmake"),
    ("make", "make"),
    ("dpkg-buildpackage", "dpkg-dev"),
    ("dh", "debhelper"),
    ("lintian", "lintian"),
];

/// The packages that must come out.
const NAMES: &[&str] =
    &["dist-tools", "dist-tools-dbgsym", "libdist-dev", "libdist0", "libdist0-dbgsym"];

/// Returns a text that names the tools that are missing, or `None` if all are present.
fn missing_tools() -> Option<String> {
    let absent: Vec<&str> = TOOLS
        .iter()
        .filter(|(program, _)| !tools::has_program(program))
        .map(|(_, package)| *package)
        .collect();
    (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")))
}

/// Makes the packages, checks them with lintian, and uses them.
pub(super) fn make(request: &PackageRequest) -> Result<(), String> {
    if let Some(missing) = missing_tools() {
        return Err(missing);
    }
    let scratch = workspace::scratch_folder("package-debian")?;
    tools::recreate_folder(&scratch)?;
    let made = build(&scratch, request)?;
    run_lintian(&made)?;
    use_packages(&scratch.join("root"), &made)?;
    for package in &made {
        let name = package.file_name().ok_or("a package has a name")?;
        std::fs::copy(package, request.folder.join(name))
            .map_err(|cause| format!("{}: {cause}", package.display()))?;
    }
    print_sizes(&made)
}

/// Calls dpkg-buildpackage in a folder that contains only `debian/`. Returns the packages, in the
/// order of [`NAMES`].
fn build(scratch: &Path, request: &PackageRequest) -> Result<Vec<PathBuf>, String> {
    let source = scratch.join("source");
    tools::recreate_folder(&source)?;
    let mut copy = run::command("cp");
    copy.arg("-r").arg(workspace::repository_root().join("packaging/debian"));
    run::run_checked(copy.arg(source.join("debian")), COPY_LIMIT)?;
    let mut build = run::command("dpkg-buildpackage");
    // Rust need not come from a package of Debian, so the dependencies are not checked.
    build.args(["--build=binary", "--no-sign", "--no-check-builddeps"]).current_dir(&source);
    // The shell splits the settings into words.
    let settings: Vec<String> =
        cmake_settings(request)?.iter().map(|setting| format!("'{setting}'")).collect();
    build.env("DIST_SOURCE", workspace::repository_root());
    build.env("DIST_SETTINGS", settings.join(" "));
    // debhelper sets another home.
    let home = std::env::var_os("HOME").map(PathBuf::from).ok_or("HOME is not set")?;
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        build.env(name, std::env::var_os(name).unwrap_or_else(|| home.join(folder).into()));
    }
    run::run_checked(&mut build, BUILD_LIMIT)?;
    let suffix = format!("_{}_", env!("CARGO_PKG_VERSION"));
    let find = |package: &str| {
        let start = format!("{package}{suffix}");
        let found =
            super::files(scratch, |name| name.starts_with(&start) && name.ends_with("deb"))?;
        found.into_iter().next().ok_or_else(|| format!("no package {package} was made"))
    };
    NAMES.iter().map(|name| find(name)).collect()
}

fn run_lintian(made: &[PathBuf]) -> Result<(), String> {
    let mut lintian = run::command("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    let text = run::run_checked(lintian.args(made), BUILD_LIMIT)?.text;
    print!("{text}");
    Ok(())
}

/// Unpacks the packages into one empty folder, as dpkg would, and uses them.
fn use_packages(root: &Path, made: &[PathBuf]) -> Result<(), String> {
    tools::recreate_folder(root)?;
    for package in made.iter().filter(|it| !it.to_string_lossy().contains("-dbgsym_")) {
        let mut unpack = run::command("dpkg-deb");
        run::run_checked(unpack.arg("--extract").arg(package).arg(root), COPY_LIMIT)?;
    }
    let prefix = root.join("usr");
    for package in ["libdist0", "dist-tools"] {
        use_checks::check_licences(&prefix.join("share/doc").join(package))?;
    }
    use_checks::use_installed(&prefix)?;
    use_checks::check_back_trace(&prefix, false)
}
