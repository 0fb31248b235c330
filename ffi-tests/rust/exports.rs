//! Checks the built library: it exports exactly the functions of `dist_export!`, of the symbol list
//! and of the header. Its soname, flags and dependencies are as documented.
#![allow(clippy::expect_used, reason = "in a test a broken assumption is a failure")]

mod interface;

use interface::{ROOT, find_program, functions, library};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The libraries that libdist may depend on at run time; they never include CUDA, MPI or Python.
const ALLOWED_LIBRARIES: &[&str] =
    &["libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux"];

fn names(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// Returns the names that `dist_export!` defines.
fn exports() -> BTreeSet<String> {
    dist_headers::exported_names(Path::new(ROOT)).into_iter().collect()
}

/// Returns the output of a binutils tool for the library, or `None` if the tool is missing.
fn output_of(tool: &str, args: &[&str]) -> Option<String> {
    let program = find_program(tool)?;
    let output = Command::new(program).args(args).arg(library()).output().expect("the tool starts");
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn export_list_matches_the_source() {
    let list =
        std::fs::read_to_string(format!("{ROOT}/ffi-tests/abi/symbols.txt")).expect("a list");
    let sorted: Vec<String> = names(&list).into_iter().collect();
    assert_eq!(list.lines().collect::<Vec<_>>(), sorted, "symbols.txt is sorted");
    assert_eq!(
        names(&list),
        exports(),
        "left: ffi-tests/abi/symbols.txt; right: what dist_export! defines. Removing or renaming a \
         function breaks callers; a new one is added to the list (`ffi-tests/abi/check.sh --update`)"
    );
}

#[test]
fn header_declares_every_export() {
    let declared: BTreeSet<String> = functions().into_iter().map(|f| f.name).collect();
    assert_eq!(declared, exports());
}

#[test]
fn library_exports_only_the_list() {
    let Some(output) = output_of("nm", &["-D", "--defined-only"]) else {
        println!("skipped: there is no nm (binutils)");
        return;
    };
    let defined: BTreeSet<String> = output
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(str::to_owned)
        .collect();
    assert_eq!(defined, exports(), "left: the library; right: dist_export!");
}

#[test]
fn library_has_soname_nodelete_and_few_dependencies() {
    let Some(output) = output_of("readelf", &["-d", "--wide"]) else {
        println!("skipped: there is no readelf (binutils)");
        return;
    };
    let lines = |tag: &str| {
        let tag = tag.to_owned();
        output.lines().filter(move |line| line.contains(&tag)).collect::<Vec<_>>()
    };
    let soname = lines("(SONAME)");
    assert!(soname.len() == 1 && soname[0].ends_with("[libdist.so.0]"), "{soname:?}");
    let flags = lines("(FLAGS_1)");
    assert!(flags.iter().any(|line| line.contains("NODELETE")), "{flags:?}");
    let needed = lines("(NEEDED)");
    assert!(!needed.is_empty());
    for line in needed {
        let name = line.split(['[', ']']).nth(1).expect("a name in brackets");
        let is_known = ALLOWED_LIBRARIES.iter().any(|known| name.starts_with(known));
        assert!(is_known, "the library needs {name}");
    }
}

/// Runs the build script as cargo would for a target, and returns its output.
fn build_script_output(script: &Path, width: &str, endian: &str, os: &str) -> String {
    let mut command = Command::new(script);
    command.env("CARGO_CFG_TARGET_POINTER_WIDTH", width);
    command.env("CARGO_CFG_TARGET_ENDIAN", endian).env("CARGO_CFG_TARGET_OS", os);
    let output = command.output().expect("the build script starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A line `cargo::error=` ends the build with this text.
#[test]
fn unsupported_targets_are_refused_with_one_line() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("build-script");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-o"]).arg(&script).arg(format!("{ROOT}/build.rs"));
    assert!(rustc.status().expect("rustc starts").success());
    let errors = |width, endian, os| -> Vec<String> {
        let output = build_script_output(&script, width, endian, os);
        output.lines().filter(|it| it.starts_with("cargo::error=")).map(str::to_owned).collect()
    };
    assert!(errors("64", "little", "linux").is_empty());
    for (width, endian, os, words) in [
        ("32", "little", "linux", "64 bits"),
        ("64", "big", "linux", "little-endian"),
        ("64", "little", "macos", "Linux"),
    ] {
        let found = errors(width, endian, os);
        assert!(found.len() == 1 && found[0].contains(words), "{found:?}");
    }
}
