//! The ranks of a job as processes of this host, without a launcher: for tests in which a rank is
//! killed or stopped, which a launcher would notice.

use std::fmt::Display;
use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The interval at which the end of a process is checked.
const POLL: Duration = Duration::from_millis(5);

/// A job that has not started.
pub(crate) struct RankProcesses {
    ranks: usize,
    variables: Vec<(String, String)>,
}

impl RankProcesses {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { ranks, variables: Vec::new() }
    }

    /// Sets an environment variable of all ranks.
    pub(crate) fn set(&mut self, name: &str, value: impl Display) {
        self.variables.push((name.to_owned(), value.to_string()));
    }

    /// Runs the ranks, and returns their output. The last rank is killed when the others have
    /// ended, because it may be stopped.
    pub(crate) fn run(&self, program: &Path, words: &[&str], limit: Duration) -> Vec<String> {
        // The port is free again when the listener is dropped.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("the address").port();
        drop(listener);
        let start = |rank: usize| {
            let mut command = Command::new(program);
            command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.ranks.to_string());
            command.env("LOCAL_RANK", rank.to_string());
            command.env("OMPI_COMM_WORLD_RANK", rank.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            command.spawn().expect("a process")
        };
        let mut children: Vec<Child> = (0..self.ranks).map(start).collect();
        let end = Instant::now() + limit;
        let others = self.ranks.saturating_sub(1).max(1);
        let mut has_ended = children.iter_mut().take(others).all(has_exited);
        while !has_ended && Instant::now() < end {
            std::thread::sleep(POLL);
            has_ended = children.iter_mut().take(others).all(has_exited);
        }
        // The last rank may be some milliseconds behind the others.
        let grace = Instant::now() + Duration::from_secs(5);
        let last = self.ranks - 1;
        while !has_exited(&mut children[last]) && Instant::now() < grace.min(end) {
            std::thread::sleep(POLL);
        }
        let outputs: Vec<String> = children.iter_mut().map(collect_output).collect();
        assert!(has_ended, "the job did not end within {limit:?}:\n{}", outputs.join("\n"));
        outputs
    }
}

fn has_exited(child: &mut Child) -> bool {
    child.try_wait().expect("the state of a process").is_some()
}

/// Ends a process, and returns its output.
fn collect_output(child: &mut Child) -> String {
    // The process may have ended already.
    drop(child.kill());
    drop(child.wait());
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        drop(stdout.read_to_string(&mut text));
    }
    if let Some(mut stderr) = child.stderr.take() {
        drop(stderr.read_to_string(&mut text));
    }
    text
}
