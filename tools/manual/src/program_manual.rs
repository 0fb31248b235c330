//! The manual pages of a program and of its commands (section 1).

use crate::function_manual::prose;
use crate::{GeneratedFile, VERSION};
use clap::Command;
use clap_mangen::Man;
use std::fmt::Write as _;

/// Returns the page of a program, and a page for each of its commands.
pub(crate) fn program_pages(mut program: Command) -> Vec<GeneratedFile> {
    program.build();
    let name = program.get_name().to_owned();
    let mut pages = vec![page(&name, &program)];
    for command in program.get_subcommands().filter(|it| it.get_name() != "help") {
        let full_name = format!("{name}-{}", command.get_name());
        pages.push(page(&full_name, command));
    }
    pages
}

fn page(name: &str, command: &Command) -> GeneratedFile {
    let command = command.clone().display_name(name.to_owned());
    let details = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.has_subcommands();
    let manual = Man::new(command).source(format!("libdist {VERSION}")).manual("libdist");
    let mut text = Vec::new();
    let written = manual
        .render_title(&mut text)
        .and_then(|()| manual.render_name_section(&mut text))
        .and_then(|()| manual.render_synopsis_section(&mut text))
        .and_then(|()| manual.render_description_section(&mut text))
        .and_then(|()| manual.render_options_section(&mut text))
        .and_then(|()| match has_commands {
            true => manual.render_subcommands_section(&mut text),
            false => Ok(()),
        });
    written.expect("a vector takes all bytes");
    let mut text = String::from_utf8(text).expect("a manual page is text");
    text += &detail_sections(&details);
    GeneratedFile::new(format!("man1/{name}.1"), text)
}

/// Returns the text after the options. A line without indentation that ends with a colon is a
/// title. The other lines keep their form.
fn detail_sections(details: &str) -> String {
    let mut roff = String::new();
    let mut is_open = false;
    for line in details.lines() {
        let title = line.strip_suffix(':').filter(|title| !title.starts_with(' '));
        if let Some(title) = title {
            roff += if is_open { ".fi\n" } else { "" };
            writeln!(roff, ".SH {}\n.nf", prose(&title.to_uppercase())).expect("a text");
            is_open = true;
        } else {
            if !is_open {
                roff += ".SH NOTES\n.nf\n";
                is_open = true;
            }
            let line = line.strip_prefix("  ").unwrap_or(line);
            writeln!(roff, "{}", literal(line)).expect("a text");
        }
    }
    roff += if is_open { ".fi\n" } else { "" };
    roff
}

/// Returns a line that the formatter prints as it is.
fn literal(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_have_sections_with_the_form_of_the_help() {
        let details = "Output:\n  a  b\n  .c\n\nExamples:\n    run --x";
        let expected =
            ".SH OUTPUT\n.nf\na  b\n\\&.c\n\n.fi\n.SH EXAMPLES\n.nf\n  run \\-\\-x\n.fi\n";
        assert_eq!(detail_sections(details), expected);
        assert_eq!(detail_sections(""), "");
    }
}
