//! Runs the project's programs on a command line, with their output in files. Each wait has a
//! deadline, and the programs end with the test, also if it fails.
#![allow(dead_code, reason = "each test program uses its own part")]

use dist::base::deadline::Deadline;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The time limit of any program on a busy machine. A program that compiles the headers of a peer
/// library takes 30 s on an idle one.
pub(crate) const PROGRAM_TIMEOUT: Duration = Duration::from_secs(300);

/// A folder for one test.
pub(crate) struct TestFolder(pub(crate) PathBuf);

impl TestFolder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("program-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap_or_default()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&self.bytes(name)).into_owned()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A running program whose output goes to the files `out` and `err` of its folder.
pub(crate) struct RunningProgram {
    pub(crate) child: Child,
    pub(crate) folder: TestFolder,
}

/// The exit status and the output of a finished program.
pub(crate) struct FinishedProgram {
    /// The exit status; -1 if a signal ended the program.
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl RunningProgram {
    /// Starts a command; `change` may redirect its output.
    pub(crate) fn start(mut command: Command, change: impl FnOnce(&mut Command)) -> Self {
        let folder = TestFolder::new();
        command.stdout(File::create(folder.path("out")).unwrap());
        command.stderr(File::create(folder.path("err")).unwrap());
        change(&mut command);
        Self { child: command.spawn().unwrap(), folder }
    }

    /// Waits until standard output has this many lines, and returns them.
    pub(crate) fn first_lines(&self, count: usize) -> Vec<String> {
        wait_until("output", || self.folder.text("out").matches('\n').count() >= count);
        self.folder.text("out").lines().map(str::to_owned).collect()
    }

    /// Waits until standard error contains this text.
    pub(crate) fn wait_for_stderr(&self, text: &str) {
        wait_until(text, || self.folder.text("err").contains(text));
    }

    pub(crate) fn signal(&self, name: &str) {
        kill(name, self.child.id());
    }

    pub(crate) fn wait(mut self) -> FinishedProgram {
        let mut status = None;
        wait_until("the end of the program", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap().code().unwrap_or(-1);
        FinishedProgram { status, stdout: self.folder.text("out"), stderr: self.folder.text("err") }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Deadline::after(PROGRAM_TIMEOUT);
    while !holds() {
        assert!(!deadline.has_passed(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let script = format!("kill -{signal} {pid}");
    assert!(Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success());
}

/// True as long as a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

pub(crate) fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}
