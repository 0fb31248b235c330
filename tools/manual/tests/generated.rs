//! Checks the generated documents: the committed reference is what the sources generate, and no
//! function, status, option or algorithm is missing in any of them.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a skipped test prints the reason")]

use clap::Command as Program;
use dist_manual::{GeneratedFile, completions, function_names, manual_pages, programs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|cause| panic!("{name}: {cause}"))
}

/// Returns the text of all files whose paths begin like this.
fn text_of<'a>(files: &'a [GeneratedFile], start: &str) -> Vec<&'a str> {
    files.iter().filter(|it| it.path.starts_with(start)).map(|it| it.text.as_str()).collect()
}

#[test]
fn committed_reference_matches_the_sources() {
    let pages = dist_manual::reference_pages(&root());
    for page in &pages {
        let name = format!("docs/reference/{}", page.path);
        let committed = std::fs::read_to_string(root().join(&name)).unwrap_or_default();
        let differs = committed.lines().zip(page.text.lines()).position(|(a, b)| a != b);
        let shorter = committed.lines().count().min(page.text.lines().count());
        let line = differs.unwrap_or(shorter) + 1;
        assert!(
            committed == page.text,
            "{name} is not what the sources generate (first difference at line {line}): run \
             `cargo xtask reference`"
        );
    }
    let generated: BTreeSet<&str> = pages.iter().map(|page| page.path.as_str()).collect();
    for entry in std::fs::read_dir(root().join("docs/reference")).expect("the folder") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(generated.contains(name.as_str()), "docs/reference/{name} is not generated");
    }
}

#[test]
fn committed_plots_match_the_tables() {
    for plot in dist_manual::summary_plots(&root()) {
        let committed = read(&format!("docs/plots/{}", plot.path));
        assert!(committed == plot.text, "run `cargo xtask plots`, which writes {}", plot.path);
    }
}

#[test]
fn every_exported_function_is_documented() {
    let symbols = read("ffi-tests/abi/symbols.txt");
    let exported: BTreeSet<&str> = symbols.lines().filter(|it| it.starts_with("dist_")).collect();
    let names = function_names(&root());
    let declared: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    assert!(exported.len() > 150, "only {} symbols", exported.len());
    assert_eq!(exported, declared, "the headers and the library have the same functions");
    let (pages, manuals) = (dist_manual::reference_pages(&root()), manual_pages(&root()));
    let overview = text_of(&manuals, "man3/libdist.3").concat();
    for name in declared {
        let heading = format!("\n## {name}\n");
        let found = pages.iter().filter(|page| page.text.contains(&heading)).count();
        assert_eq!(found, 1, "{name} has {found} sections in the reference");
        assert_eq!(text_of(&manuals, &format!("man3/{name}.3")).len(), 1, "{name}");
        assert!(overview.contains(&format!(".BR {name} (3)\n")), "{name} is not in libdist(3)");
    }
}

#[test]
fn every_status_is_in_the_reference_with_its_number() {
    let pages = dist_manual::reference_pages(&root());
    let page = text_of(&pages, "status-and-errors.md").concat();
    let header = read("include/dist.h");
    let defines = header.lines().filter_map(|line| line.strip_prefix("#define "));
    let statuses = defines.filter_map(|line| line.split_once(' ')).filter(|(name, _)| {
        name.starts_with("DIST_ERR_") || ["DIST_OK", "DIST_IN_PROGRESS"].contains(name)
    });
    let mut count = 0;
    for (name, value) in statuses {
        assert!(page.contains(&format!("`{name}` ({value}): ")), "{name} is not in the page");
        count += 1;
    }
    assert!(count > 10, "only {count} statuses");
}

