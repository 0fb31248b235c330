//! The threads that pass on what ranks write: one for standard output, one for standard error, so
//! that a reader that is slow with one of them does not hold up the other, nor the watch over
//! ranks.
//!
//! Each is the only writer of its stream, and writes whole lines. A rank that writes faster than
//! the reader reads waits, as it would without a launcher between. Where the ranks are started
//! again, the threads of the next attempt write only once those before have written all.

use crate::complain;
use crate::lines::{Lines, MAX_LINE, Tail};
use dist::base::Result;
use dist::base::error::Error;
use dist::sys::poll::{Events, Interest, Poller};
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
const LONG: Duration = Duration::from_secs(3600);

/// How long to wait for room in a stream that does not wait by itself.
const RETRY: Duration = Duration::from_millis(1);

/// The token of the pipe by which the launcher speaks to the thread.
const CONTROL: u64 = u64::MAX;

/// One stream of one rank.
#[derive(Debug)]
pub(crate) struct Source {
    /// Closed, and with that no longer watched, once it has ended.
    pipe: Option<File>,
    lines: Lines,
    console: bool,
    log: Option<(File, String)>,
    drained: usize,
}

impl Source {
    /// A stream of `rank` that is read from `pipe`, shown if `console` is set, and written to the
    /// log if there is one (with its name).
    pub(crate) fn new(
        rank: usize,
        pipe: OwnedFd,
        console: bool,
        log: Option<(File, String)>,
        tail: Tail,
    ) -> Self {
        let lines = Lines::new(format!("[{rank}] "), tail);
        Self { pipe: Some(File::from(pipe)), lines, console, log, drained: 0 }
    }
}

/// A running thread.
#[derive(Debug)]
pub(crate) struct Pump {
    thread: JoinHandle<()>,
    /// Closed once the ranks have ended.
    control: Option<PipeWriter>,
    /// Breaks off when the thread ends.
    ended: Receiver<()>,
}

/// What is written before anything else.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// What a thread that still runs has to write.
    pub(crate) pump: Option<Pump>,
    /// A text of distrun's own, behind that.
    pub(crate) text: String,
}

