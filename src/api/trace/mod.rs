//! The trace: what the operations of this process did and when, as a file that trace viewers open.
//!
//! | file | what it is |
//! |---|---|
//! | [`track`] | where a group's operations go, and one that is under way |
//! | [`writer`] | the thread that writes, and the form of the file |
//!
//! While no trace is written an operation pays one relaxed load for it. While one is, whatever ends
//! leaves a record in a buffer of [`BUFFER_EVENTS`] places, which the writer empties several times
//! a second; what finds the buffer full is dropped and counted, and the file says how many. Nothing
//! that goes wrong with the file touches a job: it ends the trace, and is told in the log and by
//! [`stop`].
//!
//! The lock of the buffer is held for one copy of a record, and by the writer for the exchange of
//! two buffers.

mod track;
mod writer;

pub(super) use track::{GroupTrack, OperationSpan};

use super::point_to_point::MessageDescriptor;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::process::{this_process, thread};
use crate::transport::Descriptor;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use serde_json::{Value, json};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use writer::TraceWriter;

/// How many records the buffer has.
const BUFFER_EVENTS: usize = 1 << 15;

/// From how many on the writer is woken.
const WAKE_THRESHOLD: usize = BUFFER_EVENTS / 4;

/// How often it looks by itself; so much of the end is not in the file of a process that is killed.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

/// How long [`stop`] waits for the file, and the end of a group for what it has done.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Something that happened, from when to when.
#[derive(Debug)]
struct TraceEvent {
    track: Arc<GroupTrack>,
    /// Where it nests; `None` where it may overlap others.
    lane: Option<u32>,
    began: Instant,
    ended: Instant,
    kind: TraceEventKind,
}

#[derive(Debug)]
enum TraceEventKind {
    Collective {
        descriptor: Descriptor,
        /// When it had its turn, where that came.
        turn: Option<Instant>,
        algorithm: Option<&'static str>,
        failure: Option<Box<Error>>,
    },
    Message {
        message: MessageDescriptor,
        sequence: u64,
        failure: Option<Box<Error>>,
    },
    Wait {
        rank: Rank,
    },
}

/// What those who record and the writer share.
#[derive(Debug)]
struct TraceBuffer {
    path: String,
    events: Mutex<Vec<TraceEvent>>,
    /// What the full buffer did not take.
    dropped: AtomicU64,
    /// How often somebody asked for everything so far to be written, and up to which of these it
    /// has been.
    flush_requests: AtomicU64,
    flushes_done: AtomicU64,
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Rung for the writer, and by it.
    writer_doorbell: Doorbell,
    progress_doorbell: Doorbell,
}

