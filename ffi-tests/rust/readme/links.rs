//! Checks the links of the documents: each relative link leads to an existing file, and its
//! fragment to a heading or an anchor. The contents of the book have every page of `docs/`.

use crate::read;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Folders with documents.
const FOLDERS: &[&str] = &["docs", "c-examples", "python", "ffi-tests/stubs"];

/// Pages of the repository that users do not read as part of the book.
const OUTSIDE_OF_THE_BOOK: &[&str] =
    &["c-examples/digits_training/data/README.md", "python/README.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Adds the documents below a folder, as paths from the root.
fn add_documents(folder: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if path.ends_with(".md") {
            found.insert(path);
        } else if !folder.is_empty() && entry.path().is_dir() && !is_build_output(&path) {
            add_documents(&path, found);
        }
    }
}

/// True for folders that tools write, which git ignores.
fn is_build_output(path: &str) -> bool {
    let names = ["build", "target", "node_modules", "dist", "__pycache__"];
    names.iter().any(|name| path.ends_with(&format!("/{name}"))) || path.contains("/.")
}

fn documents() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    add_documents("", &mut found);
    FOLDERS.iter().for_each(|folder| add_documents(folder, &mut found));
    found
}

/// Returns the text without code blocks and code spans.
fn without_code(page: &str) -> String {
    let mut prose = String::new();
    let mut is_code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            line.split('`').step_by(2).for_each(|part| prose.push_str(part));
            prose.push('\n');
        }
    }
    prose
}

/// Returns the targets of the links and pictures of a page.
fn link_targets(page: &str) -> Vec<String> {
    let prose = without_code(page);
    let links = prose.split("](").skip(1);
    let targets = links.filter_map(|rest| rest.split([')', ' ', '\n']).next());
    targets.map(str::to_owned).collect()
}

/// Returns the fragment of a heading, as code hosts and mdBook make it.
fn heading_fragment(heading: &str) -> String {
    let without_targets: String = heading
        .split("](")
        .enumerate()
        .map(|(number, part)| match number {
            0 => part,
            _ => part.split_once(')').map_or(part, |(_, rest)| rest),
        })
        .collect();
    let kept = without_targets.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// Returns the fragments that a page defines.
fn fragments(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut count_by_name: BTreeMap<String, usize> = BTreeMap::new();
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        if let Some(heading) = line.strip_prefix('#') {
            let fragment = heading_fragment(heading.trim_start_matches('#'));
            let count = count_by_name.entry(fragment.clone()).or_default();
            found.insert(if *count == 0 { fragment } else { format!("{fragment}-{count}") });
            *count += 1;
        }
        let anchors = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        found.extend(anchors.map(str::to_owned));
    }
    found
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

/// Returns the links of a page that lead nowhere.
fn broken_links(page: &str, text: &str) -> Vec<String> {
    let is_broken = |target: &String| {
        if target.contains("://") || target.starts_with("mailto:") {
            return false;
        }
        let (file, fragment) = target.split_once('#').unwrap_or((target.as_str(), ""));
        let file = if file.is_empty() { page.to_owned() } else { resolve(page, file) };
        if !root().join(&file).exists() {
            return true;
        }
        let has_fragment = !fragment.is_empty() && file.ends_with(".md");
        has_fragment && !fragments(&read(&file)).contains(fragment)
    };
    link_targets(text).into_iter().filter(is_broken).collect()
}

#[test]
fn links_lead_to_existing_files_and_headings() {
    let pages = documents();
    assert!(pages.len() > 40, "only {pages:?}");
    let mut count = 0;
    let mut broken = Vec::new();
    for page in &pages {
        let text = read(page);
        count += link_targets(&text).len();
        broken.extend(broken_links(page, &text).iter().map(|it| format!("{page}: {it}")));
    }
    assert!(count > 300, "only {count} links");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn broken_links_are_found() {
    let text = "# Head\n[a](docs/no.md) [b](#head) [c](#tail) [d](ARCHITECTURE.md#layers) `[x](y)`\n\
                [e](docs/errors.md#no) [f](https://example.org)\n```\n[g](h)\n```\n";
    let temporary = ["docs/no.md", "#tail", "docs/errors.md#no"];
    let found = broken_links("README.md", text);
    // The fragments of a page without a file name are those of the page on disk.
    assert!(found.contains(&temporary[0].to_owned()) && found.contains(&temporary[1].to_owned()));
    assert!(found.contains(&temporary[2].to_owned()));
    assert!(!found.contains(&"ARCHITECTURE.md#layers".to_owned()), "{found:?}");
    assert!(!found.iter().any(|it| it == "h" || it == "y"), "{found:?}");
}

#[test]
fn fragments_follow_the_headings() {
    let page = "# A `b`: c_d\n## Same\n## Same\n<a id=\"x\"></a>\n```\n# no\n```\n### [link](to)\n";
    let expected = ["a-b-c_d", "link", "same", "same-1", "x"];
    assert_eq!(fragments(page).iter().map(String::as_str).collect::<Vec<_>>(), expected);
    assert_eq!(resolve("docs/a/b.md", "../c.md"), "docs/c.md");
}

#[test]
fn contents_of_the_book_have_every_page_once() {
    let summary = read("docs/SUMMARY.md");
    let targets = link_targets(&summary).into_iter().map(|it| resolve("docs/SUMMARY.md", &it));
    let listed: Vec<String> = targets.collect();
    let unique: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), unique.len(), "a page is listed twice");
    let mut expected = documents();
    expected.remove("docs/SUMMARY.md");
    OUTSIDE_OF_THE_BOOK.iter().for_each(|page| _ = expected.remove(*page));
    let missing: Vec<&String> = expected.difference(&unique).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md has no line for {missing:?}");
}
