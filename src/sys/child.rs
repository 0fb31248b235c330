//! Child processes and process groups: ending and reaping them, and forking.

use crate::base::error::{Error, Result};
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

/// How a child ended, in the kernel's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// It returned or called exit with this status.
    Code(i32),
    /// This signal ended it; `is_core_dumped` tells whether it left a core dump.
    Signal {
        /// The signal's number.
        number: i32,
        /// True where a core was dumped.
        is_core_dumped: bool,
    },
}

/// How the child `pid` ended, if it has. It stays a zombie, so that its number and its process
/// group cannot become somebody else's.
///
/// # Errors
/// `System` where `pid` is not an unreaped child.
pub fn peek(pid: i32) -> Result<Option<ChildExit>> {
    wait_child(pid, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
}

/// Reaps the child `pid` if it has ended, and says how. Does not wait.
///
/// # Errors
/// `System` where `pid` is not an unreaped child.
pub fn reap(pid: i32) -> Result<Option<ChildExit>> {
    wait_child(pid, libc::WEXITED | libc::WNOHANG)
}

fn wait_child(pid: i32, options: i32) -> Result<Option<ChildExit>> {
    let id = libc::id_t::try_from(pid).unwrap_or(libc::id_t::MAX);
    loop {
        // SAFETY: all fields are integers and pointers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes the structure, which lives on this stack.
        if unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options) } == 0 {
            return Ok(decode(&info));
        }
        let cause = io::Error::last_os_error();
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(Error::system(format_args!("waiting for process {pid}"), &cause));
        }
    }
}

/// With WNOHANG, a child that still runs leaves the structure zero.
fn decode(info: &libc::siginfo_t) -> Option<ChildExit> {
    // SAFETY: waitid filled the structure in for SIGCHLD, or left it zero.
    if unsafe { info.si_pid() } == 0 {
        return None;
    }
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    Some(match info.si_code {
        libc::CLD_EXITED => ChildExit::Code(status),
        code => ChildExit::Signal { number: status, is_core_dumped: code == libc::CLD_DUMPED },
    })
}

/// Sends `signal` to a child that has not been reaped.
///
/// # Errors
/// The reason as the system gives it.
pub fn signal_child(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 1 {
        // Those numbers would mean groups, everybody, and init.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: touches no memory.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends `signal` to every process of a group. Async-signal-safe.
///
/// # Errors
/// The reason as the system gives it, for instance that the group has no process.
pub fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        // 0, -1 and 1 would mean our own group, everybody, and init's.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: touches no memory.
    if unsafe { libc::kill(-group, signal) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// The process groups of this host that have at least one process that is not a zombie, sorted.
/// Only processes that this one may see are counted.
pub fn live_process_groups() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut groups: Vec<i32> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            path.file_name()?.to_str()?.parse::<u32>().ok()?;
            live_group_of(&std::fs::read_to_string(path.join("stat")).ok()?)
        })
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// The group in one line of /proc/PID/stat, unless the process is dead. The name, in parentheses,
/// may contain anything; after it come state, parent and group.
fn live_group_of(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}

/// Makes the kernel kill the calling process when the thread that started it ends; fails if that
/// has happened already. Async-signal-safe, for use between fork and exec.
///
/// # Errors
/// The reason as the system gives it; `NotFound`-like where `parent` is no longer the parent.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: takes integers and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: cannot fail and touches no memory.
    let now = unsafe { libc::getppid() };
    if u32::try_from(now) == Ok(parent) {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ESRCH))
}

