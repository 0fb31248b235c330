//! Turns the text of a comment into Markdown: names of the C interface become links to their
//! sections in the reference.

use crate::c_header::ParsedHeader;
use std::collections::BTreeMap;

/// The page of each name of the C interface.
#[derive(Debug)]
pub(crate) struct NameIndex {
    page_by_name: BTreeMap<String, String>,
}

/// Returns the name of the file for the section with this title.
pub(crate) fn page_name(title: &str) -> String {
    let lower = title.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-") + ".md"
}

impl NameIndex {
    /// Indexes the items of the headers.
    pub(crate) fn new(headers: &[ParsedHeader]) -> Self {
        let sections = headers.iter().flat_map(|header| &header.sections);
        let page_by_name = sections
            .flat_map(|section| {
                let page = page_name(&section.title);
                section.items.iter().map(move |item| (item.name.clone(), page.clone()))
            })
            .collect();
        Self { page_by_name }
    }

    /// Returns the target of a link to a name, as seen from any page of the reference.
    pub(crate) fn target(&self, name: &str) -> Option<String> {
        let page = self.page_by_name.get(name)?;
        Some(format!("{page}#{}", name.to_lowercase()))
    }

    /// Returns a comment as Markdown. Names become links, except the name of the item itself.
    pub(crate) fn markdown(&self, text: &str, own_name: &str) -> String {
        let mut markdown = String::new();
        for (number, part) in text.split('`').enumerate() {
            if number % 2 == 1 {
                let span = format!("`{part}`");
                let is_linked = part != own_name;
                match self.target(part).filter(|_| is_linked) {
                    Some(target) => markdown += &format!("[{span}]({target})"),
                    None => markdown += &span,
                }
            } else {
                self.prose(part, own_name, &mut markdown);
            }
        }
        markdown
    }

    /// Writes text outside of code spans.
    fn prose(&self, text: &str, own_name: &str, markdown: &mut String) {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if !is_word(first) {
                if "*<>[]\\".contains(first) {
                    markdown.push('\\');
                }
                markdown.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let is_name = word.starts_with("dist_") || word.starts_with("DIST_");
            match self.target(word).filter(|_| word != own_name) {
                Some(target) => *markdown += &format!("[`{word}`]({target})"),
                None if is_name || word.contains('_') => *markdown += &format!("`{word}`"),
                None => *markdown += word,
            }
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_links() {
        let page_by_name = [("dist_init".to_owned(), "initialization.md".to_owned())].into();
        let index = NameIndex { page_by_name };
        let text = "After dist_init(), `dist_init` sets `*out` and DIST_RANK; a * b.";
        let link = "[`dist_init`](initialization.md#dist_init)";
        assert_eq!(
            index.markdown(text, "dist_x"),
            format!("After {link}(), {link} sets `*out` and `DIST_RANK`; a \\* b.")
        );
        assert_eq!(index.markdown("dist_init ends", "dist_init"), "`dist_init` ends");
    }

    #[test]
    fn pages_have_the_names_of_sections() {
        assert_eq!(page_name("Element types and operators"), "element-types-and-operators.md");
    }
}
