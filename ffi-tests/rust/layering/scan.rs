//! Scans Rust source for the layer table: finds the paths that a file uses outside of its tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

/// A source file without comments, string literals and test code.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// The path from the root of the source tree.
    pub(crate) path: String,
    /// The module path in the crate, for example `store::tcp::client`.
    pub(crate) module: String,
    /// The paths into this crate that the file uses, from the crate root.
    pub(crate) crate_paths: BTreeSet<String>,
    /// The other paths that the file uses.
    pub(crate) outside_paths: BTreeSet<String>,
    /// The items that the file re-exports, with their paths from the crate root.
    pub(crate) re_exports: BTreeMap<String, String>,
    /// Test modules in separate files.
    test_modules: Vec<String>,
    code: String,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let module = module_of(path);
        let (code, test_modules) = without_tests(&without_texts(text));
        let (mut crate_paths, mut outside_paths) = (BTreeSet::new(), BTreeSet::new());
        let (imports, exports) = split_re_exports(&code);
        for found in paths(&imports) {
            match found.first().map(String::as_str) {
                Some("crate") => crate_paths.insert(found[1..].join("::")),
                Some("super") => crate_paths.insert(resolve(&module, found)),
                _ => outside_paths.insert(found.join("::")),
            };
        }
        let mut re_exports = BTreeMap::new();
        for found in paths(&exports) {
            let name = found.last().cloned().unwrap_or_default();
            let path = match found.first().map(String::as_str) {
                Some("crate") => found[1..].join("::"),
                Some("super") => resolve(&module, found),
                Some("self") => format!("{module}::{}", found[1..].join("::")),
                Some(child) if declares_module(&code, child) => {
                    format!("{module}::{}", found.join("::"))
                }
                _ => {
                    outside_paths.insert(found.join("::"));
                    continue;
                }
            };
            re_exports.insert(name, path);
        }
        let path = path.to_owned();
        Self { path, module, crate_paths, outside_paths, re_exports, test_modules, code }
    }

    /// Returns the `allow` attributes that contain `what`.
    pub(crate) fn lint_allowances<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a str> {
        let all = self.code.split("allow(").skip(1);
        all.filter_map(|text| text.split(']').next()).filter(move |text| text.contains(what))
    }

    /// Returns the names of fields and statics whose type is or contains a lock, except references
    /// to locks.
    pub(crate) fn locked_fields(&self) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let of_type = |c: char| is_part(c) || c.is_whitespace() || "<':".contains(c);
        let lock = |(at, _): (usize, &str)| {
            let declared = self.code[..at].trim_end_matches(of_type).len();
            // The name is the last word before a colon that is not part of a path separator.
            let text = &self.code[declared..at];
            let end = text.char_indices().find(|&(i, c)| {
                c == ':' && !text[i + 1..].starts_with(':') && !text[..i].ends_with(':')
            })?;
            text[..end.0].split_whitespace().next_back()
        };
        let kinds = ["Mutex<", "RwLock<"].into_iter();
        kinds.flat_map(|kind| self.code.match_indices(kind)).filter_map(lock).collect()
    }

    /// The names of the types and traits that it declares, without the associated types of traits.
    pub(crate) fn types(&self) -> Vec<&str> {
        let tokens = tokens(&self.code);
        let mut depth = 0_usize;
        let mut found = Vec::new();
        for (token, next) in tokens.iter().zip(tokens.iter().skip(1)) {
            let is_declaration = match *token {
                "struct" | "enum" | "union" | "trait" => true,
                "type" => depth == 0,
                _ => false,
            };
            if is_declaration && next.starts_with(|c: char| c.is_ascii_uppercase()) {
                found.push(*next);
            }
            match *token {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        found
    }

    /// Returns true if the file has an operation with an ordering of memory accesses.
    pub(crate) fn has_atomic_operations(&self) -> bool {
        let orderings = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
        orderings.iter().any(|name| self.code.contains(&format!("Ordering::{name}")))
    }

    pub(crate) fn has_word(&self, word: &str) -> bool {
        tokens(&self.code).contains(&word)
    }
}

/// Returns every file of the library, without the test files.
pub(crate) fn source_files() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders = VecDeque::from([root.join("src")]);
    while let Some(folder) = folders.pop_front() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below the root").display().to_string();
            if path.is_dir() {
                folders.push_back(path);
            } else if name.ends_with(".rs") && name != "src/lib.rs" {
                let text = std::fs::read_to_string(&path).expect("text");
                files.push(SourceFile::new(&name, &text));
            }
        }
    }
    let tests: Vec<String> = files.iter().flat_map(test_files).collect();
    files.retain(|file| !tests.iter().any(|t| super::is_within(&file.module, t)));
    files
}

