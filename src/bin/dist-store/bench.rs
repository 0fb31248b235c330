//! Measuring what calls cost: one client, one call after another.

use crate::client::Client;
use crate::text::span;
use crate::{Failure, Outcome, cli, say, write_error};
use dist::base::error::Result;
use dist::process::ending::signal_name;
use dist::sys::host;
use dist::sys::signal::Signals;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// The signals that end a measurement early, but not before the keys are removed.
const ENDING: [i32; 3] = [1, 2, 15];

/// How many calls of a kind are kept for the percentiles: the last ones.
const KEPT: usize = 1 << 20;

/// How often the progress is told.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// A kind of call.
type Call<'a> = (&'static str, &'a dyn Fn() -> Result<()>);

pub(crate) fn run(options: &cli::Bench) -> Outcome {
    let client = Client::connect(&options.place)?;
    // Only now: while there is no store yet, a signal is to end us at once.
    let signals = Signals::intercept(&ENDING)?;
    let own = format!("dist-store-bench/{}", host::random_nonce()?);
    let (key, counter) = (format!("{own}/value"), format!("{own}/counter"));
    let outcome = measure_all(&client, &signals, options, key.as_bytes(), counter.as_bytes());
    for key in [&key, &counter] {
        client.store.delete_key(key.as_bytes(), &client.deadline())?;
    }
    outcome
}

fn measure_all(
    client: &Client,
    signals: &Signals,
    options: &cli::Bench,
    key: &[u8],
    counter: &[u8],
) -> Outcome {
    let store = &client.store;
    let value = vec![b'x'; options.bytes.0];
    let calls: [Call<'_>; 5] = [
        ("set", &|| store.set(key, &value, &client.deadline())),
        ("get", &|| store.get(key, &client.deadline()).map(drop)),
        ("add", &|| store.add(counter, 1, &client.deadline()).map(drop)),
        ("check", &|| store.check(&[key], &client.deadline()).map(drop)),
        ("wait", &|| store.wait(&[key], &client.deadline())),
    ];
    let (size, limit) = (options.bytes.0, options.seconds.0);
    let where_to = store.describe();
    say(format!("{where_to}, values of {size} bytes, {} for each kind of call\n", span(limit)))?;
    say(format!("{:<6} {:>10} {:>11} {:>11}\n", "call", "calls/s", "median", "99 %"))?;
    for (name, call) in calls {
        let mut progress = Progress::new(name, limit);
        let (sample, ended) = measure(client, call, signals, limit, &mut progress)?;
        progress.clear();
        say(sample.line(name))?;
        if let Some(signal) = ended {
            write_error(&format!("dist-store: {} received\n", signal_name(signal)));
            return Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX));
        }
    }
    Ok(0)
}

/// Calls again and again; returns what that took, and the signal that ended it early.
fn measure(
    client: &Client,
    call: &dyn Fn() -> Result<()>,
    signals: &Signals,
    limit: Duration,
    progress: &mut Progress,
) -> std::result::Result<(Sample, Option<i32>), Failure> {
    // The first call may have to make what the others find.
    call()?;
    client.settle()?;
    let mut sample = Sample::default();
    let began = Instant::now();
    let signal = loop {
        let before = Instant::now();
        call()?;
        sample.add(before.elapsed());
        progress.tell(began.elapsed());
        let signal = signals.take();
        if signal.is_some() || began.elapsed() >= limit {
            break signal;
        }
    };
    client.settle()?;
    sample.lasted = began.elapsed();
    Ok((sample, signal))
}

/// What calls took.
#[derive(Default)]
struct Sample {
    count: usize,
    /// Until the server had carried out the last one.
    lasted: Duration,
    times: Vec<Duration>,
}

impl Sample {
    fn add(&mut self, time: Duration) {
        match self.times.get_mut(self.count % KEPT) {
            Some(oldest) => *oldest = time,
            None => self.times.push(time),
        }
        self.count += 1;
    }

    /// A line of the table; there was at least one call.
    fn line(mut self, name: &str) -> String {
        self.times.sort_unstable();
        let last = self.times.len() - 1;
        #[allow(clippy::cast_precision_loss, reason = "a rate is shown without a fraction")]
        let rate = self.count as f64 / self.lasted.as_secs_f64();
        let (median, high) = (span(self.times[last / 2]), span(self.times[last * 99 / 100]));
        format!("{name:<6} {rate:>10.0} {median:>11} {high:>11}\n")
    }
}

/// A line on a terminal that says how far a measurement is.
struct Progress {
    name: &'static str,
    limit: Duration,
    next: Option<Duration>,
}

impl Progress {
    fn new(name: &'static str, limit: Duration) -> Self {
        let next = std::io::stderr().is_terminal().then_some(Duration::ZERO);
        Self { name, limit, next }
    }

    fn tell(&mut self, elapsed: Duration) {
        if let Some(next) = &mut self.next
            && elapsed >= *next
        {
            *next = elapsed + TELL_EVERY;
            write_error(&format!("\r{} {} of {} ", self.name, span(elapsed), span(self.limit)));
        }
    }

    fn clear(&self) {
        if self.next.is_some() {
            write_error("\r\u{1b}[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_percentiles_are_those_of_the_calls() {
        let mut sample = Sample { lasted: Duration::from_secs(5), ..Sample::default() };
        (1..=100).for_each(|ms| sample.add(Duration::from_millis(ms)));
        let line = sample.line("set");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["set", "20", "50.00", "ms", "99.00", "ms"]);
    }

    #[test]
    fn of_very_many_calls_the_last_count() {
        let mut sample = Sample::default();
        (0..KEPT).for_each(|_| sample.add(Duration::from_secs(1)));
        (0..KEPT).for_each(|_| sample.add(Duration::from_micros(2)));
        assert_eq!((sample.count, sample.times.len()), (2 * KEPT, KEPT));
        assert!(sample.line("set").contains("2.0 us"));
    }
}
