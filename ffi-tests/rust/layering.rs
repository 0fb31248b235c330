//! Checks the dependencies between layers: compares the layer table with the source text.
//!
//! The table is the table of the architecture document. The source is scanned and not compiled: the
//! scanner removes comments, string literals and test code. Then it resolves every path (in a `use`
//! or elsewhere) to the layer that it refers to.
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]

#[path = "layering/readable.rs"]
mod readable;
#[path = "layering/scan.rs"]
mod scan;

use scan::{File, source_files};
use std::collections::BTreeSet;

/// The layers that a layer may use.
enum Rule {
    /// Only these layers and the layer itself.
    Only(&'static [&'static str]),
    /// All layers except these.
    Never(&'static [&'static str]),
}

/// The layer table; the longest matching prefix of a module path decides.
const TABLE: &[(&str, Rule)] = &[
    ("base", Rule::Only(&[])),
    ("sys", Rule::Only(&["base"])),
    ("wait", Rule::Only(&["base", "sys"])),
    ("device", Rule::Only(&["base", "sys"])),
    ("process", Rule::Only(&["base", "sys", "wait"])),
    ("kernel", Rule::Only(&["base"])),
    ("transport", Rule::Never(&["store", "algo", "kernel", "backend", "api", "ffi"])),
    ("store", Rule::Never(&["transport", "algo", "kernel", "backend", "api", "ffi"])),
    (
        "algo",
        Rule::Never(&[
            "transport::inproc",
            "transport::shm",
            "transport::tcp",
            "transport::select",
            "store",
            "sys",
            "backend",
            "api",
            "ffi",
        ]),
    ),
    ("backend", Rule::Never(&["store", "api", "ffi"])),
    ("backend::nccl", Rule::Never(ONE_BACKEND)),
    ("backend::plugin", Rule::Never(ONE_BACKEND)),
    ("backend::staging", Rule::Never(ONE_BACKEND)),
    (
        "api",
        Rule::Never(&[
            "backend::device_map::DeviceMap",
            "backend::native",
            "backend::nccl",
            "backend::plugin",
            "backend::solo",
            "backend::staging",
            "transport::inproc",
            "transport::shm",
            "transport::tcp",
            "transport::select",
            "sys",
            "ffi",
        ]),
    ),
    (
        "ffi",
        Rule::Never(&[
            "algo",
            "transport",
            "kernel",
            "sys",
            "store::file",
            "store::hash",
            "store::mem",
            "store::prefix",
            "store::table",
            "store::tcp",
            "store::FileStore",
            "store::HashStore",
            "store::PrefixStore",
            "store::TcpStore",
        ]),
    ),
];

/// The layers that a back end must not use if it wraps a foreign library or another back end.
const ONE_BACKEND: &[&str] = &[
    "algo",
    "transport",
    "store",
    "api",
    "ffi",
    "backend::native",
    "backend::nccl",
    "backend::plugin",
    "backend::solo",
    "backend::staging",
];

/// Crates that only one layer may use.
const CRATES: &[(&str, &str)] =
    &[("libc", "sys"), ("memmap2", "sys"), ("socket2", "sys"), ("half", "kernel")];

/// The modules that may contain unsafe code. Each has a reason at its `allow`.
const UNSAFE: &[&str] = &[
    "ffi",
    "sys",
    "wait",
    "device",
    "process",
    "kernel",
    "transport::shm",
    "transport::inproc",
    "backend::nccl",
    "backend::plugin",
    "backend::staging",
    "store::custom",
    "api::reducer",
    // The views of user memory; their constructors state the caller's obligation once.
    "base::buffer",
    // The loops that copy between these views.
    "base::copy",
    // Single instructions without side effects.
    "base::processor",
    // Turns offsets in a mapping into views, for `shm` and `inproc`.
    "transport::region",
];

/// The modules that may use raw C types.
const C_TYPES: &[&str] = &["ffi", "sys", "device", "backend::nccl", "backend::plugin"];

/// Exported macros, which are at the crate root, with their layers.
const MACROS: &[(&str, &str)] = &[("log", "base")];

/// Returns true if a module path equals `prefix` or is inside of it.
fn is_within(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn is_within_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| is_within(path, prefix))
}

