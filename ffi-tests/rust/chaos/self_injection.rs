//! The faults that a rank injects into its own process: a delay, a limit of its memory, an end of
//! the process, a child that lives on.
#![allow(unsafe_code, reason = "limits, forks and ends of a process have no safe interface")]

use crate::scenario::{Injection, Scenario};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// The exit status of a rank that ends right after its first error.
pub(crate) const HASTY_EXIT: i32 = 3;

/// The time after which a forked child ends, if the driver has not killed it.
const CHILD_LIFETIME_S: u32 = 120;

/// Injects the fault that the victim causes before a step.
#[allow(clippy::exit, reason = "the end of the process without a goodbye is the fault")]
pub(crate) fn inject_before_step(scenario: &Scenario) {
    match scenario.injection {
        Injection::Delay { ms, .. } => std::thread::sleep(Duration::from_millis(ms)),
        Injection::MemoryLimit { kib } => limit_memory(kib),
        Injection::Exit { in_call: false } => std::process::exit(0),
        Injection::Exit { in_call: true } => {
            let delay = Duration::from_micros(scenario.delay_us);
            let exit_later = move || {
                std::thread::sleep(delay);
                std::process::exit(0)
            };
            drop(std::thread::Builder::new().spawn(exit_later).unwrap());
        }
        _ => {}
    }
}

/// Ends this process right after an error, if the scenario asks for this.
#[allow(clippy::exit, reason = "the end of the process without a goodbye is the fault")]
pub(crate) fn end_after_error(scenario: &Scenario) {
    match scenario.injection {
        // SAFETY: the call ends the process.
        Injection::KillThenExit { hard: true } => unsafe { libc::_exit(HASTY_EXIT) },
        Injection::KillThenExit { hard: false } => std::process::exit(HASTY_EXIT),
        _ => {}
    }
}

/// Forks a child that keeps all descriptors of this process, except those by which the driver
/// notices the end of the rank. Returns the process id of the child.
pub(crate) fn fork_child() -> u32 {
    let null = std::fs::File::open("/dev/null").unwrap();
    let pipes: Vec<i32> = pipes_of_this_process();
    // SAFETY: the child only makes calls that are async-signal-safe.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        for pipe in pipes {
            // SAFETY: the call takes two descriptors, which are open.
            unsafe { libc::dup2(null.as_raw_fd(), pipe) };
        }
        // SAFETY: the call takes a number.
        unsafe { libc::alarm(CHILD_LIFETIME_S) };
        loop {
            // SAFETY: the call takes no arguments and returns when a signal arrives.
            unsafe { libc::pause() };
        }
    }
    pid.cast_unsigned()
}

/// Returns the descriptors of this process that are pipes.
fn pipes_of_this_process() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_pipe = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
    };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter(is_pipe).filter_map(number).collect()
}

/// Limits the address space of the process to its present size plus `kib`.
fn limit_memory(kib: u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let bytes = pages * 4096 + kib * 1024;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call reads one structure, which is on this stack.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(status, 0);
}
