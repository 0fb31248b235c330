//! No import cycle exists between the files of the library.
//!
//! A file imports another file if it names a path into it. A path through a re-export leads to the
//! file that defines the item. A `mod.rs` that re-exports an item of its own child does not import
//! the child by this.

use super::scan::{SourceFile, source_files};
use std::collections::{BTreeMap, BTreeSet};

/// The longest chain of re-exports that is followed.
const MAX_RE_EXPORTS: usize = 6;

/// The files of the library by module path.
struct ModuleMap<'a> {
    by_module: BTreeMap<&'a str, &'a SourceFile>,
}

impl<'a> ModuleMap<'a> {
    fn new(files: &'a [SourceFile]) -> Self {
        Self { by_module: files.iter().map(|file| (file.module.as_str(), file)).collect() }
    }

    /// Returns the module that defines the item with this path.
    fn defining_module(&self, path: &str, depth: usize) -> Option<&'a str> {
        let parts: Vec<&str> = path.split("::").collect();
        for len in (1..=parts.len()).rev() {
            let Some((&module, file)) = self.by_module.get_key_value(&*parts[..len].join("::"))
            else {
                continue;
            };
            let re_export = parts.get(len).and_then(|item| file.re_exports.get(*item));
            if let Some(source) = re_export
                && depth < MAX_RE_EXPORTS
            {
                let rest = parts[len + 1..].iter().copied();
                let source: Vec<&str> = source.split("::").chain(rest).collect();
                if let Some(found) = self.defining_module(&source.join("::"), depth + 1) {
                    return Some(found);
                }
            }
            return Some(module);
        }
        None
    }

    /// Returns the modules that a file imports.
    fn imports(&self, file: &SourceFile) -> BTreeSet<&'a str> {
        let module = file.module.as_str();
        let used = file.crate_paths.iter().cloned();
        let of_children = file.outside_paths.iter().filter_map(|path| {
            let path = format!("{module}::{}", path.strip_prefix("self::").unwrap_or(path));
            let child: Vec<&str> = path.split("::").take(module.split("::").count() + 1).collect();
            self.by_module.contains_key(&*child.join("::")).then_some(path)
        });
        let re_exported = file.re_exports.values();
        let from_elsewhere = re_exported.filter(|path| !super::is_within(path, module)).cloned();
        used.chain(of_children)
            .chain(from_elsewhere)
            .filter_map(|path| self.defining_module(&path, 0))
            .filter(|&target| target != module)
            .collect()
    }
}

/// Returns the modules that a module reaches by imports.
fn reachable<'a>(
    imports: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    module: &'a str,
) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![module];
    while let Some(next) = open.pop() {
        let new = imports[next].iter().filter(|&&target| found.insert(target));
        open.extend(new);
    }
    found
}

/// Returns the imports that are part of a cycle, each as text.
fn cycles(files: &[SourceFile]) -> Vec<String> {
    let map = ModuleMap::new(files);
    let imports: BTreeMap<&str, BTreeSet<&str>> =
        files.iter().map(|file| (file.module.as_str(), map.imports(file))).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|&module| (module, reachable(&imports, module))).collect();
    let in_cycles = imports.iter().flat_map(|(module, targets)| {
        let targets = targets.iter().filter(|target| reached[*target].contains(module));
        targets.map(move |target| format!("{module} imports {target}"))
    });
    in_cycles.collect()
}

#[test]
fn no_import_cycle_exists() {
    let files: Vec<SourceFile> =
        source_files().into_iter().filter(|file| !file.module.contains("fuzz")).collect();
    let found = cycles(&files);
    assert!(found.is_empty(), "these files import each other:\n{}\n", found.join("\n"));
}

#[test]
fn import_cycles_are_found() {
    let files = [
        // A cycle through a re-export of the parent.
        SourceFile::new("src/wait/mod.rs", "mod bell; mod word; pub(crate) use word::Word;"),
        SourceFile::new("src/wait/bell.rs", "use super::Word; pub fn ring(_: Word) {}"),
        SourceFile::new("src/wait/word.rs", "pub struct Word; fn f() { super::bell::ring(Word) }"),
        // A parent that calls a child, which uses an item of the parent.
        SourceFile::new("src/store/mod.rs", "mod log; pub struct Key; fn f() { log::write(); }"),
        SourceFile::new("src/store/log.rs", "use super::Key; pub fn write() {}"),
        // No cycles: a child that uses its parent, and a user of both.
        SourceFile::new("src/algo/mod.rs", "mod ring; pub struct Row; pub use ring::run;"),
        SourceFile::new("src/algo/ring.rs", "use super::Row; pub fn run(_: Row) {}"),
        SourceFile::new("src/api/mod.rs", "use crate::algo::{Row, run}; use crate::wait;"),
    ];
    let found = cycles(&files);
    assert_eq!(
        found,
        [
            "store imports store::log",
            "store::log imports store",
            "wait::bell imports wait::word",
            "wait::word imports wait::bell",
        ]
    );
}