impl Pump {
    /// Starts a thread that passes on what comes from `sources` to `sink`, behind what is still to
    /// be written.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn start(
        name: &'static str,
        before: Before,
        sources: Vec<Source>,
        sink: Box<dyn Write + Send>,
    ) -> Result<Self> {
        let system = |cause| Error::system("pipes for output", &cause);
        let (reader, control) = std::io::pipe().map_err(system)?;
        let poller = Poller::new()?;
        poller.add(reader.as_fd(), CONTROL, Interest::READ).map_err(system)?;
        for (index, source) in sources.iter().enumerate() {
            let Some(pipe) = &source.pipe else { continue };
            poller.add(pipe.as_fd(), index as u64, Interest::READ).map_err(system)?;
        }
        let out = Outlet { name, sink: Some(sink) };
        let (events, buffer) = (Events::with_room(1), vec![0; MAX_LINE]);
        let control_end = Some(reader);
        let flow = Flow { poller, events, control: control_end, sources, out, buffer };
        let (until_end, ended) = mpsc::channel();
        let thread = thread::spawn("distrun output", move || {
            flow.run(before);
            drop(until_end);
        })?;
        Ok(Self { thread, control: Some(control), ended })
    }

    /// Writes a message between the lines of ranks. Does not wait for the reader.
    pub(crate) fn say(&mut self, text: &str) {
        if let Some(control) = &mut self.control {
            drop(control.write_all(format!("distrun: {text}\n").as_bytes()));
        }
    }

    /// Lets the thread pass on what is still there, and gives it back where the reader of the
    /// stream has not taken that by the limit. To be called once the ranks have ended.
    pub(crate) fn close(mut self, limit: Duration) -> Option<Self> {
        self.control = None;
        match self.ended.recv_timeout(limit) {
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
struct Flow {
    poller: Poller,
    events: Events,
    /// Closed once the launcher has: from then on nothing is waited for.
    control: Option<PipeReader>,
    sources: Vec<Source>,
    out: Outlet,
    buffer: Vec<u8>,
}

impl Flow {
    fn run(mut self, before: Before) {
        if let Some(pump) = before.pump {
            pump.finish();
        }
        self.out.write(before.text.as_bytes());
        loop {
            let draining = self.control.is_none();
            match self.next(if draining { Duration::ZERO } else { LONG }) {
                Some(CONTROL) => self.pass_message(),
                Some(token) => self.pass_output(usize::try_from(token).unwrap_or(usize::MAX)),
                None if draining => break,
                None => {}
            }
        }
        for index in 0..self.sources.len() {
            self.close(index);
        }
    }

    /// The token of what has been ready longest.
    fn next(&mut self, limit: Duration) -> Option<u64> {
        self.poller.wait(&mut self.events, Some(limit)).ok()?;
        self.events.iter().next().map(|event| event.token)
    }

    fn pass_message(&mut self) {
        let Some(control) = &mut self.control else { return };
        match control.read(&mut self.buffer) {
            Ok(got) if got > 0 => self.out.write(&self.buffer[..got]),
            _ => self.control = None,
        }
    }

    fn pass_output(&mut self, index: usize) {
        let draining = self.control.is_none();
        let Some(source) = self.sources.get_mut(index) else { return };
        let Some(pipe) = &mut source.pipe else { return };
        let got = match pipe.read(&mut self.buffer) {
            Err(cause) if cause.kind() == ErrorKind::Interrupted => return,
            Err(_) | Ok(0) => return self.close(index),
            Ok(got) => got,
        };
        let bytes = &self.buffer[..got];
        source.write_log(bytes);
        let mut text = Vec::new();
        source.lines.feed(bytes, &mut text);
        if source.console {
            self.out.write(&text);
        }
        if draining {
            source.drained += got;
            if source.drained >= DRAIN_BYTES {
                self.close(index);
            }
        }
    }

    /// The stream has ended; its last line may lack its end.
    fn close(&mut self, index: usize) {
        let Some(source) = self.sources.get_mut(index) else { return };
        if source.pipe.take().is_none() {
            return;
        }
        let mut text = Vec::new();
        source.lines.finish(&mut text);
        if source.console {
            self.out.write(&text);
        }
    }
}

impl Source {
    /// A log that cannot be written is given up, once and with a word: the job is worth more.
    fn write_log(&mut self, bytes: &[u8]) {
        let Some((file, name)) = &mut self.log else { return };
        if let Err(cause) = file.write_all(bytes) {
            complain(&format!("the log {name} ends here: {cause}"));
            self.log = None;
        }
    }
}

/// The stream of ours that lines go to.
struct Outlet {
    name: &'static str,
    sink: Option<Box<dyn Write + Send>>,
}

impl Outlet {
    /// Writes whole lines. Once nobody reads any more, drops them.
    fn write(&mut self, text: &[u8]) {
        let Some(sink) = &mut self.sink else { return };
        if let Err(cause) = write_all(sink.as_mut(), text) {
            self.sink = None;
            let name = self.name;
            complain(&format!("{name} cannot be written ({cause}); what goes there is dropped"));
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
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
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
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_in_the_pipes_is_passed_on_before_the_end() {
        let sink = Shared::default();
        let mut writers = Vec::new();
        let mut sources = Vec::new();
        for rank in 0..2 {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(b"one\ntwo").unwrap();
            writers.push(writer);
            sources.push(Source::new(rank, reader.into(), true, None, Tail::default()));
        }
        let before = Before { pump: None, text: "before\n".to_owned() };
        let mut pump = Pump::start("test", before, sources, Box::new(sink.clone())).unwrap();
        pump.say("hello");
        // The writers are still open: what has left a rank's group may hold them.
        pump.finish();
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("before\n"), "{text}");
        for line in ["[0] one\n", "[0] two\n", "[1] one\n", "[1] two\n", "distrun: hello\n"] {
            assert!(text.contains(line), "{text}");
        }
        drop(writers);
    }

    #[test]
    fn the_next_one_writes_behind_the_one_before_however_slow_its_reader() {
        /// Lets nothing through until its gate is opened.
        struct Gated(Arc<Mutex<()>>, Shared);

        impl Write for Gated {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                let _open = self.0.lock().unwrap();
                self.1.write(bytes)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        let (sink, gate) = (Shared::default(), Arc::new(Mutex::new(())));
        let shut = gate.lock().unwrap();
        let first = Before { pump: None, text: "one\n".to_owned() };
        let gated = Gated(Arc::clone(&gate), sink.clone());
        let pump = Pump::start("test", first, Vec::new(), Box::new(gated)).unwrap();
        let pump = pump.close(Duration::from_millis(1));
        assert!(pump.is_some());
        let second = Before { pump, text: "two\n".to_owned() };
        let pump = Pump::start("test", second, Vec::new(), Box::new(sink.clone())).unwrap();
        drop(shut);
        assert!(pump.close(Duration::from_secs(60)).is_none());
        assert_eq!(sink.0.lock().unwrap().as_slice(), b"one\ntwo\n");
    }
}
