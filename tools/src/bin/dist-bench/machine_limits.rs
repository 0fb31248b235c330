//! Measures the limits of the machine. They are the rates of copies and additions, the time from a
//! write until another core reads the value, and the time from a wake-up until the woken thread
//! runs. Each thread is pinned to a core, like a rank.

use crate::stats::median;
use crate::text::{microseconds_text, size_text};
use dist::sys::{host, thread};
use dist_terminal::Progress;
use dist_tools::Failure;
use serde_json::{Value, json};
use std::hint::{black_box, spin_loop};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The vector sizes in bytes. They fit into the first-level cache, the second-level cache, the
/// last-level cache, and memory.
const VECTOR_SIZES: [usize; 4] = [16 << 10, 512 << 10, 8 << 20, 128 << 20];

/// The duration of each measurement.
const MEASURE_TIME: Duration = Duration::from_millis(150);

/// The number of round trips in a run.
const ROUND_TRIPS: u64 = 1000;
/// The number of runs.
const RUNS: usize = 21;

/// The rate of an operation for one vector size and one number of cores.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MemoryRate {
    operation: &'static str,
    bytes: usize,
    cores: usize,
    /// The rate of result bytes of all cores together, in GB/s.
    gb_per_s: f64,
}

/// The measured limits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MachineLimits {
    cores: usize,
    /// The time from a write until another core has read the value, in nanoseconds. `None` if the
    /// machine has one core.
    cache_line_ns: Option<f64>,
    /// The time from a wake-up until the woken thread runs on another core, in nanoseconds.
    wake_up_ns: Option<f64>,
    rates: Vec<MemoryRate>,
}

/// Measures the limits. This takes several seconds.
pub(crate) fn measure_limits() -> Result<MachineLimits, Failure> {
    let cores = host::cores();
    let (mut line, mut wake_up) = (None, None);
    let progress = Progress::of_steps(VECTOR_KERNELS.len() * VECTOR_SIZES.len() * 2);
    progress.set_text("the latency between two cores");
    if cores > 1 {
        line = Some(one_way_ns(&CacheLineChannel::default())?);
        wake_up = Some(one_way_ns(&PipeChannel::new().map_err(|cause| limits_failure(&cause))?)?);
    }
    let mut rates = Vec::new();
    for (what, work) in VECTOR_KERNELS {
        for bytes in VECTOR_SIZES {
            for count in [1, cores] {
                if !rates
                    .iter()
                    .any(|r: &MemoryRate| (r.operation, r.bytes, r.cores) == (what, bytes, count))
                {
                    progress.set_steps(rates.len());
                    progress.set_text(format!("{what} of {}", size_text(bytes)));
                    let gb_per_s = measure_rate(work, bytes, count)?;
                    rates.push(MemoryRate { operation: what, bytes, cores: count, gb_per_s });
                }
            }
        }
    }
    Ok(MachineLimits { cores, cache_line_ns: line, wake_up_ns: wake_up, rates })
}

impl MachineLimits {
    /// Formats the limits for users.
    pub(crate) fn text(&self) -> String {
        let us = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), microseconds_text);
        let (line, wake_up) = (us(self.cache_line_ns), us(self.wake_up_ns));
        let mut text = format!(
            "Limits of this machine\n{line:>10} us  from a write until another core reads it\n\
             {wake_up:>10} us  from a wake-up until the sleeper runs on another core\n"
        );
        for MemoryRate { operation: what, bytes, cores, gb_per_s } in &self.rates {
            let (size, on) = (size_text(*bytes), if *cores == 1 { "core" } else { "cores" });
            text.push_str(&format!("{gb_per_s:>10.2} GB/s  {what} of {size}, {cores} {on}\n"));
        }
        text
    }

    /// Returns the limits as JSON.
    pub(crate) fn json(&self) -> Value {
        let rates = self.rates.iter().map(|rate| {
            json!({
                "what": rate.operation, "bytes": rate.bytes, "cores": rate.cores,
                "gb_per_s": rate.gb_per_s,
            })
        });
        json!({
            "cores": self.cores,
            "cache_line_one_way_us": self.cache_line_ns.map(|ns| ns / 1e3),
            "wake_up_one_way_us": self.wake_up_ns.map(|ns| ns / 1e3),
            "rates": rates.collect::<Vec<Value>>(),
        })
    }
}