fn declares_module(code: &str, name: &str) -> bool {
    tokens(code).windows(2).any(|words| words == ["mod", name])
}

fn test_files(file: &SourceFile) -> Vec<String> {
    file.test_modules.iter().map(|name| format!("{}::{name}", file.module)).collect()
}

fn module_of(path: &str) -> String {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.trim_end_matches("/mod").replace('/', "::")
}

/// Resolves a path that begins with `super`, from the crate root.
fn resolve(module: &str, path: Vec<String>) -> String {
    let mut base: Vec<&str> = module.split("::").collect();
    let ups = path.iter().take_while(|part| *part == "super").count();
    base.truncate(base.len().saturating_sub(ups));
    base.into_iter().chain(path[ups..].iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}

/// Returns the source with blanks in place of comments, strings and character literals.
fn without_texts(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    while let Some(next) = rest.chars().next() {
        let len = skipped_len(rest, code.chars().last());
        if len == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            code.push(' ');
            rest = &rest[len..];
        }
    }
    code
}

/// Returns the length of the comment, string or character literal at the start; 0 if there is none.
fn skipped_len(rest: &str, before: Option<char>) -> usize {
    let starts_word = !before.is_some_and(is_word);
    if rest.starts_with("//") {
        rest.find('\n').unwrap_or(rest.len())
    } else if rest.starts_with("/*") {
        block_comment_len(rest)
    } else if rest.starts_with('"') {
        quoted_len(rest, '"')
    } else if rest.starts_with("'\\") {
        quoted_len(rest, '\'')
    } else if rest.starts_with('\'') {
        // The quote starts a character literal, or a lifetime, which has no closing quote.
        let mut chars = rest.char_indices().skip(2);
        chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1)
    } else if starts_word && ["r\"", "r#", "br\"", "br#"].iter().any(|s| rest.starts_with(s)) {
        raw_text_len(rest)
    } else {
        0
    }
}

