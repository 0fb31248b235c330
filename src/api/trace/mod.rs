//! The trace: what the operations of this process did and when, as a file that trace viewers open.
//!
//! | file | what it is |
//! |---|---|
//! | [`track`] | where a group's operations go, and one that is under way |
//! | [`writer`] | the thread that writes, and the form of the file |
//!
//! While no trace is written an operation pays one relaxed load for it. While one is, whatever ends
//! leaves a record in a buffer of [`ROOM`] places, which the writer empties several times a second;
//! what finds the buffer full is dropped and counted, and the file says how many. Nothing that goes
//! wrong with the file touches a job: it ends the trace, and is told in the log and by [`stop`].
//!
//! The lock of the buffer is held for one copy of a record, and by the writer for the exchange of
//! two buffers.

mod track;
mod writer;

pub(super) use track::{Span, Track};

use super::point_to_point::Message;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::process::{this, thread};
use crate::transport::Descriptor;
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use serde_json::{Value, json};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use writer::Writer;

/// How many records the buffer has.
const ROOM: usize = 1 << 15;

/// From how many on the writer is woken.
const MANY: usize = ROOM / 4;

/// How often it looks by itself; so much of the end is not in the file of a process that is killed.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long [`stop`] waits for the file, and the end of a group for what it has done.
const STOP: Duration = Duration::from_secs(10);
const FLUSH: Duration = Duration::from_secs(1);

/// Something that happened, from when to when.
#[derive(Debug)]
struct Event {
    track: Arc<Track>,
    /// Where it nests; `None` where it may overlap others.
    lane: Option<u32>,
    began: Instant,
    ended: Instant,
    what: What,
}

#[derive(Debug)]
enum What {
    Collective {
        descriptor: Descriptor,
        /// When it had its turn, where that came.
        turn: Option<Instant>,
        algorithm: Option<&'static str>,
        failure: Option<Box<Error>>,
    },
    Message {
        message: Message,
        sequence: u64,
        failure: Option<Box<Error>>,
    },
    Wait {
        rank: Rank,
    },
}

/// What those who record and the writer share.
#[derive(Debug)]
struct Sink {
    path: String,
    events: Mutex<Vec<Event>>,
    /// What the full buffer did not take.
    dropped: AtomicU64,
    /// How often somebody asked for everything so far to be written, and up to which of these it
    /// has been.
    asked: AtomicU64,
    written: AtomicU64,
    stopping: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// Rung for the writer, and by it.
    work: Bell,
    news: Bell,
}

/// The trace that is being written.
struct Running {
    sink: Arc<Sink>,
    by_environment: bool,
}

static ON: AtomicBool = AtomicBool::new(false);
static RUNNING: RwLock<Option<Running>> = RwLock::new(None);

/// Whether operations are recorded.
#[inline]
pub(super) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Begins to write a trace of this process to a file, which is made, or emptied.
///
/// # Errors
/// `InvalidArgument` while another is being written; `System`, `OutOfMemory`.
pub fn start(path: &str) -> Result<()> {
    begin(path, false)
}

/// Ends the trace and its file. Nothing happens where none is written.
///
/// # Errors
/// What ended the trace before; `Timeout` where the file is not written within ten seconds.
pub fn stop() -> Result<()> {
    ON.store(false, Ordering::Relaxed);
    let running = RUNNING.write().unwrap_or_else(PoisonError::into_inner).take();
    running.map_or(Ok(()), |running| running.sink.finish())
}

/// Writes what there is to the file, as far as that goes within a second.
pub(super) fn flush() {
    if let Some(sink) = current() {
        let asked = sink.asked.fetch_add(1, Ordering::Relaxed) + 1;
        sink.work.ring();
        let done = |sink: &Sink| sink.written.load(Ordering::Acquire) >= asked;
        sink.wait(FLUSH, done);
    }
}

/// Begins a trace if the environment asks for one and none is written. `rank` is this process's.
pub(super) fn start_from_environment(rank: Rank) {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let prefix = match config::text(config::TRACE_FILE) {
        Ok(Some(prefix)) => prefix,
        Ok(None) => return,
        Err(error) => return crate::log!(Level::Error, "no trace is written: {error}"),
    };
    if current().is_some() {
        return;
    }
    // A process that starts again must not write over what it has written.
    let path = match TRACES.fetch_add(1, Ordering::Relaxed) {
        0 => format!("{prefix}{rank}.json"),
        earlier => format!("{prefix}{rank}.{earlier}.json"),
    };
    if let Err(error) = begin(&path, true) {
        crate::log!(
            Level::Error,
            "no trace is written, though {} asks for one: {error}",
            config::TRACE_FILE.name
        );
    }
}

