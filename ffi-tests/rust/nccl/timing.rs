//! The device time of operations in the flight recorder and in the trace. The stub needs 300 ms for
//! each operation.

use super::compile_and_run;

const SLOW: (&str, &str) = ("DIST_STUB_NCCL_SLOW_US", "300000");

#[test]
fn trace_and_recorder_have_the_device_time() {
    compile_and_run("timing", Some("trace"), &[SLOW]);
}

#[test]
fn recorder_has_the_device_time_on_request() {
    compile_and_run("timing", Some("recorder"), &[SLOW, ("TORCH_NCCL_ENABLE_TIMING", "1")]);
}

#[test]
fn device_time_is_not_measured_otherwise() {
    compile_and_run("timing", Some("off"), &[SLOW]);
}
