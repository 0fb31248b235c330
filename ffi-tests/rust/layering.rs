//! Checks the dependencies between layers: compares the layer table with the source text.
//!
//! The table is the table of the architecture document. The source is scanned and not compiled: the
//! scanner removes comments, string literals and test code. Then it resolves every path (in a `use`
//! or elsewhere) to the layer that it refers to.
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]

#[path = "layering/cycles.rs"]
mod cycles;
#[path = "layering/memory_ordering.rs"]
mod memory_ordering;
#[path = "layering/readable.rs"]
mod readable;
#[path = "layering/scan.rs"]
mod scan;

use scan::{SourceFile, source_files};
use std::collections::BTreeSet;

/// The layers that a layer may use.
enum LayerRule {
    /// Only these layers and the layer itself.
    Only(&'static [&'static str]),
    /// All layers except these.
    Never(&'static [&'static str]),
}

/// The layer table; the longest matching prefix of a module path decides.
const LAYER_RULES: &[(&str, LayerRule)] = &[
    ("base", LayerRule::Only(&[])),
    ("sys", LayerRule::Only(&["base"])),
    ("wait", LayerRule::Only(&["base", "sys"])),
    ("device", LayerRule::Only(&["base", "sys"])),
    ("process", LayerRule::Only(&["base", "sys", "wait"])),
    ("kernel", LayerRule::Only(&["base"])),
    ("security", LayerRule::Only(&["base", "sys"])),
    ("transport", LayerRule::Never(&["store", "algo", "kernel", "backend", "api", "ffi"])),
    ("store", LayerRule::Never(&["transport", "algo", "kernel", "backend", "api", "ffi"])),
    (
        "algo",
        LayerRule::Never(&[
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
    ("backend", LayerRule::Never(&["store", "api", "ffi"])),
    ("backend::nccl", LayerRule::Never(BACKEND_SPECIFIC_MODULES)),
    ("backend::plugin", LayerRule::Never(BACKEND_SPECIFIC_MODULES)),
    ("backend::staging", LayerRule::Never(BACKEND_SPECIFIC_MODULES)),
    ("backend::two_level", LayerRule::Never(BACKEND_SPECIFIC_MODULES)),
    (
        // Uses the frame for plug-ins.
        "backend::ucc",
        LayerRule::Never(&[
            "algo",
            "transport",
            "store",
            "api",
            "ffi",
            "backend::native",
            "backend::nccl",
            "backend::solo",
            "backend::staging",
        ]),
    ),
    (
        "api",
        LayerRule::Never(&[
            "backend::device_map::DeviceMap",
            "backend::native",
            "backend::nccl",
            "backend::plugin",
            "backend::solo",
            "backend::staging",
            "backend::ucc",
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
        LayerRule::Never(&[
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
const BACKEND_SPECIFIC_MODULES: &[&str] = &[
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
const ALLOWED_CRATES: &[(&str, &str)] = &[
    ("libc", "sys"),
    ("memmap2", "sys"),
    ("socket2", "sys"),
    ("half", "kernel"),
    ("snow", "security"),
    ("graviola", "security"),
    ("chacha20poly1305", "security"),
];

/// The modules that may contain unsafe code. Each has a reason at its `allow`.
const UNSAFE_MODULES: &[&str] = &[
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
    // Makes views of device memory that it owns.
    "backend::two_level::scratch",
    "backend::ucc",
    "store::custom",
    "api::reducer",
    // The views of user memory; their constructors state the caller's obligation once.
    "base::buffer",
    // The loops that copy between these views.
    "base::vector_copy",
    // Single instructions without side effects.
    "base::processor",
    // Turns offsets in a mapping into views, for `shm` and `inproc`.
    "transport::region",
    // Ends the loans of memory before its lifetime ends.
    "transport::loans",
];

/// The modules that may use raw C types.
const C_TYPE_MODULES: &[&str] =
    &["ffi", "sys", "device", "backend::nccl", "backend::plugin", "backend::ucc"];

/// Exported macros, which are at the crate root, with their layers.
const MACRO_HOMES: &[(&str, &str)] = &[("log", "base")];

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
fn violations(file: &SourceFile) -> Vec<String> {
    let fitting = LAYER_RULES.iter().filter(|(layer, _)| is_within(&file.module, layer));
    let Some((layer, rule)) = fitting.max_by_key(|(layer, _)| layer.len()) else {
        return vec![format!("{}: the layer table has no row for {}", file.path, file.module)];
    };
    let mut violations = Vec::new();
    for entered in file.crate_paths.iter().chain(file.re_exports.values()) {
        let head = layer_of(entered);
        let head =
            MACRO_HOMES.iter().find(|(name, _)| name == &head).map_or(head, |(_, layer)| layer);
        if !LAYER_RULES.iter().any(|(layer, _)| layer == &head) {
            violations.push(format!("{}: the layer table has no row for {entered}", file.path));
            continue;
        }
        let is_allowed = is_within(entered, layer)
            || match rule {
                LayerRule::Only(others) => others.contains(&head),
                LayerRule::Never(others) => !is_within_any(entered, others),
            };
        if !is_allowed {
            violations.push(format!("{}: {layer} must not know {entered}", file.path));
        }
    }
    for outside in &file.outside_paths {
        let head = layer_of(outside);
        if let Some((_, home)) = ALLOWED_CRATES.iter().find(|(name, _)| name == &head)
            && layer_of(&file.module) != *home
        {
            violations.push(format!("{}: only {home} knows {head}", file.path));
        }
        if is_within(outside, "std::env") && file.module != "base::config" {
            violations.push(format!("{}: only base::config reads the environment", file.path));
        }
    }
    violations
}

#[test]
fn source_follows_the_layer_table() {
    let files = source_files();
    let paths: usize = files.iter().map(|file| file.crate_paths.len()).sum();
    assert!(files.len() > 60 && paths > 300, "{} files, {paths} paths: too few", files.len());
    let all_violations: Vec<String> = files.iter().flat_map(violations).collect();
    assert!(all_violations.is_empty(), "\n{}\n", all_violations.join("\n"));
}

#[test]
fn unsafe_code_is_in_listed_modules() {
    for file in source_files() {
        for allowance in file.lint_allowances("unsafe_code") {
            assert!(
                is_within_any(&file.module, UNSAFE_MODULES),
                "{}: unsafe code belongs to {UNSAFE_MODULES:?}",
                file.path
            );
            assert!(allowance.contains("reason"), "{}: no reason for unsafe code", file.path);
        }
    }
}

/// The modules that block in addition to `wait` and `sys`: the child process or thread that they
/// wait for has been killed or asked to end.
const BLOCKING_MODULES: &[&str] = &["base::config", "process::child_group", "store::tcp::server"];

/// The lint `disallowed_methods` of clippy finds all other code that blocks or reads the
/// environment.
#[test]
fn blocking_code_is_in_wait_and_sys() {
    for file in source_files() {
        for allowance in file.lint_allowances("disallowed_methods") {
            let is_home = ["wait", "sys"].contains(&layer_of(&file.module))
                || BLOCKING_MODULES.contains(&file.module.as_str());
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
    let locks: BTreeSet<String> = source_files()
        .iter()
        .filter(|file| !file.module.contains("fuzz"))
        .flat_map(|file| {
            let path = file.path.trim_start_matches("src/");
            file.locked_fields()
                .into_iter()
                .map(|name| format!("{path} {name}"))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(locks.len() > 40, "{locks:?}");
    let missing: Vec<_> = locks.difference(&argued).collect();
    let outdated: Vec<_> = argued.difference(&locks).collect();
    assert!(
        missing.is_empty() && outdated.is_empty(),
        "not argued: {missing:#?}; gone: {outdated:#?}"
    );
}

#[test]
fn exports_and_c_types_are_in_ffi() {
    for file in source_files() {
        if file.has_word("no_mangle") {
            assert_eq!(file.module, "ffi::guard", "{} exports something", file.path);
        }
        for word in ["c_char", "c_void", "c_int", "CStr", "CString"] {
            let is_home = is_within_any(&file.module, C_TYPE_MODULES);
            assert!(is_home || !file.has_word(word), "{}: {word} is not for here", file.path);
        }
    }
}

/// Returns the violations of a text as if it were this file.
fn violations_in_text(path: &str, text: &str) -> Vec<String> {
    violations(&SourceFile::new(path, text))
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
        let violations = violations_in_text(path, text);
        assert_eq!(violations.len(), 1, "{path}: {text}: {violations:?}");
        assert!(violations[0].ends_with(&format!("must not know {entered}")), "{violations:?}");
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
        let violations = violations_in_text(path, text);
        assert_eq!(violations.len(), 1, "{path}: {text}: {violations:?}");
        assert!(violations[0].contains(word), "{violations:?}");
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
        assert!(
            violations_in_text(path, text).is_empty(),
            "{path}: {text}: {:?}",
            violations_in_text(path, text)
        );
    }
}
