//! `cargo xtask docs`: builds the book from `docs/` with mdBook.
//!
//! The pages of the book are files of the repository, which link each other and other files. The
//! command copies the pages and the linked files to a folder with the same structure, so that all
//! links stay valid, and calls mdBook there. In the book, each function of the reference has a page
//! of its own ([`function_pages`]). At the end the command checks the links of the written pages.

mod function_pages;

use crate::{Arguments, CommandResult, run, tools, workspace};
use function_pages::FunctionPages;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The version of mdBook that was tested.
const MDBOOK_VERSION: &str = "0.5.4";
/// The file with the contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";
const INSTALL_LIMIT: Duration = Duration::from_secs(1800);
const BUILD_LIMIT: Duration = Duration::from_secs(300);

/// Builds the book.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    Arguments::new(rest).finish()?;
    let mdbook = match installed_mdbook()? {
        Some(program) => program,
        None => install_mdbook()?,
    };
    let index = build(&mdbook)?;
    println!("the book is {}", index.display());
    Ok(true)
}

/// Builds the book as a check. If mdBook is not installed and `may_install` is true, builds mdBook
/// first. Returns the reason if there is no mdBook.
pub(crate) fn check(may_install: bool) -> Result<Option<String>, String> {
    let mdbook = match installed_mdbook()? {
        Some(program) => program,
        None if may_install => match install_mdbook() {
            Ok(program) => program,
            Err(reason) => return Ok(Some(reason)),
        },
        None => {
            let reason = "mdbook is not installed (`cargo xtask docs` builds it)";
            return Ok(Some(reason.to_owned()));
        }
    };
    build(&mdbook).map(|_| None)
}

/// Returns the folder for mdBook, if this command installs it.
fn tool_folder() -> Result<PathBuf, String> {
    workspace::scratch_folder("mdbook")
}

/// Returns mdBook from the search path, or the one that an earlier run has installed.
fn installed_mdbook() -> Result<Option<PathBuf>, String> {
    let own = tool_folder()?.join("bin/mdbook");
    Ok(tools::find_program("mdbook").or_else(|| own.is_file().then_some(own)))
}

fn install_mdbook() -> Result<PathBuf, String> {
    let folder = tool_folder()?;
    println!("mdbook is not installed; building version {MDBOOK_VERSION} in {}", folder.display());
    let mut install = workspace::cargo();
    install.args(["install", "mdbook", "--locked", "--version", MDBOOK_VERSION]);
    // Without the server, which needs most of the build time.
    install.args(["--no-default-features", "--features", "search", "--root"]);
    if !run::run_visibly(install.arg(&folder), INSTALL_LIMIT)?.success() {
        return Err("mdbook was not built; install it (`cargo install --locked mdbook`)".into());
    }
    Ok(folder.join("bin/mdbook"))
}

/// Copies the sources, calls mdBook, and checks the result. Returns the first page.
fn build(mdbook: &Path) -> Result<PathBuf, String> {
    let folder = workspace::scratch_folder("book")?;
    tools::recreate_folder(&folder)?;
    stage_book(&workspace::repository_root(), &folder)?;
    run::run_checked(run::command(mdbook).arg("build").arg(&folder), BUILD_LIMIT)?;
    let html = folder.join("html");
    let broken = broken_page_links(&html)?;
    if !broken.is_empty() {
        return Err(format!("the book has broken links:\n{}", broken.join("\n")));
    }
    Ok(html.join("index.html"))
}

/// Copies the pages and the files that they link, and writes the contents of the book.
fn stage_book(root: &Path, folder: &Path) -> Result<(), String> {
    let source = folder.join("src");
    let summary = read(&root.join(SUMMARY))?;
    let pages: BTreeSet<String> =
        link_targets(&summary).map(|target| resolve(SUMMARY, target)).collect();
    let mut functions = FunctionPages::default();
    let mut texts: Vec<(String, String)> = Vec::new();
    for page in &pages {
        let text = read(&root.join(page))?;
        for target in link_targets(&text).filter(|target| !target.contains("://")) {
            let file = target.split('#').next().unwrap_or_default();
            let linked = resolve(page, file);
            let is_other_file = !file.is_empty() && linked != SUMMARY && !pages.contains(&linked);
            // mdBook makes a link to a page of each link to a file of Markdown.
            if is_other_file && linked.ends_with(".md") {
                return Err(format!("{page} links {linked}, which {SUMMARY} does not list"));
            } else if is_other_file {
                copy(root, &source, &linked)?;
            }
        }
        let split = functions.split(page, &text);
        texts.push((page.clone(), split.section));
        let of_functions = split.functions.into_iter();
        texts.extend(of_functions.map(|(name, text)| (function_pages::path(&name), text)));
    }
    for (page, text) in &texts {
        let staged = with_targets(text, |target| {
            let linked = resolve(page, target.split('#').next()?);
            if linked == SUMMARY {
                // The book shows its contents next to each page.
                return Some("#".to_owned());
            }
            let of_page = || pages.contains(&linked).then(|| staged_name(target));
            functions.target(&linked, target).or_else(of_page)
        });
        write(&source.join(staged_name(page)), &staged)?;
    }
    write(&source.join("SUMMARY.md"), &staged_summary(&summary, &functions))?;
    write(&folder.join("book.toml"), &read(&root.join("docs/book.toml"))?)
}

