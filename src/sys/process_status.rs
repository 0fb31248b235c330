//! Checks whether another process still exists, by its ID and start time.

use super::pidfd::PidFd;
use super::{poll, small_file};
use std::io;
use std::os::fd::AsFd as _;

/// The status of a process as the kernel reports it.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStatus {
    /// The process has ended; its parent may not have reaped it yet.
    has_ended: bool,
    /// A signal or a tracer has stopped the process.
    is_stopped: bool,
    /// The start time, in clock ticks since the boot of the host.
    started: u64,
}

/// Returns the start time of a process, in clock ticks since the boot of the host. Together with
/// the process ID, it distinguishes the process from a later process with the same ID. `None` if
/// the system does not report it.
pub fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&small_file::read_text(format!("/proc/{pid}/stat")).ok()?)
        .map(|status| status.started)
}

/// Returns true if the process with this ID has certainly ended. If `started` is known and the
/// process with this ID has another start time, the ID belongs to a later process, so the original
/// process has ended. Both numbers must be from this process's own [`super::host::pid_namespace`].
pub fn is_gone(pid: u32, started: Option<u64>) -> bool {
    match small_file::read_text(format!("/proc/{pid}/stat")) {
        Ok(text) => parse_stat(&text).is_some_and(|status| {
            status.has_ended || started.is_some_and(|began| began != status.started)
        }),
        // A process of another user may be hidden.
        Err(_) => !exists(pid),
    }
}

/// Returns true if the process with this ID has certainly ended, even if a child has copies
/// of its descriptors. Returns false if the ID belongs to a later process. The ID must be from this
/// process's own [`super::host::pid_namespace`].
pub fn has_ended(pid: u32) -> bool {
    let Ok(id) = i32::try_from(pid) else { return false };
    match PidFd::open(id) {
        Ok(process) => poll::is_readable(process.as_fd()),
        Err(_) => is_gone(pid, None),
    }
}

/// Returns true if the kernel reports that the process with this ID is stopped. The ID must be from
/// this process's own [`super::host::pid_namespace`].
pub fn is_stopped(pid: u32) -> bool {
    let line = small_file::read_text(format!("/proc/{pid}/stat"));
    line.is_ok_and(|line| parse_stat(&line).is_some_and(|status| status.is_stopped))
}

/// Parses a line of `/proc/PID/stat`. The second field is the program name in parentheses, which
/// may contain any characters.
fn parse_stat(line: &str) -> Option<ProcessStatus> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    // The code reads fields 3, 20 and 22.
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process whose first thread has ended has the state of an ended process even while its other
    // threads run. Such a process has more than one thread.
    let has_ended = matches!(state, "Z" | "X" | "x") && threads <= 1;
    let is_stopped = matches!(state, "T" | "t");
    Some(ProcessStatus { has_ended, is_stopped, started })
}

/// Returns true if a process has this ID, or if that cannot be determined.
fn exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    if pid == 0 {
        return true;
    }
    // SAFETY: signal 0 only checks whether the process exists.
    let status = unsafe { libc::kill(pid, 0) };
    status == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn stat_line_is_parsed_for_any_program_name() {
        let line = |state: &str, threads: u32| {
            format!(
                "7 (a) b) (c) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 12345 99 0 0"
            )
        };
        let status =
            |has_ended| Some(ProcessStatus { has_ended, is_stopped: false, started: 12345 });
        assert_eq!(parse_stat(&line("R", 1)), status(false));
        assert_eq!(parse_stat(&line("Z", 1)), status(true));
        assert_eq!(parse_stat(&line("Z", 3)), status(false));
        let stopped = Some(ProcessStatus { has_ended: false, is_stopped: true, started: 12345 });
        assert_eq!(
            (parse_stat(&line("T", 3)), parse_stat(&line("t", 1))),
            (stopped, parse_stat(&line("T", 1)))
        );
        assert_eq!(parse_stat("7 (a) R 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn live_process_is_present_and_ended_one_is_gone() {
        let me = std::process::id();
        let began = start_time(me);
        assert!(began.is_some());
        assert!(!is_gone(me, began) && !is_gone(me, None));
        assert!(is_gone(me, Some(0)));

        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let (pid, began) = (child.id(), start_time(child.id()));
        assert!(!is_gone(pid, began) && !has_ended(pid));
        child.kill().unwrap();
        // The child is a zombie after a short time, because this test has not reaped it.
        while !is_gone(pid, began) {
            std::thread::yield_now();
        }
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_gone(pid, began) && has_ended(pid));
        assert!(is_gone(u32::MAX, None));
    }
}
