//! Other launchers: ranks that mpirun starts find each other on their host without a configured
//! address, and concurrent jobs do not connect to each other. If a launcher is not installed, its
//! test is skipped.
#![allow(clippy::unwrap_used, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::expect_used, clippy::panic, reason = "in a test a broken assumption is a failure")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod harness;
mod worker;

use harness::TestJob;
use std::path::{Path, PathBuf};
use std::process::Command;

const RANKS: usize = 4;

/// The program of every rank. The gate ensures that both jobs run at the same time.
const PROGRAM: &str = "init\nall_reduce f32 SUM 1\nall_reduce f32 SUM 300000\ngate both\n\
                       broadcast f32 1000 3\nbarrier\nfinalize\nleaks\n";

/// A launcher with its arguments for one host.
struct MpiLauncher {
    program: &'static str,
    arguments: &'static [&'static str],
}

const OPEN_MPI: MpiLauncher = MpiLauncher {
    program: "mpirun.openmpi",
    arguments: &["--allow-run-as-root", "--oversubscribe", "-n", "4"],
};
const MPICH: MpiLauncher = MpiLauncher { program: "mpiexec.mpich", arguments: &["-n", "4"] };

impl MpiLauncher {
    /// Returns the path of the launcher, or `None` if it is not installed.
    #[allow(clippy::disallowed_methods, reason = "PATH says what is installed")]
    fn find(&self) -> Option<PathBuf> {
        let folders = std::env::var_os("PATH")?;
        let mut places = std::env::split_paths(&folders).map(|folder| folder.join(self.program));
        let program = places.find(|place| place.is_file());
        if program.is_none() {
            println!("skipped: {} is not installed", self.program);
        }
        program
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(self.arguments);
        command
    }

    /// Runs two jobs at the same time, each in its own folder. If a rank connected to the other
    /// job, it would report wrong sums or sizes to its own folder, or never join.
    fn check_two_concurrent_jobs(&self) {
        let Some(program) = self.find() else { return };
        let mut jobs = [TestJob::new(), TestJob::new()];
        for job in &mut jobs {
            job.start_under("launcher", self.command(&program), PROGRAM);
        }
        let names: Vec<String> = (0..RANKS).map(|rank| rank.to_string()).collect();
        for job in &mut jobs {
            job.await_reports(&names, "at both");
        }
        for job in jobs {
            job.open_gate("both");
            let ended = job.finish();
            for name in &names {
                ended.assert_all_succeeded(name, 10);
            }
            assert_eq!(ended.exit_status("launcher"), 0, "{}", ended.stderr_text("launcher"));
        }
    }

    /// A rank without peers forms a world group of one rank.
    fn check_single_rank(&self) {
        let Some(program) = self.find() else { return };
        let mut command = Command::new(&program);
        let arguments = self.arguments.iter().map(|argument| argument.replace('4', "1"));
        command.args(arguments);
        let mut job = TestJob::new();
        let program = "init\nall_reduce f32 SUM 10\nbarrier\nfinalize\nleaks\n";
        job.start_under("launcher", command, program);
        let ended = job.finish();
        ended.assert_all_succeeded("0", 6);
    }
}

#[test]
fn concurrent_open_mpi_jobs_are_separate() {
    OPEN_MPI.check_two_concurrent_jobs();
}

#[test]
fn concurrent_mpich_jobs_are_separate() {
    MPICH.check_two_concurrent_jobs();
}

#[test]
fn single_rank_works_under_launchers() {
    OPEN_MPI.check_single_rank();
    MPICH.check_single_rank();
}
