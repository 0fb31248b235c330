//! Checks the pages docs/collectives*.md: their programs compile, run on four ranks and print the
//! output below them, and their cost tables contain every algorithm.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod doc_programs;
mod interface;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use dist::algo::algorithms;
use dist::base::renamed::{NAME_CHANGES, NameKind};
use dist::transport::OpKind;
use doc_programs::{assert_prints, fenced_blocks};
use interface::ROOT;
use program_paths::DISTRUN;
use std::path::Path;
use toolchain::Compiler;

const PAGES: [&str; 4] =
    ["collectives.md", "collectives-reduce.md", "collectives-move.md", "collectives-uneven.md"];

/// Returns the text of all pages on collectives.
fn pages() -> String {
    let folder = Path::new(ROOT).join("docs");
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).expect("a page on collectives");
    PAGES.map(read).concat()
}

/// Returns the sections of the pages, by their headings.
fn sections(page: &str) -> Vec<(&str, &str)> {
    let parts = page.split("\n## ").skip(1);
    parts.map(|part| part.split_once('\n').expect("a heading has a line of its own")).collect()
}

#[test]
fn programs_print_the_documented_output() {
    let Some(compiler) = Compiler::find() else { return };
    let pages = pages();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("collectives");
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let mut count = 0;
    for (heading, section) in sections(&pages) {
        let of = |wanted: &str| {
            let blocks = fenced_blocks(section).into_iter();
            blocks.filter(|(language, _)| *language == wanted).map(|(_, block)| block).collect()
        };
        let (programs, outputs): (Vec<&str>, Vec<&str>) = (of("c"), of("output"));
        assert_eq!(programs.len(), outputs.len(), "{heading}: each program has its output");
        for (source, expected) in programs.into_iter().zip(outputs) {
            count += 1;
            let name = format!("collectives_{count}");
            let file = folder.join(format!("{name}.c"));
            std::fs::write(&file, source).expect("the program is written");
            let program = compiler.program(&name, &[&file.display().to_string()]);
            let words = ["--nproc-per-node", "4", &program.display().to_string()];
            let launcher = [DISTRUN];
            let words: Vec<&str> = launcher.into_iter().chain(words).collect();
            assert_prints(&words, expected, heading);
        }
    }
    assert!(count >= OpKind::ALL.len(), "only {count} programs");
}

#[test]
fn pages_list_every_algorithm_of_each_operation() {
    let pages = pages();
    let sections = sections(&pages);
    for kind in OpKind::ALL {
        let of_kind = sections.iter().find(|(heading, _)| *heading == kind.name());
        let (_, section) = of_kind.unwrap_or_else(|| panic!("no section \"{}\"", kind.name()));
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        let names: Vec<_> = algorithms(kind).map(|row| row.name).collect();
        for name in &names {
            let cell = format!("| `{name}` |");
            assert!(
                rows.iter().any(|row| row.starts_with(&cell)),
                "{}: the table of costs lacks {cell}",
                kind.name()
            );
        }
        assert_eq!(rows.len(), names.len(), "{}: a row without an algorithm", kind.name());
    }
}

fn tuning_page() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("docs/tuning.md")).expect("docs/tuning.md")
}

#[test]
fn the_tuning_page_has_every_renamed_name() {
    let page = tuning_page();
    let row = |kind, old, new| {
        let what = match kind {
            NameKind::Algorithm => "algorithm",
            NameKind::BackendOption => "back-end option",
            NameKind::Variable => "variable",
        };
        format!("| {what} `{old}` | `{new}` |\n")
    };
    let rows: String =
        NAME_CHANGES.iter().map(|change| row(change.kind, change.old, change.new)).collect();
    let head = "<!-- renamed:begin -->\n| former name | present name |\n|---|---|\n";
    assert!(page.contains(&format!("{head}{rows}<!-- renamed:end -->")), "write this:\n{rows}");
}

#[test]
fn the_tuning_page_explains_every_algorithm() {
    let page = tuning_page();
    let explained: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| line.split('|').nth(1))
        .collect();
    for row in OpKind::ALL.into_iter().flat_map(algorithms) {
        let name = format!("`{}`", row.name);
        assert!(explained.iter().any(|names| names.contains(&name)), "no row for {name}");
    }
}
