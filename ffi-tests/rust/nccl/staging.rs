//! The tests with staging through host memory.
use super::toolchain::EXAMPLE_BACKEND_FILES;
use super::{Compiler, build_lock, check_rank_death, compile_and_run, program, run_with};

#[test]
fn operations() {
    compile_and_run("operations", Some("staging"), &[]);
}

#[test]
fn lists() {
    compile_and_run("lists", Some("staging"), &[]);
    compile_and_run("lists", Some("staging"), &[("DIST_STUB_CUDA_SLOW_US", "500")]);
}

/// The plug-in example does not support devices, and needs a number for every part of a call.
#[test]
fn staging_uses_another_backend() {
    let Some(compiler) = Compiler::find() else { return };
    let program = program(&compiler, "operations", true);
    let plugin = {
        let _building = build_lock();
        compiler.plugin("backend_store_staged", EXAMPLE_BACKEND_FILES, &[]).display().to_string()
    };
    // There are 8 types with 8 operators and 2 types with 6 operators, in 4 kinds of calls,
    // except PREMUL_SUM for reduce_scatter_v.
    let words = [program.as_str(), "staging", "store", "270"];
    let plugins = [("DIST_BACKEND_PLUGINS", plugin.as_str())];
    run_with("staged_store", &plugins, &words).expect_success();
}

#[test]
fn behaviour() {
    compile_and_run("behaviour", Some("staging"), &[]);
}

/// Copies are slow, so that a caller that does not wait for one reads old data.
#[test]
fn behaviour_with_slow_copies() {
    compile_and_run("behaviour", Some("staging"), &[("DIST_STUB_CUDA_SLOW_US", "2000")]);
}

#[test]
fn dead_rank_is_named_and_others_continue() {
    check_rank_death("native");
}

#[test]
fn chunks_are_reassembled() {
    compile_and_run("staging", Some("boundaries"), &[]);
}

#[test]
fn chunks_are_reassembled_between_hosts() {
    compile_and_run("staging", Some("between_hosts"), &[]);
}

#[test]
fn streams_have_an_order() {
    compile_and_run("staging", Some("streams"), &[]);
}

#[test]
fn messages_find_their_receives() {
    compile_and_run("staging", Some("messages"), &[]);
    compile_and_run("staging", Some("messages"), &[("DIST_STUB_CUDA_SLOW_US", "3000")]);
}

#[test]
fn oversized_messages_stay_queued() {
    compile_and_run("staging", Some("misfits"), &[]);
}

#[test]
fn works_end_in_order() {
    compile_and_run("staging", Some("works"), &[("DIST_STUB_CUDA_SLOW_US", "500")]);
}

#[test]
fn mismatch_is_reported() {
    compile_and_run("staged_faults", Some("differences"), &[]);
}

#[test]
fn driver_error_fails_the_group() {
    compile_and_run("staged_faults", Some("failures"), &[]);
}

#[test]
fn stalled_stream_is_a_timeout() {
    compile_and_run("staged_faults", Some("time_out"), &[]);
}

#[test]
fn abort_ends_stream_waits() {
    compile_and_run("staged_faults", Some("abort"), &[]);
}

#[test]
fn several_devices_share_one_thread() {
    compile_and_run("staging", Some("one_thread"), &[]);
}

#[test]
fn groups() {
    compile_and_run("staging", Some("groups"), &[]);
}