fn layer_of(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

/// Returns the violations of a file's paths as text.
fn violations(file: &File) -> Vec<String> {
    let fitting = TABLE.iter().filter(|(layer, _)| is_within(&file.module, layer));
    let Some((layer, rule)) = fitting.max_by_key(|(layer, _)| layer.len()) else {
        return vec![format!("{}: the layer table has no row for {}", file.path, file.module)];
    };
    let mut found = Vec::new();
    for entered in &file.crate_paths {
        let head = layer_of(entered);
        let head = MACROS.iter().find(|(name, _)| name == &head).map_or(head, |(_, layer)| layer);
        if !TABLE.iter().any(|(layer, _)| layer == &head) {
            found.push(format!("{}: the layer table has no row for {entered}", file.path));
            continue;
        }
        let is_allowed = is_within(entered, layer)
            || match rule {
                Rule::Only(others) => others.contains(&head),
                Rule::Never(others) => !is_within_any(entered, others),
            };
        if !is_allowed {
            found.push(format!("{}: {layer} must not know {entered}", file.path));
        }
    }
    for outside in &file.outside_paths {
        let head = layer_of(outside);
        if let Some((_, home)) = CRATES.iter().find(|(name, _)| name == &head)
            && layer_of(&file.module) != *home
        {
            found.push(format!("{}: only {home} knows {head}", file.path));
        }
        if is_within(outside, "std::env") && file.module != "base::config" {
            found.push(format!("{}: only base::config reads the environment", file.path));
        }
    }
    found
}

#[test]
fn source_follows_the_layer_table() {
    let files = source_files();
    let paths: usize = files.iter().map(|file| file.crate_paths.len()).sum();
    assert!(files.len() > 60 && paths > 300, "{} files, {paths} paths: too few", files.len());
    let found: Vec<String> = files.iter().flat_map(violations).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn unsafe_code_is_in_listed_modules() {
    for file in source_files() {
        for allowance in file.allowances("unsafe_code") {
            assert!(
                is_within_any(&file.module, UNSAFE),
                "{}: unsafe code belongs to {UNSAFE:?}",
                file.path
            );
            assert!(allowance.contains("reason"), "{}: no reason for unsafe code", file.path);
        }
    }
}

/// The modules that block in addition to `wait` and `sys`: the child process or thread that they
/// wait for has been killed or asked to end.
const BLOCKS: &[&str] = &["base::config", "process::child_group", "store::tcp::server"];

/// The lint `disallowed_methods` of clippy finds all other code that blocks or reads the
/// environment.
#[test]
fn blocking_code_is_in_wait_and_sys() {
    for file in source_files() {
        for allowance in file.allowances("disallowed_methods") {
            let is_home = ["wait", "sys"].contains(&layer_of(&file.module))
                || BLOCKS.contains(&file.module.as_str());
            assert!(is_home, "{}: waiting belongs to the layer wait", file.path);
            assert!(allowance.contains("reason"), "{}: no reason for what blocks", file.path);
        }
    }
    let root = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs"));
    let denies = "cfg_attr(not(test), deny(clippy::disallowed_methods))";
    assert!(root.expect("the root of the crate").contains(denies), "nobody looks for what blocks");
}

/// A lock has no deadline, so the page has to argue for each lock that no thread waits long for it.
#[test]
fn every_lock_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/locks.md");
    let page = std::fs::read_to_string(page).expect("the page of locks");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let argued: BTreeSet<String> = rows.map(|(lock, _)| lock.replace("` `", " ")).collect();
    let found: BTreeSet<String> = source_files()
        .iter()
        .filter(|file| !file.module.contains("fuzz"))
        .flat_map(|file| {
            let path = file.path.trim_start_matches("src/");
            file.locks().into_iter().map(|name| format!("{path} {name}")).collect::<Vec<_>>()
        })
        .collect();
    assert!(found.len() > 40, "{found:?}");
    let missing: Vec<_> = found.difference(&argued).collect();
    let gone: Vec<_> = argued.difference(&found).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not argued: {missing:#?}; gone: {gone:#?}");
}

#[test]
fn exports_and_c_types_are_in_ffi() {
    for file in source_files() {
        if file.has_word("no_mangle") {
            assert_eq!(file.module, "ffi::guard", "{} exports something", file.path);
        }
        for word in ["c_char", "c_void", "c_int", "CStr", "CString"] {
            let is_home = is_within_any(&file.module, C_TYPES);
            assert!(is_home || !file.has_word(word), "{}: {word} is not for here", file.path);
        }
    }
}

/// Returns the violations of a text as if it were this file.
fn said_of(path: &str, text: &str) -> Vec<String> {
    violations(&File::new(path, text))
}

#[test]
fn violations_are_found_in_all_spellings() {
    for (path, text, entered) in [
        ("src/kernel/x.rs", "use crate::sys::host;", "sys::host"),
        ("src/store/x.rs", "use crate::{base::error, wait, api::{self}};", "api"),
        (
            "src/store/x.rs",
            "use crate::{base, api::{group::Group as G}, wait};",
            "api::group::Group",
        ),
        ("src/algo/x.rs", "fn f() { crate::sys::host::pid(); }", "sys::host::pid"),
        ("src/algo/shared/x.rs", "use crate::transport::{self, shm::*};", "transport::shm"),
        ("src/algo/shared/x.rs", "use super::super::super::store::Store;", "store::Store"),
        ("src/ffi/x.rs", "use crate::store::{HashStore, Store};", "store::HashStore"),
        ("src/ffi/mod.rs", "pub(crate) use super::kernel;", "kernel"),
        ("src/base/x.rs", "macro_rules! m { () => { $crate::wait::until() } }", "wait::until"),
        (
            "src/backend/nccl/comm.rs",
            "use super::super::native::Native;",
            "backend::native::Native",
        ),
        (
            "src/api/x.rs",
            "use crate::backend::{Backend, native::Native};",
            "backend::native::Native",
        ),
        (
            "src/wait/x.rs",
            "#[cfg(test)] mod tests { use crate::api; } use crate::api::Work;",
            "api::Work",
        ),
    ] {
        let said = said_of(path, text);
        assert_eq!(said.len(), 1, "{path}: {text}: {said:?}");
        assert!(said[0].ends_with(&format!("must not know {entered}")), "{said:?}");
    }
}

#[test]
fn foreign_crates_and_environment_access_are_found() {
    for (path, text, word) in [
        ("src/wait/x.rs", "fn f() { unsafe { libc::getpid() }; }", "libc"),
        ("src/api/x.rs", "use libc;", "libc"),
        ("src/transport/x.rs", "use memmap2::MmapRaw;", "memmap2"),
        ("src/sys/x.rs", "fn f() { std::env::var(\"X\").ok(); }", "environment"),
        ("src/sys/x.rs", "use std::{env, io};", "environment"),
        ("src/new/x.rs", "", "no row"),
        ("src/api/x.rs", "use crate::new::Thing;", "no row"),
    ] {
        let said = said_of(path, text);
        assert_eq!(said.len(), 1, "{path}: {text}: {said:?}");
        assert!(said[0].contains(word), "{said:?}");
    }
}

#[test]
fn allowed_paths_comments_and_strings_are_ignored() {
    for (path, text) in [
        ("src/kernel/x.rs", "// use crate::api;\n/* crate::sys::x /* nested */ crate::api */"),
        ("src/kernel/x.rs", "fn f() -> &'static str { \"use crate::api; \\\" crate::sys::x\" }"),
        (
            "src/kernel/x.rs",
            "const S: &str = r#\"crate::api::\"x\" crate::sys\"#; fn g<'a>(_: &'a u8) {}",
        ),
        (
            "src/kernel/x.rs",
            "#[cfg(test)]\n#[path = \"y\"]\nmod tests { use crate::api; fn f() {} }",
        ),
        ("src/kernel/x.rs", "#[cfg(test)] use crate::sys::{host, shm};"),
        ("src/kernel/x.rs", "#[cfg(test)] fn f(a: [u8; 2]) -> u8 { libc::x() }"),
        ("src/kernel/x.rs", "use half::f16; use super::loops; const C: char = '\"';"),
        (
            "src/algo/x.rs",
            "use crate::transport::{Endpoint, SharedDomain}; pub(in crate::algo) fn f() {}",
        ),
        ("src/api/x.rs", "fn f() { crate::log!(Level::Info, \"crate::sys::{}\", 1); }"),
        ("src/backend/plugin.rs", "use super::Backend; use crate::base::error::Result;"),
        ("src/ffi/x.rs", "use crate::store::Store; use crate::api::store::HashStore;"),
        ("src/sys/x.rs", "fn f() { libc::getpid(); env!(\"CARGO_PKG_VERSION\"); }"),
    ] {
        assert!(said_of(path, text).is_empty(), "{path}: {text}: {:?}", said_of(path, text));
    }
}
