//! Identifiers of this host and this process, and their resources: cores, memory and random bytes.

use super::small_file;
use crate::base::error::{Error, Result};
use crate::base::ids::Nonce;
use std::sync::OnceLock;

/// Returns the process ID.
pub fn pid() -> u32 {
    std::process::id()
}

/// Returns the parent's process ID, which is equal for all ranks that one launcher started
/// directly.
pub fn parent_pid() -> u32 {
    std::os::unix::process::parent_id()
}

/// Returns the effective user ID.
pub fn uid() -> u32 {
    // SAFETY: the call cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// Returns the host name that the kernel reported at the first call. Never queries a name server.
pub fn name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || {
        let name = small_file::read_text("/proc/sys/kernel/hostname").ok()?;
        Some(name.trim().to_owned())
    };
    read_once(&NAME, read).unwrap_or_else(|| "unknown-host".to_owned())
}

/// Reads a text once and caches it, because a later read would fail if the process has no free
/// descriptor.
fn read_once(cell: &OnceLock<String>, read: impl FnOnce() -> Option<String>) -> Option<String> {
    match cell.get() {
        Some(text) => Some(text.clone()),
        None => read().map(|text| cell.get_or_init(|| text).clone()),
    }
}

/// Returns an identifier that is equal for two processes if they may be able to share memory: the
/// boot ID of the kernel and the IPC namespace. An equal identifier is only a hint; the caller
/// tests whether sharing works.
pub fn identity() -> String {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    let boot = || small_file::read_text("/proc/sys/kernel/random/boot_id");
    let ipc = || std::fs::read_link("/proc/self/ns/ipc").map(|l| l.to_string_lossy().into_owned());
    let both = || Some(format!("{}/{}", boot().ok()?.trim(), ipc().ok()?));
    read_once(&IDENTITY, both).unwrap_or_else(|| {
        format!("{}/{}", boot().unwrap_or_default().trim(), ipc().unwrap_or_default())
    })
}

/// Returns an identifier that is equal for two processes if a process ID means the same process to
/// both: the boot ID of the kernel and the PID namespace. Empty if the system does not report it.
pub fn pid_namespace() -> String {
    let boot = small_file::read_text("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/pid");
    match (boot, space) {
        (Ok(boot), Ok(space)) => format!("{}/{}", boot.trim(), space.to_string_lossy()),
        _ => String::new(),
    }
}

/// Returns an identifier that is equal for two processes if a loopback address leads to the same
/// sockets for both: the boot ID of the kernel and the network namespace. Empty if the system does
/// not report it.
pub fn network_namespace() -> String {
    let boot = small_file::read_text("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/net");
    match (boot, space) {
        (Ok(boot), Ok(space)) => format!("{}/{}", boot.trim(), space.to_string_lossy()),
        _ => String::new(),
    }
}

