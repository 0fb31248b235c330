//! The C tests: compiles each program of `ffi-tests/c` with the system's compiler against the
//! header and the library of this build, and runs it with a deadline. There is one test per
//! program, so that a failure has a name. If the C compiler is missing, or Valgrind for a Valgrind
//! test, the test prints this and passes.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod interface;
#[path = "ctests/layout.rs"]
mod layout;
#[path = "ctests/process_groups.rs"]
mod process_groups;
mod program_paths;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use interface::{ROOT, find_program, functions, variable};
use program_paths::DISTRUN;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use toolchain::{Compiler, EXAMPLE_BACKEND_FILES, ProgramOutcome, run};

/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(180);

/// The time limit under Valgrind, which is about 30 times slower and runs one thread at a time.
const LIMIT_UNDER_VALGRIND: Duration = Duration::from_secs(600);

/// The time limit of a long series of random trainings.
const LONG_LIMIT: Duration = Duration::from_secs(3600);

/// Compiles and runs a program, and expects success. The program prints its own errors.
fn compile_and_run(name: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program(name, &[&format!("{name}.c")]);
    run(&[&program.display().to_string()], LIMIT).expect_success();
}

macro_rules! programs {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                compile_and_run(stringify!($name));
            }
        )+
        const PROGRAMS: &[&str] = &[$(stringify!($name)),+];
    };
}

programs!(
    access_lost,
    all_equal,
    api_arguments,
    api_fork,
    api_handles,
    api_lifecycle,
    api_null,
    api_null_calls,
    api_null_training,
    api_options,
    api_rendezvous,
    attach_denied,
    average,
    bytes,
    call_mismatch,
    closed_streams,
    constants,
    deadlock,
    deadlock_calls,
    deadlock_random,
    debug,
    float_mode,
    forbidden_calls,
    group_null,
    gather_v,
    groups,
    labels,
    late_name,
    late_write,
    lists,
    log,
    memory,
    messages_probe,
    messages_sendrecv,
    operators,
    process_end,
    recorded_calls,
    reducer,
    reducer_curve,
    reducer_hooks,
    reducer_layouts,
    reducer_log,
    reducer_outer,
    reducer_random,
    reducer_refusals,
    reducer_shard,
    reducer_shard_death,
    reducer_sparse,
    renamed,
    names,
    sampler,
    send_recv,
    spawn,
    store_clients,
    store_custom,
    threads,
    timeouts,
    two_level,
    works,
    works_events,
    works_many,
);

/// The files of the suite for all store kinds, and the example store that is one of the kinds.
const CONFORMANCE: &[&str] = &[
    "store_conformance.c",
    "store_suite.c",
    "store_checks_handles.c",
    "store_checks_many.c",
    "store_checks_names.c",
    "store_checks_processes.c",
    "store_checks_queues.c",
    "store_checks_time.c",
    "store_checks_values.c",
    "store_checks_waits.c",
    "../../c-examples/store_directory/directory_files.c",
    "../../c-examples/store_directory/directory_queues.c",
    "../../c-examples/store_directory/directory_store.c",
];

/// Invalid plug-ins: without an entry point, of an old version, of another version, with a failing
/// entry point, and without a name.
const FAULTY_BACKENDS: &[(&str, &[&str])] = &[
    ("no_backend", &["-DENTRY=something_else"]),
    ("old_backend", &["-DENTRY=dist_backend_plugin_v1"]),
    ("other_backend", &["-DENTRY=dist_backend_plugin_v2", "-DVERSION=7"]),
    ("sick_backend", &["-DENTRY=dist_backend_plugin_v2", "-DSTATUS=DIST_ERR_SYSTEM"]),
    ("nameless_backend", &["-DENTRY=dist_backend_plugin_v2", "-DVERSION=2"]),
];

/// Runs a test program for back ends with the example's shared object.
fn with_backend(name: &str, more: &[&str]) {
    let Some(compiler) = Compiler::find() else { return };
    let object = compiler.plugin(&format!("{name}_plugin"), EXAMPLE_BACKEND_FILES, &[]);
    let program = compiler.program(&format!("{name}_program"), &[&format!("{name}.c")]);
    let words = [program.display().to_string(), object.display().to_string()];
    let words: Vec<&str> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
    run(&words, CONFORMANCE_LIMIT).expect_success();
}

