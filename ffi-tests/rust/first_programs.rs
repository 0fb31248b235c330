//! Checks the programs in C and C++ of README and of the pages for beginners: they compile without
//! warnings and print the documented output under the documented command. The tests of the Python
//! package run their programs in Python.
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

/// Compiles a program in C++, or returns `None` without a compiler.
fn cxx_program(name: &str, file: &Path) -> Option<PathBuf> {
    let compiler = variable("CXX").unwrap_or_else(|| "c++".to_owned());
    if find_program(&compiler).is_none() {
        skip(&format!("{compiler} is not installed"));
        return None;
    }
    let program = library_folder().join(name);
    let mut words: Vec<String> = [&compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror"]
        .map(|word: &str| word.to_owned())
        .into();
    words.extend([format!("-I{ROOT}/include"), file.display().to_string(), "-o".to_owned()]);
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
                programs.extend(cxx_program(&name, &file));
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

#[test]
fn readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines, and at most {README_LINES}");
}