/// Lets the calling process keep a descriptor, under its number, in the program that it executes
/// next. Async-signal-safe.
///
/// # Errors
/// The reason as the system gives it.
pub fn keep_across_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Forks. The child runs `body(fd)` and ends with what it returns; nothing of the parent's runs in
/// it, neither destructors nor exit handlers.
///
/// # Errors
/// `System`.
///
/// # Safety
/// Where this process has several threads, `body` may only call what is async-signal-safe: another
/// thread may hold any lock, the allocator's included, at the moment of the fork.
pub unsafe fn fork_into(body: extern "C" fn(RawFd) -> i32, fd: RawFd) -> Result<i32> {
    // SAFETY: the caller vouches for what the child does.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::system("fork", &io::Error::last_os_error()));
    }
    if pid == 0 {
        let status = body(fd);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

/// Forks. The child runs `body` and ends with what it returns, as [`fork_into`] says; `body` may do
/// whatever a process may.
///
/// # Errors
/// `System`.
///
/// # Safety
/// This process has one thread.
pub unsafe fn fork_with(body: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: with one thread nobody holds a lock, so that the child is a process like any other.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::system("fork", &io::Error::last_os_error()));
    }
    if pid == 0 {
        let status = body();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

/// Writes out what C's streams hold back, so that a fork does not inherit it and `_exit` does not
/// lose it.
pub fn flush_streams() {
    // SAFETY: NULL stands for all streams; each is locked while it is written.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Sets a variable of this process's environment, or takes it away.
///
/// # Errors
/// `OutOfMemory`, and `InvalidArgument` where a name or value cannot be one.
///
/// # Safety
/// This process has one thread: others might be reading the environment.
pub unsafe fn set_variable(name: &str, value: Option<&str>) -> Result<()> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| Error::invalid(format!("\"{name}\" with a zero byte")))
    };
    let (key, value) = (text(name)?, value.map(text).transpose()?);
    let status = match &value {
        // SAFETY: both are C strings, which the call copies; nobody else looks.
        Some(value) => unsafe { libc::setenv(key.as_ptr(), value.as_ptr(), 1) },
        // SAFETY: as above.
        None => unsafe { libc::unsetenv(key.as_ptr()) },
    };
    if status == 0 {
        return Ok(());
    }
    Err(Error::system(format_args!("setting {name}"), &io::Error::last_os_error()))
}

/// Turns the calling process into one that only its owner can reach: a session of its own, every
/// signal blocked, and every descriptor closed but `keep`, which becomes descriptor 0.
/// Async-signal-safe.
pub fn detach(keep: RawFd) {
    // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills the set that it is given.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: reads the set; a null third argument asks for nothing back.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
    // SAFETY: touches no memory; fails only in a group leader, which a forked child is not.
    unsafe { libc::setsid() };
    // SAFETY: the caller gives up every descriptor of the process.
    unsafe { libc::dup2(keep, 0) };
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32) } != 0 {
        // Linux before 5.9. Descriptors are handed out from below, so few lie higher.
        for fd in 1..4096 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Names the calling process in `ps` and `top`; at most 15 bytes count. Async-signal-safe.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: reads the string up to its end; a name only decorates, so failure does not matter.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// One message from a pipe, or `None` at its end. Waits. Async-signal-safe.
pub fn read_message(fd: RawFd) -> Option<i32> {
    let mut bytes = [0u8; 4];
    // SAFETY: writes at most the four bytes of the array.
    let got = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    (usize::try_from(got) == Ok(bytes.len())).then(|| i32::from_le_bytes(bytes))
}

/// Writes one message into a pipe, whole or not at all. Async-signal-safe.
///
/// # Errors
/// The reason as the system gives it.
pub fn write_message(fd: RawFd, message: i32) -> io::Result<()> {
    let bytes = message.to_le_bytes();
    // SAFETY: reads the four bytes of the array.
    let put = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    if put < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_parsed_after_any_program_name() {
        assert_eq!(live_group_of("12 (a) b) S 1 77 77 0"), Some(77));
        assert_eq!(live_group_of("12 (sh) Z 1 77 77 0"), None);
        assert_eq!(live_group_of("nonsense"), None);
    }

    #[test]
    fn own_group_is_live_and_special_groups_are_refused() {
        // SAFETY: cannot fail and touches no memory.
        let own = unsafe { libc::getpgrp() };
        assert!(live_process_groups().contains(&own));
        for group in [-5, -1, 0, 1] {
            assert!(signal_group(group, 0).is_err());
        }
    }

    #[test]
    fn pipe_messages_and_pipe_end_are_read() {
        use std::os::fd::AsRawFd as _;
        let (reader, writer) = io::pipe().unwrap();
        write_message(writer.as_raw_fd(), -7).unwrap();
        drop(writer);
        assert_eq!(read_message(reader.as_raw_fd()), Some(-7));
        assert_eq!(read_message(reader.as_raw_fd()), None);
    }
}
