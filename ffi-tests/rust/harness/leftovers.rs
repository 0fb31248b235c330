//! Finds resources that a job has left: processes, sockets, and files in memory and on disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The files that existed before a job.
pub(crate) struct SharedFiles {
    files: BTreeSet<String>,
}

/// Folders in which the library would leave files that no process removes.
const SHARED_FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];

impl SharedFiles {
    pub(crate) fn take() -> Self {
        Self { files: shared_files() }
    }

    /// Returns the living processes and the files that a job has left.
    pub(crate) fn leftovers(&self, folder: &Path, living: &[u32]) -> Vec<String> {
        let mut leftovers: Vec<String> =
            living.iter().map(|pid| format!("process {pid}")).collect();
        leftovers.extend(shared_files().difference(&self.files).cloned());
        let temporary = folder.join("tmp");
        let files = entries(&temporary).filter(|name| !is_dump_folder(&temporary.join(name)));
        leftovers.extend(files.map(|name| format!("TMPDIR/{name}")));
        leftovers
    }
}

/// Returns true for a folder in which distrun keeps the dumps of a failed job.
fn is_dump_folder(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("distrun-"))
        && entries(path).count() > 0
        && entries(path).all(|name| name.starts_with("flight_recorder_"))
}

fn entries(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// Returns the library's files in the shared folders.
fn shared_files() -> BTreeSet<String> {
    let of = |folder: &'static str| {
        let names = entries(Path::new(folder)).filter(|name| name.contains("libdist"));
        names.map(move |name| format!("{folder}/{name}"))
    };
    SHARED_FOLDERS.into_iter().flat_map(of).collect()
}

/// Returns the living processes whose environment has this entry.
pub(crate) fn processes_with_environment(entry: &str) -> Vec<u32> {
    let has_it = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|found| found == entry.as_bytes())
            && process_state(*pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
    };
    entries(Path::new("/proc")).filter_map(|name| name.parse().ok()).filter(has_it).collect()
}

/// The name of a death witness, which a dead rank leaves for some time (docs/failure.md).
const WITNESS_NAME: &str = "dist-witness";

/// Ends the death witnesses among these processes, as a launcher does, and returns the others.
pub(crate) fn end_witnesses(pids: &[u32]) -> Vec<u32> {
    let is_witness = |pid: &&u32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim_end() == WITNESS_NAME)
    };
    let (witnesses, others): (Vec<u32>, Vec<u32>) = pids.iter().partition(is_witness);
    super::signal("TERM", &witnesses);
    others
}

/// Returns the state letter of a process, or `None` if the process does not exist.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Returns the inodes of the sockets that the processes hold.
pub(crate) fn sockets_of(pids: &[u32]) -> BTreeSet<u64> {
    let mut inodes = BTreeSet::new();
    for pid in pids {
        let folder = format!("/proc/{pid}/fd");
        for fd in entries(Path::new(&folder)) {
            let target = fs::read_link(format!("{folder}/{fd}")).unwrap_or_default();
            let target = target.to_string_lossy();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            inodes.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
        }
    }
    inodes
}

/// The kernel's socket tables, each with the column of the inode.
const SOCKET_TABLES: [(&str, usize); 3] = [("unix", 6), ("tcp", 9), ("tcp6", 9)];

fn socket_table(name: &str) -> String {
    fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default()
}

/// Returns a socket table of the network namespace that `prefix` enters; of this one if `prefix` is
/// empty.
fn socket_table_in(prefix: &[String], name: &str) -> String {
    let Some((program, arguments)) = prefix.split_first() else { return socket_table(name) };
    let mut command = Command::new(program);
    command.args(arguments).args(["cat", &format!("/proc/net/{name}")]);
    String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
}

/// Returns the remaining sockets of a job in a network namespace: the sockets in `sockets` that
/// still exist, and listeners on the job's TCP port.
pub(crate) fn leftover_sockets(
    prefix: &[String],
    sockets: &BTreeSet<u64>,
    port: u16,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, column) in SOCKET_TABLES {
        let text = socket_table_in(prefix, name);
        for line in text.lines() {
            let inode = line.split_whitespace().nth(column).and_then(|text| text.parse().ok());
            if inode.is_some_and(|inode: u64| sockets.contains(&inode)) {
                lines.push(format!("{name} socket {line}"));
            }
        }
        if name != "unix" {
            lines.extend(listeners(&text, port));
        }
    }
    lines
}

/// Returns the lines of a TCP table with listeners on this port.
fn listeners(text: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    let is_listener = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|local| local.ends_with(&suffix)) && state == Some(LISTEN)
    };
    text.lines().filter(is_listener).map(|line| format!("listener {line}")).collect()
}

/// Returns the names of the library's abstract sockets among `sockets`.
pub(crate) fn abstract_socket_names(sockets: &BTreeSet<u64>) -> Vec<String> {
    let text = socket_table("unix");
    let held = text.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let inode: u64 = words.get(6)?.parse().ok()?;
        let name = words.get(7)?.strip_prefix('@')?;
        (sockets.contains(&inode) && name.starts_with("libdist-")).then(|| name.to_owned())
    });
    held.collect()
}

/// Returns the TCP ports of the listening sockets among `sockets`.
pub(crate) fn listening_ports(sockets: &BTreeSet<u64>) -> Vec<u16> {
    const LISTEN: &str = "0A";
    let mut ports = Vec::new();
    for name in ["tcp", "tcp6"] {
        ports.extend(socket_table(name).lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let inode: u64 = words.get(9)?.parse().ok()?;
            let port = words.get(1)?.rsplit_once(':')?.1;
            let listens = words.get(3) == Some(&LISTEN) && sockets.contains(&inode);
            listens.then(|| u16::from_str_radix(port, 16).ok()).flatten()
        }));
    }
    ports
}
