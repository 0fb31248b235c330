//! The threads that forward the ranks' output: one for standard output and one for standard error.
//! So a slow reader of one stream blocks neither the other stream nor the supervision of ranks.
//!
//! Each thread is the only writer of its stream, and writes complete lines. If a rank writes faster
//! than the reader of distrun's output reads, the rank blocks, as it would without a launcher.
//! After a restart, the threads of the new attempt write only when the threads of the earlier
//! attempt have written everything.

use crate::line_splitter::{LineSplitter, MAX_LINE_BYTES, OutputTail};
use crate::report_error;
use dist::base::Result;
use dist::base::error::Error;
use dist::sys::poll::{Interest, PollEvents, Poller};
use dist::sys::thread;
use std::fs::File;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read as _, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// After the ranks have exited, the thread reads up to this number of bytes from each stream. A
/// pipe rarely holds more. There is a limit, because a process that left a rank's process group may
/// write forever, and must not keep distrun alive.
const DRAIN_BYTES: usize = 1 << 20;

/// The time limit of one wait for output. The thread repeats the wait.
const POLL_TIMEOUT: Duration = Duration::from_secs(3600);

/// If distrun's output stream is non-blocking and full, the thread tries to write again after this
/// time.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The poll token of the control pipe, through which the main thread sends messages to the
/// forwarder thread.
const CONTROL_TOKEN: u64 = u64::MAX;

/// One output stream of one rank.
#[derive(Debug)]
pub(crate) struct RankOutput {
    /// The read end of the stream's pipe. `None` after the stream has ended.
    pipe: Option<File>,
    splitter: LineSplitter,
    to_console: bool,
    log: Option<(File, String)>,
    drained_bytes: usize,
}

impl RankOutput {
    /// Creates the stream of `rank` that is read from `pipe`. If `to_console` is true, the stream
    /// is forwarded. If there is a log (a file and its name), the stream is written to it.
    pub(crate) fn new(
        rank: usize,
        pipe: OwnedFd,
        to_console: bool,
        log: Option<(File, String)>,
        tail: OutputTail,
    ) -> Self {
        let splitter = LineSplitter::new(format!("[{rank}] "), tail);
        Self { pipe: Some(File::from(pipe)), splitter, to_console, log, drained_bytes: 0 }
    }
}

/// A running forwarder thread.
#[derive(Debug)]
pub(crate) struct OutputForwarder {
    thread: JoinHandle<()>,
    /// The write end of the control pipe. It is closed after the ranks have exited.
    control: Option<PipeWriter>,
    /// The channel that is disconnected when the thread ends.
    finished: Receiver<()>,
}

/// The output of an earlier attempt. A new forwarder thread writes nothing before it is written.
#[derive(Debug, Default)]
pub(crate) struct QueuedOutput {
    /// The forwarder of the earlier attempt, if it still runs.
    pub(crate) forwarder: Option<OutputForwarder>,
    /// A message of distrun itself, which is written after the output of `forwarder`.
    pub(crate) text: String,
}

