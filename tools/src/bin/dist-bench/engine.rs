//! An engine: a library and its rank processes. The rank processes stay alive between requests, so
//! that libdist and its peers can alternate without restarts.
//!
//! The driver sends requests to each rank through a named pipe of this rank. All ranks respond
//! through one common pipe. Each rank writes its stamps (the start and end times of the calls) into
//! a file. A rank without a request sleeps in the kernel on its pipe and uses no CPU time, even if
//! its library spins during waits.

use crate::cell::BenchCell;
use crate::request::{BenchRequest, DONE_RESPONSE, QUIT_WORD, RankStamps, UNSUPPORTED_RESPONSE};
use crate::run_context::RunContext;
use dist::base::deadline::Deadline;
use dist::sys::file::create_fifo;
use dist::sys::poll::Interest;
use dist::wait::io::ready_within;
use dist_tools::Failure;
use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The suffix of the request pipe of a rank. It follows the rank's number.
pub(crate) const REQUEST_SUFFIX: &str = ".orders";
/// The suffix of the stamps file of a rank. It follows the rank's number.
pub(crate) const SAMPLE_SUFFIX: &str = ".sample";
/// The suffix of the common response pipe.
pub(crate) const RESPONSE_SUFFIX: &str = ".answers";
/// The suffix of the common log file.
const LOG_SUFFIX: &str = ".log";

/// The timeout for the ranks to start and connect. It is long, because Python loads many files, and
/// there may be more ranks than cores.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// The timeout for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(180);

/// The timeout for the ranks to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which the driver checks whether a process has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// After a failure, the driver shows this number of lines from the end of the engine's log.
const LOG_TAIL_LINES: usize = 12;

/// Starts the processes of an engine, and knows which cells the engine supports.
pub(crate) trait EngineLauncher: fmt::Debug {
    /// Returns the name in tables.
    fn name(&self) -> &str;

    /// Returns the commands that start all ranks. The path of a rank's file is `path_prefix`, the
    /// rank's number and a suffix.
    fn commands(&self, ranks: usize, path_prefix: &Path) -> Result<Vec<Command>, Failure>;

    /// Returns true if the engine takes part in a cell.
    fn supports_cell(&self, cell: &BenchCell) -> bool;

    /// Returns true if the engine is not a library, but a handwritten program whose time is a lower
    /// bound.
    fn is_bound_engine(&self) -> bool {
        false
    }
}

/// The running ranks of an engine.
#[derive(Debug)]
pub(crate) struct BenchEngine {
    name: String,
    path_prefix: PathBuf,
    process_indices: Vec<usize>,
    request_pipes: Vec<File>,
    response_pipe: File,
    /// The received part of an incomplete response line.
    partial_line: String,
    /// True if a rank has responded that its library does not support the request.
    is_unsupported: bool,
}

impl BenchEngine {
    /// Starts the ranks, and waits until they are connected.
    pub(crate) fn start(
        launch: &dyn EngineLauncher,
        ranks: usize,
        context: &mut RunContext,
    ) -> Result<Self, Failure> {
        // The number of processes makes the path unique if the same engine is started again.
        let name_prefix = format!("{}-{ranks}-{}", launch.name(), context.process_count());
        let path_prefix = context.folder().join(name_prefix);
        let name = launch.name().to_owned();
        // Open the pipe for reading and writing: unlike an open for one direction, this does not
        // wait for the other side. When the driver exits, a rank reads the end of the pipe.
        let open = |path: PathBuf| {
            let opened = create_fifo(&path)
                .and_then(|()| File::options().read(true).write(true).open(&path));
            opened.map_err(|cause| {
                Failure::new(format!("cannot create the pipe {}: {cause}", path.display()))
            })
        };
        let request_pipes =
            (0..ranks).map(|rank| open(rank_file(&path_prefix, Some(rank), REQUEST_SUFFIX)));
        let request_pipes = request_pipes.collect::<Result<Vec<File>, Failure>>()?;
        let response_pipe = open(rank_file(&path_prefix, None, RESPONSE_SUFFIX))?;
        let mut engine = Self {
            name,
            path_prefix,
            process_indices: Vec::new(),
            request_pipes,
            response_pipe,
            partial_line: String::new(),
            is_unsupported: false,
        };
        let log = rank_file(&engine.path_prefix, None, LOG_SUFFIX);
        for mut command in launch.commands(ranks, &engine.path_prefix)? {
            engine.process_indices.push(context.start(&mut command, &log)?);
        }
        engine.await_responses(context, &Deadline::after(START_TIMEOUT), "to start and connect")?;
        Ok(engine)
    }