fn block_comment_len(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn quoted_len(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_text_len(rest: &str) -> usize {
    let Some(open) = rest.find('"') else { return 0 };
    let hashes = rest[..open].trim_start_matches(['b', 'r']);
    if !hashes.chars().all(|c| c == '#') {
        // `r#` starts a raw identifier here.
        return 0;
    }
    let close = format!("\"{hashes}");
    rest[open + 1..].find(&close).map_or(rest.len(), |at| open + 1 + at + close.len())
}

/// Returns the code without items under `#[cfg(test)]`, and the names of test modules in separate
/// files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    // Models of the model checker are tests, too.
    let code = code.replace("#[cfg(all(test, loom))]", MARK);
    let (mut kept, mut files) = (String::new(), Vec::new());
    let mut rest = code.as_str();
    while let Some(at) = rest.find(MARK) {
        kept.push_str(&rest[..at]);
        let item = after_attributes(&rest[at + MARK.len()..]);
        let len = item_len(item);
        let words = tokens(&item[..len]);
        if let Some(at) = words.iter().position(|word| *word == "mod")
            && words.get(at + 2) == Some(&";")
        {
            files.push(words[at + 1].to_owned());
        }
        rest = &item[len..];
    }
    kept.push_str(rest);
    (kept, files)
}

/// Splits code into the code without re-exports, and the re-exports.
fn split_re_exports(code: &str) -> (String, String) {
    let (mut others, mut re_exports) = (String::new(), String::new());
    let mut rest = code;
    while let Some(at) = rest.find("pub") {
        let after = rest[at + 3..].trim_start();
        let visibility_len = if after.starts_with('(') { closing(after, '(', ')') } else { 0 };
        let declared = after[visibility_len..].trim_start();
        let is_word = !rest[..at].ends_with(is_word) && !rest[at + 3..].starts_with(is_word);
        let len = if is_word && tokens(declared).first() == Some(&"use") {
            declared.find(';').map_or(declared.len(), |end| end + 1)
        } else {
            0
        };
        let end = if len == 0 { at + 3 } else { rest.len() - declared.len() + len };
        others.push_str(&rest[..if len == 0 { end } else { at }]);
        re_exports.push_str(&declared[..len]);
        rest = &rest[end..];
    }
    others.push_str(rest);
    (others, re_exports)
}

fn after_attributes(text: &str) -> &str {
    let mut rest = text.trim_start();
    while rest.starts_with("#[") {
        let end = closing(rest, '[', ']');
        rest = rest[end..].trim_start();
    }
    rest
}

/// Returns the length of an item: up to its `;` or its closing brace, or the comma behind a field.
fn item_len(item: &str) -> usize {
    let is_field = item
        .split_once(':')
        .is_some_and(|(name, rest)| name.chars().all(is_word) && !rest.starts_with(':'));
    if is_field {
        return item.find(",\n").map_or(item.len(), |at| at + 1);
    }
    let is_use =
        tokens(item).into_iter().find(|word| *word == "use" || *word == "{" || *word == ";");
    if is_use == Some("use") {
        return item.find(';').map_or(item.len(), |at| at + 1);
    }
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            '{' if depth == 0 => return at + closing(&item[at..], '{', '}'),
            _ => {}
        }
    }
    item.len()
}

/// Returns the end of the first bracketed part of the text.
fn closing(text: &str, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        }
    }
    text.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Splits code into words, `::`, and other single characters.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = match first {
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        found.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    found
}

/// Returns every path of at least two parts, and every single word of a `use`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut token_list = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = at > 0 && tokens[at - 1] == "use" || tokens.get(at + 1) == Some(&"::");
        if begins && tokens[at].starts_with(is_word) {
            at = use_tree_paths(&tokens, at, Vec::new(), &mut token_list);
        } else {
            at += 1;
        }
    }
    token_list
}

/// Adds the path, or the tree of paths, that begins at a token, and returns the index after it.
fn use_tree_paths(
    tokens: &[&str],
    mut at: usize,
    mut path: Vec<String>,
    path_list: &mut Vec<Vec<String>>,
) -> usize {
    loop {
        match tokens.get(at).copied() {
            Some("{") => {
                at += 1;
                while let Some(&token) = tokens.get(at) {
                    match token {
                        "}" => return at + 1,
                        "," => at += 1,
                        _ => at = use_tree_paths(tokens, at, path.clone(), path_list),
                    }
                }
                return at;
            }
            Some("self") if !path.is_empty() => at += 1,
            Some("*") => at += 1,
            Some(word) if word.starts_with(is_word) => {
                path.push(word.to_owned());
                at += 1;
            }
            _ => at += 1,
        }
        if tokens.get(at) == Some(&"::") {
            let follows =
                tokens.get(at + 1).is_some_and(|t| t.starts_with(is_word) || "{*".contains(t));
            if follows {
                at += 1;
                continue;
            }
        }
        if tokens.get(at) == Some(&"as") {
            at += 2;
        }
        path_list.push(path);
        return at;
    }
}
