//! Groups on devices, with real ranks through the C interface, over stubs of libnccl and libcuda.
//! The stubs record misuse, and every program must end without any. The tests run over NCCL and
//! with staging through host memory. They need a C compiler but no GPU and no NCCL.
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]

mod interface;
#[path = "nccl/staging.rs"]
mod staging;
#[path = "nccl/timing.rs"]
mod timing;
#[path = "ctests/toolchain.rs"]
mod toolchain;
#[path = "nccl/two_level.rs"]
mod two_level;

use interface::ROOT;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use toolchain::{Compiler, ProgramOutcome, run};

/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(80);

/// Takes a lock for a build: each test may run in a separate process, and all tests share the built
/// files.
fn build_lock() -> File {
    let path = format!("{}/nccl.lock", env!("CARGO_TARGET_TMPDIR"));
    let file = File::create(path).expect("a file to lock");
    file.lock().expect("a lock");
    file
}

/// Returns the newest modification time of these files and of the files in these folders.
fn newest(paths: &[String]) -> SystemTime {
    let time = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    let files = paths.iter().flat_map(|path| match std::fs::read_dir(path) {
        Ok(folder) => folder.flatten().map(|entry| entry.path()).collect(),
        Err(_) => vec![PathBuf::from(path)],
    });
    files.filter_map(|path| time(&path)).max().expect("a file")
}

/// Returns true if a file is newer than all its sources.
fn is_up_to_date(built: &Path, sources: &[String]) -> bool {
    std::fs::metadata(built)
        .and_then(|data| data.modified())
        .is_ok_and(|time| time > newest(sources))
}

/// Builds the stubs if needed and returns their folder.
fn stubs(compiler: &Compiler) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stubs_nccl");
    // The build makes this file last.
    let selftest = folder.join("selftest");
    let _building = build_lock();
    if is_up_to_date(&selftest, &[format!("{ROOT}/ffi-tests/stubs")]) {
        return folder;
    }
    compiler.stubs("nccl")
}

/// Builds a program of `ffi-tests/nccl`, with or without linking the stubs, and returns its path.
fn program(compiler: &Compiler, name: &str, is_linked: bool) -> String {
    let stubs = stubs(compiler).display().to_string();
    let in_tests = |path: &str| format!("{ROOT}/ffi-tests/{path}");
    let mut files = vec![in_tests(&format!("nccl/{name}.c"))];
    let mut more = vec!["-std=c11".to_owned(), "-D_GNU_SOURCE".to_owned()];
    if is_linked {
        files.push(in_tests("nccl/ranks.c"));
        more.extend(["libnccl.so.2", "libcuda.so.1"].map(|name| format!("{stubs}/{name}")));
        more.extend([format!("-Wl,-rpath,{stubs}"), "-lm".to_owned()]);
    }
    let sources = [in_tests("nccl"), in_tests("stubs"), format!("{ROOT}/include"), in_tests("c")];
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c").join(format!("nccl_{name}"));
    let _building = build_lock();
    if !is_up_to_date(&built, &sources) {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        compiler.program_with(&format!("nccl_{name}"), &files, &more);
    }
    built.display().to_string()
}

/// Runs a command with these variables and asserts that the stubs' log of misuse is empty.
fn run_with(test: &str, environment: &[(&str, &str)], words: &[&str]) -> ProgramOutcome {
    let Some(compiler) = Compiler::find() else { panic!("there was a compiler a moment ago") };
    let stubs = stubs(&compiler).display().to_string();
    let log = format!("{}/nccl_{test}.log", env!("CARGO_TARGET_TMPDIR"));
    drop(std::fs::remove_file(&log));
    let mut all = vec!["env".to_owned(), format!("DIST_STUB_LOG={log}")];
    all.push(format!("LD_LIBRARY_PATH={stubs}"));
    all.extend(environment.iter().map(|(name, value)| format!("{name}={value}")));
    all.extend(words.iter().map(|&word| word.to_owned()));
    let outcome = run(&all, LIMIT);
    let misuse = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(misuse.is_empty(), "the stubs were misused:\n{misuse}\n{}", outcome.output);
    outcome
}

