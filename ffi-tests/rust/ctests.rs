//! The C tests: each program of `ffi-tests/c` is compiled with the system's compiler against the header
//! and the library of this build, and run with a deadline. One test per program, so that failures have
//! names. Without a C compiler, or without Valgrind where that is the point, a test says so and passes.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod interface;
#[path = "ctests/toolchain.rs"]
mod toolchain;

use interface::{ROOT, find_program, functions};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::time::Duration;
use toolchain::{Compiler, Outcome, run};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The same under Valgrind, which runs it some thirty times slower and one thread at a time.
const LIMIT_UNDER_VALGRIND: Duration = Duration::from_secs(300);

/// Compiles and runs a program; it says itself what is wrong.
fn passes(name: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program(name, &[&format!("{name}.c")]);
    run(&[&program.display().to_string()], LIMIT).expect_success();
}

macro_rules! programs {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                passes(stringify!($name));
            }
        )+
        const PROGRAMS: &[&str] = &[$(stringify!($name)),+];
    };
}

programs!(
    api_arguments,
    api_fork,
    api_handles,
    api_lifecycle,
    api_null,
    api_options,
    api_rendezvous,
    bytes,
    debug,
    groups,
    late_write,
    log,
    memory,
    send_recv,
    spawn,
    store_custom,
    threads,
    works,
);

/// The suite that every kind of store passes, and the example whose store is one of the kinds.
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
    "../../c-examples/directory_files.c",
    "../../c-examples/directory_queues.c",
    "../../c-examples/directory_store.c",
];

/// How long the suite may take with one kind of store, its waits for time-outs included.
const CONFORMANCE_LIMIT: Duration = Duration::from_secs(120);

/// How many checks apply to every kind, at the least.
const CHECKS: usize = 60;

/// Runs the suite with one kind of store.
fn conforms(kind: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program(&format!("store_conformance_{kind}"), CONFORMANCE);
    has_passed(run(&[&program.display().to_string(), kind], CONFORMANCE_LIMIT), kind);
}

fn has_passed(outcome: Outcome, kind: &str) {
    let output = outcome.expect_success().output;
    let passed = output.lines().find_map(|line| {
        line.split_once(&format!(" checks passed on {kind},"))?.0.parse::<usize>().ok()
    });
    assert!(passed.is_some_and(|passed| passed >= CHECKS), "{output}");
}

