//! Runs child processes. Each process has a time limit. Its output is shown or kept.

use dist_terminal::Progress;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a child that prints nothing is polled for its exit.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time between SIGTERM and SIGKILL for a child.
const KILL_DELAY: Duration = Duration::from_secs(5);

/// The exit status and output of a child process.
#[derive(Debug)]
pub(crate) struct FinishedProcess {
    status: Option<ExitStatus>,
    limit: Duration,
    /// The lines of standard output and standard error, in the order of arrival.
    pub(crate) text: String,
}

impl FinishedProcess {
    pub(crate) fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// Describes the exit for a message.
    pub(crate) fn exit_description(&self) -> String {
        match self.status {
            Some(status) => status.to_string(),
            None => format!("terminated after its limit of {} s", self.limit.as_secs()),
        }
    }

    /// Returns the last lines of the output, indented, for a message.
    pub(crate) fn output_tail(&self) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        let from = lines.len().saturating_sub(15);
        lines[from..].iter().map(|line| format!("\n    {line}")).collect()
    }
}

/// Creates a command. Removes the folders that `cargo run` adds to the library search path, because
/// the program must find its libraries in the same way as for a user.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        let kept_entries: Vec<_> =
            std::env::split_paths(&path).filter(|entry| !is_build_folder(entry)).collect();
        match std::env::join_paths(&kept_entries) {
            Ok(path) if !kept_entries.is_empty() => command.env("LD_LIBRARY_PATH", path),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
    command
}

/// Returns true if the path is inside a target folder of cargo. Such a folder contains the file
/// `CACHEDIR.TAG`.
fn is_build_folder(path: &Path) -> bool {
    path.ancestors().any(|folder| folder.join("CACHEDIR.TAG").is_file())
}

/// Runs a command to its end and shows all output.
pub(crate) fn run_visibly(
    command: &mut Command,
    limit: Duration,
) -> Result<FinishedProcess, String> {
    run_with_lines(command, limit, |line| println!("{line}"))
}

/// Runs a command to its end. The command writes to the standard output and error of this process.
/// Once per `interval`, calls `report` with the time since the start. Returns true if the command
/// was successful.
pub(crate) fn run_with_reports(
    command: &mut Command,
    interval: Duration,
    report: impl Fn(Duration),
) -> Result<bool, String> {
    let start = Instant::now();
    let mut child = spawn(command)?;
    let mut next_report = interval;
    loop {
        if let Some(status) = poll(&mut child)? {
            return Ok(status.success());
        }
        thread::sleep(POLL_INTERVAL);
        if start.elapsed() >= next_report {
            report(start.elapsed());
            next_report += interval;
        }
    }
}

/// Runs a command to its end. Does not show its output, but on a terminal the fact that it runs.
pub(crate) fn run_quietly(
    command: &mut Command,
    limit: Duration,
) -> Result<FinishedProcess, String> {
    let _progress = Progress::of_wait(command_words(command));
    run_with_lines(command, limit, |_| ())
}

/// Returns the name of a command's program and its arguments.
fn command_words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end. Does not show its output. Returns an error if the command does not
/// succeed.
pub(crate) fn run_checked(
    command: &mut Command,
    limit: Duration,
) -> Result<FinishedProcess, String> {
    let finished = run_quietly(command, limit)?;
    checked(command, finished)
}

fn checked(command: &Command, finished: FinishedProcess) -> Result<FinishedProcess, String> {
    if finished.success() {
        return Ok(finished);
    }
    let name = command.get_program().to_string_lossy().into_owned();
    Err(format!("{name}: {}{}", finished.exit_description(), finished.output_tail()))
}

/// Runs several commands concurrently to their ends. Does not show their outputs, but returns them.
/// If commands fail, returns an error that names all failed commands.
pub(crate) fn run_all(commands: Vec<Command>, limit: Duration) -> Result<Vec<String>, String> {
    let names: Vec<String> = commands.iter().map(command_words).collect();
    let _progress = Progress::of_wait(names.join(", "));
    let run_one = |mut command: Command| {
        let finished = run_with_lines(&mut command, limit, |_| ())?;
        checked(&command, finished)
    };
    let outcomes: Vec<Result<FinishedProcess, String>> = thread::scope(|scope| {
        let run = |command| scope.spawn(move || run_one(command));
        let threads: Vec<_> = commands.into_iter().map(run).collect();
        let thread_panicked = |_| Err("the thread that waits for a process panicked".to_string());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(thread_panicked)).collect()
    });
    let mut problems = Vec::new();
    let mut texts = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(finished) => texts.push(finished.text),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(texts) } else { Err(problems.join("\n  and ")) }
}

/// A child process in the background. The program must exit at the end of its standard input. The
/// drop of this value closes the standard input.
#[derive(Debug)]
pub(crate) struct BackgroundProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    other_output: String,
}

