//! Helpers for the tests of the C interface: the parsed committed header, and the path of the built
//! library.
#![allow(dead_code, reason = "every test crate that includes this module uses a part of it")]

use std::path::PathBuf;

/// The committed headers, which are installed.
pub(crate) const HEADER: &str = include_str!("../../include/dist.h");
pub(crate) const BACKEND_HEADER: &str = include_str!("../../include/dist_backend.h");

/// The root of the source tree.
pub(crate) const ROOT: &str = {
    let package = env!("CARGO_MANIFEST_DIR");
    // A test that starts programs belongs to the package in the folder `tools`.
    match option_env!("CARGO_BIN_EXE_distrun") {
        Some(_) => package.split_at(package.len() - "/tools".len()).0,
        None => package,
    }
};

/// A function of the header.
#[derive(Debug)]
pub(crate) struct HeaderFunction {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) parameters: Vec<HeaderParameter>,
    /// The function returns `void`.
    pub(crate) is_void: bool,
}

/// A parameter of a function.
#[derive(Debug)]
pub(crate) struct HeaderParameter {
    pub(crate) name: String,
    /// The parameter is a pointer, so NULL is a possible value.
    pub(crate) is_pointer: bool,
}

/// Returns the functions of the headers with their comments, in the order of the headers.
pub(crate) fn functions() -> Vec<HeaderFunction> {
    [HEADER, BACKEND_HEADER]
        .iter()
        .flat_map(|header| header.split("/**").skip(1))
        .filter_map(function)
        .collect()
}

/// Parses a comment (without its start) and the following declaration. Returns `None` if it
/// declares no function.
fn function(text: &str) -> Option<HeaderFunction> {
    let (comment, declaration) = text.split_once("*/").expect("every comment ends");
    let declaration = declaration.split(';').next().expect("there is a declaration");
    let (head, tail) = declaration.split_once('(')?;
    let name = last_word(head);
    // In a function pointer, the text before the parenthesis is the result type.
    let is_pointer = head.ends_with(char::is_whitespace);
    if is_pointer || head.contains('#') || !name.starts_with("dist_") {
        return None;
    }
    let (parameters, _) = tail.rsplit_once(')').expect("parameters end");
    let parameters =
        parameters.split(',').map(str::trim).filter(|&text| text != "void").map(parameter);
    let is_void = head.split_whitespace().next() == Some("void") && !head.contains('*');
    Some(HeaderFunction {
        name,
        comment: comment.to_owned(),
        parameters: parameters.collect(),
        is_void,
    })
}

fn parameter(text: &str) -> HeaderParameter {
    let is_pointer = text.contains('*') || text.starts_with("dist_log_fn ");
    HeaderParameter { name: last_word(text), is_pointer }
}

fn last_word(text: &str) -> String {
    text.rsplit(|c: char| c.is_whitespace() || c == '*')
        .find(|w| !w.is_empty())
        .unwrap_or("")
        .into()
}

/// Returns the path of this build's shared library. Cargo puts it in the folder of the test
/// programs. The file in the parent folder exists only after a plain `cargo build` and may be
/// older.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its program");
    let library = program.with_file_name("libdist.so");
    assert!(library.is_file(), "cargo builds {} with the tests", library.display());
    library
}

/// Returns a nonempty environment variable of the test.
#[allow(clippy::disallowed_methods, reason = "the library's own rule; a test asks about its tools")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Finds a program along PATH, unless the name contains a folder.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_file());
    }
    let path = variable("PATH").unwrap_or_else(|| "/usr/bin:/bin".to_owned());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
