//! Splits the pages of the reference for the book: each function gets a page of its own. The page
//! of a section keeps the table of its functions, its constants and its types.

use std::collections::BTreeMap;

/// The folder of the pages that are split.
const FOLDER: &str = "docs/reference/";

/// The pages of functions, by the page of their section.
#[derive(Debug, Default)]
pub(super) struct FunctionPages {
    names_by_page: BTreeMap<String, Vec<String>>,
}

/// The parts of a page of the reference.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SplitPage {
    /// The text without the functions.
    pub(super) section: String,
    /// The name and the page of each function.
    pub(super) functions: Vec<(String, String)>,
}

impl FunctionPages {
    /// Splits a page of the repository, and notes its functions for [`Self::target`].
    pub(super) fn split(&mut self, page: &str, text: &str) -> SplitPage {
        let whole = SplitPage { section: text.to_owned(), functions: Vec::new() };
        let Some(file) = page.strip_prefix(FOLDER) else { return whole };
        let mut parts = text.split("\n## ");
        let mut split = whole;
        split.section = parts.next().unwrap_or_default().to_owned();
        let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
        for part in parts {
            let (name, body) = part.split_once('\n').unwrap_or((part, ""));
            // The table at the head of a page lists the functions, and nothing else.
            if text.contains(&format!("\n| [`{name}`]({file}#{name}) |")) {
                let head = format!("# {name}\n\nA function of the section [{title}]({file}).\n");
                split.functions.push((name.to_owned(), head + body));
            } else {
                split.section += &format!("\n## {part}");
            }
        }
        let names = split.functions.iter().map(|(name, _)| name.clone()).collect();
        self.names_by_page.insert(page.to_owned(), names);
        split
    }

    /// Returns the names of the functions of a page.
    pub(super) fn names(&self, page: &str) -> &[String] {
        self.names_by_page.get(page).map_or(&[], Vec::as_slice)
    }

    /// Returns the new target of a link to the section of a function. `page` is the page to which
    /// the link leads.
    pub(super) fn target(&self, page: &str, target: &str) -> Option<String> {
        let (file, fragment) = target.split_once('#')?;
        self.names(page).iter().find(|name| *name == fragment)?;
        let folder =
            file.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        Some(format!("{folder}{fragment}.md"))
    }
}

/// Returns the path of a function's page.
pub(super) fn path(name: &str) -> String {
    format!("{FOLDER}{name}.md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_leave_the_page_of_their_section() {
        let page = "# Stores\n\nText.\n\n| function | effect |\n| --- | --- |\n\
                    | [`dist_a`](stores.md#dist_a) | x |\n\n## Constants\n\nc\n\n## dist_t\n\nt\n\
                    \n## dist_a\n\nAbout a.\n";
        let mut pages = FunctionPages::default();
        let split = pages.split("docs/reference/stores.md", page);
        let (section, function) = page.split_once("\n## dist_a\n").unwrap();
        assert_eq!(split.section, section);
        let text =
            format!("# dist_a\n\nA function of the section [Stores](stores.md).\n{function}");
        assert_eq!(split.functions, [("dist_a".to_owned(), text)]);
        let target = |target| pages.target("docs/reference/stores.md", target);
        assert_eq!(target("../reference/stores.md#dist_a").unwrap(), "../reference/dist_a.md");
        assert_eq!(target("stores.md#dist_a").unwrap(), path("dist_a")[FOLDER.len()..]);
        assert_eq!(target("stores.md#dist_t"), None);
        assert_eq!(pages.split("docs/stores.md", page).functions, []);
    }
}
