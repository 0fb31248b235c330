//! The library's own threads, which have a name and block every signal, so that handlers of the
//! host program never run on them. Also counts the threads of the process, and selects the cores of
//! a thread.

use super::{host, small_file};
use crate::base::error::{Error, Result};
use std::cell::Cell;
use std::thread::JoinHandle;

thread_local! {
    /// Whether [`spawn`] has started the thread.
    static IS_LIBRARY_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns true on a thread of the library. Allocates nothing.
pub fn is_library_thread() -> bool {
    IS_LIBRARY_THREAD.get()
}

/// Starts a thread of the library.
///
/// # Errors
/// `System` if the system refuses another thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let before = block_all_signals();
    // The new thread inherits the mask; the caller's mask is restored below.
    let marked = move || {
        IS_LIBRARY_THREAD.set(true);
        body();
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(marked);
    restore_signals(&before);
    spawned.map_err(|cause| Error::system(format_args!("starting the thread {name}"), cause))
}

/// Returns the number of threads of this process.
///
/// # Errors
/// `System` if /proc is not available.
pub fn thread_count() -> Result<usize> {
    let tasks = std::fs::read_dir("/proc/self/task");
    let counted = tasks.and_then(|tasks| tasks.map(|task| task.map(|_| 1)).sum());
    counted.map_err(|cause| Error::system("counting threads in /proc/self/task", cause))
}

/// A set of cores in the kernel's format, with room for more cores than any machine has.
type CpuSet = [u64; 128];

/// Returns the cores that the calling thread may run on, in ascending order. If a security profile
/// forbids the system call, returns the cores that `/proc` lists, or else all cores.
pub fn allowed_cores() -> Vec<usize> {
    let mut set: CpuSet = [0; 128];
    // SAFETY: the call writes at most the size of the set.
    let status =
        unsafe { libc::sched_getaffinity(0, size_of::<CpuSet>(), set.as_mut_ptr().cast()) };
    if status != 0 {
        // A security profile may forbid the call.
        return listed_cores().unwrap_or_else(|| (0..host::cores()).collect());
    }
    let is_in = |&core: &usize| set[core / 64] >> (core % 64) & 1 == 1;
    (0..64 * set.len()).filter(is_in).collect()
}

/// Returns the allowed cores as the kernel lists them in `/proc`.
fn listed_cores() -> Option<Vec<usize>> {
    let status = small_file::read_text("/proc/thread-self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    parse_cores(list.trim())
}

/// Parses a list such as `0-3,8`.
fn parse_cores(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().ok()?, last.parse::<usize>().ok()?);
        if last >= 64 * size_of::<CpuSet>() / 8 {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// Binds the calling thread, and the threads that it starts later, to one core. `number` is an
/// index into the allowed cores, modulo their count.
///
/// # Errors
/// `System`.
pub fn pin_to_core(number: usize) -> Result<()> {
    let cores = allowed_cores();
    let Some(core) = cores.get(number % cores.len().max(1)) else {
        return Err(Error::internal("the affinity mask of the thread has no core"));
    };
    let mut one: CpuSet = [0; 128];
    one[core / 64] = 1 << (core % 64);
    // SAFETY: the call reads the set.
    if unsafe { libc::sched_setaffinity(0, size_of::<CpuSet>(), one.as_ptr().cast()) } != 0 {
        return Err(Error::system("sched_setaffinity", std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Returns the core on which the calling thread runs, or `None` if the kernel does not report it.
/// The thread may run on another core when this function returns.
pub fn current_core() -> Option<usize> {
    // SAFETY: the call takes no argument.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

fn block_all_signals() -> libc::sigset_t {
    let mut all = empty_set();
    let mut before = empty_set();
    // SAFETY: the call fills the set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: the call reads one set and writes the other; both are on this stack.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the call reads the set; a null third argument means that no old mask is returned.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::from_ref(mask), std::ptr::null_mut())
    };
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: sigset_t is a plain array of integers, for which zero is the empty set.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_cores_are_the_allowed_ones() {
        assert_eq!(listed_cores().unwrap(), allowed_cores());
        assert_eq!(parse_cores("0-2,5,7-8").unwrap(), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_cores("0-99999999"), None);
        assert_eq!(parse_cores(""), None);
    }

    #[test]
    fn pinned_thread_has_one_core() {
        let pinned = std::thread::spawn(|| {
            pin_to_core(usize::MAX).unwrap();
            host::cores()
        });
        assert_eq!(pinned.join().unwrap(), 1);
    }

    #[test]
    fn pinned_thread_runs_on_its_core() {
        for number in 0..2 {
            let found = std::thread::spawn(move || {
                pin_to_core(number).unwrap();
                (current_core(), allowed_cores())
            });
            let (core, allowed) = found.join().unwrap();
            assert_eq!(allowed, [core.unwrap()]);
        }
    }

    #[test]
    fn thread_count_includes_all_threads() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let thread = spawn("dist-counted", move || assert!(held.recv().is_err())).unwrap();
        assert!(thread_count().unwrap() >= 2);
        drop(release);
        thread.join().unwrap();
    }
}