impl MachineLimits {
    /// Parses the result of [`MachineLimits::json`].
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let time = |name: &str| match &value[name] {
            Value::Null => Some(None),
            us => positive_number(us).map(|us| Some(us * 1e3)),
        };
        let rate = |value: &Value| {
            let (what, _) = VECTOR_KERNELS.into_iter().find(|(what, _)| value["what"] == *what)?;
            let (bytes, cores) = (number(&value["bytes"])?, number(&value["cores"])?);
            Some(MemoryRate {
                operation: what,
                bytes,
                cores,
                gb_per_s: positive_number(&value["gb_per_s"])?,
            })
        };
        Some(Self {
            cores: number(&value["cores"])?,
            cache_line_ns: time("cache_line_one_way_us")?,
            wake_up_ns: time("wake_up_one_way_us")?,
            rates: value["rates"].as_array()?.iter().map(rate).collect::<Option<_>>()?,
        })
    }

    /// Returns the time from a write until another core has read the value, in nanoseconds.
    pub(crate) const fn cache_line_ns(&self) -> Option<f64> {
        self.cache_line_ns
    }
}

fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn positive_number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite() && *number > 0.0)
}

fn limits_failure(cause: &io::Error) -> Failure {
    Failure::new(format!("cannot measure the limits of the machine: {cause}"))
}

/// A barrier at which threads start simultaneously, each pinned to its core. If one thread cannot
/// be pinned, all threads fail.
struct StartBarrier {
    barrier: Barrier,
    threads: usize,
    pinned_threads: AtomicUsize,
}

impl StartBarrier {
    fn new(threads: usize) -> Self {
        Self { barrier: Barrier::new(threads), threads, pinned_threads: AtomicUsize::new(0) }
    }

    fn start_on_core(&self, core: usize) -> io::Result<()> {
        let pinned = thread::pin_to_core(core);
        if pinned.is_ok() {
            self.pinned_threads.fetch_add(1, Ordering::Relaxed);
        }
        // After the barrier, every thread sees the counter updates of all threads.
        self.barrier.wait();
        pinned.map_err(io::Error::other)?;
        match self.pinned_threads.load(Ordering::Relaxed) == self.threads {
            true => Ok(()),
            false => Err(io::Error::other("cannot pin a thread to its core")),
        }
    }
}

/// A channel between two threads on different cores. The threads send numbers back and forth.
trait PingPongChannel: Sync {
    /// Sends a number and waits for the reply.
    fn send_and_await(&self, number: u64) -> io::Result<()>;

    /// Waits for `number` and sends the reply.
    fn await_and_reply(&self, number: u64) -> io::Result<()>;
}

/// Returns half of the time of a round trip between two cores in nanoseconds. It is the median of
/// several runs.
fn one_way_ns(channel: &dyn PingPongChannel) -> Result<f64, Failure> {
    let calls = 1..=ROUND_TRIPS * RUNS as u64;
    let start = StartBarrier::new(2);
    let outcome = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            start.start_on_core(1)?;
            calls.clone().try_for_each(|number| channel.await_and_reply(number))
        });
        let asking = scope.spawn(|| {
            start.start_on_core(0)?;
            let mut runs = Vec::new();
            for run in 0..RUNS as u64 {
                let began = Instant::now();
                for number in 1..=ROUND_TRIPS {
                    channel.send_and_await(run * ROUND_TRIPS + number)?;
                }
                runs.push(nanoseconds(began.elapsed()) / as_f64(2 * ROUND_TRIPS));
            }
            Ok(median(&runs))
        });
        let (asked, answered) = (asking.join(), other.join());
        let panicked = |_| io::Error::other("a measuring thread panicked");
        answered.map_err(panicked)??;
        asked.map_err(panicked)?
    });
    outcome.map_err(|cause: io::Error| limits_failure(&cause))
}

