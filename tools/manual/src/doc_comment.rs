//! The parts of a comment in a header: the summary, the paragraphs after it, and the tags.

/// A tag of a comment, for example `@return`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommentTag {
    pub(crate) name: String,
    /// The text in one line.
    pub(crate) text: String,
}

/// A parameter of a function, from its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParameterText<'a> {
    pub(crate) name: &'a str,
    /// For example "in, optional".
    pub(crate) direction: &'a str,
    pub(crate) meaning: &'a str,
}

/// A paragraph, or a list in a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommentBlock {
    Paragraph(String),
    /// A point of a list.
    Point(String),
}

/// A comment of an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DocComment {
    /// The text before the tags. The first block begins with the summary.
    pub(crate) blocks: Vec<CommentBlock>,
    pub(crate) tags: Vec<CommentTag>,
}

impl DocComment {
    /// Parses the lines of a comment.
    pub(crate) fn parse(lines: &[String]) -> Self {
        let mut comment = Self::default();
        let mut is_new_block = true;
        for line in lines {
            if let Some(tag) = line.strip_prefix('@') {
                let (name, text) = tag.split_once(' ').unwrap_or((tag, ""));
                comment.tags.push(CommentTag { name: name.to_owned(), text: text.trim().into() });
            } else if let Some(tag) = comment.tags.last_mut() {
                append(&mut tag.text, line);
            } else if line.trim().is_empty() {
                is_new_block = true;
            } else if let Some(point) = line.strip_prefix("- ") {
                comment.blocks.push(CommentBlock::Point(point.to_owned()));
                is_new_block = false;
            } else if is_new_block {
                comment.blocks.push(CommentBlock::Paragraph(line.trim().to_owned()));
                is_new_block = false;
            } else if let Some(CommentBlock::Paragraph(text) | CommentBlock::Point(text)) =
                comment.blocks.last_mut()
            {
                append(text, line);
            }
        }
        comment
    }

    /// Returns the first sentence.
    pub(crate) fn summary(&self) -> &str {
        let Some(CommentBlock::Paragraph(text)) = self.blocks.first() else { return "" };
        text.find(". ").map_or(text.as_str(), |end| &text[..=end])
    }

    /// Returns the whole text before the tags in one line.
    pub(crate) fn text(&self) -> String {
        let texts = self.blocks.iter().map(|block| match block {
            CommentBlock::Paragraph(text) => text.clone(),
            CommentBlock::Point(text) => format!("- {text}"),
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Returns the text of a tag.
    pub(crate) fn tag(&self, name: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.name == name).map(|tag| tag.text.as_str())
    }

    /// Returns the parameters in their order.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = ParameterText<'_>> {
        self.tags.iter().filter(|tag| tag.name == "param").map(|tag| {
            let (name, rest) = tag.text.split_once(' ').expect("a parameter has a text");
            let (direction, meaning) = rest.split_once(':').expect("a parameter has a direction");
            ParameterText { name, direction, meaning: meaning.trim() }
        })
    }
}

fn append(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(line.trim());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_comment_are_found() {
        let text = "Waits for it. It may fail.\n\nOne of:\n\n- first\n  line\n- second\n\n\
                    @param work in, optional: the work\n  of the call.\n@return DIST_OK.";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let comment = DocComment::parse(&lines);
        assert_eq!(comment.summary(), "Waits for it.");
        assert_eq!(comment.blocks.len(), 4, "{comment:?}");
        assert_eq!(comment.blocks[2], CommentBlock::Point("first line".to_owned()));
        assert_eq!(comment.tag("return"), Some("DIST_OK."));
        let expected = ParameterText {
            name: "work",
            direction: "in, optional",
            meaning: "the work of the call.",
        };
        assert_eq!(comment.parameters().collect::<Vec<_>>(), [expected]);
    }
}
