//! The trace: the operations of this process with their times, as a file for trace viewers.
//!
//! | file | content |
//! |---|---|
//! | [`track`] | the tracks of groups with their lanes |
//! | [`span`] | the spans of running operations |
//! | [`event`] | the recorded events |
//! | [`writer`] | the writer thread and the file format |
//!
//! Without a trace, an operation pays one relaxed load. With a trace, each ended operation puts a
//! record into a buffer of [`BUFFER_EVENTS`] records. The writer empties the buffer at least every
//! 100 ms (`WRITE_INTERVAL`). If the buffer is full, the record is dropped and counted, and the
//! file has the number of drops. An error of the file never affects a job: it ends the trace and is
//! reported in the log and by [`stop`].
//!
//! The lock of the buffer is held for one copy of a record, and by the writer for the exchange of
//! two buffers.

mod event;
mod span;
mod track;
mod writer;

pub(in crate::api) use span::OperationSpan;
pub(in crate::api) use track::GroupTrack;

use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::{lock, unpoisoned};
use crate::process::{this_process, thread};
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use event::TraceEvent;
use serde_json::{Value, json};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;
use writer::TraceWriter;

/// The number of records in the buffer.
const BUFFER_EVENTS: usize = 1 << 15;

/// The number of records at which the writer is woken.
const WAKE_THRESHOLD: usize = BUFFER_EVENTS / 4;

/// The interval at which the writer polls. If a process is killed, its file lacks at most the
/// records of this time.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

/// The time for which [`stop`] waits for the file, and for which the end of a group waits for its
/// records.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The state shared by the recording threads and the writer.
#[derive(Debug)]
struct TraceBuffer {
    path: String,
    events: Mutex<Vec<TraceEvent>>,
    /// The number of records dropped because the buffer was full.
    dropped: AtomicU64,
    /// The number of flush requests, and how many of them are done.
    flush_requests: AtomicU64,
    flushes_done: AtomicU64,
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Rung to wake the writer, and rung by the writer.
    writer_doorbell: Doorbell,
    progress_doorbell: Doorbell,
}

