//! Parses the headers in `include/`. The generator of the headers writes them in one form: sections
//! with a title, and in them items with a comment. The parser relies on this form.

use crate::doc_comment::DocComment;

/// The kind of an item of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Function,
    Constant,
    /// A struct with fields, an incomplete struct, an alias of an integer, or a function pointer.
    Type,
}

/// A function, constant or type of a header.
#[derive(Clone, Debug)]
pub(crate) struct HeaderItem {
    pub(crate) kind: ItemKind,
    pub(crate) name: String,
    pub(crate) comment: DocComment,
    /// The declaration in C.
    pub(crate) declaration: String,
    /// The macro that initialises the struct.
    pub(crate) initializer: Option<String>,
}

impl HeaderItem {
    /// Returns the value of a constant.
    pub(crate) fn value(&self) -> &str {
        let words = self.declaration.splitn(3, ' ');
        words.last().unwrap_or_default()
    }
}

/// A section of a header.
#[derive(Debug)]
pub(crate) struct ParsedSection {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) items: Vec<HeaderItem>,
}

/// The sections of a header.
#[derive(Debug)]
pub(crate) struct ParsedHeader {
    /// The name of the file.
    pub(crate) file: String,
    pub(crate) sections: Vec<ParsedSection>,
}

impl ParsedHeader {
    /// Returns the items of all sections.
    pub(crate) fn items(&self) -> impl Iterator<Item = &HeaderItem> {
        self.sections.iter().flat_map(|section| &section.items)
    }
}

/// The line after which the sections of a header begin, and the line at which they end.
const BEGIN: &str = "extern \"C\" {\n#endif\n";
const END: &str = "\n#ifdef __cplusplus\n}\n";

/// Parses the text of a header.
pub(crate) fn parse_header(file: &str, text: &str) -> ParsedHeader {
    let (_, body) = text.split_once(BEGIN).expect("a header has a linkage block");
    let (body, _) = body.split_once(END).expect("the linkage block ends");
    let mut sections: Vec<ParsedSection> = Vec::new();
    let mut lines = body.lines();
    while let Some(line) = lines.next() {
        if line == "/*" {
            sections.push(section_head(&mut lines));
        } else if line == "/**" {
            let section = sections.last_mut().expect("each item is in a section");
            let comment = comment_lines(&mut lines);
            section.items.push(item(&comment, &declaration(&mut lines)));
        } else if let Some(macro_name) = initializer_name(line) {
            let items = &mut sections.last_mut().expect("a macro is in a section").items;
            let target = items.iter_mut().find(|item| initializer_of(&item.name) == macro_name);
            let target = target.unwrap_or_else(|| panic!("{macro_name} has no struct"));
            target.initializer = Some(macro_name);
        }
    }
    ParsedHeader { file: file.to_owned(), sections }
}

/// Reads the comment with the title and the purpose of a section.
fn section_head<'a>(lines: &mut impl Iterator<Item = &'a str>) -> ParsedSection {
    let comment = comment_lines(lines);
    let mut parts = comment.into_iter().filter(|line| !line.is_empty());
    let title = parts.next().expect("a section has a title");
    let about = parts.collect::<Vec<_>>().join(" ");
    ParsedSection { title, about, items: Vec::new() }
}

/// Reads the lines of a comment up to its end, without their margins.
fn comment_lines<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let inner = lines.take_while(|line| *line != " */");
    let inner = inner.map(|line| line.strip_prefix(" *").expect("a comment has a margin"));
    inner.map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned()).collect()
}

/// Reads a declaration, without the macro that forbids to ignore the result.
fn declaration<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for line in lines.skip_while(|line| *line == "DIST_NODISCARD") {
        text.push_str(line);
        let is_struct = text.starts_with("typedef struct") && text.contains('{');
        let is_complete = if text.starts_with("#define") {
            !line.ends_with('\\')
        } else if is_struct {
            line.starts_with('}')
        } else {
            line.ends_with(';')
        };
        if is_complete {
            break;
        }
        text.push('\n');
    }
    text
}

fn item(comment: &[String], declaration: &str) -> HeaderItem {
    let (kind, name) = if let Some(rest) = declaration.strip_prefix("#define ") {
        (ItemKind::Constant, rest.split(' ').next().unwrap_or_default())
    } else if declaration.starts_with("typedef") {
        (ItemKind::Type, type_name(declaration))
    } else {
        let (head, _) = declaration.split_once('(').expect("a function has parameters");
        (ItemKind::Function, last_word(head))
    };
    HeaderItem {
        kind,
        name: name.to_owned(),
        comment: DocComment::parse(comment),
        declaration: declaration.to_owned(),
        initializer: None,
    }
}

/// Returns the name that a `typedef` defines.
fn type_name(declaration: &str) -> &str {
    if !declaration.contains('{')
        && let Some((_, rest)) = declaration.split_once("(*")
    {
        return rest.split(')').next().unwrap_or_default();
    }
    last_word(declaration.trim_end_matches(';'))
}

fn last_word(text: &str) -> &str {
    text.rsplit(|c: char| c.is_whitespace() || c == '*').next().unwrap_or_default()
}

/// Returns the name of the macro that a line defines, if it initialises a struct.
fn initializer_name(line: &str) -> Option<String> {
    let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
    (name.ends_with("_INIT") && value.starts_with('{')).then(|| name.to_owned())
}

/// Returns the name of the macro that initialises this struct.
fn initializer_of(name: &str) -> String {
    let stem = name.trim_start_matches("dist_").trim_end_matches("_t");
    format!("DIST_{}_INIT", stem.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\
#ifdef __cplusplus
extern \"C\" {
#endif

/*
 * Groups
 *
 * Groups of ranks.
 */

/**
 * No color.
 */
#define DIST_NO_COLOR -1

/**
 * Options.
 */
typedef struct dist_a_t {
    /**
     * The size; it ends.
     */
    size_t struct_size;
} dist_a_t;

/**
 * A callback.
 */
typedef void (*dist_a_fn)(int32_t rank,
                          void *user);

/**
 * Makes one.
 *
 * @since 0.1
 */
DIST_NODISCARD
const char *dist_a_make(const dist_a_t *options,
                        void *user);

/* All defaults; assign the fields that differ. */
#define DIST_A_INIT { sizeof(dist_a_t), \\
    0 }

#ifdef __cplusplus
}
#endif
";

    #[test]
    fn items_of_a_header_are_found() {
        let header = parse_header("dist.h", HEADER);
        let [section] = header.sections.as_slice() else { panic!("{header:?}") };
        assert_eq!((&*section.title, &*section.about), ("Groups", "Groups of ranks."));
        let found: Vec<_> = header.items().map(|item| (item.kind, item.name.as_str())).collect();
        let expected = [
            (ItemKind::Constant, "DIST_NO_COLOR"),
            (ItemKind::Type, "dist_a_t"),
            (ItemKind::Type, "dist_a_fn"),
            (ItemKind::Function, "dist_a_make"),
        ];
        assert_eq!(found, expected);
        assert_eq!(section.items[0].value(), "-1");
        assert_eq!(section.items[1].initializer.as_deref(), Some("DIST_A_INIT"));
        assert!(section.items[1].declaration.ends_with("} dist_a_t;"));
        assert!(section.items[3].declaration.starts_with("const char *dist_a_make("));
        assert_eq!(section.items[3].comment.tags[0].text, "0.1");
    }
}
