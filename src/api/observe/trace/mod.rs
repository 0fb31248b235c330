//! The trace: the operations of this process with their times, written to a file for trace viewers.
//!
//! | file | content |
//! |---|---|
//! | [`track`] | the track of a group: its lines in a viewer, which are called lanes |
//! | [`span`] | the span of a running operation, from its issue to its end |
//! | [`event`] | the events: ended spans, and waits inside them |
//! | [`writer`] | the writer thread and the file format |
//!
//! If no trace runs, an operation pays one relaxed load. If a trace runs, each operation puts an
//! event into a buffer of [`BUFFER_EVENTS`] events when it ends. The writer thread empties the
//! buffer at least every 100 ms (`WRITE_INTERVAL`). If the buffer is full, the event is dropped and
//! counted, and the writer writes the number of dropped events to the file. An error of the file
//! never affects a job: the error ends the trace and is reported in the log and by [`stop`].
//!
//! The buffer's lock is held only briefly. A recording thread holds it while it copies one event.
//! The writer holds it while it exchanges the full buffer for an empty one.

mod event;
mod span;
mod track;
mod writer;

pub(in crate::api) use span::{DeviceSpan, OperationSpan};
pub(in crate::api) use track::GroupTrack;

use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu;
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::{lock, unpoisoned};
use crate::process::descriptor::above_standard_streams;
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

/// The maximum number of events in the buffer.
const BUFFER_EVENTS: usize = 1 << 15;

/// The number of buffered events at which the writer is woken.
const WAKE_THRESHOLD: usize = BUFFER_EVENTS / 4;

/// The interval at which the writer empties the buffer. If a process is killed, its file lacks at
/// most the events of the last interval.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum time for which [`stop`] waits until the file is complete.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time for which [`flush`] waits until the buffered events are in the file.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The state shared by the recording threads and the writer.
#[derive(Debug)]
struct TraceBuffer {
    path: String,
    events: Mutex<Vec<TraceEvent>>,
    /// The number of events dropped because the buffer was full.
    dropped: AtomicU64,
    /// The number of flush requests.
    flush_requests: AtomicU64,
    /// The number of flush requests that the writer has served.
    flushes_done: AtomicU64,
    /// Set by [`stop`]: the writer writes the remaining events and ends.
    is_stopping: AtomicBool,
    /// Set by the writer thread when it ends.
    has_ended: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// The writer sleeps on this doorbell. Recording threads, [`flush`] and [`stop`] notify it.
    writer_doorbell: Doorbell,
    /// [`flush`] and [`stop`] sleep on this doorbell. The writer notifies it after each write and
    /// at its end.
    progress_doorbell: Doorbell,
}

/// The running trace.
struct ActiveTrace {
    buffer: Arc<TraceBuffer>,
    is_from_environment: bool,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static ACTIVE_TRACE: RwLock<Option<ActiveTrace>> = RwLock::new(None);

/// Returns whether operations are traced.
#[inline]
pub(in crate::api) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Sets whether operations are traced, and whether back ends measure device times for the trace.
fn set_on(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
    gpu::set_tracing(is_on);
}

/// Starts a trace of this process. Creates the file, or truncates an existing file.
///
/// # Errors
/// `InvalidArgument` if another trace runs; `System`; `OutOfMemory`.
pub fn start(path: &str) -> Result<()> {
    begin_trace(path, false)
}

/// Ends the trace and completes its file. Does nothing if there is no trace.
///
/// # Errors
/// The error that ended the trace before this call; `Timeout` if the file is not complete within
/// 10 s.
pub fn stop() -> Result<()> {
    set_on(false);
    let running = unpoisoned(ACTIVE_TRACE.write()).take();
    running.map_or(Ok(()), |running| running.buffer.finish())
}

/// Makes the writer write the buffered events to the file. Waits for the write for at most 1 s.
pub(in crate::api) fn flush() {
    if let Some(buffer) = active_buffer() {
        let request = buffer.flush_requests.fetch_add(1, Ordering::Relaxed) + 1;
        buffer.writer_doorbell.notify();
        let done = |buffer: &TraceBuffer| buffer.flushes_done.load(Ordering::Acquire) >= request;
        buffer.wait(FLUSH_TIMEOUT, done);
    }
}

/// Starts a trace if the environment requests a trace and no trace is running. `rank` is this
/// process's rank in the world group.
///
/// # Errors
/// The error of [`start`], with the name of the variable.
pub(in crate::api) fn start_from_environment(rank: Rank) -> Result<()> {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let Some(prefix) = config::read_text(config::TRACE_FILE)? else { return Ok(()) };
    if active_buffer().is_some() {
        return Ok(());
    }
    // A process may create several world groups one after the other. The trace of each has a
    // separate file.
    let path = match TRACES.fetch_add(1, Ordering::Relaxed) {
        0 => format!("{prefix}{rank}.json"),
        earlier => format!("{prefix}{rank}.{earlier}.json"),
    };
    begin_trace(&path, true).context(|| config::TRACE_FILE.name)
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
    let Some(buffer) = active_buffer() else { return Value::Null };
    let failure = buffer.failure().as_ref().map(|error| error.message().to_owned());
    json!({
        "file": buffer.path,
        "dropped": buffer.dropped.load(Ordering::Relaxed),
        "error": failure,
    })
}

fn active_buffer() -> Option<Arc<TraceBuffer>> {
    let running = unpoisoned(ACTIVE_TRACE.read());
    running.as_ref().map(|running| Arc::clone(&running.buffer))
}

fn begin_trace(path: &str, by_environment: bool) -> Result<()> {
    let check_not_active = |running: Option<&ActiveTrace>| match running {
        Some(ActiveTrace { buffer, .. }) if buffer.failure().is_none() => {
            let path = &buffer.path;
            let message = format!("a trace is being written to {path}: call dist_trace_stop first");
            Err(Error::invalid(message))
        }
        _ => Ok(()),
    };
    check_not_active(unpoisoned(ACTIVE_TRACE.read()).as_ref())?;
    // The file is created without the lock, because a file system may be slow. Therefore the check
    // is repeated under the lock.
    let file = above_standard_streams(File::create(path))
        .map_err(|cause| Error::system(format_args!("creating the trace {path}"), cause))?;
    let buffer = Arc::new(TraceBuffer::new(path)?);
    let writer = TraceWriter::new(file, this_process::clock_snapshot());
    let mut running = unpoisoned(ACTIVE_TRACE.write());
    check_not_active(running.as_ref())?;
    let shared = Arc::clone(&buffer);
    thread::start("dist-trace", move || shared.run_writer(writer))?;
    *running = Some(ActiveTrace { buffer, is_from_environment: by_environment });
    set_on(true);
    Ok(())
}

/// Puts an event into the buffer of the running trace, if there is one.
fn push_event(event: TraceEvent) {
    if let Some(running) = unpoisoned(ACTIVE_TRACE.read()).as_ref() {
        running.buffer.push(event);
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
            set_on(false);
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
            // The result is ignored: at the time limit the writer also writes the buffered events.
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
        if !self.wait(STOP_TIMEOUT, |buffer| buffer.has_ended.load(Ordering::Acquire)) {
            let message = format!(
                "the trace {} was not written within {} s; the part that was written can be read",
                self.path,
                STOP_TIMEOUT.as_secs()
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        self.failure().take().map_or(Ok(()), Err)
    }

    /// Waits until `done` returns true. Returns false if the limit passes or the writer ends
    /// earlier.
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