/// The running trace.
struct ActiveTrace {
    sink: Arc<TraceBuffer>,
    is_from_environment: bool,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static ACTIVE_TRACE: RwLock<Option<ActiveTrace>> = RwLock::new(None);

/// Returns whether operations are traced.
#[inline]
pub(in crate::api) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Starts a trace of this process to a file, which is created or truncated.
///
/// # Errors
/// `InvalidArgument` while another trace is being written; `System`, `OutOfMemory`.
pub fn start(path: &str) -> Result<()> {
    begin_trace(path, false)
}

/// Ends the trace and its file. Does nothing if there is no trace.
///
/// # Errors
/// The error that ended the trace earlier; `Timeout` if the file is not written within 10 s.
pub fn stop() -> Result<()> {
    IS_ON.store(false, Ordering::Relaxed);
    let running = unpoisoned(ACTIVE_TRACE.write()).take();
    running.map_or(Ok(()), |running| running.sink.finish())
}

/// Writes the buffered records to the file. Waits at most 1 s.
pub(in crate::api) fn flush() {
    if let Some(sink) = active_buffer() {
        let request = sink.flush_requests.fetch_add(1, Ordering::Relaxed) + 1;
        sink.writer_doorbell.notify();
        let done = |sink: &TraceBuffer| sink.flushes_done.load(Ordering::Acquire) >= request;
        sink.wait(FLUSH_TIMEOUT, done);
    }
}

/// Starts a trace if the environment requests one and none is running. `rank` is this process's
/// rank.
pub(in crate::api) fn start_from_environment(rank: Rank) {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let prefix = match config::read_text(config::TRACE_FILE) {
        Ok(Some(prefix)) => prefix,
        Ok(None) => return,
        Err(error) => return crate::log!(LogLevel::Error, "no trace is written: {error}"),
    };
    if active_buffer().is_some() {
        return;
    }
    // A process that creates another world group must not overwrite its earlier file.
    let path = match TRACES.fetch_add(1, Ordering::Relaxed) {
        0 => format!("{prefix}{rank}.json"),
        earlier => format!("{prefix}{rank}.{earlier}.json"),
    };
    if let Err(error) = begin_trace(&path, true) {
        crate::log!(
            LogLevel::Error,
            "no trace is written although {} requests one: {error}",
            config::TRACE_FILE.name
        );
    }
}

/// Ends the trace if the environment requested it.
pub(in crate::api) fn stop_from_environment() {
    let is_ours =
        unpoisoned(ACTIVE_TRACE.read()).as_ref().is_some_and(|running| running.is_from_environment);
    if is_ours && let Err(error) = stop() {
        crate::log!(LogLevel::Warn, "the trace is incomplete: {error}");
    }
}

/// Describes the running trace for `dist_group_describe`; null if there is none.
pub(in crate::api) fn describe() -> Value {
    let Some(sink) = active_buffer() else { return Value::Null };
    let failure = sink.failure().as_ref().map(|error| error.message().to_owned());
    json!({
        "file": sink.path,
        "dropped": sink.dropped.load(Ordering::Relaxed),
        "error": failure,
    })
}

fn active_buffer() -> Option<Arc<TraceBuffer>> {
    let running = unpoisoned(ACTIVE_TRACE.read());
    running.as_ref().map(|running| Arc::clone(&running.sink))
}

fn begin_trace(path: &str, by_environment: bool) -> Result<()> {
    let check_not_active = |running: Option<&ActiveTrace>| match running {
        Some(ActiveTrace { sink, .. }) if sink.failure().is_none() => {
            let path = &sink.path;
            let message = format!("a trace is being written to {path}: call dist_trace_stop first");
            Err(Error::invalid(message))
        }
        _ => Ok(()),
    };
    check_not_active(unpoisoned(ACTIVE_TRACE.read()).as_ref())?;
    // The file is created without the lock: a file system may be slow.
    let file = File::create(path)
        .map_err(|cause| Error::system(format_args!("creating the trace {path}"), cause))?;
    let sink = Arc::new(TraceBuffer::new(path)?);
    let writer = TraceWriter::new(file, this_process::clock_snapshot());
    let mut running = unpoisoned(ACTIVE_TRACE.write());
    check_not_active(running.as_ref())?;
    let shared = Arc::clone(&sink);
    thread::start("dist-trace", move || shared.run_writer(writer))?;
    *running = Some(ActiveTrace { sink, is_from_environment: by_environment });
    IS_ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// Puts a record into the buffer.
fn push_event(event: TraceEvent) {
    if let Some(running) = unpoisoned(ACTIVE_TRACE.read()).as_ref() {
        running.sink.push(event);
    }
}

impl TraceBuffer {
    fn new(path: &str) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            events: Mutex::new(allocate_events()?),
            dropped: AtomicU64::new(0),
            flush_requests: AtomicU64::new(0),
            flushes_done: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            failure: Mutex::new(None),
            writer_doorbell: Doorbell::default(),
            progress_doorbell: Doorbell::default(),
        })
    }

    fn push(&self, event: TraceEvent) {
        let mut events = self.events();
        if events.len() == events.capacity() {
            drop(events);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        events.push(event);
        let wakes = events.len() == WAKE_THRESHOLD;
        drop(events);
        if wakes {
            self.writer_doorbell.notify();
        }
    }

    /// Runs the writer thread.
    fn run_writer(&self, writer: TraceWriter) {
        let outcome = self.write_all(writer);
        if let Err(error) = outcome {
            IS_ON.store(false, Ordering::Relaxed);
            crate::log!(LogLevel::Warn, "the trace {} is incomplete: {error}", self.path);
            *self.failure() = Some(error);
        }
        self.has_ended.store(true, Ordering::Release);
        self.progress_doorbell.notify();
    }

    fn write_all(&self, mut writer: TraceWriter) -> Result<()> {
        let write_error =
            |cause| Error::system(format_args!("writing the trace {}", self.path), cause);
        let mut batch = allocate_events()?;
        loop {
            let (seen, end) =
                (self.flushes_done.load(Ordering::Relaxed), Deadline::after(WRITE_INTERVAL));
            let ready = || {
                let is_wanted = self.is_stopping.load(Ordering::Acquire)
                    || self.flush_requests.load(Ordering::Acquire) > seen
                    || self.events().len() >= WAKE_THRESHOLD;
                is_wanted.then_some(())
            };
            // After the time limit there may be records to write, too.
            drop(wait_until(&self.writer_doorbell, WaitPolicy::SLEEP_SOON, &end, || None, ready));
            let stops = self.is_stopping.load(Ordering::Acquire);
            let requested = self.flush_requests.load(Ordering::Acquire);
            std::mem::swap(&mut *self.events(), &mut batch);
            writer.write(&batch, self.dropped.load(Ordering::Relaxed)).map_err(write_error)?;
            batch.clear();
            self.flushes_done.store(requested, Ordering::Release);
            self.progress_doorbell.notify();
            if stops {
                return writer.finish().map_err(write_error);
            }
        }
    }

    fn finish(&self) -> Result<()> {
        self.is_stopping.store(true, Ordering::Release);
        self.writer_doorbell.notify();
        if !self.wait(STOP_TIMEOUT, |sink| sink.has_ended.load(Ordering::Acquire)) {
            let message = format!(
                "the trace {} was not written within {} s; the part that was written can be read",
                self.path,
                STOP_TIMEOUT.as_secs()
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        self.failure().take().map_or(Ok(()), Err)
    }

    /// Waits for progress of the writer. Returns false if the limit passes or the writer ends
    /// first.
    fn wait(&self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let ready = || (done(self) || self.has_ended.load(Ordering::Acquire)).then_some(());
        let limit = Deadline::after(limit);
        wait_until(&self.progress_doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, ready).is_ok()
            && done(self)
    }

    fn events(&self) -> MutexGuard<'_, Vec<TraceEvent>> {
        lock(&self.events)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        lock(&self.failure)
    }
}

/// Allocates an empty buffer.
fn allocate_events() -> Result<Vec<TraceEvent>> {
    let mut events = Vec::new();
    events.try_reserve_exact(BUFFER_EVENTS).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "cannot allocate memory for the records of a trace")
    })?;
    Ok(events)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
