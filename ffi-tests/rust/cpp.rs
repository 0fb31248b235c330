//! Tests the C++ header: compiles and runs the programs of `ffi-tests/cpp` with the compilers of
//! this system, in each standard, with and without exceptions, and under sanitizers. If the C++
//! compiler or the tool of a test is missing, the test prints this and passes.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod interface;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use interface::{ROOT, find_program, functions, library};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use toolchain::{ProgramOutcome, library_folder, run, skip};

/// The time limit for the compilation or the run of one program.
const LIMIT: Duration = Duration::from_secs(180);

/// Compiler warnings that users of the header often enable.
const WARNINGS: &[&str] = &[
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wold-style-cast",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wzero-as-null-pointer-constant",
    "-Werror",
];

/// A compiler with a language standard and further flags.
#[derive(Clone, Debug)]
struct CxxCompiler {
    program: String,
    flags: Vec<String>,
}

impl CxxCompiler {
    /// Returns the compiler in `CXX`, or else `c++`, with C++17.
    fn default_compiler() -> Option<Self> {
        let program = interface::variable("CXX").unwrap_or_else(|| "c++".to_owned());
        Self::named(&program, &["-std=c++17"])
    }

    /// Returns the compiler with this name if it is installed and accepts the flags.
    fn named(program: &str, flags: &[&str]) -> Option<Self> {
        if find_program(program).is_none() {
            skip(&format!("{program} is not installed"));
            return None;
        }
        let compiler = Self { program: program.to_owned(), flags: Vec::new() }.with(flags);
        let mut words = compiler.words();
        let probe = format!("{ROOT}/ffi-tests/cpp/probe.cpp");
        words.extend(["-fsyntax-only".to_owned(), probe]);
        if run(&words, LIMIT).status != Some(0) {
            skip(&format!("{program} has no {}", flags.join(" ")));
            return None;
        }
        Some(compiler)
    }

    fn with(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self
    }

    fn words(&self) -> Vec<String> {
        let mut words = vec![self.program.clone(), format!("-I{ROOT}/include")];
        words.extend(self.flags.iter().cloned());
        words
    }

    /// Checks the syntax of a program without code generation.
    fn check(&self, name: &str) -> ProgramOutcome {
        let mut words = self.words();
        words.extend(["-fsyntax-only".to_owned(), source(name)]);
        run(&words, LIMIT)
    }

    /// Compiles and links a program and returns its path.
    fn program(&self, name: &str, variant: &str) -> PathBuf {
        let folder = library_folder();
        let program = folder.join(format!("cpp_{name}_{variant}"));
        let mut words = self.words();
        words.extend([source(name), "-o".to_owned(), program.display().to_string()]);
        words.extend(["-g".to_owned(), "-pthread".to_owned(), library().display().to_string()]);
        words.push(format!("-Wl,-rpath,{}", folder.display()));
        run(&words, LIMIT).expect_success();
        program
    }
}

fn source(name: &str) -> String {
    format!("{ROOT}/ffi-tests/cpp/{name}.cpp")
}

/// Returns the flags that a program needs.
fn flags_of(name: &str) -> &'static [&'static str] {
    match name {
        "no_exceptions" => &["-fno-exceptions", "-fno-rtti"],
        // The code that g++ generates for a coroutine uses zeros as null pointers.
        "coroutines" => &["-Wno-zero-as-null-pointer-constant"],
        _ => &[],
    }
}

fn compile_and_run(name: &str, flags: &[&str]) {
    let Some(compiler) = CxxCompiler::default_compiler() else { return };
    let compiler = compiler.with(WARNINGS).with(flags_of(name)).with(flags);
    let program = compiler.program(name, "usual");
    run(&[program.display().to_string()], LIMIT).expect_success();
}

macro_rules! programs {
    ($($name:ident $(($flag:literal))?),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                compile_and_run(stringify!($name), &[$($flag)?]);
            }
        )+
        const PROGRAMS: &[&str] = &[$(stringify!($name)),+];
    };
}

programs!(
    collectives,
    coroutines("-std=c++20"),
    errors,
    groups,
    lists,
    messages,
    no_exceptions,
    outer,
    reducer,
    reducer_hooks,
    runtime,
    shard,
    stores,
    training,
    types,
    vectors,
    works,
);

/// Programs that other tests run by name.
const UNLISTED_PROGRAMS: &[&str] = &["cost", "probe", "refused"];

#[test]
fn every_test_program_is_listed() {
    let folder =
        std::fs::read_dir(format!("{ROOT}/ffi-tests/cpp")).expect("the folder of the tests");
    for entry in folder {
        let file = entry.expect("an entry").file_name().into_string().expect("a name in UTF-8");
        let Some(name) = file.strip_suffix(".cpp") else { continue };
        assert!(
            PROGRAMS.contains(&name) || UNLISTED_PROGRAMS.contains(&name),
            "{file} is not run by this test"
        );
    }
}

