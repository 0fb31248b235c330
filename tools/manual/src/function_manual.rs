//! The manual page of each C function (section 3), and `libdist(3)`, the list of all functions.

use crate::c_header::{HeaderItem, ItemKind, ParsedHeader};
use crate::doc_comment::CommentBlock;
use crate::{GeneratedFile, VERSION};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The tags of a function's comment, with the titles of their sections in a manual page.
const SECTIONS: &[(&str, &str)] = &[
    ("agree", "AGREEMENT BETWEEN RANKS"),
    ("blocks", "BLOCKING"),
    ("return", "RETURN VALUE"),
    ("threads", "THREADS"),
    ("since", "SINCE VERSION"),
];

/// Returns the pages of all functions.
pub(crate) fn function_pages(headers: &[ParsedHeader]) -> Vec<GeneratedFile> {
    let is_function = |item: &&HeaderItem| item.kind == ItemKind::Function;
    let names: BTreeSet<&str> = headers
        .iter()
        .flat_map(ParsedHeader::items)
        .filter(is_function)
        .map(|item| item.name.as_str())
        .collect();
    let mut pages = vec![overview(headers)];
    for header in headers {
        for function in header.items().filter(is_function) {
            let text = function_page(&header.file, function, &names);
            pages.push(GeneratedFile::new(format!("man3/{}.3", function.name), text));
        }
    }
    pages
}

/// Returns the first lines of a page.
pub(crate) fn title(name: &str, section: u8) -> String {
    format!(".TH {} {section} \"\" \"libdist {VERSION}\" \"libdist\"\n", name.to_uppercase())
}

/// Returns the page `libdist(3)`.
fn overview(headers: &[ParsedHeader]) -> GeneratedFile {
    let mut text = title("libdist", 3);
    text += ".SH NAME\nlibdist \\- collective communication between the processes of a job\n\
             .SH SYNOPSIS\n.nf\n#include <dist.h>\n.fi\n.PP\n\
             Link with \\fI\\-ldist\\fR, or with the flags of \\fIpkg\\-config dist\\fR.\n";
    for section in headers.iter().flat_map(|header| &header.sections) {
        let functions = section.items.iter().filter(|item| item.kind == ItemKind::Function);
        let title = section.title.to_uppercase();
        writeln!(text, ".SH {title}\n{}", prose(&section.about)).expect("a text");
        for function in functions {
            let summary = prose(function.comment.summary());
            writeln!(text, ".TP\n.BR {} (3)\n{summary}", function.name).expect("a text");
        }
    }
    GeneratedFile::new("man3/libdist.3", text)
}

/// Returns the page of a function.
fn function_page(file: &str, function: &HeaderItem, names: &BTreeSet<&str>) -> String {
    let (name, comment) = (&function.name, &function.comment);
    let mut text = title(name, 3);
    let summary = prose(comment.summary().trim_end_matches('.'));
    writeln!(text, ".SH NAME\n{name} \\- {summary}").expect("a text");
    let declaration = function.declaration.replace('\\', "\\e").replace('-', "\\-");
    writeln!(text, ".SH SYNOPSIS\n.nf\n#include <{file}>\n.PP\n{declaration}\n.fi")
        .expect("a text");
    text += ".SH DESCRIPTION\n";
    for block in &comment.blocks {
        match block {
            CommentBlock::Paragraph(it) => writeln!(text, ".PP\n{}", prose(it)).expect("a text"),
            CommentBlock::Point(it) => {
                writeln!(text, ".IP \\(bu 2\n{}", prose(it)).expect("a text");
            }
        }
    }
    if comment.parameters().next().is_some() {
        text += ".SH PARAMETERS\n";
    }
    for parameter in comment.parameters() {
        let (direction, meaning) = (parameter.direction, prose(parameter.meaning));
        writeln!(text, ".TP\n.IR {} \" ({direction})\"\n{meaning}", parameter.name)
            .expect("a text");
    }
    for (tag, title) in SECTIONS {
        if let Some(meaning) = comment.tag(tag) {
            writeln!(text, ".SH {title}\n{}", prose(meaning)).expect("a text");
        }
    }
    text += ".SH SEE ALSO\n.BR libdist (3)";
    for other in mentioned_functions(comment, name, names) {
        write!(text, ",\n.BR {other} (3)").expect("a text");
    }
    text.push('\n');
    text
}

/// Returns the other functions that a comment mentions.
fn mentioned_functions<'a>(
    comment: &crate::doc_comment::DocComment,
    name: &str,
    names: &BTreeSet<&'a str>,
) -> BTreeSet<&'a str> {
    let tags = comment.tags.iter().map(|tag| tag.text.clone());
    let texts: Vec<String> = tags.chain([comment.text()]).collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = texts.iter().flat_map(|text| text.split(move |c: char| !is_word(c)));
    words.filter_map(|word| names.get(word).copied()).filter(|word| *word != name).collect()
}

/// Returns a text of a comment as the lines of a manual page.
pub(crate) fn prose(text: &str) -> String {
    let mut roff = String::new();
    for (number, part) in text.split('`').enumerate() {
        let part = part.replace('\\', "\\e").replace('-', "\\-");
        if number % 2 == 1 {
            write!(roff, "\\fI{part}\\fR").expect("a text");
        } else {
            roff += &part;
        }
    }
    // A line that begins with a point or a quote would be a command.
    if roff.starts_with(['.', '\'']) { format!("\\&{roff}") } else { roff }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_commands_of_the_formatter() {
        assert_eq!(prose(".x `a-b` \\n"), "\\&.x \\fIa\\-b\\fR \\en");
    }

    #[test]
    fn a_page_has_all_parts() {
        let header = "extern \"C\" {\n#endif\n/*\n * A\n *\n * B.\n */\n\n/**\n * Does it.\n *\n \
                      * See dist_b.\n *\n * @param x in: the number.\n * @return DIST_OK.\n */\n\
                      dist_status_t dist_a(int x);\n\n/**\n * Second.\n */\nvoid dist_b(void);\n\
                      \n#ifdef __cplusplus\n}\n";
        let pages = function_pages(&[crate::c_header::parse_header("dist.h", header)]);
        let paths: Vec<&str> = pages.iter().map(|page| page.path.as_str()).collect();
        assert_eq!(paths, ["man3/libdist.3", "man3/dist_a.3", "man3/dist_b.3"]);
        let text = &pages[1].text;
        for part in [
            "dist_a \\- Does it\n",
            "dist_status_t dist_a(int x);",
            ".IR x \" (in)\"\nthe number.",
            ".SH RETURN VALUE\nDIST_OK.",
            ".BR libdist (3),\n.BR dist_b (3)\n",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
