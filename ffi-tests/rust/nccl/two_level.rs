//! Two-level groups and maps of two back ends on the stub devices.

use super::toolchain::EXAMPLE_BACKEND_FILES;
use super::{Compiler, build_lock, check_rank_death, compile_and_run, program, run_with};

/// The last rank is alone on its host.
#[test]
fn dead_rank_of_two_level_group_is_named() {
    check_rank_death("inside=nccl,between=native");
    check_rank_death("cpu:native,cuda:inside=nccl,between=native");
}

/// The groups use both device memory and host memory, on hosts with equal and unequal numbers of
/// ranks.
#[test]
fn two_level_groups() {
    compile_and_run("two_level", None, &[]);
    compile_and_run("two_level", None, &[("DIST_STUB_CUDA_SLOW_US", "500")]);
}

/// The device memory of a map belongs to another plug-in than the host memory.
#[test]
fn device_memory_by_another_back_end() {
    let Some(compiler) = Compiler::find() else { return };
    let program = program(&compiler, "two_level", true);
    let plugin = {
        let _building = build_lock();
        compiler.plugin("backend_store_map", EXAMPLE_BACKEND_FILES, &[])
    };
    let plugin = plugin.display().to_string();
    let words = [program.as_str(), "cpu:gloo,cuda:store"];
    run_with("second_store", &[("DIST_BACKEND_PLUGINS", &plugin)], &words).expect_success();
}
