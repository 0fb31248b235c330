//! Who keeps a group waiting: what its operations tell of ranks that came late, and when one of
//! them is an outlier.
//!
//! * **Skew.** For each kind of collective and each rank, how much later than this rank it entered,
//!   where this one had waited for long: a histogram of powers of two of microseconds. Bounded by
//!   kinds times ranks.
//! * **The straggler.** Only the time counts in which a rank was the *only* one missing, which is
//!   what the group would gain without it; it is the last one for whom all wait, whatever the order
//!   in which this rank waits for others. A rank is an outlier when, over the last minute or two,
//!   this adds up to more than [`LONG`], in [`OFTEN`] operations or more, and to more than
//!   [`TIMES`] times the median of the other ranks. In a group of two there are no others; there it
//!   must be more than [`SHARE`] of all the time. Ranks that are equally slow, as on a host with
//!   too few cores, are the last by turns, and none of them is an outlier.
//!
//! Each rank judges by what it has seen itself: where messages go round in a ring, only the
//! neighbour sees who is late. Nothing is ever aborted. The lock is held for a few additions, by
//! the one thread that runs an operation of the group, after a wait that was long, and by whoever
//! asks.

use crate::base::ids::{Rank, WorldSize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a straggler has cost at least.
pub(super) const LONG: Duration = Duration::from_secs(1);

/// In how many operations at least.
pub(super) const OFTEN: f64 = 5.0;

/// How many times the median of the others.
pub(super) const TIMES: f64 = 5.0;

/// In a group of two: which share of the time.
pub(super) const SHARE: f64 = 0.75;

/// After this long what has been seen counts half; also the time between two warnings.
pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// Powers of two of microseconds: up to more than an hour.
const BUCKETS: usize = 33;

/// How late a rank was in operations of one kind.
#[derive(Clone, Debug)]
struct Histogram {
    count: u64,
    buckets: [u64; BUCKETS],
    total: Duration,
    most: Duration,
    last: Duration,
}

/// What a rank has cost lately.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    seconds: f64,
    operations: f64,
}

/// A rank that is an outlier.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    /// Which.
    pub(super) rank: Rank,
    /// For how long it alone was waited for.
    pub(super) waited: Duration,
    /// In how many operations.
    pub(super) operations: u64,
    /// The time that this is about.
    pub(super) within: Duration,
}

#[derive(Debug, Default)]
struct State {
    skew: BTreeMap<(&'static str, Rank), Histogram>,
    /// Since when costs are counted.
    since: Option<Instant>,
    costs: BTreeMap<Rank, Cost>,
    /// The last one, and when that was.
    verdict: Option<(Verdict, Instant)>,
}

/// What one rank of a group has seen.
#[derive(Debug)]
pub(super) struct Straggler {
    rank: Rank,
    size: WorldSize,
    state: Mutex<State>,
}

impl Default for Histogram {
    fn default() -> Self {
        let (total, most, last) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { count: 0, buckets: [0; BUCKETS], total, most, last }
    }
}

impl Histogram {
    fn add(&mut self, by: Duration) {
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        // Bucket 0 has less than 1 us, bucket b less than 2^b.
        let bucket = usize::try_from(u64::BITS - us.leading_zeros()).unwrap_or(BUCKETS);
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.total += by;
        self.most = self.most.max(by);
        self.last = by;
    }