#[test]
fn backend_store() {
    with_backend("backend_store", &[]);
}

#[test]
fn backend_of_processes() {
    let Some(compiler) = Compiler::find() else { return };
    let object = compiler.plugin("backend_processes_plugin", EXAMPLE_BACKEND_FILES, &[]);
    let program = compiler.program("backend_processes", &["backend_load.c"]);
    let line = format!(
        "DIST_BACKEND_PLUGINS={} exec {DISTRUN} --nproc_per_node 3 {}",
        object.display(),
        program.display()
    );
    run(&["sh", "-c", &line], LIMIT).expect_success();
}

#[test]
fn backend_trouble() {
    with_backend("backend_trouble", &[]);
}

#[test]
fn backend_load() {
    let Some(compiler) = Compiler::find() else { return };
    let check_backend = |(name, flags): &(&str, &[&str])| {
        compiler.plugin(name, &["backend_odd.c"], flags).display().to_string()
    };
    let failures: Vec<String> = FAULTY_BACKENDS.iter().map(check_backend).collect();
    with_backend("backend_load", &failures.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The time limit of the suite with one store kind, including its waits for timeouts.
const CONFORMANCE_LIMIT: Duration = Duration::from_secs(300);

/// The minimum number of checks for every store kind.
const MIN_CONFORMANCE_CHECKS: usize = 60;

/// Runs the suite with one store kind.
fn run_conformance(kind: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program(&format!("store_conformance_{kind}"), CONFORMANCE);
    assert_conformance_passed(
        run(&[&program.display().to_string(), kind], CONFORMANCE_LIMIT),
        kind,
    );
}

fn assert_conformance_passed(outcome: ProgramOutcome, kind: &str) {
    let output = outcome.expect_success().output;
    let passed = output.lines().find_map(|line| {
        line.split_once(&format!(" checks passed on {kind},"))?.0.parse::<usize>().ok()
    });
    assert!(passed.is_some_and(|passed| passed >= MIN_CONFORMANCE_CHECKS), "{output}");
}

macro_rules! conformance {
    ($($test:ident: $kind:ident),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                run_conformance(stringify!($kind));
            }
        )+
        const KINDS: &[&str] = &[$(stringify!($kind)),+];
    };
}

conformance!(
    store_conformance_hash: hash,
    store_conformance_tcp: tcp,
    store_conformance_file: file,
    store_conformance_prefix: prefix,
    store_conformance_prefix_of_prefix: prefix_of_prefix,
    store_conformance_custom: custom,
    store_conformance_custom_with_composed_queues: custom_with_composed_queues,
);

#[test]
fn every_kind_of_store_is_listed() {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("store_conformance", CONFORMANCE);
    let ProgramOutcome { output, status, .. } = run(&[&program.display().to_string()], LIMIT);
    let kinds = output.trim().rsplit_once("the kinds are ").map(|(_, kinds)| kinds);
    let kinds: Vec<&str> = kinds.unwrap_or_default().split(' ').collect();
    assert_eq!((status, kinds.as_slice()), (Some(2), KINDS), "{output}");
}

#[test]
#[should_panic(expected = "had not ended")]
fn hanging_program_is_killed() {
    run(&["sleep", "600"], Duration::from_millis(50));
}

#[test]
#[should_panic(expected = "ended with status 3")]
fn failing_program_is_reported() {
    run(&["sh", "-c", "exit 3"], LIMIT).expect_success();
}

/// Runs the self-test of the CUDA and NCCL stubs that other tests load.
#[test]
fn stubs() {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.stubs("stubs").join("selftest");
    run(&[&program.display().to_string()], LIMIT).expect_success();
}

/// Runs a program under Valgrind and expects no invalid access and no leak.
fn check_no_leaks(name: &str) {
    if let Some(outcome) = under_valgrind(name, &[&format!("{name}.c")], &[]) {
        outcome.expect_success();
    }
}

/// Runs the store suite under Valgrind with one store kind.
fn check_conformance_without_leaks(kind: &str) {
    if let Some(outcome) =
        under_valgrind(&format!("store_conformance_{kind}"), CONFORMANCE, &[kind])
    {
        assert_conformance_passed(outcome, kind);
    }
}

