//! The reference page of a program: its help texts.

use crate::GeneratedFile;
use crate::reference::GENERATED;
use clap::Command;
use std::fmt::Write as _;

/// The width of the help texts, in columns.
const WIDTH: usize = 100;

/// Returns the page of a program.
pub(crate) fn program_page(program: &Command) -> GeneratedFile {
    let mut program = program.clone();
    program.build();
    let name = program.get_name().to_owned();
    let mut text = format!(
        "# {name}\n\n{GENERATED}\n\
         With this page you can look up the options of `{name}`. `{name} --help` prints the same \
         text, and `{name} -h` a short form.\n\n"
    );
    write_help(&program, &mut text);
    for command in program.get_subcommands().filter(|it| it.get_name() != "help") {
        write!(text, "\n## {name} {}\n\n", command.get_name()).expect("a text");
        write_help(command, &mut text);
    }
    GeneratedFile::new(format!("{name}.md"), text)
}

fn write_help(command: &Command, text: &mut String) {
    let help = command.clone().term_width(WIDTH).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    writeln!(text, "```text\n{}\n```", lines.join("\n").trim_end()).expect("a text");
}
