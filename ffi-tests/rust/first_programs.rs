//! Checks the programs in C and C++ of the documents. Whole programs compile without warnings and
//! print the documented output under the documented command. A block that is a part of a program is
//! compiled and run in a frame of `ffi-tests/doc_frames`. The tests of the Python package run the
//! programs in Python.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod doc_programs;
mod interface;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use doc_programs::{assert_prints, fenced_blocks};
use interface::{ROOT, find_program, library, variable};
use program_paths::DISTRUN;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toolchain::{Compiler, library_folder, run, skip};

const COMPILE_LIMIT: Duration = Duration::from_secs(180);

/// The longest README, in lines.
const README_LINES: usize = 180;

fn read(page: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(page)).expect("a page")
}

/// Pages of whole programs with their outputs.
const WHOLE_PROGRAMS: [&str; 3] = ["README.md", "docs/tutorial.md", "docs/memory.md"];

/// Pages whose blocks are parts of programs. Each block has a frame, named after the page and the
/// number of the block.
const FRAGMENTS: [&str; 6] = ["backend-plugins", "cpp", "failure", "groups", "messages", "works"];

/// A block without a frame, and the reason.
const WITHOUT_FRAME: &str = "cpp_10.cpp";
const WITHOUT_FRAME_REASON: &str = "it needs libtorch; c-examples/libtorch has the whole program";

/// Pages whose programs other tests check: `collectives_doc.rs`, `training_doc.rs`, and for Python
/// the tests in `python/tests` and `cargo xtask integrations`.
const CHECKED_ELSEWHERE: [&str; 9] = [
    "docs/collectives.md",
    "docs/collectives-reduce.md",
    "docs/collectives-move.md",
    "docs/collectives-uneven.md",
    "docs/training.md",
    "docs/python.md",
    "docs/python-torch.md",
    "docs/integrations.md",
    "docs/install.md",
];

/// Compiles a program in C++, or returns `None` without a compiler.
fn cxx_program(name: &str, file: &Path, standard: &str) -> Option<PathBuf> {
    let compiler = variable("CXX").unwrap_or_else(|| "c++".to_owned());
    if find_program(&compiler).is_none() {
        skip(&format!("{compiler} is not installed"));
        return None;
    }
    let program = library_folder().join(name);
    let mut words: Vec<String> =
        [&compiler, "-Wall", "-Wextra", "-Werror"].map(|word: &str| word.to_owned()).into();
    words.extend([
        format!("-std={standard}"),
        format!("-I{ROOT}/include"),
        file.display().to_string(),
        "-o".to_owned(),
    ]);
    words.extend([program.display().to_string(), library().display().to_string()]);
    words.extend(["-pthread".to_owned(), format!("-Wl,-rpath,{}", library_folder().display())]);
    run(&words, COMPILE_LIMIT).expect_success();
    Some(program)
}

/// Returns the options of the launcher in a block of commands, if the block starts ranks.
fn launcher_options(block: &str) -> Option<Vec<&str>> {
    let line = block.lines().find_map(|line| line.strip_prefix("distrun "))?;
    Some(line.split_whitespace().take_while(|word| !word.starts_with("./")).collect())
}

/// Compiles and runs the programs of a page. Returns the number of programs in C and C++.
fn check_page(page: &str) -> (usize, usize) {
    let Some(compiler) = Compiler::find() else { return (0, 0) };
    let text = read(page);
    let stem = page.replace(['/', '.'], "_");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&stem);
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let (mut count_c, mut count_cxx) = (0, 0);
    let mut programs: Vec<PathBuf> = Vec::new();
    let mut options = Vec::new();
    for (language, block) in fenced_blocks(&text) {
        match language {
            "c" => {
                count_c += 1;
                let name = format!("{stem}_{count_c}");
                let file = folder.join(format!("{name}.c"));
                std::fs::write(&file, block).expect("the program is written");
                programs.push(compiler.program(&name, &[&file.display().to_string()]));
            }
            "cpp" => {
                count_cxx += 1;
                let name = format!("{stem}_cxx_{count_cxx}");
                let file = folder.join(format!("{name}.cpp"));
                std::fs::write(&file, block).expect("the program is written");
                programs.extend(cxx_program(&name, &file, "c++17"));
            }
            "sh" => options = launcher_options(block).unwrap_or(options),
            "output" => {
                assert!(!programs.is_empty(), "{page}: an output without a program");
                for program in programs.drain(..) {
                    let program = program.display().to_string();
                    let mut words = vec![DISTRUN];
                    words.extend(&options);
                    words.push(&program);
                    assert_prints(&words, block, page);
                }
            }
            _ => {}
        }
    }
    assert!(programs.is_empty(), "{page}: a program without an output");
    (count_c, count_cxx)
}

