//! The program of `cargo xtask reference`, and of the installation with CMake.
//!
//! `dist-manual reference` writes the pages of `docs/reference`. `dist-manual plots` writes the
//! plots of the summary in `BENCHMARKS.md`. `dist-manual share FOLDER` writes
//! the manual pages and the completions below `FOLDER`, which is `share` in an installed tree.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program prints its results")]

use dist_manual::GeneratedFile;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let written = match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["reference"] => write_reference(&root),
        ["plots"] => write_plots(&root),
        ["share", folder] => write_shared_data(&root, Path::new(folder)),
        _ => Err("usage: dist-manual reference | plots | share FOLDER".to_owned()),
    };
    match written {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("dist-manual: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the pages that have changed, and removes pages that are generated no longer.
fn write_reference(root: &Path) -> Result<String, String> {
    let folder = root.join("docs/reference");
    let pages = dist_manual::reference_pages(root);
    let changed = write_files(&folder, &pages)?;
    let entries = std::fs::read_dir(&folder).map_err(|cause| cause.to_string())?;
    let is_stale = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        !pages.iter().any(|page| Some(&page.path) == name.as_ref())
    };
    for path in entries.flatten().map(|entry| entry.path()).filter(is_stale) {
        std::fs::remove_file(&path).map_err(|cause| format!("{}: {cause}", path.display()))?;
    }
    Ok(format!("docs/reference has {} pages, {changed} of them changed", pages.len()))
}

fn write_plots(root: &Path) -> Result<String, String> {
    let plots = dist_manual::summary_plots(root);
    let changed = write_files(&root.join("docs/plots"), &plots)?;
    Ok(format!("{changed} of {} plots changed", plots.len()))
}

/// Writes the manual pages and the completions.
fn write_shared_data(root: &Path, folder: &Path) -> Result<String, String> {
    let manuals = dist_manual::manual_pages(root);
    write_files(&folder.join("man"), &manuals)?;
    let completions = dist_manual::completions();
    write_files(folder, &completions)?;
    Ok(format!("{} manual pages, {} completions", manuals.len(), completions.len()))
}

/// Writes files below a folder. Returns the number of files that differed.
fn write_files(folder: &Path, files: &[GeneratedFile]) -> Result<usize, String> {
    let mut changed = 0;
    for file in files {
        let path = folder.join(&file.path);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == file.text) {
            continue;
        }
        let parent = path.parent().ok_or("a file has a folder")?;
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, &file.text))
            .map_err(|cause| format!("{}: {cause}", path.display()))?;
        changed += 1;
    }
    Ok(changed)
}
