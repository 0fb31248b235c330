//! The command bench: measures the latency of calls. One client makes one call after another.

use crate::client::StoreClient;
use crate::formatting::format_duration;
use crate::{CommandResult, Failure, cli, print};
use dist::base::error::Result;
use dist::process::process_exit::signal_name;
use dist::sys::host;
use dist::sys::signal::SignalFd;
use dist_tools::write_error;
use std::io::IsTerminal as _;
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
    print(format!(
        "{store_name}, values of {size} bytes, {} for each kind of call\n",
        format_duration(limit)
    ))?;
    print(format!("{:<6} {:>10} {:>11} {:>11}\n", "call", "calls/s", "median", "99 %"))?;
    for (name, call) in calls {
        let mut progress = ProgressLine::new(name, limit);
        let (samples, signal) = measure(client, call, signals, limit, &mut progress)?;
        progress.clear();
        print(samples.format_row(name))?;
        if let Some(signal) = signal {
            write_error(&format!("dist-store: {} received\n", signal_name(signal)));
            return Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX));
        }
    }
    Ok(0)
}

/// Repeats a call for the time `limit`. Returns the times of the calls, and the signal that ended
/// the measurement early, if any.
fn measure(
    client: &StoreClient,
    call: &dyn Fn() -> Result<()>,
    signals: &SignalFd,
    limit: Duration,
    progress: &mut ProgressLine,
) -> std::result::Result<(CallSamples, Option<i32>), Failure> {
    // Make one call before the measurement. It creates the key for the calls after it.
    call()?;
    client.flush()?;
    let mut samples = CallSamples::default();
    let started_at = Instant::now();
    let signal = loop {
        let call_start = Instant::now();
        call()?;
        samples.add(call_start.elapsed());
        progress.update(started_at.elapsed());
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

    /// Formats a row of the table. At least one call must have been measured.
    fn format_row(mut self, name: &str) -> String {
        self.times.sort_unstable();
        let last = self.times.len() - 1;
        #[allow(clippy::cast_precision_loss, reason = "a rate is shown without a fraction")]
        let rate = self.count as f64 / self.elapsed.as_secs_f64();
        let (median, high) =
            (format_duration(self.times[last / 2]), format_duration(self.times[last * 99 / 100]));
        format!("{name:<6} {rate:>10.0} {median:>11} {high:>11}\n")
    }
}

/// A line on a terminal that shows the progress of a measurement.
struct ProgressLine {
    name: &'static str,
    limit: Duration,
    next_update: Option<Duration>,
}

impl ProgressLine {
    fn new(name: &'static str, limit: Duration) -> Self {
        let next = std::io::stderr().is_terminal().then_some(Duration::ZERO);
        Self { name, limit, next_update: next }
    }

    fn update(&mut self, elapsed: Duration) {
        if let Some(next) = &mut self.next_update
            && elapsed >= *next
        {
            *next = elapsed + PROGRESS_INTERVAL;
            write_error(&format!(
                "\r{} {} of {} ",
                self.name,
                format_duration(elapsed),
                format_duration(self.limit)
            ));
        }
    }

    fn clear(&self) {
        if self.next_update.is_some() {
            write_error("\r\u{1b}[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_percentiles_are_those_of_the_calls() {
        let mut sample = CallSamples { elapsed: Duration::from_secs(5), ..CallSamples::default() };
        (1..=100).for_each(|ms| sample.add(Duration::from_millis(ms)));
        let line = sample.format_row("set");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["set", "20", "50.00", "ms", "99.00", "ms"]);
    }

    #[test]
    fn newest_samples_replace_the_oldest() {
        let mut sample = CallSamples::default();
        (0..MAX_SAMPLES).for_each(|_| sample.add(Duration::from_secs(1)));
        (0..MAX_SAMPLES).for_each(|_| sample.add(Duration::from_micros(2)));
        assert_eq!((sample.count, sample.times.len()), (2 * MAX_SAMPLES, MAX_SAMPLES));
        assert!(sample.format_row("set").contains("2.0 us"));
    }
}
