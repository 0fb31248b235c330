//! The committed headers are those that the source generates, and their version is the library's.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(unsafe_code, reason = "calls exported functions")]

mod interface;

use interface::{BACKEND_HEADER, GENERATED_BACKEND_HEADER, GENERATED_HEADER, HEADER, functions};
use std::ffi::CStr;

/// The number that a macro of the header stands for.
fn macro_value(name: &str) -> String {
    let define = format!("#define {name} ");
    let line = HEADER.lines().find_map(|line| line.strip_prefix(&define));
    line.unwrap_or_else(|| panic!("{name} is not in the header")).to_owned()
}

#[test]
fn committed_headers_are_the_generated_ones() {
    for (name, committed, generated) in [
        ("dist.h", HEADER, GENERATED_HEADER),
        ("dist_backend.h", BACKEND_HEADER, GENERATED_BACKEND_HEADER),
    ] {
        let differs = committed.lines().zip(generated.lines()).position(|(a, b)| a != b);
        let shorter = committed.lines().count().min(generated.lines().count());
        let line = differs.map_or(shorter, |n| n + 1);
        assert!(
            committed == generated,
            "include/{name} is not what the source generates (first difference at line {line}): run \
             `cargo xtask header`, and look at the diff, which is a change of the C interface"
        );
    }
}

#[test]
fn the_version_is_the_packages_everywhere() {
    assert_eq!(macro_value("DIST_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MAJOR"));
    assert_eq!(macro_value("DIST_VERSION_MINOR"), env!("CARGO_PKG_VERSION_MINOR"));
    assert_eq!(macro_value("DIST_VERSION_PATCH"), env!("CARGO_PKG_VERSION_PATCH"));
    let number = |name: &str| macro_value(name).parse::<u32>().expect("a number");
    let packed = number("DIST_VERSION_MAJOR") * 10_000
        + number("DIST_VERSION_MINOR") * 100
        + number("DIST_VERSION_PATCH");
    // SAFETY: takes nothing.
    assert_eq!(unsafe { dist::ffi::runtime::dist_version() }, packed);
    // SAFETY: takes nothing.
    let text = unsafe { dist::ffi::runtime::dist_version_string() };
    // SAFETY: static, terminated text.
    let text = unsafe { CStr::from_ptr(text) };
    assert_eq!(text.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_comment_says_since_when_and_names_the_parameters() {
    let functions = functions();
    assert!(functions.len() > 50, "only {} functions were found", functions.len());
    for function in functions {
        let comment = function.comment.replace("\n *", "\n");
        assert!(comment.contains("Since 0."), "{} does not say \"Since 0.x\"", function.name);
        for parameter in &function.parameters {
            let name = &parameter.name;
            // A single handle needs no words where the summary already speaks of it.
            let inherits =
                ["As dist_", "as dist_", "as in dist_"].iter().any(|by| comment.contains(by));
            assert!(
                comment.contains(name) || inherits || function.parameters.len() == 1,
                "the comment of {} does not speak of {name}",
                function.name
            );
        }
    }
}