/// Returns the outcome of a program under Valgrind, or `None` if the compiler or Valgrind is
/// missing.
fn under_valgrind(name: &str, files: &[&str], arguments: &[&str]) -> Option<ProgramOutcome> {
    let compiler = Compiler::find()?;
    if find_program("valgrind").is_none() {
        toolchain::skip("valgrind is not installed");
        return None;
    }
    let program = compiler.program(&format!("leak_{name}"), files);
    Some(run_under_valgrind(&program, arguments))
}

fn run_under_valgrind(program: &Path, arguments: &[&str]) -> ProgramOutcome {
    let suppressions = format!("--suppressions={ROOT}/ffi-tests/sanitize/valgrind.supp");
    let words = [
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect,possible",
        "--fair-sched=yes",
        &suppressions,
        program.to_str().expect("a path in UTF-8"),
    ];
    run(&[&words[..], arguments].concat(), LIMIT_UNDER_VALGRIND)
}

macro_rules! leaks {
    ($($test:ident: $check:ident($program:ident)),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                $check(stringify!($program));
            }
        )+
    };
}

leaks!(
    leak_groups: check_no_leaks(groups),
    leak_handles: check_no_leaks(api_handles),
    leak_lifecycle: check_no_leaks(api_lifecycle),
    leak_null: check_no_leaks(api_null),
    leak_null_calls: check_no_leaks(api_null_calls),
    leak_null_training: check_no_leaks(api_null_training),
    leak_memory: check_no_leaks(memory),
    // Valgrind also checks the children.
    leak_spawn: check_no_leaks(spawn),
    leak_store_custom: check_no_leaks(store_custom),
    leak_store_conformance_custom: check_conformance_without_leaks(custom),
    leak_store_conformance_hash: check_conformance_without_leaks(hash),
    leak_store_conformance_tcp: check_conformance_without_leaks(tcp),
    leak_threads: check_no_leaks(threads),
    leak_works: check_no_leaks(works),
);

/// Runs all parts of the self-test except the operations, which would double the time.
#[test]
fn leak_stubs() {
    let Some(compiler) = Compiler::find() else { return };
    if find_program("valgrind").is_none() {
        toolchain::skip("valgrind is not installed");
        return;
    }
    let program = compiler.stubs("leak_stubs").join("selftest");
    run_under_valgrind(&program, &["cuda", "communicators", "faults", "misuse"]).expect_success();
}

/// Random trainings of `cargo xtask random`; the environment has the first seed and the number of
/// seeds.
#[test]
#[ignore = "takes minutes: cargo xtask random"]
fn many_reducer_random() {
    let (Some(first), Some(seeds)) = (variable("REDUCER_FIRST"), variable("REDUCER_SEEDS")) else {
        panic!("REDUCER_FIRST and REDUCER_SEEDS are not set");
    };
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("reducer_random", &["reducer_random.c"]);
    run(&[program.display().to_string(), first, seeds], LONG_LIMIT).expect_success();
}

/// Random programs without deadlocks of `cargo xtask random`; the environment has the first seed
/// and the number of seeds.
#[test]
#[ignore = "takes minutes: cargo xtask random"]
fn many_deadlock_random() {
    let (Some(first), Some(seeds)) = (variable("DEADLOCK_FIRST"), variable("DEADLOCK_SEEDS"))
    else {
        panic!("DEADLOCK_FIRST and DEADLOCK_SEEDS are not set");
    };
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("deadlock_random", &["deadlock_random.c"]);
    run(&[program.display().to_string(), first, seeds], LONG_LIMIT).expect_success();
}

/// Returns the files of `ffi-tests/c` with this suffix.
fn sources(ending: &str) -> BTreeSet<String> {
    let folder =
        std::fs::read_dir(format!("{ROOT}/ffi-tests/c")).expect("the folder of the C tests");
    let names = folder.map(|entry| entry.expect("an entry").file_name().into_string());
    names.map(|name| name.expect("a name in UTF-8")).filter(|name| name.ends_with(ending)).collect()
}