#[allow(clippy::cast_precision_loss, reason = "a time below 2^53 ns, 104 days")]
fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[allow(clippy::cast_precision_loss, reason = "the number is small")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

/// An atomic word in cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct PaddedWord(AtomicU64);

impl PaddedWord {
    fn wait_for(&self, number: u64) {
        while self.0.load(Ordering::Acquire) != number {
            spin_loop();
        }
    }
}

/// A channel of two words, one for each direction. The receiver spins.
#[derive(Default)]
struct CacheLineChannel {
    request: PaddedWord,
    reply: PaddedWord,
}

impl PingPongChannel for CacheLineChannel {
    fn send_and_await(&self, number: u64) -> io::Result<()> {
        self.request.0.store(number, Ordering::Release);
        self.reply.wait_for(number);
        Ok(())
    }

    fn await_and_reply(&self, number: u64) -> io::Result<()> {
        self.request.wait_for(number);
        self.reply.0.store(number, Ordering::Release);
        Ok(())
    }
}

/// A channel of two pipes, one for each direction. The receiver sleeps.
struct PipeChannel {
    request: (PipeReader, PipeWriter),
    reply: (PipeReader, PipeWriter),
}

impl PipeChannel {
    fn new() -> io::Result<Self> {
        Ok(Self { request: pipe()?, reply: pipe()? })
    }
}

impl PingPongChannel for PipeChannel {
    fn send_and_await(&self, _number: u64) -> io::Result<()> {
        (&self.request.1).write_all(&[0])?;
        (&self.reply.0).read_exact(&mut [0])
    }

    fn await_and_reply(&self, _number: u64) -> io::Result<()> {
        (&self.request.0).read_exact(&mut [0])?;
        (&self.reply.1).write_all(&[0])
    }
}

/// A function that computes the first vector from both vectors.
type VectorKernel = fn(&mut [f32], &[f32]);

const VECTOR_KERNELS: [(&str, VectorKernel); 2] = [("copy", copy), ("sum", sum)];

fn copy(into: &mut [f32], from: &[f32]) {
    into.copy_from_slice(from);
}

fn sum(into: &mut [f32], from: &[f32]) {
    for (sum, value) in into.iter_mut().zip(from) {
        *sum += value;
    }
}

/// Returns how many result bytes `cores` cores compute per time together, in GB/s. Each core has
/// its own vectors.
fn measure_rate(kernel: VectorKernel, bytes: usize, cores: usize) -> Result<f64, Failure> {
    let start = StartBarrier::new(cores);
    let body = |core: usize| -> io::Result<f64> {
        let count = bytes / size_of::<f32>();
        let (mut into, from) = (vec![1.0f32; count], vec![1.0f32; count]);
        kernel(&mut into, &from);
        start.start_on_core(core)?;
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < MEASURE_TIME {
            kernel(black_box(&mut into), black_box(&from));
            done += bytes as u64;
        }
        Ok(as_f64(done) / nanoseconds(began.elapsed()))
    };
    let outcome: io::Result<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|core| scope.spawn(move || body(core))).collect();
        let panicked = |_| io::Error::other("a measuring thread panicked");
        threads.into_iter().map(|thread| thread.join().map_err(panicked)?).sum()
    });
    outcome.map_err(|cause| limits_failure(&cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_kernels_copy_and_sum() {
        let mut into = [1.0, 2.0];
        sum(&mut into, &[3.0, 4.0]);
        assert_eq!(into, [4.0, 6.0]);
        copy(&mut into, &[7.0, 8.0]);
        assert_eq!(into, [7.0, 8.0]);
    }

    #[test]
    fn limits_are_printed_with_units_and_read_back() {
        let rate = MemoryRate { operation: "copy", bytes: 8 << 20, cores: 2, gb_per_s: 25.5 };
        let limits = MachineLimits {
            cores: 2,
            cache_line_ns: Some(155.0),
            wake_up_ns: None,
            rates: vec![rate],
        };
        let text = limits.text();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[1], "0.155 us  from a write until another core reads it");
        assert!(lines[2].starts_with("- us  from a wake-up until"));
        assert_eq!(lines[3], "25.50 GB/s  copy of 8 MiB, 2 cores");
        assert_eq!(limits.json()["cache_line_one_way_us"], json!(0.155));
        assert_eq!(limits.json()["rates"][0]["cores"], json!(2));
        assert_eq!(MachineLimits::from_json(&limits.json()), Some(limits));
        assert_eq!(MachineLimits::from_json(&json!({"cores": 2})), None);
    }
}