#[test]
fn the_programs_of_readme_run() {
    assert!(matches!(check_page("README.md"), (0, 0) | (1, 1)));
}

#[test]
fn the_programs_of_the_tutorial_run() {
    assert!(matches!(check_page("docs/tutorial.md"), (0, 0) | (2, 2)));
}

#[test]
fn the_program_of_the_memory_page_runs() {
    assert!(matches!(check_page("docs/memory.md"), (0, 0) | (1, 0)));
}

/// Returns the values of a setting in the first comment of a frame, for example the 2 of
/// `ranks: 2`.
fn settings<'a>(frame: &'a str, name: &str) -> Vec<&'a str> {
    let comment = frame.split("*/").next().unwrap_or_default();
    let lines = comment.lines().map(|line| line.trim_start_matches(['/', '*', ' ']));
    lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
}

#[test]
fn the_parts_of_programs_run_in_their_frames() {
    let Some(compiler) = Compiler::find() else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fragments");
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    for header in ["frame.h", "frame.hpp"] {
        let text = read(&format!("ffi-tests/doc_frames/{header}"));
        std::fs::write(folder.join(header), text).expect("the header is written");
    }
    let mut used = vec!["frame.h".to_owned(), "frame.hpp".to_owned()];
    for page in FRAGMENTS {
        let text = read(&format!("docs/{page}.md"));
        let blocks = fenced_blocks(&text).into_iter();
        let blocks = blocks.filter(|(language, _)| ["c", "cpp"].contains(language));
        for (number, (language, block)) in (1..).zip(blocks) {
            let name = format!("{page}_{number}.{language}");
            if name == WITHOUT_FRAME {
                skip(&format!("{name}: {WITHOUT_FRAME_REASON}"));
                continue;
            }
            let frame = read(&format!("ffi-tests/doc_frames/{name}"));
            let source = frame.replace("#include \"block.inc\"\n", block);
            assert_ne!(source, frame, "{name} includes its block");
            let file = folder.join(&name);
            std::fs::write(&file, source).expect("the program is written");
            let program = match language {
                "c" => Some(compiler.program(&name, &[&file.display().to_string()])),
                _ => {
                    let standard = settings(&frame, "standard").pop().unwrap_or("c++17");
                    cxx_program(&name, &file, standard)
                }
            };
            used.push(name.clone());
            let Some(program) = program else { continue };
            let mut words = vec![DISTRUN, "--nproc-per-node"];
            words.extend(settings(&frame, "ranks"));
            words.extend(settings(&frame, "options").iter().flat_map(|it| it.split(' ')));
            let program = program.display().to_string();
            words.push(&program);
            assert_prints(&words, &settings(&frame, "prints").join("\n"), &name);
        }
    }
    let frames = std::fs::read_dir(Path::new(ROOT).join("ffi-tests/doc_frames"));
    for frame in frames.expect("the frames") {
        let name = frame.expect("a frame").file_name().to_string_lossy().into_owned();
        assert!(used.contains(&name), "{name} has no block");
    }
}

#[test]
fn every_program_of_the_book_has_a_test() {
    let contents = read("docs/SUMMARY.md");
    let targets = contents.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let pages: Vec<String> = targets
        .map(|target| match target.strip_prefix("../") {
            Some(page) => page.to_owned(),
            None => format!("docs/{target}"),
        })
        .collect();
    assert!(pages.len() > 40, "{pages:?}");
    for page in pages.iter().filter(|page| !page.starts_with("docs/reference/")) {
        let text = read(page);
        let languages = ["c", "cpp", "python"];
        let has_program = fenced_blocks(&text).iter().any(|(it, _)| languages.contains(it));
        let is_checked = WHOLE_PROGRAMS.contains(&page.as_str())
            || CHECKED_ELSEWHERE.contains(&page.as_str())
            || FRAGMENTS.iter().any(|name| *page == format!("docs/{name}.md"));
        assert!(!has_program || is_checked, "no test runs the programs of {page}");
    }
}

#[test]
fn readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines, and at most {README_LINES}");
}