/// Returns the command lines of a program and of its commands, with the names of their pages.
fn command_lines(mut program: Program) -> Vec<(String, Program)> {
    program.build();
    let name = program.get_name().to_owned();
    let commands = program.get_subcommands().filter(|it| it.get_name() != "help");
    let commands = commands.map(|it| (format!("{name}-{}", it.get_name()), it.clone()));
    let mut lines: Vec<(String, Program)> = commands.collect();
    lines.push((name, program));
    lines
}

#[test]
fn every_option_is_documented_and_completed() {
    let (pages, manuals) = (dist_manual::reference_pages(&root()), manual_pages(&root()));
    let completions = completions();
    let mut count = 0;
    for program in programs() {
        let name = program.get_name().to_owned();
        let page = text_of(&pages, &format!("{name}.md")).concat();
        let completion = text_of(&completions, &format!("bash-completion/completions/{name}"));
        assert_eq!(completion.len(), 1, "{name}");
        for (manual_name, command) in command_lines(program) {
            let manual = text_of(&manuals, &format!("man1/{manual_name}.1")).concat();
            let visible = command.get_arguments().filter(|it| !it.is_hide_set());
            for option in visible.filter_map(|it| it.get_long()) {
                count += 1;
                let flag = format!("--{option}");
                assert!(page.contains(&flag), "{flag} is not in {name}.md");
                assert!(completion[0].contains(&flag), "{flag} is not completed for {name}");
                let escaped = flag.replace('-', "\\-");
                assert!(manual.contains(&escaped), "{flag} is not in {manual_name}(1)");
            }
        }
    }
    assert!(count > 60, "only {count} options");
}

/// The largest number of lines of a short help, at a width of 100 columns.
const SHORT_HELP_LINES: usize = 40;

#[test]
fn the_short_help_fits_one_screen() {
    for (name, command) in programs().into_iter().flat_map(command_lines) {
        let help = command.term_width(100).render_help().to_string();
        let lines = help.lines().count();
        assert!(lines <= SHORT_HELP_LINES, "{name} -h has {lines} lines:\n{help}");
        assert!(help.lines().all(|line| line.len() <= 100), "{name} -h has long lines:\n{help}");
    }
}

#[test]
fn every_algorithm_is_in_the_reference() {
    use dist::transport::OpKind;
    let pages = dist_manual::reference_pages(&root());
    let page = text_of(&pages, "algorithms.md").concat();
    for kind in OpKind::ALL {
        for row in dist::algo::algorithms(kind) {
            let heading = format!("\n## {}\n", kind.name());
            let (_, section) = page.split_once(&heading).unwrap_or_else(|| panic!("{heading}"));
            let section = section.split("\n## ").next().unwrap_or_default();
            assert!(section.contains(&format!("| `{}` |", row.name)), "{heading}{}", row.name);
        }
    }
}

/// Runs a program of the system on a file. Returns its standard error, or `None` if the program is
/// not installed.
fn complaints(words: &[&str], text: &str) -> Option<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("manual-{}-{}", std::process::id(), words[0]));
    std::fs::write(&file, text).expect("the file is written");
    let done = Command::new(words[0]).args(&words[1..]).arg(&file).output();
    std::fs::remove_file(&file).expect("the file is removed");
    let Ok(done) = done else {
        println!("skipped: {} is not installed", words[0]);
        return None;
    };
    assert!(done.status.success(), "{words:?} failed");
    Some(String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn the_formatter_accepts_the_manual_pages() {
    for page in manual_pages(&root()) {
        // -ww enables all warnings; -z suppresses the output.
        match complaints(&["groff", "-man", "-ww", "-z", "-Tutf8"], &page.text) {
            Some(found) => assert_eq!(found, "", "{}", page.path),
            None => return,
        }
    }
}

#[test]
fn the_shell_accepts_the_completions() {
    for file in completions().iter().filter(|it| it.path.starts_with("bash-completion/")) {
        match complaints(&["bash", "-n"], &file.text) {
            Some(found) => assert_eq!(found, "", "{}", file.path),
            None => return,
        }
    }
}
