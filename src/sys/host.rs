//! What this host and this process are called, and how many cores they may use.

use crate::base::error::{Error, Result};
use crate::base::ids::Nonce;
use std::sync::OnceLock;

/// This process's id.
pub fn pid() -> u32 {
    std::process::id()
}

/// The parent's process id; the same for all ranks that one launcher started directly.
pub fn parent_pid() -> u32 {
    std::os::unix::process::parent_id()
}

/// The effective user id.
pub fn uid() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// The host's name as the kernel knows it, when this is first asked; never asks a name server.
pub fn name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(name.trim().to_owned())
    };
    read_once(&NAME, read).unwrap_or_else(|| "unknown-host".to_owned())
}

/// What is read once: later there may be no descriptor left to read it with.
fn read_once(cell: &OnceLock<String>, read: impl FnOnce() -> Option<String>) -> Option<String> {
    match cell.get() {
        Some(text) => Some(text.clone()),
        None => read().map(|text| cell.get_or_init(|| text).clone()),
    }
}

/// What two processes must have in common to be able to share memory: the boot id of the kernel and
/// the IPC name space. Having it in common is only a hint; sharing is measured.
pub fn identity() -> String {
    static IDENTITY: OnceLock<String> = OnceLock::new();
    let boot = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let ipc = || std::fs::read_link("/proc/self/ns/ipc").map(|l| l.to_string_lossy().into_owned());
    let both = || Some(format!("{}/{}", boot().ok()?.trim(), ipc().ok()?));
    read_once(&IDENTITY, both).unwrap_or_else(|| {
        format!("{}/{}", boot().unwrap_or_default().trim(), ipc().unwrap_or_default())
    })
}

/// What two processes must have in common for a process id to mean the same process to both: the
/// boot id of the kernel and the name space of process ids. Empty where the system does not tell.
pub fn pid_namespace() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/pid");
    match (boot, space) {
        (Ok(boot), Ok(space)) => format!("{}/{}", boot.trim(), space.to_string_lossy()),
        _ => String::new(),
    }
}

/// What two processes must have in common for a loopback address to mean the same to both: the boot
/// id of the kernel and the name space of the network. Empty where the system does not tell.
pub fn network_namespace() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let space = std::fs::read_link("/proc/self/ns/net");
    match (boot, space) {
        (Ok(boot), Ok(space)) => format!("{}/{}", boot.trim(), space.to_string_lossy()),
        _ => String::new(),
    }
}

/// The number of cores that this process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The memory in bytes that can still be had: what the kernel says is available, or what the memory
/// limit of this process's control group leaves, whichever is less. `None` where neither is told.
pub fn memory_available() -> Option<u64> {
    let system = meminfo_bytes("MemAvailable:");
    match (system, cgroup_headroom()) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

/// The memory of this host in bytes, where the kernel tells.
pub fn memory_total() -> Option<u64> {
    meminfo_bytes("MemTotal:")
}

/// One line of /proc/meminfo, in bytes.
fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What the control group that this process is in, and those around it, leave below their memory
/// limits.
fn cgroup_headroom() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let v2 = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let v1 = groups.lines().find_map(cgroup_v1_memory_path);
    let v2 = v2.and_then(|path| headroom("/sys/fs/cgroup", path, "memory.max", "memory.current"));
    let files = ("memory.limit_in_bytes", "memory.usage_in_bytes");
    let v1 = v1.and_then(|path| headroom("/sys/fs/cgroup/memory", path, files.0, files.1));
    v2.into_iter().chain(v1).min()
}

/// The path in a line such as `4:cpu,memory:/path`.
fn cgroup_v1_memory_path(line: &str) -> Option<&str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
    controllers.split(',').any(|name| name == "memory").then_some(path)
}

/// The least that a group and those above it leave; what the kernel can drop from its cache counts
/// as free.
fn headroom(root: &str, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let (root, path) = (std::path::Path::new(root), std::path::Path::new(path));
    let left = |folder: &std::path::Path| -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(root.join(folder).join(name)).ok();
        let number = |name: &str| -> Option<u64> { read(name)?.trim().parse().ok() };
        let used = number(usage)?.saturating_sub(page_cache_bytes(&read("memory.stat")?));
        Some(number(limit)?.saturating_sub(used))
    };
    path.ancestors().filter_map(left).min()
}

/// The cached files in the text of memory.stat, in bytes; memory that is shared is not among them.
fn page_cache_bytes(stat: &str) -> u64 {
    let of = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    // Version 1 counts the groups below only in the totals.
    let all = [["total_active_file", "active_file"], ["total_inactive_file", "inactive_file"]];
    all.into_iter().filter_map(|names| names.into_iter().find_map(of)).sum()
}

/// Sixteen bytes from the kernel's random source.
///
/// # Errors
/// `System` where the kernel has none to give.
pub fn random_nonce() -> Result<Nonce> {
    random_bytes().map(Nonce)
}

/// As many bytes from the kernel's random source, fit for keys. At most 256, which the kernel gives
/// whole or not at all.
///
/// # Errors
/// `System` where the kernel has none to give.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0u8; N];
    // SAFETY: writes at most the N bytes of the array.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(got) == Ok(N) {
        return Ok(bytes);
    }
    Err(Error::system("getrandom", &std::io::Error::last_os_error()))
}

/// A nonce that is the same for all threads of this process and different in every other process;
/// a forked child has its own.
///
/// # Errors
/// `System` where the kernel has no random bytes to give.
pub fn process_nonce() -> Result<Nonce> {
    let (owner_pid, nonce) = match PROCESS_NONCE.get() {
        Some(&known) => known,
        None => *PROCESS_NONCE.get_or_init(|| (pid(), random_nonce().unwrap_or_default())),
    };
    if owner_pid == pid() && nonce != Nonce::default() { Ok(nonce) } else { random_nonce() }
}

static PROCESS_NONCE: OnceLock<(u32, Nonce)> = OnceLock::new();

/// Where it lies in the memory of this process, for others that want to know whether they can read
/// that; `None` where it lies nowhere, as in a forked child.
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
