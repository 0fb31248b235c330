//! A network namespace under `ip netns`: it has a name in `/run/netns` until a process removes it.
//! The names begin with the process id of the test, so that the next test recognises and removes
//! the namespaces of a killed test.

use crate::harness::signal;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The folder with the names.
const NAMESPACE_FOLDER: &str = "/run/netns";

/// The prefix of all names.
const NAME_PREFIX: &str = "libdist-test-";

/// A script that sets the host name to its first argument and executes the program in the other
/// arguments.
const SET_HOSTNAME_SCRIPT: &str =
    "{ hostname \"$0\" || echo \"$0\" >/proc/sys/kernel/hostname; } 2>/dev/null; exec \"$@\"";

/// The maximum time for an operation of the kernel on a busy machine.
pub(super) const KERNEL_TIMEOUT: Duration = Duration::from_secs(20);

/// A network namespace. Its drop kills all processes in it and removes it.
pub(super) struct NetNamespace(String);

impl NetNamespace {
    /// Creates an empty namespace with its loopback interface up.
    pub(super) fn new(serial: u32, suffix: &str) -> Result<Self, String> {
        let name = format!("{NAME_PREFIX}{}-{serial}-{suffix}", std::process::id());
        run_ip(&["netns", "add", &name])?;
        let space = Self(name);
        space.ip("link set lo up");
        Ok(space)
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// Returns the command prefix that runs a program in the namespace with this host name. The
    /// process id stays the same, since each program of the prefix executes the next one.
    pub(super) fn command_prefix(&self, host: &str) -> Vec<String> {
        let ip = ip_program().unwrap_or("ip");
        let mut words = vec![ip, "netns", "exec", &self.0, "unshare", "--uts"];
        words.extend(["sh", "-c", SET_HOSTNAME_SCRIPT, host]);
        words.into_iter().map(str::to_owned).collect()
    }

    /// Runs `ip` commands in the namespace, one per line.
    pub(super) fn ip(&self, commands: &str) -> String {
        self.try_ip(commands).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Self::run_ip`], but returns an error if the kernel lacks a feature.
    pub(super) fn try_ip(&self, commands: &str) -> Result<String, String> {
        run_ip_with_input(&["-n", &self.0, "-batch", "-"], commands)
    }

    /// Returns the contents of files as a process in the namespace reads them.
    pub(super) fn read(&self, files: &[&str]) -> String {
        let command = ["netns", "exec", &self.0, "cat"];
        run_ip(&[&command, files].concat()).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until an interface carries packets and its assigned addresses are usable. The kernel's
    /// own link-local address needs 1 to 2 s for duplicate detection.
    pub(super) fn until_ready(&self, interface: &str) {
        let began = Instant::now();
        loop {
            let state = self.ip(&format!("address show dev {interface}"));
            let is_waiting =
                |line: &str| line.contains("tentative") && !line.contains("scope link");
            if state.contains("LOWER_UP") && !state.lines().any(is_waiting) {
                return;
            }
            assert!(began.elapsed() < KERNEL_TIMEOUT, "{interface} is not ready: {state}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for NetNamespace {
    fn drop(&mut self) {
        remove_namespace(&self.0);
    }
}

/// Returns true if a namespace with this name exists.
pub(super) fn namespace_exists(name: &str) -> bool {
    Path::new(NAMESPACE_FOLDER).join(name).exists()
}

/// Removes the namespaces of killed tests.
pub(super) fn remove_leftovers() {
    let entries = fs::read_dir(NAMESPACE_FOLDER).into_iter().flatten();
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let owner = name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.split('-').next());
        let owner = owner.and_then(|owner| owner.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            remove_namespace(&name);
        }
    }
}

/// Kills all processes of a namespace and removes it. Another test may remove it at the same time.
fn remove_namespace(name: &str) {
    let began = Instant::now();
    while began.elapsed() < KERNEL_TIMEOUT {
        let pids = run_ip(&["netns", "pids", name]).unwrap_or_default();
        let pids: Vec<u32> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        if pids.is_empty() {
            break;
        }
        signal("KILL", &pids);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(run_ip(&["netns", "del", name]));
}

/// Returns the path of the `ip` program.
pub(super) fn ip_program() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    // The PATH of an ordinary user may lack the folders with system programs.
    let runs = |name: &&str| Command::new(name).arg("-V").output().is_ok();
    *FOUND.get_or_init(|| ["ip", "/usr/sbin/ip", "/sbin/ip"].into_iter().find(runs))
}

fn run_ip(arguments: &[&str]) -> Result<String, String> {
    run_ip_with_input(arguments, "")
}

/// Runs `ip` and returns its output.
fn run_ip_with_input(arguments: &[&str], input: &str) -> Result<String, String> {
    let program = ip_program().ok_or("the program ip is not installed (package iproute2)")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|cause| format!("{program}: {cause}"))?;
    // `ip` reads all commands before its output fills the pipe; if a command fails, `ip` ends.
    drop(child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes())));
    let Output { status, stdout, stderr } =
        child.wait_with_output().map_err(|cause| format!("{program}: {cause}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let stderr_line = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
    Err(format!("ip {}: {stderr_line} (input: {})", arguments.join(" "), input.trim()))
}
