//! [`ProcessExit`]: how a process ended. The text and the status number are the same as in a shell,
//! for example `signal 9 (SIGKILL)` and 137.

use crate::sys::child::ChildExit;
use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit(ChildExit);

/// The names of the signals of Linux, from number 1 on.
const SIGNAL_NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// Returns the name of a signal, for example `SIGKILL`; `real-time signal` if it has no name.
pub fn signal_name(number: i32) -> &'static str {
    let index = usize::try_from(number).unwrap_or(0);
    index
        .checked_sub(1)
        .and_then(|index| SIGNAL_NAMES.get(index))
        .copied()
        .unwrap_or("real-time signal")
}

impl ProcessExit {
    /// Returns true for exit status 0.
    pub fn is_success(self) -> bool {
        self.0 == ChildExit::Code(0)
    }

    /// Returns the signal that ended the process, if a signal did.
    pub fn signal(self) -> Option<i32> {
        match self.0 {
            ChildExit::Code(_) => None,
            ChildExit::Signal { number, .. } => Some(number),
        }
    }

    /// Returns the exit status that a shell reports: the process's own status, or 128 plus the
    /// signal.
    pub fn shell_status(self) -> u8 {
        let status = match self.0 {
            ChildExit::Code(code) => code,
            ChildExit::Signal { number, .. } => 128 + number,
        };
        u8::try_from(status).unwrap_or(u8::MAX)
    }
}

impl From<ChildExit> for ProcessExit {
    fn from(exit: ChildExit) -> Self {
        Self(exit)
    }
}

/// Writes, for example, `exit status 3`, `signal 9 (SIGKILL)` or `signal 11 (SIGSEGV, core
/// dumped)`.
impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ChildExit::Code(code) => write!(f, "exit status {code}"),
            ChildExit::Signal { number, is_core_dumped: core } => {
                let core = if core { ", core dumped" } else { "" };
                write!(f, "signal {number} ({}{core})", signal_name(number))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_is_displayed_as_in_a_shell() {
        let code = ProcessExit::from(ChildExit::Code(3));
        assert_eq!((code.to_string().as_str(), code.shell_status()), ("exit status 3", 3));
        let killed = ProcessExit::from(ChildExit::Signal { number: 9, is_core_dumped: false });
        assert_eq!(killed.to_string(), "signal 9 (SIGKILL)");
        assert_eq!(killed.shell_status(), 137);
        assert_eq!(killed.signal(), Some(9));
        let dumped = ProcessExit::from(ChildExit::Signal { number: 11, is_core_dumped: true });
        assert_eq!(dumped.to_string(), "signal 11 (SIGSEGV, core dumped)");
        assert!(ProcessExit::from(ChildExit::Code(0)).is_success());
    }

    #[test]
    fn names_match_the_numbers_of_this_system() {
        assert_eq!(signal_name(libc::SIGTERM), "SIGTERM");
        assert_eq!(signal_name(libc::SIGSYS), "SIGSYS");
        assert_eq!(signal_name(libc::SIGCHLD), "SIGCHLD");
        for odd in [0, -1, 40] {
            assert_eq!(signal_name(odd), "real-time signal");
        }
    }
}