/// Checks that all programs compile without a warning.
fn check_compiles_without_warnings(program: &str, flags: &[&str]) {
    let Some(compiler) = CxxCompiler::named(program, flags) else { return };
    for name in PROGRAMS.iter().chain(UNLISTED_PROGRAMS) {
        compiler.clone().with(WARNINGS).with(flags_of(name)).check(name).expect_success();
    }
}

#[test]
fn gxx_compiles_cxx17_without_a_warning() {
    check_compiles_without_warnings("g++", &["-std=c++17"]);
}

#[test]
fn gxx_compiles_cxx20_without_a_warning() {
    check_compiles_without_warnings("g++", &["-std=c++20"]);
}

#[test]
fn gxx_compiles_cxx23_without_a_warning() {
    check_compiles_without_warnings("g++", &["-std=c++23"]);
}

#[test]
fn clangxx_compiles_cxx17_without_a_warning() {
    check_compiles_without_warnings("clang++", &["-std=c++17"]);
}

#[test]
fn clangxx_compiles_cxx20_without_a_warning() {
    check_compiles_without_warnings("clang++", &["-std=c++20"]);
}

#[test]
fn clangxx_19_compiles_cxx23_with_libcxx() {
    check_compiles_without_warnings("clang++-19", &["-std=c++23", "-stdlib=libc++"]);
    let Some(compiler) = CxxCompiler::named("clang++-19", &["-std=c++23", "-stdlib=libc++"]) else {
        return;
    };
    for name in ["types", "errors"] {
        let program = compiler.program(name, "libcxx");
        run(&[program.display().to_string()], LIMIT).expect_success();
    }
}

/// Compiles each case of `refused.cpp` and expects the message in the case.
fn check_wrong_code_refused(program: &str) {
    let Some(compiler) = CxxCompiler::named(program, &["-std=c++17"]) else { return };
    let compiler = compiler.with(&["-Wall", "-Wextra", "-Werror"]);
    compiler.check("refused").expect_success();
    let text = std::fs::read_to_string(source("refused")).expect("text");
    let cases: Vec<(&str, &str)> = text
        .split("CASE == ")
        .skip(1)
        .map(|case| {
            let (number, rest) = case.split_once('\n').expect("a line");
            (
                number,
                rest.lines()
                    .next()
                    .and_then(|line| line.split("expect: ").nth(1))
                    .expect("a message"),
            )
        })
        .collect();
    assert!(cases.len() >= 15, "only {} cases were found", cases.len());
    for (number, expected) in cases {
        let outcome = compiler.clone().with(&[&format!("-DCASE={number}")]).check("refused");
        assert!(outcome.status != Some(0), "case {number} compiles with {program}");
        assert!(
            outcome.output.contains(expected),
            "case {number}, without {expected:?}:\n{}",
            outcome.output
        );
    }
}

#[test]
fn gxx_refuses_wrong_code() {
    check_wrong_code_refused("g++");
}

#[test]
fn clangxx_refuses_wrong_code() {
    check_wrong_code_refused("clang++");
}

/// Runs a program under a sanitizer.
fn run_sanitized(name: &str, variant: &str, flags: &[&str], environment: &str) {
    let Some(compiler) = CxxCompiler::default_compiler() else { return };
    let compiler = compiler.with(&["-O1"]).with(flags_of(name)).with(flags);
    let Some(compiler) = CxxCompiler::named(
        &compiler.program,
        &compiler.flags.iter().map(String::as_str).collect::<Vec<_>>(),
    ) else {
        return;
    };
    let program = compiler.program(name, variant);
    let outcome = run(&["env", environment, &program.display().to_string()], LIMIT);
    if outcome.output.contains("ThreadSanitizer: unexpected memory mapping") {
        skip(
            "this ThreadSanitizer does not know the memory layout of this kernel (vm.mmap_rnd_bits)",
        );
        return;
    }
    outcome.expect_success();
}

const ASAN: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn works_under_asan_and_ubsan() {
    run_sanitized("works", "asan", ASAN, "ASAN_OPTIONS=detect_leaks=1");
}

#[test]
fn coroutines_under_asan_and_ubsan() {
    run_sanitized(
        "coroutines",
        "asan",
        &[ASAN, &["-std=c++20"]].concat(),
        "ASAN_OPTIONS=detect_leaks=1",
    );
}

/// Runs a program under the thread sanitizer. The library is not instrumented, so the sanitizer
/// checks only the header and the program.
fn run_thread_sanitized(name: &str, standard: &str) {
    let suppressions =
        format!("TSAN_OPTIONS=exitcode=66 suppressions={ROOT}/ffi-tests/sanitize/tsan.supp");
    run_sanitized(name, "tsan", &["-fsanitize=thread", standard], &suppressions);
}

#[test]
fn works_under_thread_sanitizer() {
    run_thread_sanitized("works", "-std=c++17");
}

#[test]
fn coroutines_under_thread_sanitizer() {
    run_thread_sanitized("coroutines", "-std=c++20");
}

