//! Checks docs/training.md: its programs compile without warnings and print the documented output
//! of the documented commands.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod doc_programs;
mod interface;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use doc_programs::{assert_prints, fenced_blocks};
use interface::ROOT;
use program_paths::DISTRUN;
use std::path::{Path, PathBuf};
use toolchain::Compiler;

/// Returns the file name from the first comment of a program.
fn file_name(source: &str) -> &str {
    let name = source.strip_prefix("/* ").and_then(|rest| rest.split([':', ' ']).next());
    name.expect("a program begins with a comment that has the name of its file")
}

/// Returns the options of the launcher in a documented command.
fn options(block: &str) -> Vec<&str> {
    let line = block.lines().find_map(|line| line.strip_prefix("distrun "));
    let words: Vec<&str> = line.expect("a command of distrun").split_whitespace().collect();
    words[..words.len() - 1].to_vec()
}

#[test]
fn programs_print_the_documented_output() {
    let Some(compiler) = Compiler::find() else { return };
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/training.md")).expect("the page");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("training");
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let mut program: Option<(String, PathBuf)> = None;
    let mut command = Vec::new();
    let mut count = 0;
    for (language, block) in fenced_blocks(&page) {
        match language {
            "c" => {
                let name = file_name(block);
                let file = folder.join(name);
                std::fs::write(&file, block).expect("the file is written");
                if let Some(name) = name.strip_suffix(".c") {
                    let sources = [file.display().to_string()];
                    let built = compiler.program(&format!("training_{name}"), &[&sources[0]]);
                    program = Some((name.to_owned(), built));
                }
            }
            "sh" => command = options(block),
            "output" => {
                let (name, built) = program.take().expect("each output has its program");
                let built = built.display().to_string();
                let mut words = vec![DISTRUN];
                words.extend(&command);
                words.push(&built);
                assert_prints(&words, block, &name);
                count += 1;
            }
            "c fragment" => {}
            other => panic!("a block of the language \"{other}\""),
        }
        assert!(program.is_none() || language != "output", "a program without an output");
    }
    assert!(count >= 8, "only {count} programs");
}