#[test]
fn every_test_program_is_listed() {
    let cmake = std::fs::read_to_string(format!("{ROOT}/ffi-tests/CMakeLists.txt")).expect("text");
    for file in sources(".c").union(&sources(".cpp")) {
        let name = file.trim_end_matches(".cpp").trim_end_matches(".c");
        let is_run_by_name = name == "abi_layout"
            || name.starts_with("hdr_")
            || name.starts_with("backend_")
            || name.ends_with("_retry")
            || CONFORMANCE.contains(&file.as_str());
        assert!(is_run_by_name || PROGRAMS.contains(&name), "{file} is not run by this test");
        let words: Vec<_> = cmake.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        assert!(words.contains(&name), "{file} is not in ffi-tests/CMakeLists.txt");
    }
}

#[test]
fn every_pointer_of_every_function_is_tried_as_null() {
    let read = |file| std::fs::read_to_string(format!("{ROOT}/ffi-tests/c/{file}")).expect("text");
    let text = ["api_null.c", "api_null_calls.c", "api_null_training.c"].map(read).concat();
    let rows = ["REFUSED(", "ACCEPTED("].into_iter().flat_map(|word| text.split(word).skip(1));
    let tried: BTreeSet<(String, String)> = rows
        .filter_map(|row| {
            let mut words = row.split(',').map(str::trim);
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect();
    let mut pointers = 0;
    for function in functions() {
        for parameter in function.parameters.iter().filter(|parameter| parameter.is_pointer) {
            pointers += 1;
            assert!(
                tried.contains(&(function.name.clone(), parameter.name.clone())),
                "no api_null program has a row for {}({} = NULL)",
                function.name,
                parameter.name
            );
        }
    }
    assert!(pointers > 100, "only {pointers} pointers were found in the header");
}

const WARNINGS: &[&str] = &["-pedantic-errors", "-Wall", "-Wextra", "-Werror"];

/// Warnings that C++ projects often enable for included headers.
const CXX_WARNINGS: &[&str] = &["-Wzero-as-null-pointer-constant"];

#[test]
fn the_header_is_clean_in_every_standard() {
    let c = ["c89", "c99", "c11", "c17", "c2x"];
    let cxx = ["c++98", "c++03", "c++11", "c++14", "c++17", "c++20", "c++23"];
    let mut tried = 0;
    for (names, standards, file) in [
        (["cc", "gcc", "clang"], c.as_slice(), "hdr_c89.c"),
        (["c++", "g++", "clang++"], cxx.as_slice(), "hdr_cxx98.cpp"),
    ] {
        for compiler in names.into_iter().filter_map(Compiler::named) {
            for standard in standards {
                let standard = format!("-std={standard}");
                if compiler.supports_flag(&standard, file) {
                    let more: &[&str] = if file.ends_with(".cpp") { CXX_WARNINGS } else { &[] };
                    compiler.check(file, &[&[standard.as_str()], WARNINGS, more].concat());
                    tried += 1;
                } else {
                    println!("skipped: {compiler:?} does not know {standard}");
                }
            }
        }
    }
    if tried == 0 {
        toolchain::skip("there is no C compiler");
    }
}

#[test]
fn the_header_is_clean_in_two_files_of_one_program() {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("hdr_twice", &["hdr_twice_a.c", "hdr_twice_b.c"]);
    run(&[&program.display().to_string()], LIMIT).expect_success();
}

#[test]
fn c_and_rust_type_layouts_agree() {
    let lines = layout::lines();
    let headers = [interface::HEADER, interface::BACKEND_HEADER].concat();
    let structs = headers.matches("typedef struct dist_").count();
    let incomplete = headers
        .lines()
        .filter(|line| line.starts_with("typedef struct dist_") && line.ends_with(';'));
    let complete = structs - incomplete.count();
    let covered = lines.iter().filter(|line| line.contains(".struct_size ")).count();
    assert_eq!(complete, covered, "a struct of the headers is missing here and in abi_layout.c");
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("abi_layout", &["abi_layout.c"]);
    let ProgramOutcome { output, .. } =
        run(&[&program.display().to_string()], LIMIT).expect_success();
    let printed: Vec<&str> = output.lines().collect();
    assert_eq!(printed, lines, "left: the C compiler; right: Rust");
}

/// Checks the ABI for incompatible changes; needs libabigail.
#[test]
fn no_incompatible_change_of_the_interface() {
    let script = format!("{ROOT}/ffi-tests/abi/check.sh");
    let outcome = run(&["sh", &script], LIMIT);
    match outcome.status {
        Some(77) => toolchain::skip(&outcome.output),
        _ => drop(outcome.expect_success()),
    }
}