impl OutputForwarder {
    /// Starts a thread that writes the queued output of an earlier attempt, and then forwards the
    /// output of `sources` to `sink`.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn start(
        name: &'static str,
        queued: QueuedOutput,
        sources: Vec<RankOutput>,
        sink: Box<dyn Write + Send>,
    ) -> Result<Self> {
        let pipe_error = |cause| Error::system("cannot prepare the pipes for output", cause);
        let (reader, control) = std::io::pipe().map_err(pipe_error)?;
        let poller = Poller::new()?;
        poller.add(reader.as_fd(), CONTROL_TOKEN, Interest::READ).map_err(pipe_error)?;
        for (index, source) in sources.iter().enumerate() {
            let Some(pipe) = &source.pipe else { continue };
            poller.add(pipe.as_fd(), index as u64, Interest::READ).map_err(pipe_error)?;
        }
        let out = OutputSink { name, sink: Some(sink) };
        let (events, buffer) = (PollEvents::with_capacity(1), vec![0; MAX_LINE_BYTES]);
        let control_end = Some(reader);
        let forwarder_thread =
            ForwarderThread { poller, events, control: control_end, sources, sink: out, buffer };
        let (finished_sender, finished) = mpsc::channel();
        let thread = thread::spawn("distrun output", move || {
            forwarder_thread.run(queued);
            drop(finished_sender);
        })?;
        Ok(Self { thread, control: Some(control), finished })
    }

    /// Writes a message of distrun between the lines of the ranks. Does not wait until it is
    /// written.
    pub(crate) fn write_message(&mut self, text: &str) {
        if let Some(control) = &mut self.control {
            drop(control.write_all(format!("distrun: {text}\n").as_bytes()));
        }
    }

    /// Waits until the thread has forwarded the remaining output. If this takes longer than
    /// `limit`, because the reader is slow, returns the forwarder. The caller calls this after the
    /// ranks have exited.
    pub(crate) fn close(mut self, limit: Duration) -> Option<Self> {
        self.control = None;
        match self.finished.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => Some(self),
            _ => {
                self.finish();
                None
            }
        }
    }

    /// Waits without a limit until the thread has forwarded the remaining output and has ended. The
    /// caller calls this after the ranks have exited.
    pub(crate) fn finish(self) {
        drop(self.control);
        drop(self.thread.join());
    }
}

/// The state of a forwarder thread.
struct ForwarderThread {
    poller: Poller,
    events: PollEvents,
    /// The read end of the control pipe. `None` after the pipe was closed. The thread then reads
    /// only the output that is available, and does not wait for more.
    control: Option<PipeReader>,
    sources: Vec<RankOutput>,
    sink: OutputSink,
    buffer: Vec<u8>,
}

impl ForwarderThread {
    fn run(mut self, queued: QueuedOutput) {
        if let Some(forwarder) = queued.forwarder {
            forwarder.finish();
        }
        self.sink.write(queued.text.as_bytes());
        loop {
            let is_draining = self.control.is_none();
            match self.next_token(if is_draining { Duration::ZERO } else { POLL_TIMEOUT }) {
                Some(CONTROL_TOKEN) => self.forward_message(),
                Some(token) => self.forward_output(usize::try_from(token).unwrap_or(usize::MAX)),
                None if is_draining => break,
                None => {}
            }
        }
        for index in 0..self.sources.len() {
            self.close_source(index);
        }
    }

    /// Waits for an event, and returns its token. Of several ready sources, takes the one that has
    /// been ready for the longest time.
    fn next_token(&mut self, limit: Duration) -> Option<u64> {
        self.poller.wait(&mut self.events, Some(limit)).ok()?;
        self.events.iter().next().map(|event| event.token)
    }

    fn forward_message(&mut self) {
        let Some(control) = &mut self.control else { return };
        match control.read(&mut self.buffer) {
            Ok(length) if length > 0 => self.sink.write(&self.buffer[..length]),
            _ => self.control = None,
        }
    }

    fn forward_output(&mut self, index: usize) {
        let is_draining = self.control.is_none();
        let Some(source) = self.sources.get_mut(index) else { return };
        let Some(pipe) = &mut source.pipe else { return };
        let length = match pipe.read(&mut self.buffer) {
            Err(cause) if cause.kind() == ErrorKind::Interrupted => return,
            Err(_) | Ok(0) => return self.close_source(index),
            Ok(length) => length,
        };
        let bytes = &self.buffer[..length];
        source.write_log(bytes);
        let mut text = Vec::new();
        source.splitter.split(bytes, &mut text);
        if source.to_console {
            self.sink.write(&text);
        }
        if is_draining {
            source.drained_bytes += length;
            if source.drained_bytes >= DRAIN_BYTES {
                self.close_source(index);
            }
        }
    }