/// Ends the trace that the environment has asked for.
pub(super) fn stop_from_environment() {
    let is_ours = RUNNING
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_some_and(|running| running.by_environment);
    if is_ours && let Err(error) = stop() {
        crate::log!(Level::Warn, "the trace is incomplete: {error}");
    }
}

/// Where a trace is written, for `dist_group_describe`; null where none is.
pub(super) fn describe() -> Value {
    let Some(sink) = current() else { return Value::Null };
    let failure = sink.failure().as_ref().map(|error| error.message().to_owned());
    json!({
        "file": sink.path,
        "dropped": sink.dropped.load(Ordering::Relaxed),
        "error": failure,
    })
}

fn current() -> Option<Arc<Sink>> {
    let running = RUNNING.read().unwrap_or_else(PoisonError::into_inner);
    running.as_ref().map(|running| Arc::clone(&running.sink))
}

fn begin(path: &str, by_environment: bool) -> Result<()> {
    let is_free = |running: Option<&Running>| match running {
        Some(Running { sink, .. }) if sink.failure().is_none() => {
            let path = &sink.path;
            let message = format!("a trace is being written to {path}: call dist_trace_stop first");
            Err(Error::invalid(message))
        }
        _ => Ok(()),
    };
    is_free(RUNNING.read().unwrap_or_else(PoisonError::into_inner).as_ref())?;
    // Outside of the lock: a file system may take its time.
    let file = File::create(path)
        .map_err(|cause| Error::system(format_args!("making the trace {path}"), &cause))?;
    let sink = Arc::new(Sink::new(path)?);
    let writer = Writer::new(file, this::moment());
    let mut running = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
    is_free(running.as_ref())?;
    let shared = Arc::clone(&sink);
    thread::start("dist-trace", move || shared.run(writer))?;
    *running = Some(Running { sink, by_environment });
    ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// Leaves a record.
fn push(event: Event) {
    if let Some(running) = RUNNING.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
        running.sink.push(event);
    }
}

impl Sink {
    fn new(path: &str) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            events: Mutex::new(room()?),
            dropped: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            written: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            failure: Mutex::new(None),
            work: Bell::default(),
            news: Bell::default(),
        })
    }

    fn push(&self, event: Event) {
        let mut events = self.events();
        if events.len() == events.capacity() {
            drop(events);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        events.push(event);
        let wakes = events.len() == MANY;
        drop(events);
        if wakes {
            self.work.ring();
        }
    }

    /// The writer's thread.
    fn run(&self, writer: Writer) {
        let outcome = self.write_all(writer);
        if let Err(error) = outcome {
            ON.store(false, Ordering::Relaxed);
            crate::log!(Level::Warn, "the trace {} ends here: {error}", self.path);
            *self.failure() = Some(error);
        }
        self.ended.store(true, Ordering::Release);
        self.news.ring();
    }

    fn write_all(&self, mut writer: Writer) -> Result<()> {
        let wrong = |cause| Error::system(format_args!("writing the trace {}", self.path), &cause);
        let mut batch = room()?;
        loop {
            let (seen, end) = (self.written.load(Ordering::Relaxed), Deadline::after(INTERVAL));
            let ready = || {
                let is_wanted = self.stopping.load(Ordering::Acquire)
                    || self.asked.load(Ordering::Acquire) > seen
                    || self.events().len() >= MANY;
                is_wanted.then_some(())
            };
            // Either way there may be something to write.
            drop(until(&self.work, Pace::PATIENT, &end, || None, ready));
            let stops = self.stopping.load(Ordering::Acquire);
            let asked = self.asked.load(Ordering::Acquire);
            std::mem::swap(&mut *self.events(), &mut batch);
            writer.write(&batch, self.dropped.load(Ordering::Relaxed)).map_err(wrong)?;
            batch.clear();
            self.written.store(asked, Ordering::Release);
            self.news.ring();
            if stops {
                return writer.finish().map_err(wrong);
            }
        }
    }

    fn finish(&self) -> Result<()> {
        self.stopping.store(true, Ordering::Release);
        self.work.ring();
        if !self.wait(STOP, |sink| sink.ended.load(Ordering::Acquire)) {
            let message = format!(
                "the trace {} was not written within {} s; what there is of it can be read",
                self.path,
                STOP.as_secs()
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        self.failure().take().map_or(Ok(()), Err)
    }

    /// Waits for something that the writer does; false where it takes too long, or the writer has
    /// ended before.
    fn wait(&self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let ready = || (done(self) || self.ended.load(Ordering::Acquire)).then_some(());
        let limit = Deadline::after(limit);
        until(&self.news, Pace::PATIENT, &limit, || None, ready).is_ok() && done(self)
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An empty buffer.
fn room() -> Result<Vec<Event>> {
    let mut events = Vec::new();
    events.try_reserve_exact(ROOM).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "there is no memory for the records of a trace")
    })?;
    Ok(events)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
