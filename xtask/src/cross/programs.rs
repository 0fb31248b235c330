//! The C programs for aarch64. Most are in the list `programs` of `ffi-tests/CMakeLists.txt`. The
//! others are the store suite on each kind of store, the programs with the example back end, and
//! the layout of the structs.

use super::emulator::run_emulated;
use super::part::{CrossPart, TestEnd, TestOutcome, print_outcome};
use super::{BUILD_LIMIT, COMPILER, TARGET, cross_cargo};
use crate::workspace::{repository_root, target_folder};
use crate::{run, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of a program, which takes 10 to 30 times as long as without the emulator.
const PROGRAM_LIMIT: Duration = Duration::from_secs(900);

const COMPILE_LIMIT: Duration = Duration::from_secs(300);

/// A program of one test and its arguments.
#[derive(Debug)]
struct ProgramCall {
    test: String,
    program: PathBuf,
    arguments: Vec<String>,
}

/// Compiles all programs against the library for aarch64, and runs them in the emulator.
pub(super) fn run_programs(folder: &Path) -> Result<Vec<TestOutcome>, String> {
    build_library(folder)?;
    let lists = CmakeLists::read()?;
    let mut outcomes = Vec::new();
    for call in simple_calls(&lists, folder)?
        .into_iter()
        .chain(store_calls(&lists, folder)?)
        .chain(backend_calls(&lists, folder)?)
    {
        let (finished, elapsed) = run_emulated(&call.program, &call.arguments, PROGRAM_LIMIT)?;
        let outcome = TestOutcome::of_process(&call.test, &finished, elapsed, PROGRAM_LIMIT);
        println!("{}: {:?} after {} s", call.test, outcome.end, elapsed.as_secs());
        print_outcome(CrossPart::Programs, &outcome);
        outcomes.push(outcome);
    }
    outcomes.push(compare_layouts(folder)?);
    Ok(outcomes)
}

/// Builds the library, and copies it to the name by which programs request it.
fn build_library(folder: &Path) -> Result<(), String> {
    let mut build = cross_cargo(&["build", "--package", "dist", "--lib"])?;
    if !run::run_visibly(&mut build, BUILD_LIMIT)?.success() {
        return Err("the library cannot be built".to_owned());
    }
    let library = target_folder()?.join("cross").join(TARGET).join("debug/libdist.so");
    fs::copy(&library, folder.join("libdist.so.0"))
        .map_err(|cause| format!("{}: {cause}", library.display()))?;
    Ok(())
}

/// Compiles source files in `ffi-tests/c`.
fn compile(
    name: &str,
    sources: &[String],
    more: &[&str],
    folder: &Path,
) -> Result<PathBuf, String> {
    let output = folder.join(name);
    let sources_folder = repository_root().join("ffi-tests/c");
    let mut compile = run::command(COMPILER);
    compile.args(["-std=c99", "-O1", "-g", "-pthread", "-o"]).arg(&output);
    compile.args(sources.iter().map(|source| sources_folder.join(source)));
    compile.arg("-I").arg(repository_root().join("include"));
    compile.args(more).arg(folder.join("libdist.so.0")).arg("-lm");
    compile.arg(format!("-Wl,-rpath,{}", folder.display()));
    run::run_checked(&mut compile, COMPILE_LIMIT)?;
    Ok(output)
}

/// Returns the calls of the programs without arguments.
fn simple_calls(lists: &CmakeLists, folder: &Path) -> Result<Vec<ProgramCall>, String> {
    let compile_one = |test: String| -> Result<ProgramCall, String> {
        let program = compile(&test, &[format!("{test}.c")], &[], folder)?;
        Ok(ProgramCall { test, program, arguments: Vec::new() })
    };
    let mut calls: Vec<ProgramCall> =
        lists.words("set(programs")?.into_iter().map(compile_one).collect::<Result<_, _>>()?;
    let sources = ["hdr_twice_a.c", "hdr_twice_b.c"].map(str::to_owned);
    let program = compile("hdr_twice", &sources, &[], folder)?;
    calls.push(ProgramCall { test: "hdr_twice".to_owned(), program, arguments: Vec::new() });
    Ok(calls)
}

/// Returns the calls of the store suite.
fn store_calls(lists: &CmakeLists, folder: &Path) -> Result<Vec<ProgramCall>, String> {
    let sources: Vec<String> = lists
        .words("add_executable(store_conformance")?
        .iter()
        .map(|source| source.strip_prefix("c/").map_or(format!("../{source}"), str::to_owned))
        .collect();
    let program = compile("store_conformance", &sources, &[], folder)?;
    let call = |kind: String| ProgramCall {
        test: format!("store_conformance_{kind}"),
        program: program.clone(),
        arguments: vec![kind],
    };
    Ok(lists.words("set(stores")?.into_iter().map(call).collect())
}

/// Returns the calls of the programs that load the example of a back end.
fn backend_calls(lists: &CmakeLists, folder: &Path) -> Result<Vec<ProgramCall>, String> {
    let shared = ["-fPIC", "-shared"];
    let mut sources = example_backend_sources()?;
    sources.sort();
    let example = compile("libdist_store.so", &sources, &shared, folder)?.display().to_string();
    let mut invalid = Vec::new();
    let mut names = vec!["no_backend".to_owned()];
    names.extend(lists.words("foreach(name no_backend")?);
    for name in names {
        let definitions = lists.words(&format!("set(odd_{name}"))?;
        let flags: Vec<String> = definitions.iter().map(|it| format!("-D{it}")).collect();
        let flags: Vec<&str> = shared.into_iter().chain(flags.iter().map(String::as_str)).collect();
        let object = format!("lib{name}.so");
        let path = compile(&object, &["backend_odd.c".to_owned()], &flags, folder)?;
        invalid.push(path.display().to_string());
    }
    let call = |test: String| -> Result<ProgramCall, String> {
        let program = compile(&test, &[format!("{test}.c")], &[], folder)?;
        let mut arguments = vec![example.clone()];
        if test == "backend_load" {
            arguments.extend_from_slice(&invalid);
        }
        Ok(ProgramCall { test, program, arguments })
    };
    lists.words("set(backends")?.into_iter().map(call).collect()
}

/// Returns the source files of the example of a back end, relative to `ffi-tests/c`.
fn example_backend_sources() -> Result<Vec<String>, String> {
    let folder = repository_root().join("c-examples/backend_store");
    let entries =
        fs::read_dir(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_source = |name: &String| name.starts_with("backend_store") && name.ends_with(".c");
    Ok(names
        .filter(is_source)
        .map(|name| format!("../../c-examples/backend_store/{name}"))
        .collect())
}

/// Compares the sizes and offsets of all public structs on aarch64 with those on this processor.
/// The Rust tests compare the latter with Rust's.
fn compare_layouts(folder: &Path) -> Result<TestOutcome, String> {
    let program = compile("abi_layout", &["abi_layout.c".to_owned()], &[], folder)?;
    let (on_aarch64, _) = run_emulated(&program, &[], COMPILE_LIMIT)?;
    let native = folder.join("abi_layout_native");
    let mut compile = run::command(tools::c_compiler()?);
    compile.args(["-std=c99", "-o"]).arg(&native);
    compile.arg(repository_root().join("ffi-tests/c/abi_layout.c"));
    compile.arg("-I").arg(repository_root().join("include"));
    run::run_checked(&mut compile, COMPILE_LIMIT)?;
    let on_this_processor = run::run_checked(&mut run::command(&native), COMPILE_LIMIT)?;
    let is_equal = on_aarch64.success() && on_aarch64.text == on_this_processor.text;
    println!("abi_layout: {} lines", on_aarch64.text.lines().count());
    Ok(TestOutcome {
        name: "abi_layout".to_owned(),
        end: if is_equal { TestEnd::Passed } else { TestEnd::Failed },
        tail: on_aarch64.output_tail(),
    })
}

/// The text of `ffi-tests/CMakeLists.txt`.
#[derive(Debug)]
struct CmakeLists(String);

impl CmakeLists {
    fn read() -> Result<Self, String> {
        let path = repository_root().join("ffi-tests/CMakeLists.txt");
        let text = fs::read_to_string(&path);
        Ok(Self(text.map_err(|cause| format!("{}: {cause}", path.display()))?))
    }

    /// Returns the words between `start` and the next closing parenthesis.
    fn words(&self, start: &str) -> Result<Vec<String>, String> {
        let rest = self.0.split(start).skip(1).find(|rest| rest.starts_with(char::is_whitespace));
        let list = rest.and_then(|rest| rest.split_once(')'));
        let (list, _) = list.ok_or(format!("ffi-tests/CMakeLists.txt has no {start}…)"))?;
        Ok(list.split_whitespace().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_programs_are_found() {
        let lists = CmakeLists::read().unwrap();
        let programs = lists.words("set(programs").unwrap();
        assert!(programs.len() > 40 && programs.iter().any(|name| name == "groups"));
        assert!(lists.words("set(stores").unwrap().iter().any(|kind| kind == "hash"));
        assert_eq!(lists.words("set(odd_no_backend").unwrap(), ["ENTRY=something_else"]);
        assert_eq!(lists.words("foreach(name no_backend").unwrap().len(), 4);
        assert!(lists.words("add_executable(store_conformance").unwrap().len() > 5);
        assert!(lists.words("set(nothing").is_err());
        assert!(example_backend_sources().unwrap().len() > 2);
    }
}