    /// Closes a stream that has ended, and forwards its unfinished last line.
    fn close_source(&mut self, index: usize) {
        let Some(source) = self.sources.get_mut(index) else { return };
        if source.pipe.take().is_none() {
            return;
        }
        let mut text = Vec::new();
        source.splitter.finish(&mut text);
        if source.to_console {
            self.sink.write(&text);
        }
    }
}

impl RankOutput {
    /// Writes to the log. After an error, reports it once and stops writing this log, because the
    /// job must continue.
    fn write_log(&mut self, bytes: &[u8]) {
        let Some((file, name)) = &mut self.log else { return };
        if let Err(cause) = file.write_all(bytes) {
            report_error(&format!("cannot write to the log {name}, which ends here: {cause}"));
            self.log = None;
        }
    }
}

/// The output stream of distrun that receives the lines.
struct OutputSink {
    name: &'static str,
    sink: Option<Box<dyn Write + Send>>,
}

impl OutputSink {
    /// Writes complete lines. After a write error, drops all further lines.
    fn write(&mut self, text: &[u8]) {
        let Some(sink) = &mut self.sink else { return };
        if let Err(cause) = write_all(sink.as_mut(), text) {
            self.sink = None;
            let name = self.name;
            report_error(&format!(
                "{name} cannot be written ({cause}); further output for it is dropped"
            ));
        }
    }
}

/// Writes like `Write::write_all`. Also works if another process has made the stream non-blocking.
fn write_all(sink: &mut dyn Write, mut text: &[u8]) -> std::io::Result<()> {
    while !text.is_empty() {
        match sink.write(text) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => text = &text[written..],
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(RETRY_INTERVAL)
            }
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pending_pipe_output_is_forwarded_before_the_end() {
        let sink = SharedBuffer::default();
        let mut writers = Vec::new();
        let mut sources = Vec::new();
        for rank in 0..2 {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(b"one\ntwo").unwrap();
            writers.push(writer);
            sources.push(RankOutput::new(rank, reader.into(), true, None, OutputTail::default()));
        }
        let queued = QueuedOutput { forwarder: None, text: "before\n".to_owned() };
        let mut forwarder =
            OutputForwarder::start("test", queued, sources, Box::new(sink.clone())).unwrap();
        forwarder.write_message("hello");
        // The write ends are still open: a process that left a rank's process group may hold them.
        forwarder.finish();
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("before\n"), "{text}");
        for line in ["[0] one\n", "[0] two\n", "[1] one\n", "[1] two\n", "distrun: hello\n"] {
            assert!(text.contains(line), "{text}");
        }
        drop(writers);
    }

    #[test]
    fn next_forwarder_writes_after_a_slow_previous_one() {
        /// A writer that blocks until its gate opens.
        struct GatedWriter(Arc<Mutex<()>>, SharedBuffer);

        impl Write for GatedWriter {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                let _open = self.0.lock().unwrap();
                self.1.write(bytes)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        let (sink, gate) = (SharedBuffer::default(), Arc::new(Mutex::new(())));
        let closed_gate = gate.lock().unwrap();
        let first = QueuedOutput { forwarder: None, text: "one\n".to_owned() };
        let gated = GatedWriter(Arc::clone(&gate), sink.clone());
        let forwarder = OutputForwarder::start("test", first, Vec::new(), Box::new(gated)).unwrap();
        let forwarder = forwarder.close(Duration::from_millis(1));
        assert!(forwarder.is_some());
        let second = QueuedOutput { forwarder, text: "two\n".to_owned() };
        let forwarder =
            OutputForwarder::start("test", second, Vec::new(), Box::new(sink.clone())).unwrap();
        drop(closed_gate);
        assert!(forwarder.close(Duration::from_secs(60)).is_none());
        assert_eq!(sink.0.lock().unwrap().as_slice(), b"one\ntwo\n");
    }
}
