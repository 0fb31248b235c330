//! The command bench: measures the latency of calls. One client makes one call after another.

use crate::client::StoreClient;
use crate::formatting::format_duration;
use crate::{CommandResult, Failure, cli, print};
use dist::base::error::Result;
use dist::process::process_exit::signal_name;
use dist::sys::host;
use dist::sys::signal::SignalFd;
use dist_terminal::{Alignment, Progress, text_table};
use dist_tools::write_error;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The signals SIGHUP, SIGINT and SIGTERM. They end a measurement early. The program then removes
/// its keys and exits.
const TERMINATION_SIGNALS: [i32; 3] = [1, 2, 15];

/// The program computes the percentiles from this number of the latest calls of a kind.
const MAX_SAMPLES: usize = 1 << 20;

/// The interval of progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A kind of call: its name and a function that makes one call.
type BenchCall<'a> = (&'static str, &'a dyn Fn() -> Result<()>);

pub(crate) fn run(options: &cli::BenchArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    // Intercept signals only after the connection exists, so that a signal during the connect ends
    // the program immediately.
    let signals = SignalFd::intercept(&TERMINATION_SIGNALS)?;
    let key_prefix = format!("dist-store-bench/{}", host::random_nonce()?);
    let (key, counter) = (format!("{key_prefix}/value"), format!("{key_prefix}/counter"));
    let outcome = measure_all(&client, &signals, options, key.as_bytes(), counter.as_bytes());
    for key in [&key, &counter] {
        client.store.delete_key(key.as_bytes(), &client.deadline())?;
    }
    outcome
}

fn measure_all(
    client: &StoreClient,
    signals: &SignalFd,
    options: &cli::BenchArgs,
    key: &[u8],
    counter: &[u8],
) -> CommandResult {
    let store = &client.store;
    let value = vec![b'x'; options.bytes.0];
    let calls: [BenchCall<'_>; 5] = [
        ("set", &|| store.set(key, &value, &client.deadline())),
        ("get", &|| store.get(key, &client.deadline()).map(drop)),
        ("add", &|| store.add(counter, 1, &client.deadline()).map(drop)),
        ("check", &|| store.check(&[key], &client.deadline()).map(drop)),
        ("wait", &|| store.wait(&[key], &client.deadline())),
    ];
    let (size, limit) = (options.bytes.0, options.seconds.0);
    let store_name = store.describe();
    let mut rows = Vec::new();
    let mut signal = None;
    for (name, call) in calls {
        let progress = Progress::of_time_span(limit);
        progress.set_text(name);
        let (samples, received) = measure(client, call, signals, limit, &progress)?;
        drop(progress);
        rows.push(samples.into_row(name));
        signal = received;
        if signal.is_some() {
            break;
        }
    }
    if options.json {
        let calls: Vec<Value> = rows.iter().map(CallRow::json).collect();
        let seconds = limit.as_secs_f64();
        let report =
            json!({ "store": store_name, "bytes": size, "seconds": seconds, "calls": calls });
        print(format!("{report:#}\n"))?;
    } else {
        let limit = format_duration(limit);
        let table = text_table(COLUMNS, rows.iter().map(CallRow::cells));
        print(format!(
            "{store_name}, values of {size} bytes, {limit} for each kind of call\n{table}"
        ))?;
    }
    let Some(signal) = signal else { return Ok(0) };
    write_error(&format!("dist-store: {} received\n", signal_name(signal)));
    Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

/// Repeats a call for the time `limit`. Returns the times of the calls, and the signal that ended
/// the measurement early, if any.
fn measure(
    client: &StoreClient,
    call: &dyn Fn() -> Result<()>,
    signals: &SignalFd,
    limit: Duration,
    progress: &Progress,
) -> std::result::Result<(CallSamples, Option<i32>), Failure> {
    // Make one call before the measurement. It creates the key for the calls after it.
    call()?;
    client.flush()?;
    let mut samples = CallSamples::default();
    let started_at = Instant::now();
    let mut next_update = Duration::ZERO;
    let signal = loop {
        let call_start = Instant::now();
        call()?;
        samples.add(call_start.elapsed());
        let elapsed = started_at.elapsed();
        if elapsed >= next_update {
            progress.set_elapsed(elapsed);
            next_update = elapsed + PROGRESS_INTERVAL;
        }
        let signal = signals.next_signal();
        if signal.is_some() || started_at.elapsed() >= limit {
            break signal;
        }
    };
    client.flush()?;
    samples.elapsed = started_at.elapsed();
    Ok((samples, signal))
}

/// The times of the measured calls.
#[derive(Default)]
struct CallSamples {
    count: usize,
    /// The total time until the server had processed the last call.
    elapsed: Duration,
    times: Vec<Duration>,
}

impl CallSamples {
    fn add(&mut self, time: Duration) {
        match self.times.get_mut(self.count % MAX_SAMPLES) {
            Some(oldest) => *oldest = time,
            None => self.times.push(time),
        }
        self.count += 1;
    }

    /// Returns the rate and the percentiles. At least one call must have been measured.
    fn into_row(mut self, name: &'static str) -> CallRow {
        self.times.sort_unstable();
        let last = self.times.len() - 1;
        #[allow(clippy::cast_precision_loss, reason = "a rate is shown without a fraction")]
        let calls_per_second = self.count as f64 / self.elapsed.as_secs_f64();
        let (median, high) = (self.times[last / 2], self.times[last * 99 / 100]);
        CallRow { name, calls_per_second, median, high }
    }
}

/// The columns of the table.
const COLUMNS: [(&str, Alignment); 4] = [
    ("call", Alignment::Left),
    ("calls/s", Alignment::Right),
    ("median", Alignment::Right),
    ("99 %", Alignment::Right),
];

/// The result for one kind of call.
struct CallRow {
    name: &'static str,
    calls_per_second: f64,
    median: Duration,
    /// The 99th percentile.
    high: Duration,
}

impl CallRow {
    fn cells(&self) -> [String; 4] {
        let rate = format!("{:.0}", self.calls_per_second);
        let times = [self.median, self.high].map(format_duration);
        let [median, high] = times;
        [self.name.to_owned(), rate, median, high]
    }

    fn json(&self) -> Value {
        json!({
            "call": self.name,
            "calls_per_second": self.calls_per_second,
            "median_us": self.median.as_secs_f64() * 1e6,
            "p99_us": self.high.as_secs_f64() * 1e6,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_percentiles_are_those_of_the_calls() {
        let mut sample = CallSamples { elapsed: Duration::from_secs(5), ..CallSamples::default() };
        (1..=100).for_each(|ms| sample.add(Duration::from_millis(ms)));
        let row = sample.into_row("set");
        assert_eq!(row.cells(), ["set", "20", "50.00 ms", "99.00 ms"]);
        let json = row.json();
        assert_eq!((&json["call"], &json["p99_us"]), (&json!("set"), &json!(99_000.0)));
    }

    #[test]
    fn newest_samples_replace_the_oldest() {
        let mut sample = CallSamples::default();
        (0..MAX_SAMPLES).for_each(|_| sample.add(Duration::from_secs(1)));
        (0..MAX_SAMPLES).for_each(|_| sample.add(Duration::from_micros(2)));
        assert_eq!((sample.count, sample.times.len()), (2 * MAX_SAMPLES, MAX_SAMPLES));
        assert_eq!(sample.into_row("set").cells()[2], "2.0 us");
    }
}