impl BackgroundProcess {
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        let mut child = spawn_piped(command.stdin(Stdio::piped()))?;
        let lines = output_lines(&mut child);
        Ok(Self { stdin: child.stdin.take(), child, lines, other_output: String::new() })
    }

    /// Waits for a line that begins with `start`, and returns the rest of the line.
    pub(crate) fn await_line(&mut self, start: &str, limit: Duration) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.to_string());
                    }
                    self.store_line(&line);
                }
                Err(_) => {
                    return Err(format!(
                        "a process printed no line that starts with \"{start}\": {}",
                        self.other_output
                    ));
                }
            }
        }
    }

    /// Returns the output so far, without the lines that `await_line` returned.
    pub(crate) fn other_output(&mut self) -> &str {
        while let Ok(line) = self.lines.try_recv() {
            self.store_line(&line);
        }
        &self.other_output
    }

    fn store_line(&mut self, line: &str) {
        self.other_output.push_str(line);
        self.other_output.push('\n');
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + KILL_DELAY;
        while Instant::now() < deadline {
            // If the poll fails, the process does not exist any more.
            if poll(&mut self.child).map_or(true, |status| status.is_some()) {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        drop(terminate(&mut self.child));
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    let child = command.spawn();
    child.map_err(|cause| format!("{}: {cause}", command.get_program().to_string_lossy()))
}

/// Starts a command whose output the caller reads.
fn spawn_piped(command: &mut Command) -> Result<Child, String> {
    spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// Returns the lines of both streams, in the order of arrival.
fn output_lines(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        forward_lines(out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward_lines(err, sender);
    }
    lines
}

/// Runs a command until it ends or reaches its time limit. Passes each line of the output to `show`
/// as soon as it arrives.
pub(crate) fn run_with_lines(
    command: &mut Command,
    limit: Duration,
    mut show: impl FnMut(&str),
) -> Result<FinishedProcess, String> {
    let mut child = spawn_piped(command.stdin(Stdio::null()))?;
    let lines = output_lines(&mut child);
    let deadline = Instant::now() + limit;
    let mut text = String::new();
    let mut status = None;
    loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => {
                show(&line);
                text.push_str(&line);
                text.push('\n');
            }
            // The child has exited and the pipes are empty, so stop. Do not wait until the pipes
            // are closed, because a descendant of the child may hold them open.
            Err(_) if status.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL_INTERVAL / 10),
            Err(RecvTimeoutError::Timeout) => (),
        }
        if status.is_none() {
            status = poll(&mut child)?;
        }
        if Instant::now() > deadline {
            if status.is_none() {
                terminate(&mut child)?;
            }
            break;
        }
    }
    Ok(FinishedProcess { status, limit, text })
}

fn forward_lines(pipe: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_string();
            if lines.send(line).is_err() {
                break;
            }
            bytes.clear();
        }
    });
}

fn poll(child: &mut Child) -> Result<Option<ExitStatus>, String> {
    child.try_wait().map_err(|cause| format!("cannot wait for a child process: {cause}"))
}

/// Sends SIGTERM, so that a launcher can end its ranks. If the child does not exit, sends SIGKILL
/// after [`KILL_DELAY`].
fn terminate(child: &mut Child) -> Result<(), String> {
    let term_command = format!("kill -TERM {}", child.id());
    let term_result = Command::new("sh").args(["-c", &term_command]).status();
    let deadline = Instant::now() + KILL_DELAY;
    while term_result.is_ok() && Instant::now() < deadline {
        if poll(child)?.is_some() {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    let killed = child.kill().and_then(|()| child.wait());
    killed.map(|_| ()).map_err(|cause| format!("cannot terminate a child process: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_of_both_streams_and_exit_code_are_kept() {
        let finished =
            run_quietly(&mut shell("echo one; echo two >&2; exit 3"), Duration::from_secs(20))
                .unwrap();
        assert_eq!(finished.code(), Some(3));
        assert!(finished.text.contains("one\n") && finished.text.contains("two\n"));
        assert!(!finished.success());
    }

    #[test]
    fn child_over_the_time_limit_is_terminated() {
        let finished =
            run_quietly(&mut shell("exec sleep 600"), Duration::from_millis(100)).unwrap();
        assert!(!finished.success());
        assert!(finished.exit_description().starts_with("terminated after"));
    }

    #[test]
    fn grandchild_holding_the_pipes_does_not_delay() {
        let finished =
            run_quietly(&mut shell("sleep 30 & echo $!"), Duration::from_secs(20)).unwrap();
        assert!(finished.success());
        let _ended = shell(&format!("kill {}", finished.text.trim())).status();
    }

    #[test]
    fn commands_run_at_once_and_all_failures_are_reported() {
        let folder = std::env::temp_dir().join(format!("xtask-together-{}", std::process::id()));
        let (one, other) = (folder.join("one"), folder.join("other"));
        std::fs::create_dir_all(&folder).unwrap();
        // The open of one end of a named pipe waits until another process opens the other end. So
        // the two commands only end if they run concurrently.
        let pipes = format!("mkfifo {} {}", one.display(), other.display());
        assert!(shell(&pipes).status().unwrap().success());
        let ask = format!("echo ask > {}; cat {}", one.display(), other.display());
        let answer = format!("cat {}; echo answer > {}", one.display(), other.display());
        let outputs = run_all(vec![shell(&ask), shell(&answer)], Duration::from_secs(20));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(outputs.unwrap(), ["answer\n", "ask\n"]);

        let commands =
            vec![shell("echo first; exit 1"), shell("true"), shell("echo third; exit 3")];
        let problem = run_all(commands, Duration::from_secs(20)).unwrap_err();
        assert!(problem.contains("first") && problem.contains("third"));
    }

    #[test]
    fn background_process_ends_with_its_standard_input() {
        let script = "echo hello; echo port 12; read line; echo $line end >&2";
        let mut server = BackgroundProcess::start(&mut shell(script)).unwrap();
        assert_eq!(server.await_line("port ", Duration::from_secs(20)).unwrap(), "12");
        assert_eq!(server.other_output(), "hello\n");
        drop(server.stdin.take());
        assert_eq!(server.await_line("end", Duration::from_secs(20)).unwrap(), "");
        assert!(server.await_line("more", Duration::from_secs(20)).unwrap_err().contains("hello"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let problem =
            run_quietly(&mut command("no-such-program"), Duration::from_secs(1)).unwrap_err();
        assert!(problem.contains("no-such-program"));
    }
}
