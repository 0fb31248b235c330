//! Child processes and process groups: forking, signalling and reaping.

use crate::base::error::{Error, Result};
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

/// How a child ended, in the kernel's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// The child returned from `main` or called `exit` with this status.
    Code(i32),
    /// A signal ended the child.
    Signal {
        /// The number of the signal.
        number: i32,
        /// True if a core was dumped.
        is_core_dumped: bool,
    },
}

/// Returns how the child `pid` ended, or `None` if it still runs. The child stays a zombie, so that
/// its process ID and its process group ID cannot be reused.
///
/// # Errors
/// `System` if `pid` is not an unreaped child.
pub fn peek(pid: i32) -> Result<Option<ChildExit>> {
    wait_child(pid, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
}

/// Reaps the child `pid` if it has ended, and returns how it ended. Returns `None` if the child
/// still runs. Does not wait.
///
/// # Errors
/// `System` if `pid` is not an unreaped child.
pub fn reap(pid: i32) -> Result<Option<ChildExit>> {
    wait_child(pid, libc::WEXITED | libc::WNOHANG)
}

fn wait_child(pid: i32, options: i32) -> Result<Option<ChildExit>> {
    let id = libc::id_t::try_from(pid).unwrap_or(libc::id_t::MAX);
    loop {
        // SAFETY: all fields are integers and pointers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes the structure, which is on this stack.
        if unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options) } == 0 {
            return Ok(decode(&info));
        }
        let cause = io::Error::last_os_error();
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(Error::system(format_args!("waiting for process {pid}"), cause));
        }
    }
}

/// Decodes the result of `waitid`. With WNOHANG, a child that still runs leaves the structure zero.
fn decode(info: &libc::siginfo_t) -> Option<ChildExit> {
    // SAFETY: `waitid` filled the structure in for SIGCHLD, or left it zero.
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
/// The error of the system.
pub fn signal_child(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 1 {
        // A number below 1 would mean a process group or all processes, and 1 is init.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the call touches no memory.
    if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends `signal` to every process of a group. Async-signal-safe.
///
/// # Errors
/// The error of the system, for example if the group has no process.
pub fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        // 0, -1 and 1 would mean this process's group, all processes, and the group of init.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the call touches no memory.
    if unsafe { libc::kill(-group, signal) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Returns the sorted IDs of the process groups of this host in which at least one process is not a
/// zombie. Only processes that are visible to this process count.
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

/// Returns the process group in a line of /proc/PID/stat, unless the process is dead. The program
/// name, in parentheses, may contain any characters; after it come the state, the parent and the
/// group.
fn live_group_of(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}

/// Makes the kernel kill the calling process when the thread that forked it ends. Fails if the
/// parent process has already ended. Async-signal-safe, for use between fork and exec.
///
/// # Errors
/// The error of the system; `ESRCH` if `parent` is no longer the parent.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: the call takes integers and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call cannot fail and touches no memory.
    let now = unsafe { libc::getppid() };
    if u32::try_from(now) == Ok(parent) {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ESRCH))
}

/// Lets the next executed program inherit a descriptor under its number. Async-signal-safe.
///
/// # Errors
/// The error of the system.
pub fn keep_across_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer and touches no memory.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Forks. The child runs `body(fd)` and exits with the status that `body` returns. No other code of
/// the parent runs in the child, neither destructors nor exit handlers.
///
/// # Errors
/// `System`.
///
/// # Safety
/// If this process has several threads, `body` may only call async-signal-safe functions: another
/// thread may hold any lock, including the allocator's, at the time of the fork.
pub unsafe fn fork_into(body: extern "C" fn(RawFd) -> i32, fd: RawFd) -> Result<i32> {
    // SAFETY: the caller guarantees that `body` is safe in the child.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::system("fork", io::Error::last_os_error()));
    }
    if pid == 0 {
        let status = body(fd);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

/// Forks. The child runs `body` and exits with the status that `body` returns. As for
/// [`fork_into`], no other code of the parent runs in the child. Unlike there, `body` may call any
/// function.
///
/// # Errors
/// `System`.
///
/// # Safety
/// This process must have only one thread.
pub unsafe fn fork_with(body: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: with one thread, no other thread holds a lock, so the child is an ordinary process.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::system("fork", io::Error::last_os_error()));
    }
    if pid == 0 {
        let status = body();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) };
    }
    Ok(pid)
}

/// Flushes the C streams, so that a fork does not inherit their buffered data and `_exit` does not
/// lose it.
pub fn flush_streams() {
    // SAFETY: NULL means all streams; each stream is locked while it is written.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Sets or removes an environment variable of this process.
///
/// # Errors
/// `OutOfMemory`; `InvalidArgument` if the name or the value is invalid.
///
/// # Safety
/// This process must have only one thread: other threads could read the environment at the same
/// time.
pub unsafe fn set_variable(name: &str, value: Option<&str>) -> Result<()> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| {
            Error::invalid(format!(
                "the environment variable \"{name}\" or its value contains a zero byte"
            ))
        })
    };
    let (key, value) = (text(name)?, value.map(text).transpose()?);
    let status = match &value {
        // SAFETY: both are C strings, which the call copies; no other thread reads the environment.
        Some(value) => unsafe { libc::setenv(key.as_ptr(), value.as_ptr(), 1) },
        // SAFETY: as above.
        None => unsafe { libc::unsetenv(key.as_ptr()) },
    };
    if status == 0 {
        return Ok(());
    }
    Err(Error::system(format_args!("setting {name}"), io::Error::last_os_error()))
}

/// Isolates the calling process: creates a session, blocks every signal, and closes every
/// descriptor except `keep`, which becomes descriptor 0. Async-signal-safe.
pub fn detach(keep: RawFd) {
    // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: the call reads the set; a null third argument means that no old mask is returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) };
    // SAFETY: the call touches no memory; it fails only in a group leader, which a forked child is
    // not.
    unsafe { libc::setsid() };
    // SAFETY: the caller gives up every descriptor of the process.
    unsafe { libc::dup2(keep, 0) };
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32) } != 0 {
        // Linux before 5.9 has no close_range. The system allocates the lowest free descriptors, so
        // descriptors above this limit are rare.
        for fd in 1..4096 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Sets the name of the calling process in `ps` and `top`; the system keeps 15 bytes.
/// Async-signal-safe.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: the call reads the string up to its end. The name is only informative, so a failure
    // is ignored.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Reads one message (a 32-bit number) from a pipe. Blocks until a message has arrived, or returns
/// `None` at the end of the pipe. Async-signal-safe.
pub fn read_message(fd: RawFd) -> Option<i32> {
    let mut bytes = [0u8; 4];
    // SAFETY: the call writes at most the four bytes of the array.
    let got = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    (usize::try_from(got) == Ok(bytes.len())).then(|| i32::from_le_bytes(bytes))
}

/// Writes one message into a pipe, atomically. Async-signal-safe.
///
/// # Errors
/// The error of the system.
pub fn write_message(fd: RawFd, message: i32) -> io::Result<()> {
    let bytes = message.to_le_bytes();
    // SAFETY: the call reads the four bytes of the array.
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
        // SAFETY: the call cannot fail and touches no memory.
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
