//! Whether a process that somebody has named is still there.

use std::fs;
use std::io;

/// What the kernel tells of a process.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStatus {
    /// It has ended, and only its parent has not taken note yet.
    has_ended: bool,
    /// A signal or a tracer holds it.
    is_stopped: bool,
    /// When it began, in clock ticks since the host was started.
    started: u64,
}

/// When a process began, in clock ticks since the host was started: with its id, what tells it from
/// a later process that has the same id. `None` where the system does not tell.
pub fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|status| status.started)
}

/// True where it is certain that the process which had this id, and began at this time (where that
/// is known), has ended. Both must be of this process's own [`super::host::pid_namespace`].
pub fn is_gone(pid: u32, started: Option<u64>) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => parse_stat(&text).is_some_and(|status| {
            status.has_ended || started.is_some_and(|began| began != status.started)
        }),
        // A process of somebody else may be hidden.
        Err(_) => !exists(pid),
    }
}

/// True where the kernel reports that the process with this id is stopped. It must be of this
/// process's own [`super::host::pid_namespace`].
pub fn is_stopped(pid: u32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/stat"));
    line.is_ok_and(|line| parse_stat(&line).is_some_and(|status| status.is_stopped))
}

/// Reads a line of `/proc/PID/stat`. The second field is the program's name in parentheses,
/// whatever it is.
fn parse_stat(line: &str) -> Option<ProcessStatus> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    // The third field, the twentieth and the twenty-second.
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process whose first thread alone has ended looks like one that has ended, but has others.
    let has_ended = matches!(state, "Z" | "X" | "x") && threads <= 1;
    let is_stopped = matches!(state, "T" | "t");
    Some(ProcessStatus { has_ended, is_stopped, started })
}

/// Whether any process has this id. True where that cannot be told.
fn exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    if pid == 0 {
        return true;
    }
    // SAFETY: signal 0 only asks whether there is such a process.
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
        assert!(!is_gone(pid, began));
        child.kill().unwrap();
        // Nobody has waited for it yet; its end does not take long.
        while !is_gone(pid, began) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_gone(pid, began));
        assert!(is_gone(u32::MAX, None));
    }
}
