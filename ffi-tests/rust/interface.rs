//! What the tests of the C interface have in common: the committed header, taken apart, and where
//! the built library is.
#![allow(dead_code, reason = "every test crate that includes this module uses a part of it")]

use std::path::PathBuf;

/// The headers as they are committed and installed.
pub(crate) const HEADER: &str = include_str!("../../include/dist.h");
pub(crate) const BACKEND_HEADER: &str = include_str!("../../include/dist_backend.h");

/// The headers as the build script generated them from the source.
pub(crate) const GENERATED_HEADER: &str = include_str!(concat!(env!("OUT_DIR"), "/dist.h"));
pub(crate) const GENERATED_BACKEND_HEADER: &str =
    include_str!(concat!(env!("OUT_DIR"), "/dist_backend.h"));

/// The names that `dist_export!` defines.
pub(crate) const EXPORTS: &str = include_str!(concat!(env!("OUT_DIR"), "/exports.txt"));

/// The root of the source tree.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A function of the header.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) comment: String,
    pub(crate) parameters: Vec<Parameter>,
    /// It returns nothing.
    pub(crate) is_void: bool,
}

/// A parameter of a function.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// NULL is a value of its type.
    pub(crate) is_pointer: bool,
}

/// The functions of the headers with their comments, in the order of the headers.
pub(crate) fn functions() -> Vec<Function> {
    [HEADER, BACKEND_HEADER]
        .iter()
        .flat_map(|header| header.split("/**").skip(1))
        .filter_map(function)
        .collect()
}

/// A comment (without its start) and the declaration after it, if that declares a function.
fn function(text: &str) -> Option<Function> {
    let (comment, declaration) = text.split_once("*/").expect("every comment ends");
    let declaration = declaration.split(';').next().expect("there is a declaration");
    let (head, tail) = declaration.split_once('(')?;
    let name = last_word(head);
    // Before the parenthesis of a pointer to a function stands its result.
    let is_pointer = head.ends_with(char::is_whitespace);
    if is_pointer || head.contains('#') || !name.starts_with("dist_") {
        return None;
    }
    let (parameters, _) = tail.rsplit_once(')').expect("parameters end");
    let parameters =
        parameters.split(',').map(str::trim).filter(|&text| text != "void").map(parameter);
    let is_void = head.split_whitespace().next() == Some("void") && !head.contains('*');
    Some(Function { name, comment: comment.to_owned(), parameters: parameters.collect(), is_void })
}

fn parameter(text: &str) -> Parameter {
    let is_pointer = text.contains('*') || text.starts_with("dist_log_fn ");
    Parameter { name: last_word(text), is_pointer }
}

fn last_word(text: &str) -> String {
    text.rsplit(|c: char| c.is_whitespace() || c == '*')
        .find(|w| !w.is_empty())
        .unwrap_or("")
        .into()
}

/// The shared library of this build. Cargo puts it beside the test programs; the one in the folder
/// above is there only after a plain `cargo build`, and may be older.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its program");
    let library = program.with_file_name("libdist.so");
    assert!(library.is_file(), "cargo builds {} with the tests", library.display());
    library
}

/// A variable of the environment that the tests run in.
#[allow(clippy::disallowed_methods, reason = "the library's own rule; a test asks about its tools")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where a program is: along PATH, unless the name has a folder.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_file());
    }
    let path = variable("PATH").unwrap_or_else(|| "/usr/bin:/bin".to_owned());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