    /// Returns the name in tables.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Lets all ranks execute a request, and returns their stamps. Returns `None` if the library
    /// does not support the request.
    pub(crate) fn run_request(
        &mut self,
        request: &BenchRequest,
        context: &mut RunContext,
    ) -> Result<Option<Vec<RankStamps>>, Failure> {
        // Check for signals and exited processes here, because the wait below does not check if all
        // responses arrive immediately.
        context.poll_processes()?;
        self.is_unsupported = false;
        self.send_line(&request.to_line())?;
        let what = format!("for {} of {} elements", request.op.name(), request.count);
        self.await_responses(context, &Deadline::after(REQUEST_TIMEOUT), &what)?;
        if self.is_unsupported {
            return Ok(None);
        }
        let read = |rank: usize| {
            let path = rank_file(&self.path_prefix, Some(rank), SAMPLE_SUFFIX);
            let bytes = fs::read(&path).map_err(|cause| cause.to_string());
            let stamps = bytes.and_then(|bytes| {
                RankStamps::decode(&bytes, request.calls)
                    .ok_or_else(|| "not a valid sample".to_owned())
            });
            stamps.map_err(|reason| Failure::new(format!("{}: {reason}", path.display())))
        };
        (0..self.request_pipes.len()).map(read).collect::<Result<_, _>>().map(Some)
    }

    /// Tells the ranks to exit. Terminates the ranks that do not exit in time.
    pub(crate) fn shut_down(mut self, context: &mut RunContext) -> Result<(), Failure> {
        self.send_line(&format!("{QUIT_WORD}\n"))?;
        if !context.await_exits(&self.process_indices, &Deadline::after(EXIT_TIMEOUT))? {
            context.terminate(&self.process_indices)?;
        }
        Ok(())
    }

    /// Terminates the ranks of an engine that has failed.
    pub(crate) fn terminate_ranks(self, context: &mut RunContext) -> Result<(), Failure> {
        context.terminate(&self.process_indices)
    }

    fn send_line(&mut self, line: &str) -> Result<(), Failure> {
        for pipe in &mut self.request_pipes {
            let written = pipe.write_all(line.as_bytes());
            written.map_err(|cause| {
                Failure::new(format!("{}: cannot write a request: {cause}", self.name))
            })?;
        }
        Ok(())
    }

    /// Waits until each rank has responded once.
    fn await_responses(
        &mut self,
        context: &mut RunContext,
        deadline: &Deadline,
        purpose: &str,
    ) -> Result<(), Failure> {
        let mut missing = self.request_pipes.len();
        while missing > 0 {
            let slice = deadline.capped(POLL_INTERVAL);
            let is_ready = ready_within(self.response_pipe.as_fd(), Interest::READ, &slice);
            if is_ready.map_err(|cause| self.failure_with_log(&cause.to_string()))? {
                missing -= self.read_responses()?.min(missing);
                continue;
            }
            context.poll_processes()?;
            let ended = self
                .process_indices
                .iter()
                .filter_map(|&number| context.exit_status(number))
                .next();
            if let Some(exit) = ended {
                let status = exit.shell_status();
                return Err(self.failure_with_log(&format!(
                    "one of its processes ended with status {status}"
                )));
            }
            if deadline.has_passed() {
                let seconds = deadline.timeout().as_secs();
                return Err(self
                    .failure_with_log(&format!("the ranks took more than {seconds} s {purpose}")));
            }
        }
        Ok(())
    }

    /// Reads available responses, and returns their number.
    fn read_responses(&mut self) -> Result<usize, Failure> {
        let mut bytes = [0; 4096];
        let got = self
            .response_pipe
            .read(&mut bytes)
            .map_err(|cause| self.failure_with_log(&cause.to_string()))?;
        self.partial_line.push_str(&String::from_utf8_lossy(&bytes[..got]));
        let mut count = 0;
        while let Some((line, rest)) = self.partial_line.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            self.partial_line = rest;
            match line.split_once(' ') {
                Some((_, DONE_RESPONSE)) => count += 1,
                Some((_, UNSUPPORTED_RESPONSE)) => {
                    self.is_unsupported = true;
                    count += 1;
                }
                Some((rank, what)) => {
                    return Err(self.failure_with_log(&format!("rank {rank}: {what}")));
                }
                None => {
                    return Err(self.failure_with_log(&format!("not a valid response: {line}")));
                }
            }
        }
        Ok(count)
    }

    /// Builds a failure of this engine with the last lines of its log.
    fn failure_with_log(&self, reason: &str) -> Failure {
        let log_tail = log_tail(&rank_file(&self.path_prefix, None, LOG_SUFFIX));
        Failure::new(format!("{}: {reason}{log_tail}", self.name))
    }
}

/// Returns the last lines of a log, for a message.
pub(crate) fn log_tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
    last.iter().map(|line| format!("\n  | {line}")).collect()
}

/// Returns the path of a rank's file, or of a common file.
fn rank_file(path_prefix: &Path, rank: Option<usize>, suffix: &str) -> PathBuf {
    let rank = rank.map_or_else(String::new, |rank| format!(".{rank}"));
    PathBuf::from(format!("{}{rank}{suffix}", path_prefix.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_have_prefix_rank_and_suffix() {
        let path_prefix = Path::new("/tmp/x/ours-2");
        assert_eq!(
            rank_file(path_prefix, Some(1), REQUEST_SUFFIX),
            PathBuf::from("/tmp/x/ours-2.1.orders")
        );
        assert_eq!(
            rank_file(path_prefix, None, RESPONSE_SUFFIX),
            PathBuf::from("/tmp/x/ours-2.answers")
        );
    }
}