    /// What so many of a hundred are below, as far as buckets tell, and never more than the most
    /// there was.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|&count| {
            seen += count;
            seen >= wanted
        });
        let most = u64::try_from(self.most.as_micros()).unwrap_or(u64::MAX);
        (1_u64 << found.unwrap_or(BUCKETS - 1)).min(most)
    }

    fn describe(&self, operation: &str, rank: Rank) -> Value {
        json!({
            "rank": rank,
            "operation": operation,
            "count": self.count,
            "p50_us": self.percentile(50),
            "p99_us": self.percentile(99),
            "max_us": u64::try_from(self.most.as_micros()).unwrap_or(u64::MAX),
            "last_us": u64::try_from(self.last.as_micros()).unwrap_or(u64::MAX),
            "total_ms": u64::try_from(self.total.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

impl Straggler {
    /// What rank `rank` of `size` has seen when nothing has happened.
    pub(super) fn new(rank: Rank, size: WorldSize) -> Self {
        Self { rank, size, state: Mutex::default() }
    }

    /// A rank came late, as [`Probe::late`](crate::base::probe::Probe::late) says. Gives what there
    /// is to be warned of, at most once in [`WINDOW`].
    pub(super) fn note(
        &self,
        operation: &'static str,
        rank: Rank,
        by: Duration,
        alone: Duration,
        now: Instant,
    ) -> Option<Verdict> {
        let mut state = self.lock();
        state.skew.entry((operation, rank)).or_default().add(by);
        if alone.is_zero() {
            return None;
        }
        let since = *state.since.get_or_insert_with(|| now.checked_sub(alone).unwrap_or(now));
        if now.duration_since(since) > WINDOW {
            state.since = Some(now.checked_sub(WINDOW / 2).unwrap_or(now));
            // After a long silence nothing of before counts.
            let keep = if now.duration_since(since) > 2 * WINDOW { 0.0 } else { 0.5 };
            for cost in state.costs.values_mut() {
                *cost = Cost { seconds: cost.seconds * keep, operations: cost.operations * keep };
            }
        }
        let cost = state.costs.entry(rank).or_default();
        cost.seconds += alone.as_secs_f64();
        cost.operations += 1.0;
        let is_told =
            state.verdict.as_ref().is_some_and(|(_, at)| now.duration_since(*at) < WINDOW);
        if is_told {
            return None;
        }
        let verdict = self.judge(&state, rank, now)?;
        state.verdict = Some((verdict.clone(), now));
        Some(verdict)
    }

    /// Whether a rank is an outlier.
    fn judge(&self, state: &State, suspect: Rank, now: Instant) -> Option<Verdict> {
        let cost = *state.costs.get(&suspect)?;
        if cost.seconds <= LONG.as_secs_f64() || cost.operations < OFTEN {
            return None;
        }
        let within = now.duration_since(state.since?);
        let ranks = (0..self.size).filter(|&rank| rank != self.rank && rank != suspect);
        let of = |rank| state.costs.get(&rank).map_or(0.0, |cost| cost.seconds);
        let mut others: Vec<f64> = ranks.map(of).collect();
        others.sort_by(f64::total_cmp);
        let is_outlier = match others.get(others.len() / 2) {
            Some(median) => cost.seconds > TIMES * median,
            None => cost.seconds > SHARE * within.as_secs_f64(),
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let operations = cost.operations as u64;
        let waited = Duration::from_secs_f64(cost.seconds);
        is_outlier.then_some(Verdict { rank: suspect, waited, operations, within })
    }

    /// The skew of every rank and kind, and the last rank that there was a warning of.
    pub(super) fn describe(&self) -> (Value, Value) {
        let state = self.lock();
        let skew = state.skew.iter().map(|(&(operation, rank), one)| one.describe(operation, rank));
        let straggler = state.verdict.as_ref().map(|(verdict, at)| {
            json!({
                "rank": verdict.rank,
                "waited_ms": u64::try_from(verdict.waited.as_millis()).unwrap_or(u64::MAX),
                "operations": verdict.operations,
                "within_ms": u64::try_from(verdict.within.as_millis()).unwrap_or(u64::MAX),
                "ago_ms": u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX),
            })
        });
        (skew.collect(), straggler.unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Ranks of a group of `size` that rank 0 sees come last, one operation each 20 ms, each
    /// `alone` milliseconds late.
    fn judge(size: usize, last: impl Iterator<Item = (Rank, u32)>) -> Vec<Verdict> {
        let straggler = Straggler::new(0, size);
        let mut now = Instant::now();
        last.filter_map(|(rank, alone)| {
            now += 20 * MS;
            straggler.note("all_reduce", rank, alone * MS, alone * MS, now)
        })
        .collect()
    }

    #[test]
    fn a_rank_that_is_always_the_last_is_named_once_a_minute() {
        let verdicts = judge(4, std::iter::repeat_n((2, 10), 7000));
        assert!(verdicts.iter().all(|verdict| verdict.rank == 2));
        // 140 s.
        assert_eq!(verdicts.len(), 3);
        let first = &verdicts[0];
        assert!(first.waited >= LONG && first.waited < 2 * LONG, "{first:?}");
        assert!((100..=101).contains(&first.operations), "{first:?}");
    }

    #[test]
    fn equal_ranks_are_no_outliers_and_neither_is_one_of_two_that_are_slow() {
        assert_eq!(judge(4, (0..9000).map(|i| (1 + i % 3, 15))), []);
        // Four times as slow is unfortunate, not an outlier.
        assert_eq!(judge(4, (0..9000).map(|i| (if i % 6 < 4 { 3 } else { 1 + i % 2 }, 15))), []);
        // Two stragglers of six: each is far beyond the median.
        assert!(!judge(6, (0..900).map(|i| (1 + i % 2, 15))).is_empty());
    }

    #[test]
    fn a_single_long_wait_is_no_straggler() {
        assert_eq!(judge(4, std::iter::repeat_n((2, 5000), 4)), []);
        assert_eq!(judge(4, std::iter::repeat_n((2, 5000), 5)).len(), 1);
    }

    #[test]
    fn of_two_ranks_one_must_keep_the_other_waiting_most_of_the_time() {
        assert_eq!(judge(2, std::iter::repeat_n((1, 9), 9000)), []);
        assert!(!judge(2, std::iter::repeat_n((1, 19), 900)).is_empty());
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let straggler = Straggler::new(0, 3);
        let mut now = Instant::now();
        for _ in 0..30 {
            // 100 ms in every three minutes.
            now += 3 * WINDOW;
            assert_eq!(straggler.note("barrier", 1, 100 * MS, 100 * MS, now), None);
        }
    }

    #[test]
    fn histograms_tell_what_most_waits_were_like() {
        let straggler = Straggler::new(0, 3);
        let now = Instant::now();
        for by in (0..98).map(|_| 100).chain([70_000, 90_000]) {
            let by = Duration::from_micros(by);
            straggler.note("broadcast", 2, by, Duration::ZERO, now);
        }
        let (skew, straggler) = straggler.describe();
        let one = &skew[0];
        assert_eq!((&one["rank"], &one["operation"]), (&json!(2), &json!("broadcast")));
        assert_eq!((&one["count"], &one["p50_us"]), (&json!(100), &json!(128)));
        assert_eq!((&one["p99_us"], &one["max_us"]), (&json!(90_000), &json!(90_000)));
        assert_eq!(one["last_us"], json!(90_000));
        assert!(straggler.is_null());
    }
}
