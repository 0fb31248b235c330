//! The link between a rank and the driver (the dist-bench process that starts all ranks). The rank
//! reads requests from one pipe and writes responses to another pipe. It writes its stamps (the
//! start and end times of the calls) into a file.

use crate::engine::{REQUEST_SUFFIX, RESPONSE_SUFFIX, SAMPLE_SUFFIX};
use crate::request::{BenchRequest, DONE_RESPONSE, QUIT_WORD, RankStamps, UNSUPPORTED_RESPONSE};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

/// A rank's end of the pipes.
#[derive(Debug)]
pub(crate) struct DriverLink {
    rank: usize,
    sample_path: PathBuf,
    request_pipe: BufReader<File>,
    response_pipe: File,
}

impl DriverLink {
    /// Opens the pipes that the driver has created. Their paths begin with `path_prefix`.
    ///
    /// # Errors
    /// The reason for the failure.
    pub(crate) fn open(rank: usize, path_prefix: &str) -> Result<Self, String> {
        let with_context = |what: &'static str| move |cause| format!("{what}: {cause}");
        let file = |suffix: &str| PathBuf::from(format!("{path_prefix}.{rank}{suffix}"));
        let request_pipe = BufReader::new(
            File::open(file(REQUEST_SUFFIX))
                .map_err(with_context("cannot open the request pipe"))?,
        );
        let response_pipe =
            File::options().write(true).open(format!("{path_prefix}{RESPONSE_SUFFIX}"));
        let response_pipe = response_pipe.map_err(with_context("cannot open the response pipe"))?;
        Ok(Self { rank, sample_path: file(SAMPLE_SUFFIX), request_pipe, response_pipe })
    }

    /// Runs the rank's main function, and reports its error to the driver.
    ///
    /// # Errors
    /// The error of `body`.
    pub(crate) fn run_and_report(
        mut self,
        body: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let outcome = body(&mut self);
        if let Err(message) = &outcome {
            // If the driver no longer reads, ignore the error.
            drop(self.respond(&format!("error: {message}")));
        }
        outcome
    }

    /// Reads and executes requests until the driver ends the rank. `execute` returns `None` if the
    /// library does not support the request.
    ///
    /// # Errors
    /// The error of `execute`, or the reason why a request cannot be read.
    pub(crate) fn serve_requests(
        &mut self,
        execute: &mut dyn FnMut(&BenchRequest) -> Result<Option<RankStamps>, String>,
    ) -> Result<(), String> {
        let mut response = DONE_RESPONSE;
        loop {
            self.respond(response)?;
            let mut line = String::new();
            self.request_pipe
                .read_line(&mut line)
                .map_err(|cause| format!("cannot read a request: {cause}"))?;
            // If the line is empty, the pipe is closed, so the driver has exited.
            if line.is_empty() || line.trim_end() == QUIT_WORD {
                return Ok(());
            }
            let request =
                BenchRequest::parse(&line).ok_or_else(|| format!("not a valid request: {line}"))?;
            response = UNSUPPORTED_RESPONSE;
            if let Some(stamps) = execute(&request)? {
                fs::write(&self.sample_path, stamps.encode())
                    .map_err(|cause| format!("cannot write the sample: {cause}"))?;
                response = DONE_RESPONSE;
            }
        }
    }

    fn respond(&mut self, text: &str) -> Result<(), String> {
        let line = format!("{} {text}\n", self.rank);
        self.response_pipe
            .write_all(line.as_bytes())
            .map_err(|cause| format!("cannot write a response: {cause}"))
    }
}
