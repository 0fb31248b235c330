//! The licences of the packages of Rust that the library and the programs contain. Copies of the
//! binaries must come with these texts, so each package of libdist has them in one file.
//!
//! The names and versions come from `cargo tree`, and the texts from the sources that cargo has
//! fetched.

use crate::{run, tools, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the file.
pub(crate) const FILE_NAME: &str = "THIRD-PARTY-LICENSES.txt";

const QUERY_LIMIT: Duration = Duration::from_secs(600);

/// The packages of the workspace whose dependencies are passed on.
const ROOTS: &[&str] = &["dist", "dist-tools"];

/// How the names of files with licences begin, in capitals.
const PREFIXES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// A shorter file is no text, but the name of a licence or of another file.
const MIN_TEXT_BYTES: usize = 200;

/// The text of the MIT licence behind the line with the copyright.
const MIT_TERMS: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the \"Software\"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.";

/// A package of another project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UsedPackage {
    name: String,
    version: String,
    licence: String,
}

/// Writes the file into a folder, and returns its path.
pub(crate) fn write(folder: &Path) -> Result<PathBuf, String> {
    let packages = used_packages()?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in &packages {
        for text in licence_texts(package)? {
            texts.entry(text).or_default().insert(package.title());
        }
    }
    std::fs::create_dir_all(folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let target = folder.join(FILE_NAME);
    let text = render(&packages, &texts);
    std::fs::write(&target, text).map_err(|cause| format!("{}: {cause}", target.display()))?;
    Ok(target)
}

impl UsedPackage {
    fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// Reads a line of `cargo tree --format "{p}|{l}"`. Returns `None` for a package of this
    /// workspace, whose line has a path.
    fn parse(line: &str) -> Option<Self> {
        let (package, licence) = line.split_once('|')?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        if words.any(|word| word.contains('/')) {
            return None;
        }
        let licence = licence.trim_end_matches("(*)").trim().to_owned();
        Some(Self { name: name.to_owned(), version: version.to_owned(), licence })
    }
}

/// Returns the packages that cargo compiles into the library and the programs.
fn used_packages() -> Result<BTreeSet<UsedPackage>, String> {
    let mut tree = workspace::cargo();
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    tree.args(["--format", "{p}|{l}", "--target", &tools::host_target()?]);
    tree.args(ROOTS.iter().flat_map(|root| ["--package", root]));
    let text = run::run_checked(&mut tree, QUERY_LIMIT)?.text;
    let packages: BTreeSet<_> = text.lines().filter_map(UsedPackage::parse).collect();
    if packages.is_empty() {
        return Err("cargo tree names no package".into());
    }
    Ok(packages)
}

/// Returns the texts of a package.
fn licence_texts(package: &UsedPackage) -> Result<Vec<String>, String> {
    let folder = source_folder(package)?;
    let entries =
        std::fs::read_dir(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_licence(path)).collect();
    files.sort();
    let texts: Result<Vec<String>, String> = files.iter().map(|path| read(path)).collect();
    let mut texts = texts?;
    texts.retain(|text| text.len() >= MIN_TEXT_BYTES);
    if texts.is_empty() {
        texts.push(standard_text(package, &folder)?);
    }
    Ok(texts)
}

/// Returns the general text of a licence that a package without a text permits.
fn standard_text(package: &UsedPackage, folder: &Path) -> Result<String, String> {
    let permits = |name: &str| package.licence.split_whitespace().any(|word| word == name);
    if permits("Apache-2.0") {
        return read(&workspace::repository_root().join("LICENSE"));
    }
    if permits("MIT") {
        let manifest = read(&folder.join("Cargo.toml"))?;
        let authors = authors(&manifest);
        if !authors.is_empty() {
            return Ok(format!("Copyright (c) {}\n\n{MIT_TERMS}", authors.join(", ")));
        }
    }
    let UsedPackage { name, licence, .. } = package;
    Err(format!("{name} ({licence}) has no file with its licence"))
}

/// Returns the authors that a manifest names.
fn authors(manifest: &str) -> Vec<&str> {
    let list = manifest.split_once("\nauthors = [").and_then(|(_, rest)| rest.split_once(']'));
    list.map_or_else(Vec::new, |(list, _)| list.split('"').skip(1).step_by(2).collect())
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|cause| format!("{}: {cause}", path.display()))?;
    Ok(normalised(&String::from_utf8_lossy(&bytes)))
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    path.is_file() && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the text without the differences that have no meaning, so that equal texts are found.
fn normalised(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// Returns the folder into which cargo has unpacked a package.
fn source_folder(package: &UsedPackage) -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set")?;
    let sources = home.join("registry/src");
    let registries =
        std::fs::read_dir(&sources).map_err(|cause| format!("{}: {cause}", sources.display()))?;
    let name = format!("{}-{}", package.name, package.version);
    let mut folders = registries.flatten().map(|registry| registry.path().join(&name));
    folders.find(|folder| folder.is_dir()).ok_or_else(|| {
        format!("cargo has not fetched the sources of {name} into {}", sources.display())
    })
}

fn render(packages: &BTreeSet<UsedPackage>, texts: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut lines = vec![
        "The library and the programs of libdist contain these packages of Rust, and the standard"
            .to_owned(),
        "library of Rust (MIT OR Apache-2.0).".to_owned(),
        String::new(),
    ];
    lines.extend(packages.iter().map(|it| format!("{}: {}", it.title(), it.licence)));
    for (text, users) in texts {
        let users: Vec<&str> = users.iter().map(String::as_str).collect();
        lines.extend([String::new(), "=".repeat(80), users.join(", "), "=".repeat(80)]);
        lines.extend([String::new(), text.clone()]);
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, licence: &str) -> UsedPackage {
        let version = "1.0.0".to_owned();
        UsedPackage { name: name.to_owned(), version, licence: licence.to_owned() }
    }

    #[test]
    fn lines_of_cargo_are_read() {
        let read = UsedPackage::parse;
        assert_eq!(
            read("libc v1.0.0|MIT OR Apache-2.0 (*)"),
            Some(package("libc", "MIT OR Apache-2.0"))
        );
        assert_eq!(read("macros v1.0.0 (proc-macro)|MIT"), Some(package("macros", "MIT")));
        assert_eq!(read("dist v0.1.0 (/a/b)|Apache-2.0"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn authors_of_a_manifest_are_read() {
        let manifest = "name = \"a\"\nauthors = [\n    \"A <a@b>\",\n    \"C\",\n]\nbuild = false";
        assert_eq!(authors(manifest), ["A <a@b>", "C"]);
        assert!(authors("name = \"a\"").is_empty());
    }

    #[test]
    fn equal_texts_appear_once() {
        let packages = BTreeSet::from([package("a", "MIT"), package("b", "MIT")]);
        let text = normalised("\nPermission  \r\nis granted\n\n");
        let users = packages.iter().map(UsedPackage::title).collect();
        let page = render(&packages, &BTreeMap::from([(text, users)]));
        assert_eq!(page.matches("Permission\nis granted\n").count(), 1);
        assert!(page.contains("a 1.0.0, b 1.0.0\n") && page.contains("b 1.0.0: MIT\n"), "{page}");
    }

    #[test]
    fn every_package_has_a_text() {
        for package in used_packages().unwrap() {
            let texts = licence_texts(&package).unwrap();
            assert!(texts.iter().all(|text| text.len() >= MIN_TEXT_BYTES), "{package:?}");
        }
    }
}
