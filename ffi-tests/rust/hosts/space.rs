//! One network name space as `ip netns` keeps them: under a name in `/run/netns`, until somebody
//! removes it. Names begin with the process id of the test that made them, so that what a killed
//! one has left is recognised, and removed by the next.

use crate::harness::signal;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Where the names are.
const FOLDER: &str = "/run/netns";

/// What all names begin with.
const PREFIX: &str = "libdist-test-";

/// A script that gives its name to the host, and becomes the program that follows.
const TAKE_NAME: &str =
    "{ hostname \"$0\" || echo \"$0\" >/proc/sys/kernel/hostname; } 2>/dev/null; exec \"$@\"";

/// How long the kernel may take for anything, on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// A name space that is there as long as this is, and in which nothing survives it.
pub(super) struct Space(String);

impl Space {
    /// Makes an empty one, with its loopback interface up.
    pub(super) fn new(serial: u32, suffix: &str) -> Result<Self, String> {
        let name = format!("{PREFIX}{}-{serial}-{suffix}", std::process::id());
        ip(&["netns", "add", &name])?;
        let space = Self(name);
        space.ip("link set lo up");
        Ok(space)
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// What a command line must begin with to run in it, and to find that it is on a host of that
    /// name. The process is the one that was started: each of these programs becomes the next.
    pub(super) fn prefix(&self, host: &str) -> Vec<String> {
        let ip = program().unwrap_or("ip");
        let mut words = vec![ip, "netns", "exec", &self.0, "unshare", "--uts"];
        words.extend(["sh", "-c", TAKE_NAME, host]);
        words.into_iter().map(str::to_owned).collect()
    }

    /// Runs commands of `ip` in it, one per line.
    pub(super) fn ip(&self, commands: &str) -> String {
        self.try_ip(commands).unwrap_or_else(|why| panic!("{why}"))
    }

    /// The same, where the kernel may lack what is asked for.
    pub(super) fn try_ip(&self, commands: &str) -> Result<String, String> {
        run(&["-n", &self.0, "-batch", "-"], commands)
    }

    /// Reads files as they are in it.
    pub(super) fn read(&self, files: &[&str]) -> String {
        let command = ["netns", "exec", &self.0, "cat"];
        ip(&[&command, files].concat()).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until an interface carries packets and the addresses that it was given can be used.
    /// The one that the kernel adds takes a second or two to be sure that no neighbour has it.
    pub(super) fn until_ready(&self, interface: &str) {
        let began = Instant::now();
        loop {
            let state = self.ip(&format!("address show dev {interface}"));
            let is_waiting =
                |line: &str| line.contains("tentative") && !line.contains("scope link");
            if state.contains("LOWER_UP") && !state.lines().any(is_waiting) {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{interface} is not ready: {state}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// True where there is a name space of this name.
pub(super) fn exists(name: &str) -> bool {
    Path::new(FOLDER).join(name).exists()
}

/// Removes what tests have left that were killed.
pub(super) fn remove_leftovers() {
    let entries = fs::read_dir(FOLDER).into_iter().flatten();
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let owner = owner.and_then(|owner| owner.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            remove(&name);
        }
    }
}

/// Kills all processes of a name space, and removes it. Another test may be removing it as well.
fn remove(name: &str) {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let pids = ip(&["netns", "pids", name]).unwrap_or_default();
        let pids: Vec<u32> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        if pids.is_empty() {
            break;
        }
        signal("KILL", &pids);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(ip(&["netns", "del", name]));
}

/// The program that all this is done with.
pub(super) fn program() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    // An ordinary user's PATH may lack the folders of the system's programs.
    let runs = |name: &&str| Command::new(name).arg("-V").output().is_ok();
    *FOUND.get_or_init(|| ["ip", "/usr/sbin/ip", "/sbin/ip"].into_iter().find(runs))
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    run(arguments, "")
}

/// Runs `ip`, and returns what it prints.
fn run(arguments: &[&str], input: &str) -> Result<String, String> {
    let program = program().ok_or("the program ip is not installed (package iproute2)")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|cause| format!("{program}: {cause}"))?;
    // It reads all commands before there is more output than a pipe holds; one that fails ends it.
    drop(child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes())));
    let Output { status, stdout, stderr } =
        child.wait_with_output().map_err(|cause| format!("{program}: {cause}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
    Err(format!("ip {}: {said} (input: {})", arguments.join(" "), input.trim()))
}
