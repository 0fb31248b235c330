//! Compares the committed headers and the interface for Python with the generated ones, and the
//! version of the headers with the library's.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(unsafe_code, reason = "calls exported functions")]

mod interface;

use interface::{BACKEND_HEADER, HEADER, ROOT, functions};
use std::ffi::CStr;
use std::path::Path;

/// Returns the value of a macro of the header.
fn macro_value(name: &str) -> String {
    let define = format!("#define {name} ");
    let line = HEADER.lines().find_map(|line| line.strip_prefix(&define));
    line.unwrap_or_else(|| panic!("{name} is not in the header")).to_owned()
}

#[test]
fn committed_headers_match_generated_headers() {
    let [dist, backend] = dist_headers::generate_headers(Path::new(ROOT));
    for (name, committed, generated) in
        [("dist.h", HEADER, dist), ("dist_backend.h", BACKEND_HEADER, backend)]
    {
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
fn committed_python_interface_matches_the_source() {
    let generated = dist_headers::generate_python(Path::new(ROOT));
    for (name, text) in [("_abi.py", generated.module), ("_abi.pyi", generated.stub)] {
        let path = Path::new(ROOT).join("python/src/libdist").join(name);
        let committed = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert!(
            committed == text,
            "python/src/libdist/{name} is not what the source generates: run `cargo xtask python`"
        );
    }
}

#[test]
fn versions_match_the_package() {
    assert_eq!(macro_value("DIST_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MAJOR"));
    assert_eq!(macro_value("DIST_VERSION_MINOR"), env!("CARGO_PKG_VERSION_MINOR"));
    assert_eq!(macro_value("DIST_VERSION_PATCH"), env!("CARGO_PKG_VERSION_PATCH"));
    let number = |name: &str| macro_value(name).parse::<u32>().expect("a number");
    let packed = number("DIST_VERSION_MAJOR") * 10_000
        + number("DIST_VERSION_MINOR") * 100
        + number("DIST_VERSION_PATCH");
    // SAFETY: the call takes no arguments.
    assert_eq!(unsafe { dist::ffi::runtime::dist_version() }, packed);
    // SAFETY: the call takes no arguments.
    let text = unsafe { dist::ffi::runtime::dist_version_string() };
    // SAFETY: the text is static and terminated.
    let text = unsafe { CStr::from_ptr(text) };
    assert_eq!(text.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

/// Returns the tags of a function's comment with their texts, in order. A tag begins a line; the
/// text up to the next tag belongs to it.
fn tags(comment: &str) -> Vec<(String, String)> {
    let mut tags: Vec<(String, String)> = Vec::new();
    for line in comment.lines().map(|line| line.trim().trim_start_matches('*').trim()) {
        if let Some(tag) = line.strip_prefix('@') {
            let (name, text) = tag.split_once(' ').unwrap_or((tag, ""));
            tags.push((name.to_owned(), text.trim().to_owned()));
        } else if let Some((_, text)) = tags.last_mut() {
            text.push(' ');
            text.push_str(line);
        }
    }
    tags
}

/// Returns the first line of a comment.
fn summary(comment: &str) -> &str {
    let mut lines = comment.lines().map(|line| line.trim().trim_start_matches('*').trim());
    lines.find(|line| !line.is_empty()).unwrap_or("")
}

/// Returns the faults in the form of a function's comment. Reference pages and stubs of other
/// languages are made from it.
fn comment_faults(function: &interface::HeaderFunction) -> Vec<String> {
    let mut faults = Vec::new();
    let comment = &function.comment;
    let head = summary(comment);
    if !head.ends_with('.') || head.len() > 100 {
        faults.push(format!("the first line is no sentence of one line: {head:?}"));
    }
    let tags = tags(comment);
    let described: Vec<&str> = tags
        .iter()
        .filter(|(name, _)| name == "param")
        .map(|(_, text)| text.split(' ').next().unwrap_or(""))
        .collect();
    let parameters: Vec<&str> =
        function.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    if described != parameters {
        faults.push(format!("@param has {described:?}, the declaration {parameters:?}"));
    }
    for (_, text) in tags.iter().filter(|(name, _)| name == "param") {
        let rest = text.split_once(' ').map_or("", |(_, rest)| rest);
        let (direction, words) = rest.split_once(':').unwrap_or((rest, ""));
        let known = ["in", "out", "in, out"];
        if !known.contains(&direction.trim_end_matches(", optional")) || words.trim().is_empty() {
            faults.push(format!("\"@param {text}\" does not begin with a direction"));
        }
    }
    let mut needed = vec!["agree", "blocks", "threads", "since"];
    needed.extend((!function.is_void).then_some("return"));
    for name in needed {
        let texts: Vec<&String> =
            tags.iter().filter(|(tag, _)| tag == name).map(|(_, text)| text).collect();
        if texts.len() != 1 || texts[0].is_empty() {
            faults.push(format!("@{name} is there {} times", texts.len()));
        }
    }
    let known = ["param", "agree", "blocks", "return", "threads", "since"];
    let unknown = tags.iter().filter(|(name, _)| !known.contains(&name.as_str()));
    faults.extend(unknown.map(|(name, _)| format!("@{name} is no tag of this form")));
    faults
}

#[test]
fn every_function_comment_has_the_required_form() {
    let functions = functions();
    assert!(functions.len() > 50, "only {} functions were found", functions.len());
    let wrong: Vec<String> = functions
        .iter()
        .flat_map(|function| {
            comment_faults(function).into_iter().map(|fault| format!("{}: {fault}", function.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn faults_of_comments_are_found() {
    let function = |comment: &str| interface::HeaderFunction {
        name: "dist_f".to_owned(),
        comment: comment.to_owned(),
        parameters: vec![interface::HeaderParameter { name: "a".to_owned(), is_pointer: true }],
        is_void: false,
    };
    let good = "\n * Does it.\n *\n * @param a in, optional: what\n *   it is.\n * @agree nothing.\n \
                * @blocks no.\n * @return DIST_OK.\n * @threads any.\n * @since 0.1\n ";
    assert_eq!(comment_faults(&function(good)), Vec::<String>::new());
    for (from, to) in [
        ("Does it.", "Does it"),
        ("@param a", "@param b"),
        ("in, optional:", "optional:"),
        ("@blocks no.", "@blocks"),
        ("@return DIST_OK.", ""),
        ("@since", "@sinc"),
    ] {
        assert!(!comment_faults(&function(&good.replace(from, to))).is_empty(), "{from} -> {to}");
    }
}
