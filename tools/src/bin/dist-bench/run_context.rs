//! The child processes of the driver, and the folder for the files that the driver exchanges with
//! them. When the driver ends for any reason, the processes are killed and the folder is removed.

use crate::signal_failure;
use dist::base::deadline::Deadline;
use dist::process::child_group::{ChildEvent, ChildProcessGroup};
use dist::process::process_exit::ProcessExit;
use dist::sys::{child, host, signal};
use dist_tools::Failure;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The signals with which a user or a job manager ends a program: SIGHUP, SIGINT and SIGTERM.
const END_SIGNALS: [i32; 3] = [1, 2, 15];

/// The time between SIGTERM and SIGKILL for a process that must end.
const KILL_DELAY: Duration = Duration::from_secs(3);

/// A folder for this run.
#[derive(Debug)]
struct RunFolder(PathBuf);

impl RunFolder {
    fn new() -> Result<Self, Failure> {
        let name = format!("dist-bench-{}", host::random_nonce()?);
        let path = std::env::temp_dir().join(name);
        let created = DirBuilder::new().mode(0o700).create(&path);
        created
            .map_err(|cause| Failure::new(format!("cannot create {}: {cause}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // If the removal fails, the files remain in the system's folder for temporary files.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The processes and the folder of a run.
#[derive(Debug)]
pub(crate) struct RunContext {
    processes: ChildProcessGroup,
    folder: RunFolder,
}

impl RunContext {
    /// Creates the context. The caller must create it before it starts threads, because the process
    /// group forks a guard process (which kills the children when the driver dies).
    pub(crate) fn new() -> Result<Self, Failure> {
        // Set the default action of SIGCHLD. The driver inherits the action of its parent process,
        // and if the action is to ignore the signal, the driver cannot wait for its children.
        signal::set_default(signal::CHILD);
        Ok(Self { processes: ChildProcessGroup::new(&END_SIGNALS)?, folder: RunFolder::new()? })
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Starts a process whose output goes to a log file. Returns the number of the process.
    pub(crate) fn start(&mut self, command: &mut Command, log: &Path) -> Result<usize, Failure> {
        let failed = |cause| Failure::new(format!("{}: {cause}", log.display()));
        let file = File::options().create(true).append(true).open(log).map_err(failed)?;
        let copy = file.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(copy).stderr(file);
        self.processes.spawn(command).map_err(|cause| {
            Failure::new(format!("cannot start {}: {cause}", command.get_program().display()))
        })?;
        Ok(self.processes.members().len() - 1)
    }

    /// Returns the number of processes that were started so far.
    pub(crate) fn process_count(&self) -> usize {
        self.processes.members().len()
    }

    /// Records exits of processes without waiting. Returns an error if the driver has received a
    /// signal that ends it.
    pub(crate) fn poll_processes(&mut self) -> Result<(), Failure> {
        self.wait_for_event(&Deadline::after_ms(0))
    }

    fn wait_for_event(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        match self.processes.next_event(deadline)? {
            ChildEvent::Signal(number) => Err(signal_failure(number)),
            ChildEvent::Ended(_) | ChildEvent::Deadline => Ok(()),
        }
    }

    /// Returns the exit status of a process, if it has been recorded.
    pub(crate) fn exit_status(&self, number: usize) -> Option<ProcessExit> {
        self.processes.members().get(number).and_then(|member| member.exit())
    }

    /// Waits until these processes have exited. Returns false if the deadline passes before.
    pub(crate) fn await_exits(
        &mut self,
        numbers: &[usize],
        deadline: &Deadline,
    ) -> Result<bool, Failure> {
        while numbers.iter().any(|&number| self.exit_status(number).is_none()) {
            if deadline.has_passed() {
                return Ok(false);
            }
            self.wait_for_event(deadline)?;
        }
        Ok(true)
    }

    /// Terminates processes. First sends SIGTERM, so that a launcher can end its own children, and
    /// then SIGKILL.
    pub(crate) fn terminate(&mut self, numbers: &[usize]) -> Result<(), Failure> {
        for signal in [signal::TERMINATE, signal::KILL] {
            if self.await_exits(numbers, &Deadline::after_ms(0))? {
                break;
            }
            for member in numbers.iter().filter_map(|&number| self.processes.members().get(number))
            {
                // If the process group does not exist any more, this is the intended result.
                drop(child::signal_group(member.pid(), signal));
            }
            self.await_exits(numbers, &Deadline::after(KILL_DELAY))?;
        }
        Ok(())
    }
}

impl Drop for RunContext {
    fn drop(&mut self) {
        let numbers: Vec<usize> = (0..self.processes.members().len()).collect();
        // The process group kills the remaining processes.
        drop(self.terminate(&numbers));
    }
}