macro_rules! conformance {
    ($($test:ident: $kind:ident),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                conforms(stringify!($kind));
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
fn no_kind_of_store_is_forgotten() {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("store_conformance", CONFORMANCE);
    let Outcome { output, status, .. } = run(&[&program.display().to_string()], LIMIT);
    let kinds = output.trim().rsplit_once("the kinds are ").map(|(_, kinds)| kinds);
    let kinds: Vec<&str> = kinds.unwrap_or_default().split(' ').collect();
    assert_eq!((status, kinds.as_slice()), (Some(2), KINDS), "{output}");
}

#[test]
#[should_panic(expected = "had not ended")]
fn a_program_that_hangs_is_ended() {
    run(&["sleep", "600"], Duration::from_millis(50));
}

#[test]
#[should_panic(expected = "ended with status 3")]
fn a_program_that_fails_is_a_failure() {
    run(&["sh", "-c", "exit 3"], LIMIT).expect_success();
}

/// Runs a program under Valgrind: no invalid access, nothing lost.
fn leaks_nothing(name: &str) {
    if let Some(outcome) = under_valgrind(name, &[&format!("{name}.c")], &[]) {
        outcome.expect_success();
    }
}

/// The suite of stores under Valgrind, with one kind of store.
fn conforms_and_leaks_nothing(kind: &str) {
    if let Some(outcome) =
        under_valgrind(&format!("store_conformance_{kind}"), CONFORMANCE, &[kind])
    {
        has_passed(outcome, kind);
    }
}

/// What came of a program under Valgrind; none where there is no compiler or no Valgrind.
fn under_valgrind(name: &str, files: &[&str], arguments: &[&str]) -> Option<Outcome> {
    let compiler = Compiler::find()?;
    let Some(valgrind) = find_program("valgrind") else {
        toolchain::skip("valgrind is not installed");
        return None;
    };
    let program = compiler.program(&format!("leak_{name}"), files);
    let suppressions = format!("--suppressions={ROOT}/ffi-tests/sanitize/valgrind.supp");
    let words = [
        valgrind.to_str().expect("a path in UTF-8"),
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect,possible",
        "--fair-sched=yes",
        &suppressions,
        program.to_str().expect("a path in UTF-8"),
    ];
    Some(run(&[&words[..], arguments].concat(), LIMIT_UNDER_VALGRIND))
}

/// Runs the program of groups on four processes, with that limit of descriptors for each.
fn groups_between_processes(what: &str, descriptors: u32) {
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program(&format!("groups_{what}"), &["groups.c"]);
    let distrun = env!("CARGO_BIN_EXE_distrun");
    let line = format!(
        "ulimit -n {descriptors}; exec {distrun} --nproc_per_node 4 {} {what}",
        program.display()
    );
    run(&["sh", "-c", &line], LIMIT).expect_success();
}

#[test]
fn groups_of_processes() {
    groups_between_processes("processes", 1024);
}

#[test]
fn more_groups_than_descriptors() {
    groups_between_processes("exhaust", 200);
}

#[test]
fn leak_groups() {
    leaks_nothing("groups");
}

#[test]
fn leak_handles() {
    leaks_nothing("api_handles");
}

#[test]
fn leak_lifecycle() {
    leaks_nothing("api_lifecycle");
}

#[test]
fn leak_null() {
    leaks_nothing("api_null");
}

#[test]
fn leak_memory() {
    leaks_nothing("memory");
}

/// Its children are under Valgrind too.
#[test]
fn leak_spawn() {
    leaks_nothing("spawn");
}

#[test]
fn leak_store_custom() {
    leaks_nothing("store_custom");
}

#[test]
fn leak_store_conformance_custom() {
    conforms_and_leaks_nothing("custom");
}

#[test]
fn leak_store_conformance_hash() {
    conforms_and_leaks_nothing("hash");
}

#[test]
fn leak_store_conformance_tcp() {
    conforms_and_leaks_nothing("tcp");
}

#[test]
fn leak_threads() {
    leaks_nothing("threads");
}

#[test]
fn leak_works() {
    leaks_nothing("works");
}

/// The files of `ffi-tests/c` with an ending.
fn sources(ending: &str) -> BTreeSet<String> {
    let folder =
        std::fs::read_dir(format!("{ROOT}/ffi-tests/c")).expect("the folder of the C tests");
    let names = folder.map(|entry| entry.expect("an entry").file_name().into_string());
    names.map(|name| name.expect("a name in UTF-8")).filter(|name| name.ends_with(ending)).collect()
}

#[test]
fn no_program_is_forgotten() {
    let cmake = std::fs::read_to_string(format!("{ROOT}/ffi-tests/CMakeLists.txt")).expect("text");
    for file in sources(".c").union(&sources(".cpp")) {
        let name = file.trim_end_matches(".cpp").trim_end_matches(".c");
        let is_run_by_name = name == "abi_layout"
            || name.starts_with("hdr_")
            || CONFORMANCE.contains(&file.as_str());
        assert!(is_run_by_name || PROGRAMS.contains(&name), "{file} is not run by this test");
        let words: Vec<_> = cmake.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        assert!(words.contains(&name), "{file} is not in ffi-tests/CMakeLists.txt");
    }
}

#[test]
fn every_pointer_of_every_function_is_tried_as_null() {
    let text = std::fs::read_to_string(format!("{ROOT}/ffi-tests/c/api_null.c")).expect("text");
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
                "api_null.c has no row for {}({} = NULL)",
                function.name,
                parameter.name
            );
        }
    }
    assert!(pointers > 100, "only {pointers} pointers were found in the header");
}

const WARNINGS: &[&str] = &["-pedantic-errors", "-Wall", "-Wextra", "-Werror"];