fn compile_and_run(name: &str, case: Option<&str>, environment: &[(&str, &str)]) {
    let Some(compiler) = Compiler::find() else { return };
    let program = program(&compiler, name, true);
    let mut words = vec![program.as_str()];
    words.extend(case);
    let mut test = format!("{name}_{}", case.unwrap_or("all"));
    environment.iter().for_each(|(variable, value)| test.push_str(&format!("_{variable}_{value}")));
    run_with(&test, environment, &words).expect_success();
}

#[test]
fn operations() {
    compile_and_run("operations", None, &[("DIST_STUB_NCCL_LAUNCH_US", "0")]);
}

/// Lists with tensors in both kinds of memory.
#[test]
fn lists() {
    compile_and_run("lists", None, &[("DIST_STUB_NCCL_LAUNCH_US", "0")]);
    compile_and_run("lists", None, &[("DIST_DEBUG_LEVEL", "DETAIL"), ("DIST_LOG_LEVEL", "OFF")]);
}

/// Runs random trainings with a reducer.
#[test]
fn reducer_random() {
    compile_and_run("reducer_random", None, &[("DIST_STUB_NCCL_LAUNCH_US", "0")]);
}

/// The stub launches with NCCL's delay, so a caller that does not wait overtakes the operation.
#[test]
fn behaviour() {
    compile_and_run("behaviour", None, &[]);
}

/// Slow calls overlap if two threads are in one.
#[test]
fn behaviour_of_slow_calls() {
    compile_and_run(
        "behaviour",
        None,
        &[("DIST_STUB_NCCL_CALL_US", "300"), ("DIST_STUB_NCCL_SLOW_US", "200")],
    );
}

const STALLED_LAST_RANK: (&str, &str) = ("DIST_STUB_NCCL_STALL", "2:1");

/// Cases of `together` with two ranks.
const TWO_RANK_CASES: [&str; 7] = [
    "behind",
    "aborted_behind",
    "late_behind",
    "messages_behind",
    "first_ones",
    "left_behind",
    "alone_first",
];

/// Calls that may block inside NCCL have the same results and only differ in their duration.
#[test]
fn blocking_calls() {
    let may_block = ("TORCH_NCCL_USE_COMM_NONBLOCKING", "0");
    compile_and_run("operations", None, &[may_block]);
    compile_and_run("behaviour", None, &[may_block]);
    compile_and_run("behaviour", None, &[may_block, ("DIST_STUB_NCCL_SLOW_US", "200")]);
}

#[test]
fn blocking_calls_of_several_groups_and_ranks() {
    let may_block = ("TORCH_NCCL_USE_COMM_NONBLOCKING", "0");
    for case in TWO_RANK_CASES.into_iter().chain(["one_thread", "many_groups"]) {
        compile_and_run("together", Some(case), &[may_block]);
    }
}

#[test]
fn blocking_calls_end_at_deadline_or_abort() {
    let may_block = ("TORCH_NCCL_USE_COMM_NONBLOCKING", "0");
    for case in ["time_out", "time_out_alone", "abort_under_way", "leave_under_way"] {
        compile_and_run("faults", Some(case), &[may_block, STALLED_LAST_RANK]);
    }
    compile_and_run(
        "faults",
        Some("async_error"),
        &[may_block, ("DIST_STUB_NCCL_ASYNC_ERROR", "1:1:6")],
    );
    compile_and_run("faults", Some("never_meets"), &[may_block, ("DIST_STUB_NCCL_STALL", "1:-1")]);
    compile_and_run(
        "faults",
        Some("refused_call"),
        &[may_block, ("DIST_STUB_NCCL_FAIL", "ncclAllReduce:1:1")],
    );
}

#[test]
fn late_operation_is_reported_to_device_waiter() {
    compile_and_run("faults", Some("time_out"), &[STALLED_LAST_RANK]);
}

#[test]
fn late_operation_is_reported_to_streamless_caller() {
    compile_and_run("faults", Some("time_out_alone"), &[STALLED_LAST_RANK]);
}

#[test]
fn late_operation_is_reported_in_blocking_calls() {
    for name in ["NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"] {
        compile_and_run("faults", Some("time_out_blocking"), &[STALLED_LAST_RANK, (name, "1")]);
    }
}