/// Compiles the first program of the guide, its reducer step, and its C++20 options.
/// The number of calls in each function of `cost.cpp`.
const CALLS: u64 = 2000;
/// The number of instructions that the header may add to a call.
const MAX_EXTRA_INSTRUCTIONS: u64 = 10;

/// Returns the number of instructions in one function of `cost.cpp`, measured by callgrind.
fn instructions(program: &str, function: &str) -> u64 {
    let file = format!("{program}.{function}");
    let words = [
        "valgrind",
        "-q",
        "--tool=callgrind",
        &format!("--toggle-collect={function}"),
        &format!("--callgrind-out-file={file}"),
        program,
    ];
    run(&words, LIMIT).expect_success();
    let text = std::fs::read_to_string(&file).expect("the counts");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|total| total.parse().ok()).expect("a total")
}

#[test]
fn a_small_call_costs_at_most_ten_instructions_more() {
    let compilers = ["g++", "clang++"]
        .into_iter()
        .filter_map(|name| CxxCompiler::named(name, &["-std=c++17", "-O2"]));
    for compiler in compilers {
        let program = compiler.program("cost", &compiler.program).display().to_string();
        // The program checks that the header allocates nothing.
        run(&[&program], LIMIT).expect_success();
        if find_program("valgrind").is_none() {
            skip("valgrind is not installed");
            continue;
        }
        let [c, cpp] = ["c_calls", "cpp_calls"].map(|function| instructions(&program, function));
        assert!(c > 100 * CALLS, "{c} instructions for {CALLS} calls: nothing was counted");
        let most = c + MAX_EXTRA_INSTRUCTIONS * CALLS;
        assert!(
            cpp <= most,
            "{}: {cpp} instructions for {CALLS} calls, {c} in C",
            compiler.program
        );
    }
}

/// Returns the text of the C++ header.
fn header() -> String {
    let folder =
        std::fs::read_dir(format!("{ROOT}/include/dist")).expect("the folder of the header");
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("text");
    folder.map(|entry| read(entry.expect("an entry").path())).collect()
}

#[test]
fn every_function_of_the_c_header_has_a_cxx_form() {
    let text = header();
    // The C++ header copies messages by another function, and back ends are written in C.
    let others = ["dist_last_error_copy", "dist_backend_register"];
    for function in functions() {
        let is_used = text.contains(&function.name) || others.contains(&function.name.as_str());
        assert!(is_used, "include/dist/ does not use {}", function.name);
    }
}

/// Returns the names of the functions that the C++ header declares for its users: functions of
/// namespaces, and public functions of classes.
fn declared(text: &str) -> BTreeSet<String> {
    const STATEMENTS: &[&str] = &[
        "template",
        "//",
        "return",
        "if",
        "for",
        "while",
        "static_assert",
        "#",
        "}",
        "throw",
        ":",
    ];
    let mut names = BTreeSet::new();
    let (mut is_public, mut is_detail) = (true, false);
    for line in text.lines() {
        match line {
            "namespace detail {" => is_detail = true,
            "}  // namespace detail" => is_detail = false,
            " private:" | " protected:" => is_public = false,
            " public:" | "};" => is_public = true,
            _ if is_detail && line.starts_with("struct ") => is_public = false,
            _ => {}
        }
        let code = line.trim_start();
        // Classes of the inner namespace are bases of the public classes.
        let is_visible = match line.len() - code.len() {
            0 => !is_detail,
            2 => is_public,
            _ => false,
        };
        if !is_visible || STATEMENTS.iter().any(|start| code.starts_with(start)) {
            continue;
        }
        let Some((head, _)) = code.split_once('(') else { continue };
        let name = head.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
        // A declaration has a type before the name; otherwise it is a constructor or a call.
        if head.trim() != name
            && !head.trim_start().trim_end_matches(name).ends_with("::")
            && !name.is_empty()
            && !head.contains('=')
            && !head.contains("operator")
        {
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn every_function_of_the_cxx_header_is_tested() {
    let folder =
        std::fs::read_dir(format!("{ROOT}/ffi-tests/cpp")).expect("the folder of the tests");
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("text");
    let tests: String = folder.map(|entry| read(entry.expect("an entry").path())).collect();
    let words: BTreeSet<&str> = tests.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let names = declared(&header());
    assert!(names.len() > 150, "only {} functions were found: {names:?}", names.len());
    // The standard library and the compiler call these.
    let indirect = [
        "allocate",
        "deallocate",
        "default_error_condition",
        "await_ready",
        "await_resume",
        "await_suspend",
        "owning_work",
        "nothrow_t",
        "work_awaiter",
    ];
    let is_tested = |name: &str| words.contains(name) || indirect.contains(&name);
    let missing: Vec<&String> = names.iter().filter(|name| !is_tested(name)).collect();
    assert!(missing.is_empty(), "no test in ffi-tests/cpp uses {missing:?}");
}