#[test]
fn the_header_is_clean_in_every_standard() {
    let c = ["c89", "c99", "c11", "c17", "c2x"];
    let cxx = ["c++98", "c++03", "c++11", "c++14", "c++17", "c++20"];
    let mut tried = 0;
    for (names, standards, file) in [
        (["cc", "gcc", "clang"], c.as_slice(), "hdr_c89.c"),
        (["c++", "g++", "clang++"], cxx.as_slice(), "hdr_cxx98.cpp"),
    ] {
        for compiler in names.into_iter().filter_map(Compiler::named) {
            for standard in standards {
                let standard = format!("-std={standard}");
                if compiler.knows(&standard, file) {
                    compiler.check(file, &[&[standard.as_str()], WARNINGS].concat());
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

fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// What `abi_layout.c` prints, from the Rust side. The pattern does not compile while a field is missing.
macro_rules! layout {
    ($lines:ident; $($type:ident { $($field:ident),+ $(,)? })+) => {
        $(
            let _complete = |value: $type| {
                let $type { $($field: _),+ } = value;
            };
            $lines.push(format!("{} {}", stringify!($type), size_of::<$type>()));
            $($lines.push(format!(
                "{}.{} {} {}",
                stringify!($type),
                stringify!($field),
                offset_of!($type, $field),
                field_size(|value: &$type| &value.$field),
            ));)+
        )+
    };
}

#[test]
fn c_sees_the_types_as_rust_does() {
    use dist::ffi::types::*;
    let mut lines = vec![
        format!("dist_status_t {}", size_of::<dist_status_t>()),
        format!("dist_dtype_t {}", size_of::<dist_dtype_t>()),
        format!("dist_op_t {}", size_of::<dist_op_t>()),
        format!("dist_log_fn {}", size_of::<dist_log_fn>()),
        format!("dist_store_sink_fn {}", size_of::<dist_store_sink_fn>()),
        format!("dist_work_fn {}", size_of::<dist_work_fn>()),
        format!("dist_spawn_fn {}", size_of::<dist_spawn_fn>()),
    ];
    layout!(lines;
        dist_init_options_t {
            struct_size, fields, backend, init_method, store, rank, world_size, timeout_ms,
            connect_timeout_ms, group_name, backend_options,
        }
        dist_group_options_t {
            struct_size, fields, store, rank, world_size, backend, name, timeout_ms,
            connect_timeout_ms, backend_options, global_ranks, n_global_ranks,
        }
        dist_group_new_options_t {
            struct_size, name, backend, backend_options, timeout_ms, connect_timeout_ms,
            use_local_synchronization,
        }
        dist_shrink_options_t { struct_size, timeout_ms, connect_timeout_ms }
        dist_spawn_options_t { struct_size, join_timeout_ms, grace_ms }
        dist_call_options_t { struct_size, timeout_ms, premul_scale, algorithm, flags }
        dist_store_tcp_options_t {
            struct_size, fields, host, port, is_server, world_size, wait_for_workers, listen_fd,
            multi_tenant, timeout_ms, bind_address, secret, secret_len_bytes,
        }
        dist_store_file_options_t { struct_size, job_id, timeout_ms }
        dist_store_vtable_t {
            struct_size, set, get, add, wait, check, delete_key, destroy, compare_set, append,
            num_keys, list_keys, queue_push, queue_pop, queue_len,
        }
    );
    let structs = interface::HEADER.matches("typedef struct dist_").count();
    let incomplete = interface::HEADER
        .lines()
        .filter(|line| line.starts_with("typedef struct dist_") && line.ends_with(';'));
    let complete = structs - incomplete.count();
    let covered = lines.iter().filter(|line| line.contains(".struct_size ")).count();
    assert_eq!(complete, covered, "a struct of the header is missing here and in abi_layout.c");
    let Some(compiler) = Compiler::find() else { return };
    let program = compiler.program("abi_layout", &["abi_layout.c"]);
    let Outcome { output, .. } = run(&[&program.display().to_string()], LIMIT).expect_success();
    let printed: Vec<&str> = output.lines().collect();
    assert_eq!(printed, lines, "left: the C compiler; right: Rust");
}

/// The gate of the binary interface; needs libabigail.
#[test]
fn no_incompatible_change_of_the_interface() {
    let script = format!("{ROOT}/ffi-tests/abi/check.sh");
    let outcome = run(&["sh", &script], LIMIT);
    match outcome.status {
        Some(77) => toolchain::skip(&outcome.output),
        _ => drop(outcome.expect_success()),
    }
}