#[test]
fn error_handling_can_be_disabled() {
    compile_and_run(
        "faults",
        Some("unhandled"),
        &[STALLED_LAST_RANK, ("NCCL_ASYNC_ERROR_HANDLING", "0")],
    );
}

#[test]
fn asynchronous_error_reaches_all_ranks() {
    compile_and_run("faults", Some("async_error"), &[("DIST_STUB_NCCL_ASYNC_ERROR", "1:1:6")]);
}

#[test]
fn abort_ends_running_operations() {
    compile_and_run("faults", Some("abort_under_way"), &[STALLED_LAST_RANK]);
}

#[test]
fn group_release_is_bounded() {
    compile_and_run("faults", Some("leave_under_way"), &[STALLED_LAST_RANK]);
}

#[test]
fn absent_rank_is_a_timeout() {
    compile_and_run("faults", Some("never_meets"), &[("DIST_STUB_NCCL_STALL", "1:-1")]);
}

#[test]
fn refused_nccl_call_fails_the_group() {
    compile_and_run(
        "faults",
        Some("refused_call"),
        &[("DIST_STUB_NCCL_FAIL", "ncclAllReduce:1:1")],
    );
}

/// One thread drives the groups of all ranks: with default settings, with slow launches, and with
/// the check that all ranks have arrived.
#[test]
fn one_thread_drives_several_devices() {
    compile_and_run("together", Some("one_thread"), &[]);
    compile_and_run("together", Some("one_thread"), &[("DIST_STUB_NCCL_LAUNCH_US", "3000")]);
    compile_and_run("together", Some("one_thread"), &[("TORCH_DISTRIBUTED_DEBUG", "DETAIL")]);
}

/// Compiles and runs the example with the stub's header in place of CUDA's.
#[test]
fn several_gpus_example_is_correct() {
    let Some(compiler) = Compiler::find() else { return };
    let stubs = stubs(&compiler).display().to_string();
    let (file, header) =
        (format!("{ROOT}/c-examples/several_gpus.c"), format!("-I{ROOT}/ffi-tests/stubs/include"));
    let (driver, path) = (format!("{stubs}/libcuda.so.1"), format!("-Wl,-rpath,{stubs}"));
    let more = ["-std=c11", "-D_GNU_SOURCE", &header, &driver, &path];
    let program = compiler.program_with("several_gpus", &[&file], &more).display().to_string();
    for gpus in ["1", "4"] {
        let outcome = run_with(&format!("several_gpus_{gpus}"), &[], &[&program, gpus]);
        outcome.expect_success();
    }
}

#[test]
fn several_groups_are_enqueued_together() {
    compile_and_run("together", Some("many_groups"), &[]);
}

#[test]
fn queued_operation_waits_without_blocking_others() {
    for case in TWO_RANK_CASES {
        compile_and_run("together", Some(case), &[]);
    }
}

#[test]
fn groups_without_an_order_are_logged_once() {
    compile_and_run("unordered", None, &[("DIST_STUB_NCCL_SLOW_US", "30000")]);
}

/// One of several processes exits without leaving the group; the survivors report it and continue
/// without it.
#[test]
fn dead_rank_is_named_and_others_continue() {
    check_rank_death("nccl");
}

fn check_rank_death(backend: &str) {
    run_processes("death", 3, backend);
}

#[test]
fn deadlock_in_device_memory_is_reported() {
    for backend in ["nccl", "native", "inside=nccl,between=native"] {
        run_processes("deadlock", 2, backend);
    }
}

/// Runs a program whose ranks are processes. Its arguments are the rank, the number of ranks, and
/// the back end.
fn run_processes(name: &str, ranks: usize, backend: &str) {
    let Some(compiler) = Compiler::find() else { return };
    let program = program(&compiler, name, true);
    let hosts =
        if backend.contains("inside=") { "DIST_HOST_ID=host$((rank * 2 / RANKS))" } else { "" };
    let script = "port=$1; shift; pids=; for rank in $(seq 0 $((RANKS - 1))); do \
         HOSTS RANK=$rank WORLD_SIZE=RANKS MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \"$1\" $rank RANKS $2 & pids=\"$pids $!\"; done; \
         worst=0; for pid in $pids; do wait $pid || worst=1; done; exit $worst";
    let script = script.replace("HOSTS", hosts).replace("RANKS", &ranks.to_string());
    let words = ["sh", "-c", &script, "sh", &free_port(), &program, backend];
    run_with(&format!("{name}_{backend}"), &[], &words).expect_success();
}

fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port().to_string()
}

/// Runs the program that is not linked with NCCL, with the expected library.
fn check_library_search(test: &str, environment: &[(&str, &str)], expected: &[&str]) {
    let Some(compiler) = Compiler::find() else { return };
    let program = program(&compiler, "library", false);
    let mut words = vec![program.as_str()];
    words.extend(expected);
    run_with(test, environment, &words).expect_success();
}

#[test]
fn missing_library_is_reported_with_searched_names() {
    let nowhere = ("LD_LIBRARY_PATH", "");
    check_library_search(
        "missing",
        &[nowhere],
        &["refused", "libnccl.so.2", "libnccl.so:", "DIST_NCCL_LIB"],
    );
    check_library_search("without", &[nowhere], &["without"]);
    check_library_search("staged", &[("DIST_NCCL_LIB", "/nonexistent/libnccl.so.2")], &["staged"]);
    for variable in ["DIST_NCCL_LIB", "VLLM_NCCL_SO_PATH"] {
        let path = "/nonexistent/libnccl.so.2";
        check_library_search(
            &format!("wrong_{variable}"),
            &[(variable, path)],
            &["refused", variable, path],
        );
    }
    check_library_search(
        "no_nccl",
        &[("DIST_NCCL_LIB", "libc.so.6")],
        &["refused", "ncclGetVersion", "2.14"],
    );
}

#[test]
fn old_library_disables_only_missing_functions() {
    let Some(compiler) = Compiler::find() else { return };
    let old = stubs(&compiler).join("old/libnccl.so.2").display().to_string();
    check_library_search("new", &[], &["version", "2.30.7"]);
    check_library_search("old", &[("DIST_NCCL_LIB", &old)], &["version", "2.20.5"]);
}

/// For `cargo xtask interop`: DIST_NCCL_LIB names a real library.
#[test]
#[ignore = "needs a real NCCL: cargo xtask interop"]
#[allow(clippy::print_stdout, reason = "what was found is what the caller wants to know")]
fn a_real_library_has_all_that_is_used() {
    let library = dist::backend::nccl::library::open().expect("a library");
    let missing = library.missing_functions();
    println!(
        "NCCL {} ({}): {} functions are missing",
        library.version_text(),
        library.file(),
        missing.len()
    );
    let [required, optional] = dist::backend::nccl::function_names();
    assert!(required.len() >= 17 && optional.len() >= 7 && library.version() >= 21_400);
    assert!(missing.is_empty(), "{missing:?}");
}

/// All functions of CUDA and NCCL that the library uses are in the declarations of the stubs.
#[test]
fn used_functions_are_declared() {
    let read = |name: &str| {
        let path = format!("{ROOT}/ffi-tests/stubs/{name}");
        std::fs::read_to_string(path).expect("the declarations")
    };
    let (cuda, nccl) = (read("cuda_declarations.h"), read("nccl_declarations.h"));
    let driver = dist::device::driver::CudaFunctions::REQUIRED
        .iter()
        .chain(dist::device::driver::CudaFunctions::OPTIONAL)
        .map(|name| (name, &cuda));
    let ours =
        dist::backend::nccl::function_names().into_iter().flatten().map(|name| (name, &nccl));
    for (name, declarations) in driver.chain(ours) {
        let call = format!("{}(", name.to_str().expect("a name"));
        assert!(declarations.contains(&call), "{call} is not declared");
    }
}

/// NCCL compares nothing: the ranks compare at the release, and with DETAIL before each call.
#[test]
fn mismatch() {
    compile_and_run("mismatch", None, &[]);
    compile_and_run("mismatch", Some("detail"), &[("DIST_LOG_LEVEL", "OFF")]);
}