/// Returns the contents of the book, with the pages of the functions below their sections.
fn staged_summary(summary: &str, functions: &FunctionPages) -> String {
    let mut staged = String::new();
    for line in summary.lines() {
        let page = link_targets(line).next().map(|target| resolve(SUMMARY, target));
        staged += &with_targets(line, |target| Some(staged_name(&resolve(SUMMARY, target))));
        staged.push('\n');
        let indent = line.len() - line.trim_start().len() + 2;
        for name in page.iter().flat_map(|page| functions.names(page)) {
            staged += &format!("{:indent$}- [{name}]({})\n", "", function_pages::path(name));
        }
    }
    staged
}

/// Returns the name of a page or a link to it in the book. mdBook makes `index.html` of
/// `README.md`, and does not adapt the links to it.
fn staged_name(name: &str) -> String {
    name.replace("README.md", "index.md")
}

/// Replaces the targets of links for which `change` returns another target.
fn with_targets(page: &str, change: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = page.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        let new = change(target).unwrap_or_else(|| target.to_owned());
        text += &format!("]({new}");
        if part.len() > target.len() {
            text += &format!("){rest}");
        }
    }
    text
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let parent = path.parent().ok_or("a file has a folder")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, text))
        .map_err(|cause| format!("{}: {cause}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|cause| format!("{}: {cause}", path.display()))
}

/// Copies a file, or the files of a folder, to the same path below another root.
fn copy(root: &Path, target: &Path, name: &str) -> Result<(), String> {
    let from = root.join(name);
    if from.is_dir() {
        let entries = fs::read_dir(&from).map_err(|cause| format!("{name}: {cause}"))?;
        for entry in entries.flatten().filter(|entry| entry.path().is_file()) {
            copy(root, target, &format!("{name}/{}", entry.file_name().to_string_lossy()))?;
        }
        return Ok(());
    }
    let to = target.join(name);
    let parent = to.parent().ok_or("a file has a folder")?;
    fs::create_dir_all(parent)
        .and_then(|()| fs::copy(&from, &to))
        .map(|_| ())
        .map_err(|cause| format!("{name}: {cause}"))
}

/// Returns the targets of the links and pictures of a page.
fn link_targets(page: &str) -> impl Iterator<Item = &str> {
    page.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', '\n']).next()?;
        (!target.contains(['`', ' '])).then_some(target)
    })
}

/// Returns the path of a link's target from the root, without `..`.
fn resolve(page: &str, target: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.display().to_string()
}

/// Returns the relative links of the written pages that lead to no file or to no place in a page.
fn broken_page_links(html: &Path) -> Result<Vec<String>, String> {
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    let mut folders = vec![html.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "html") {
                let name = path.strip_prefix(html).unwrap_or(&path).display().to_string();
                pages.insert(name, read(&path)?);
            }
        }
    }
    // This page is for any place in the site, so its links are absolute.
    let checked = pages.iter().filter(|(name, _)| *name != "404.html");
    Ok(checked.flat_map(|(name, text)| missing_targets(html, &pages, name, text)).collect())
}

/// Returns the broken links of a page.
fn missing_targets(
    html: &Path,
    pages: &BTreeMap<String, String>,
    page: &str,
    text: &str,
) -> Vec<String> {
    let targets = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let relative = targets.filter(|it| !it.contains(':') && !it.starts_with('/'));
    let is_missing = |target: &&str| {
        let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
        let file = if file.is_empty() { page.to_owned() } else { resolve(page, file) };
        let has_fragment =
            |text: &String| fragment.is_empty() || text.contains(&format!("id=\"{fragment}\""));
        !html.join(&file).exists() || pages.get(&file).is_some_and(|text| !has_fragment(text))
    };
    relative.filter(is_missing).map(|target| format!("{page}: {target}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_staged_with_the_files_that_they_link() {
        let folder = std::env::temp_dir().join(format!("xtask-book-{}", std::process::id()));
        tools::recreate_folder(&folder).unwrap();
        stage_book(&workspace::repository_root(), &folder).unwrap();
        let summary = read(&folder.join("src/SUMMARY.md")).unwrap();
        assert!(summary.contains("(docs/tutorial.md)") && summary.contains("(index.md)"));
        let examples = read(&folder.join("src/docs/cpp.md")).unwrap();
        assert!(examples.contains("(../c-examples/index.md)"), "{examples}");
        // Each function that the library exports has a page and a line in the contents.
        let symbols =
            read(&workspace::repository_root().join("ffi-tests/abi/symbols.txt")).unwrap();
        let names = || symbols.lines().filter(|it| it.starts_with("dist_"));
        assert!(names().count() > 150, "{symbols}");
        for name in names() {
            let page = read(&folder.join("src").join(function_pages::path(name))).unwrap();
            assert!(page.starts_with(&format!("# {name}\n")), "{page}");
            assert!(summary.contains(&format!("- [{name}](docs/reference/{name}.md)\n")), "{name}");
        }
        let memory = read(&folder.join("src/docs/memory.md")).unwrap();
        assert!(memory.contains("(reference/dist_mem_alloc.md)"), "{memory}");
        for name in ["docs/tutorial.md", "index.md", "include/dist.h", "LICENSE"] {
            assert!(folder.join("src").join(name).is_file(), "{name} is not there");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn links_of_written_pages_are_checked() {
        let folder = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        tools::recreate_folder(&folder).unwrap();
        let page = "<a href=\"b.html#x\"> <a href=\"c.html\"> <a href=\"#y\"> <a href=\"http://z\"> \
             <a href=\"b.html#w\"> <h1 id=\"y\">";
        fs::write(folder.join("a.html"), page).unwrap();
        fs::write(folder.join("b.html"), "<h1 id=\"x\">").unwrap();
        assert_eq!(broken_page_links(&folder).unwrap(), ["a.html: c.html", "a.html: b.html#w"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