/// The trace that is being written.
struct ActiveTrace {
    sink: Arc<TraceBuffer>,
    is_from_environment: bool,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static ACTIVE_TRACE: RwLock<Option<ActiveTrace>> = RwLock::new(None);

/// Whether operations are recorded.
#[inline]
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Begins to write a trace of this process to a file, which is made, or emptied.
///
/// # Errors
/// `InvalidArgument` while another is being written; `System`, `OutOfMemory`.
pub fn start(path: &str) -> Result<()> {
    begin_trace(path, false)
}

/// Ends the trace and its file. Nothing happens where none is written.
///
/// # Errors
/// What ended the trace before; `Timeout` where the file is not written within ten seconds.
pub fn stop() -> Result<()> {
    IS_ON.store(false, Ordering::Relaxed);
    let running = ACTIVE_TRACE.write().unwrap_or_else(PoisonError::into_inner).take();
    running.map_or(Ok(()), |running| running.sink.finish())
}

/// Writes what there is to the file, as far as that goes within a second.
pub(super) fn flush() {
    if let Some(sink) = active_buffer() {
        let asked = sink.flush_requests.fetch_add(1, Ordering::Relaxed) + 1;
        sink.writer_doorbell.notify();
        let done = |sink: &TraceBuffer| sink.flushes_done.load(Ordering::Acquire) >= asked;
        sink.wait(FLUSH_TIMEOUT, done);
    }
}

/// Begins a trace if the environment asks for one and none is written. `rank` is this process's.
pub(super) fn start_from_environment(rank: Rank) {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let prefix = match config::read_text(config::TRACE_FILE) {
        Ok(Some(prefix)) => prefix,
        Ok(None) => return,
        Err(error) => return crate::log!(LogLevel::Error, "no trace is written: {error}"),
    };
    if active_buffer().is_some() {
        return;
    }
    // A process that starts again must not write over what it has written.
    let path = match TRACES.fetch_add(1, Ordering::Relaxed) {
        0 => format!("{prefix}{rank}.json"),
        earlier => format!("{prefix}{rank}.{earlier}.json"),
    };
    if let Err(error) = begin_trace(&path, true) {
        crate::log!(
            LogLevel::Error,
            "no trace is written, though {} asks for one: {error}",
            config::TRACE_FILE.name
        );
    }
}

/// Ends the trace that the environment has asked for.
pub(super) fn stop_from_environment() {
    let is_ours = ACTIVE_TRACE
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_some_and(|running| running.is_from_environment);
    if is_ours && let Err(error) = stop() {
        crate::log!(LogLevel::Warn, "the trace is incomplete: {error}");
    }
}

/// Where a trace is written, for `dist_group_describe`; null where none is.
pub(super) fn describe() -> Value {
    let Some(sink) = active_buffer() else { return Value::Null };
    let failure = sink.failure().as_ref().map(|error| error.message().to_owned());
    json!({
        "file": sink.path,
        "dropped": sink.dropped.load(Ordering::Relaxed),
        "error": failure,
    })
}

fn active_buffer() -> Option<Arc<TraceBuffer>> {
    let running = ACTIVE_TRACE.read().unwrap_or_else(PoisonError::into_inner);
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
    check_not_active(ACTIVE_TRACE.read().unwrap_or_else(PoisonError::into_inner).as_ref())?;
    // Outside of the lock: a file system may take its time.
    let file = File::create(path)
        .map_err(|cause| Error::system(format_args!("making the trace {path}"), &cause))?;
    let sink = Arc::new(TraceBuffer::new(path)?);
    let writer = TraceWriter::new(file, this_process::clock_snapshot());
    let mut running = ACTIVE_TRACE.write().unwrap_or_else(PoisonError::into_inner);
    check_not_active(running.as_ref())?;
    let shared = Arc::clone(&sink);
    thread::start("dist-trace", move || shared.run_writer(writer))?;
    *running = Some(ActiveTrace { sink, is_from_environment: by_environment });
    IS_ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// Leaves a record.
fn push_event(event: TraceEvent) {
    if let Some(running) = ACTIVE_TRACE.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
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

    /// The writer's thread.
    fn run_writer(&self, writer: TraceWriter) {
        let outcome = self.write_all(writer);
        if let Err(error) = outcome {
            IS_ON.store(false, Ordering::Relaxed);
            crate::log!(LogLevel::Warn, "the trace {} ends here: {error}", self.path);
            *self.failure() = Some(error);
        }
        self.has_ended.store(true, Ordering::Release);
        self.progress_doorbell.notify();
    }

    fn write_all(&self, mut writer: TraceWriter) -> Result<()> {
        let write_error =
            |cause| Error::system(format_args!("writing the trace {}", self.path), &cause);
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
            // Either way there may be something to write.
            drop(wait_until(&self.writer_doorbell, WaitPolicy::SLEEP_SOON, &end, || None, ready));
            let stops = self.is_stopping.load(Ordering::Acquire);
            let asked = self.flush_requests.load(Ordering::Acquire);
            std::mem::swap(&mut *self.events(), &mut batch);
            writer.write(&batch, self.dropped.load(Ordering::Relaxed)).map_err(write_error)?;
            batch.clear();
            self.flushes_done.store(asked, Ordering::Release);
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
                "the trace {} was not written within {} s; what there is of it can be read",
                self.path,
                STOP_TIMEOUT.as_secs()
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        self.failure().take().map_or(Ok(()), Err)
    }

    /// Waits for something that the writer does; false where it takes too long, or the writer has
    /// ended before.
    fn wait(&self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let ready = || (done(self) || self.has_ended.load(Ordering::Acquire)).then_some(());
        let limit = Deadline::after(limit);
        wait_until(&self.progress_doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, ready).is_ok()
            && done(self)
    }

    fn events(&self) -> MutexGuard<'_, Vec<TraceEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An empty buffer.
fn allocate_events() -> Result<Vec<TraceEvent>> {
    let mut events = Vec::new();
    events.try_reserve_exact(BUFFER_EVENTS).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "there is no memory for the records of a trace")
    })?;
    Ok(events)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