/// Returns the number of cores that this process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the available memory in bytes: the smaller of the kernel's available memory and the
/// remainder of this process's cgroup memory limit. `None` if the system reports neither.
pub fn memory_available() -> Option<u64> {
    let system = meminfo_bytes("MemAvailable:");
    match (system, cgroup_headroom()) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

/// Returns the total memory of this host in bytes, if the kernel reports it.
pub fn memory_total() -> Option<u64> {
    meminfo_bytes("MemTotal:")
}

/// Returns the value of the line `name` of /proc/meminfo, in bytes.
fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = small_file::read_text("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the smallest remainder (limit minus usage) of the memory limits of this process's cgroup
/// and the cgroup's ancestors.
fn cgroup_headroom() -> Option<u64> {
    let groups = small_file::read_text("/proc/self/cgroup").ok()?;
    let v2 = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let v1 = groups.lines().find_map(cgroup_v1_memory_path);
    let v2 = v2.and_then(|path| headroom("/sys/fs/cgroup", path, "memory.max", "memory.current"));
    let files = ("memory.limit_in_bytes", "memory.usage_in_bytes");
    let v1 = v1.and_then(|path| headroom("/sys/fs/cgroup/memory", path, files.0, files.1));
    v2.into_iter().chain(v1).min()
}

/// Returns the path in a line such as `4:cpu,memory:/path`.
fn cgroup_v1_memory_path(line: &str) -> Option<&str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
    controllers.split(',').any(|name| name == "memory").then_some(path)
}

/// Returns the smallest remainder of the memory limits of the cgroup `path` and its ancestors.
/// `limit` and `usage` are the names of their files. Cached files count as free, because the kernel
/// can drop them.
fn headroom(root: &str, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let (root, path) = (std::path::Path::new(root), std::path::Path::new(path));
    let remainder = |folder: &std::path::Path| -> Option<u64> {
        let read = |name: &str| small_file::read_text(root.join(folder).join(name)).ok();
        let number = |name: &str| -> Option<u64> { read(name)?.trim().parse().ok() };
        let used = number(usage)?.saturating_sub(page_cache_bytes(&read("memory.stat")?));
        Some(number(limit)?.saturating_sub(used))
    };
    path.ancestors().filter_map(remainder).min()
}

/// Returns the size in bytes of the cached files that `stat`, the text of memory.stat, reports.
/// Shared memory does not count, because the kernel cannot drop it.
fn page_cache_bytes(stat: &str) -> u64 {
    let field = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    // In cgroup version 1, only the `total_` fields include the child cgroups. Version 2 has only
    // the other fields.
    let all = [["total_active_file", "active_file"], ["total_inactive_file", "inactive_file"]];
    all.into_iter().filter_map(|names| names.into_iter().find_map(field)).sum()
}

/// Returns sixteen bytes from the kernel's random source.
///
/// # Errors
/// `System` if the kernel returns none.
pub fn random_nonce() -> Result<Nonce> {
    random_bytes().map(Nonce)
}

/// Returns `N` bytes from the kernel's random source, suitable for keys. `N` is at most 256,
/// because the kernel returns that many bytes completely or not at all.
///
/// # Errors
/// `System` if the kernel returns none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0u8; N];
    // SAFETY: the call writes at most the N bytes of the array.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got) == Ok(N) {
        return Ok(bytes);
    }
    Err(Error::system("getrandom", std::io::Error::last_os_error()))
}

/// Returns a nonce that is equal for all threads of this process and different in every other
/// process. In a child that was forked after the first call, every call returns a new nonce.
///
/// # Errors
/// `System` if the kernel returns no random bytes.
pub fn process_nonce() -> Result<Nonce> {
    let (owner_pid, nonce) = match PROCESS_NONCE.get() {
        Some(&known) => known,
        None => *PROCESS_NONCE.get_or_init(|| (pid(), random_nonce().unwrap_or_default())),
    };
    if owner_pid == pid() && nonce != Nonce::default() { Ok(nonce) } else { random_nonce() }
}

static PROCESS_NONCE: OnceLock<(u32, Nonce)> = OnceLock::new();

/// Returns the address of the nonce that [`process_nonce`] returns, so that peers can test whether
/// they can read this process's memory. `None` before the first call of [`process_nonce`], and in a
/// child that was forked after it.
pub fn process_nonce_address() -> Option<u64> {
    let (owner_pid, nonce) = PROCESS_NONCE.get()?;
    (*owner_pid == pid()).then(|| nonce.0.as_ptr().addr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_files_are_parsed() {
        assert_eq!(cgroup_v1_memory_path("4:cpu,memory:/a/b"), Some("a/b"));
        assert_eq!(cgroup_v1_memory_path("4:cpuset:/a"), None);
        assert_eq!(cgroup_v1_memory_path("0::/a"), None);
        assert_eq!(page_cache_bytes("anon 5\ninactive_file 7\nactive_file 30\nshmem 9\n"), 37);
        assert_eq!(
            page_cache_bytes("inactive_file 7\nactive_file 1\ntotal_inactive_file 50\n"),
            51
        );
        assert!(memory_available().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn nonces_differ_but_process_nonce_is_stable() {
        assert_ne!(random_nonce().unwrap(), random_nonce().unwrap());
        assert_ne!(random_bytes::<256>().unwrap(), [0; 256]);
        assert_eq!(process_nonce().unwrap(), process_nonce().unwrap());
        assert!(cores() >= 1);
        assert!(!name().is_empty());
    }
}
