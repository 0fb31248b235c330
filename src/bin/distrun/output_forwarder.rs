//! The threads that pass on what ranks write: one for standard output, one for standard error, so
//! that a reader that is slow with one of them does not hold up the other, nor the watch over
//! ranks.
//!
//! Each is the only writer of its stream, and writes whole lines. A rank that writes faster than
//! the reader reads waits, as it would without a launcher between. Where the ranks are started
//! again, the threads of the next attempt write only once those before have written all.

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

/// How much is still read from a stream once the ranks are gone; a pipe rarely holds more, and what
/// left a rank's process group must not keep us for ever.
const DRAIN_BYTES: usize = 1 << 20;

/// How long a wait for output may last before it is begun again.
const POLL_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long to wait for room in a stream that does not wait by itself.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The token of the pipe by which the launcher speaks to the thread.
const CONTROL_TOKEN: u64 = u64::MAX;

/// One stream of one rank.
#[derive(Debug)]
pub(crate) struct RankOutput {
    /// Closed, and with that no longer watched, once it has ended.
    pipe: Option<File>,
    splitter: LineSplitter,
    to_console: bool,
    log: Option<(File, String)>,
    drained_bytes: usize,
}

impl RankOutput {
    /// A stream of `rank` that is read from `pipe`, shown if `to_console` is set, and written to
    /// the log if there is one (with its name).
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

/// A running thread.
#[derive(Debug)]
pub(crate) struct OutputForwarder {
    thread: JoinHandle<()>,
    /// Closed once the ranks have ended.
    control: Option<PipeWriter>,
    /// Breaks off when the thread ends.
    finished: Receiver<()>,
}

/// What is written before anything else.
#[derive(Debug, Default)]
pub(crate) struct QueuedOutput {
    /// What a thread that still runs has to write.
    pub(crate) forwarder: Option<OutputForwarder>,
    /// A text of distrun's own, behind that.
    pub(crate) text: String,
}

impl OutputForwarder {
    /// Starts a thread that passes on what comes from `sources` to `sink`, behind what is still to
    /// be written.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn start(
        name: &'static str,
        queued: QueuedOutput,
        sources: Vec<RankOutput>,
        sink: Box<dyn Write + Send>,
    ) -> Result<Self> {
        let pipe_error = |cause| Error::system("pipes for output", &cause);
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

    /// Writes a message between the lines of ranks. Does not wait for the reader.
    pub(crate) fn write_message(&mut self, text: &str) {
        if let Some(control) = &mut self.control {
            drop(control.write_all(format!("distrun: {text}\n").as_bytes()));
        }
    }

    /// Lets the thread pass on what is still there, and gives it back where the reader of the
    /// stream has not taken that by the limit. To be called once the ranks have ended.
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

    /// Passes on what is still there, and ends. To be called once the ranks have ended; waits as
    /// long as the reader of the stream takes.
    pub(crate) fn finish(self) {
        drop(self.control);
        drop(self.thread.join());
    }
}

/// What the thread works with.
struct ForwarderThread {
    poller: Poller,
    events: PollEvents,
    /// Closed once the launcher has: from then on nothing is waited for.
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

    /// The token of what has been ready longest.
    fn next_token(&mut self, limit: Duration) -> Option<u64> {
        self.poller.wait(&mut self.events, Some(limit)).ok()?;
        self.events.iter().next().map(|event| event.token)
    }

    fn forward_message(&mut self) {
        let Some(control) = &mut self.control else { return };
        match control.read(&mut self.buffer) {
            Ok(got) if got > 0 => self.sink.write(&self.buffer[..got]),
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
            Ok(got) => got,
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

    /// The stream has ended; its last line may lack its end.
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
    /// A log that cannot be written is given up, once and with a word: the job is worth more.
    fn write_log(&mut self, bytes: &[u8]) {
        let Some((file, name)) = &mut self.log else { return };
        if let Err(cause) = file.write_all(bytes) {
            report_error(&format!("the log {name} ends here: {cause}"));
            self.log = None;
        }
    }
}

/// The stream of ours that lines go to.
struct OutputSink {
    name: &'static str,
    sink: Option<Box<dyn Write + Send>>,
}

impl OutputSink {
    /// Writes whole lines. Once nobody reads any more, drops them.
    fn write(&mut self, text: &[u8]) {
        let Some(sink) = &mut self.sink else { return };
        if let Err(cause) = write_all(sink.as_mut(), text) {
            self.sink = None;
            let name = self.name;
            report_error(&format!(
                "{name} cannot be written ({cause}); what goes there is dropped"
            ));
        }
    }
}

/// As `Write::write_all`, also for a stream that whoever gave it to us has made non-blocking.
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
        // The writers are still open: what has left a rank's group may hold them.
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
        /// Lets nothing through until its gate is opened.
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
        let pump = OutputForwarder::start("test", first, Vec::new(), Box::new(gated)).unwrap();
        let pump = pump.close(Duration::from_millis(1));
        assert!(pump.is_some());
        let second = QueuedOutput { forwarder: pump, text: "two\n".to_owned() };
        let pump =
            OutputForwarder::start("test", second, Vec::new(), Box::new(sink.clone())).unwrap();
        drop(closed_gate);
        assert!(pump.close(Duration::from_secs(60)).is_none());
        assert_eq!(sink.0.lock().unwrap().as_slice(), b"one\ntwo\n");
    }
}
