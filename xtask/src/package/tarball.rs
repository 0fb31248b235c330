//! The archive with the installed files, and a second one with the debug information. Both contain
//! one folder, so that they can be unpacked over each other.

use super::{BUILD_LIMIT, COPY_LIMIT, PackageRequest, cmake_settings, print_sizes, use_checks};
use crate::{run, tools, workspace};
use std::path::{Path, PathBuf};

/// Makes the archives, and uses them.
pub(super) fn make(request: &PackageRequest) -> Result<(), String> {
    let name = format!("libdist-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let scratch = workspace::scratch_folder("package-tarball")?;
    tools::recreate_folder(&scratch)?;
    let build = scratch.join("build");
    let mut configure = run::command("cmake");
    configure.arg("-S").arg(workspace::repository_root()).arg("-B").arg(&build);
    configure.arg("-DCMAKE_INSTALL_LIBDIR=lib").args(cmake_settings(request)?);
    run::run_checked(&mut configure, BUILD_LIMIT)?;
    run::run_checked(run::command("cmake").arg("--build").arg(&build), BUILD_LIMIT)?;
    let mut install = run::command("cmake");
    install.arg("--install").arg(&build).arg("--prefix").arg(scratch.join(&name));
    run::run_checked(&mut install, COPY_LIMIT)?;
    let library = request.folder.join(format!("{name}.tar.gz"));
    let debug = request.folder.join(format!("{name}-debug.tar.gz"));
    pack(&scratch, &[&name], &["--exclude=*.debug"], &library)?;
    pack(&scratch, &debug_files(&scratch, &name)?, &[], &debug)?;
    print_sizes(&[library.clone(), debug.clone()])?;
    use_archives(&scratch, &name, &library, &debug)
}

/// Packs files. The archive is the same for the same files.
fn pack(
    folder: &Path,
    names: &[impl AsRef<str>],
    options: &[&str],
    archive: &Path,
) -> Result<(), String> {
    let mut tar = run::command("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(options).arg("--directory").arg(folder);
    // The program gzip writes the time into the file.
    tar.args(["--use-compress-program", "gzip -n", "--create", "--file"]).arg(archive);
    tar.args(names.iter().map(AsRef::as_ref));
    run::run_checked(&mut tar, COPY_LIMIT).map(|_| ())
}

/// Returns the paths of the files with debug information.
fn debug_files(scratch: &Path, name: &str) -> Result<Vec<String>, String> {
    let found = super::files(&scratch.join(name).join("lib"), |file| file.ends_with(".debug"))?;
    if found.is_empty() {
        return Err("the debug information of the library was not installed".into());
    }
    let relative = |path: &PathBuf| {
        path.strip_prefix(scratch).map(|it| it.display().to_string()).map_err(|e| e.to_string())
    };
    found.iter().map(relative).collect()
}

/// Unpacks the archives into an empty folder, and uses the files: first without the debug
/// information, then with it.
fn use_archives(scratch: &Path, name: &str, library: &Path, debug: &Path) -> Result<(), String> {
    let folder = scratch.join("unpacked");
    tools::recreate_folder(&folder)?;
    let unpack = |archive: &Path| {
        let mut tar = run::command("tar");
        tar.arg("--extract").arg("--directory").arg(&folder).arg("--file").arg(archive);
        run::run_checked(&mut tar, COPY_LIMIT).map(|_| ())
    };
    let prefix = folder.join(name);
    unpack(library)?;
    use_checks::check_licences(&prefix.join("share/doc/dist"))?;
    use_checks::use_installed(&prefix)?;
    use_checks::check_back_trace(&prefix, false)?;
    unpack(debug)?;
    use_checks::check_back_trace(&prefix, true)
}
