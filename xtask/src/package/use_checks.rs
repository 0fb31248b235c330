//! Uses an installed package: compiles programs with it, and runs them with its own launcher.

use super::COPY_LIMIT;
use crate::workspace::{StagedBuild, repository_root};
use crate::{licences, run, test};
use std::path::{Path, PathBuf};

/// Compiles and runs the consumers of `ffi-tests/consumer`, through CMake, pkg-config and dlopen.
pub(super) fn use_installed(prefix: &Path) -> Result<(), String> {
    let stage = StagedBuild {
        include: prefix.join("include"),
        lib: library_folder(prefix)?,
        distrun: prefix.join("bin/distrun"),
    };
    test::use_installed(prefix, &stage)
}

/// Returns the folder of the library: `lib`, or a folder below it, as Debian has it.
fn library_folder(prefix: &Path) -> Result<PathBuf, String> {
    let lib = prefix.join("lib");
    let entries = std::fs::read_dir(&lib).map_err(|cause| format!("{}: {cause}", lib.display()))?;
    let folders = std::iter::once(lib.clone()).chain(entries.flatten().map(|it| it.path()));
    folders
        .into_iter()
        .find(|folder| folder.join("libdist.so.0").exists())
        .ok_or_else(|| format!("{} has no libdist.so.0", lib.display()))
}

/// Checks that a folder with documents has the licences of the packages of Rust. The packages of
/// Debian compress long documents.
pub(super) fn check_licences(documents: &Path) -> Result<(), String> {
    let path = documents.join(licences::FILE_NAME);
    let text = if path.is_file() {
        std::fs::read_to_string(&path).map_err(|cause| format!("{}: {cause}", path.display()))?
    } else {
        let mut unpack = run::command("gzip");
        unpack.arg("--decompress").arg("--stdout").arg(path.with_extension("txt.gz"));
        run::run_checked(&mut unpack, COPY_LIMIT)?.text
    };
    if !text.contains("Permission is hereby granted") || !text.contains("\nlibc ") {
        return Err(format!("{} does not have the licence of libc", path.display()));
    }
    Ok(())
}

/// Makes a call fail, and reads its back-trace. It names the lines of the library's source if and
/// only if the debug information is installed.
pub(super) fn check_back_trace(prefix: &Path, has_debug: bool) -> Result<(), String> {
    let library = library_folder(prefix)?.join("libdist.so.0");
    let mut python = run::command("python3");
    python.arg(repository_root().join("ffi-tests/consumer/dlopen/back_trace.py"));
    python.arg(library).arg(prefix.join("include/dist.h"));
    let text = run::run_checked(&mut python, COPY_LIMIT)?.text;
    if !text.contains("dist_set_log_level") {
        return Err(format!("the back-trace does not name the function that failed:\n{text}"));
    }
    let has_lines = text.contains("src/ffi/");
    if has_lines != has_debug {
        let problem = if has_lines { "lines of the source" } else { "no lines of the source" };
        return Err(format!("the back-trace has {problem}:\n{text}"));
    }
    Ok(())
}
