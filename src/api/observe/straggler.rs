//! Arrival skew (how late ranks enter an operation), and detection of stragglers (ranks that are
//! late again and again).
//!
//! * **Skew.** For each kind of collective and each other rank, this rank keeps a histogram. It
//!   counts how much later than this rank the other rank entered, for operations in which this rank
//!   waited long. The buckets are powers of two of microseconds. The number of histograms is at
//!   most the number of kinds times the number of ranks.
//! * **Straggler.** Only the sole wait counts: the time in which a rank was the *only* missing
//!   rank. The group would gain this time if the rank were on time. Only the last rank of an
//!   operation has a sole wait. The sole waits of a rank are summed over the last 1 to 2 minutes. A
//!   rank is a straggler if all of the following hold:
//!   * Its sum is above [`MIN_SOLE_WAIT`].
//!   * It was late in at least [`MIN_LATE_OPERATIONS`] operations.
//!   * Its sum is above [`MEDIAN_FACTOR`] times the median sum of the remaining ranks (all ranks
//!     but this rank and the late rank). In a group of two ranks no ranks remain; there the sum
//!     must be above [`PAIR_TIME_SHARE`] of the observation time.
//!
//! If all ranks are equally slow, for example on a host with too few cores, each rank is sometimes
//! the last, and no rank is a straggler.
//!
//! Each rank reports only its own observations. For example, if messages travel around a ring, only
//! the late rank's neighbour sees which rank is late. A straggler is only reported, never aborted.
//! The lock is held for a few additions by the thread that runs an operation, after a long wait.
//! Callers of [`StragglerDetector::describe`] also take the lock.

use crate::base::ids::{Rank, WorldSize};
use crate::base::sort::sort_by;
use crate::base::sync::lock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The minimum sum of a straggler's sole waits (times in which it was the only missing rank).
pub(in crate::api) const MIN_SOLE_WAIT: Duration = Duration::from_secs(1);

/// The minimum number of operations in which a straggler was the last rank.
pub(in crate::api) const MIN_LATE_OPERATIONS: f64 = 5.0;

/// The minimum ratio between a straggler's sum of sole waits and the median sum of the remaining
/// ranks.
pub(in crate::api) const MEDIAN_FACTOR: f64 = 5.0;

/// In a group of two ranks, the minimum share of the observation time that a straggler's sum of
/// sole waits takes.
pub(in crate::api) const PAIR_TIME_SHARE: f64 = 0.75;

/// When the observation window is longer than this time, the sums of earlier observations are
/// halved. This is also the minimum time between two warnings.
pub(in crate::api) const OBSERVATION_WINDOW: Duration = Duration::from_secs(60);

/// The number of histogram buckets. Their bounds are powers of two of microseconds, up to more than
/// one hour.
const BUCKETS: usize = 33;

/// The arrival skew of a rank in operations of one kind.
#[derive(Clone, Debug)]
struct SkewHistogram {
    count: u64,
    buckets: [u64; BUCKETS],
    total: Duration,
    max: Duration,
    last: Duration,
}

/// The recent sole waits for a rank.
#[derive(Clone, Copy, Debug, Default)]
struct SoleWaitCost {
    /// The sum of the sole waits.
    seconds: f64,
    /// The number of operations with a sole wait for this rank. Fractional, because it is halved
    /// with time.
    operations: f64,
}

/// A straggler.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::api) struct StragglerReport {
    /// The late rank.
    pub(in crate::api) rank: Rank,
    /// The sum of the sole waits for the late rank.
    pub(in crate::api) waited: Duration,
    /// The number of operations in which the rank was late.
    pub(in crate::api) operations: u64,
    /// The length of the time window of the observation.
    pub(in crate::api) window: Duration,
}

#[derive(Debug, Default)]
struct StragglerState {
    skew: BTreeMap<(&'static str, Rank), SkewHistogram>,
    /// The start of the observation window.
    since: Option<Instant>,
    costs: BTreeMap<Rank, SoleWaitCost>,
    /// The last report and its time.
    last_report: Option<(StragglerReport, Instant)>,
}

/// The observations that this rank made in one group.
#[derive(Debug)]
pub(in crate::api) struct StragglerDetector {
    rank: Rank,
    size: WorldSize,
    state: Mutex<StragglerState>,
}

impl Default for SkewHistogram {
    fn default() -> Self {
        let (total, max, last) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { count: 0, buckets: [0; BUCKETS], total, max, last }
    }
}

impl SkewHistogram {
    fn add(&mut self, by: Duration) {
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        // Bucket 0 counts skews below 1 us, and bucket b skews below 2^b us.
        let bucket = usize::try_from(u64::BITS - us.leading_zeros()).unwrap_or(BUCKETS);
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.total += by;
        self.max = self.max.max(by);
        self.last = by;
    }

    /// Returns the upper bound in microseconds of the bucket with this percentile, but at most the
    /// maximum skew.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|&count| {
            seen += count;
            seen >= wanted
        });
        let most = u64::try_from(self.max.as_micros()).unwrap_or(u64::MAX);
        (1_u64 << found.unwrap_or(BUCKETS - 1)).min(most)
    }

    fn describe(&self, operation: &str, rank: Rank) -> Value {
        json!({
            "rank": rank,
            "operation": operation,
            "count": self.count,
            "p50_us": self.percentile(50),
            "p99_us": self.percentile(99),
            "max_us": u64::try_from(self.max.as_micros()).unwrap_or(u64::MAX),
            "last_us": u64::try_from(self.last.as_micros()).unwrap_or(u64::MAX),
            "total_ms": u64::try_from(self.total.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

impl StragglerDetector {
    /// Creates a detector without observations, for rank `rank` of a group of `size` ranks.
    pub(in crate::api) fn new(rank: Rank, size: WorldSize) -> Self {
        Self { rank, size, state: Mutex::default() }
    }

    /// Records the late arrival of a rank, which a
    /// [`ProgressObserver`](crate::base::progress_observer::ProgressObserver) has reported. Returns
    /// a report if the rank is a straggler and the last report is older than
    /// [`OBSERVATION_WINDOW`]. The caller logs it as a warning.
    pub(in crate::api) fn record_late_arrival(
        &self,
        operation: &'static str,
        rank: Rank,
        skew: Duration,
        sole_wait: Duration,
        now: Instant,
    ) -> Option<StragglerReport> {
        let mut state = self.lock();
        state.skew.entry((operation, rank)).or_default().add(skew);
        if sole_wait.is_zero() {
            return None;
        }
        let since = *state.since.get_or_insert_with(|| now.checked_sub(sole_wait).unwrap_or(now));
        if now.duration_since(since) > OBSERVATION_WINDOW {
            state.since = Some(now.checked_sub(OBSERVATION_WINDOW / 2).unwrap_or(now));
            // If there were no observations for a long time, the earlier observations do not count.
            let decay = if now.duration_since(since) > 2 * OBSERVATION_WINDOW { 0.0 } else { 0.5 };
            for cost in state.costs.values_mut() {
                *cost = SoleWaitCost {
                    seconds: cost.seconds * decay,
                    operations: cost.operations * decay,
                };
            }
        }
        let cost = state.costs.entry(rank).or_default();
        cost.seconds += sole_wait.as_secs_f64();
        cost.operations += 1.0;
        let is_already_reported = state
            .last_report
            .as_ref()
            .is_some_and(|(_, at)| now.duration_since(*at) < OBSERVATION_WINDOW);
        if is_already_reported {
            return None;
        }
        let report = self.detect_outlier(&state, rank, now)?;
        state.last_report = Some((report.clone(), now));
        Some(report)
    }

    /// Returns a report if the suspected rank is a straggler.
    fn detect_outlier(
        &self,
        state: &StragglerState,
        suspect: Rank,
        now: Instant,
    ) -> Option<StragglerReport> {
        let cost = *state.costs.get(&suspect)?;
        if cost.seconds <= MIN_SOLE_WAIT.as_secs_f64() || cost.operations < MIN_LATE_OPERATIONS {
            return None;
        }
        let window = now.duration_since(state.since?);
        let ranks = (0..self.size).filter(|&rank| rank != self.rank && rank != suspect);
        let cost_seconds = |rank| state.costs.get(&rank).map_or(0.0, |cost| cost.seconds);
        let mut others: Vec<f64> = ranks.map(cost_seconds).collect();
        sort_by(&mut others, f64::total_cmp);
        let is_outlier = match others.get(others.len() / 2) {
            Some(median) => cost.seconds > MEDIAN_FACTOR * median,
            None => cost.seconds > PAIR_TIME_SHARE * window.as_secs_f64(),
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let operations = cost.operations as u64;
        let waited = Duration::from_secs_f64(cost.seconds);
        is_outlier.then_some(StragglerReport { rank: suspect, waited, operations, window })
    }

    /// Returns the skew of every rank and kind of collective, and the last report.
    pub(in crate::api) fn describe(&self) -> (Value, Value) {
        let state = self.lock();
        let skew = state.skew.iter().map(|(&(operation, rank), one)| one.describe(operation, rank));
        let straggler = state.last_report.as_ref().map(|(verdict, at)| {
            json!({
                "rank": verdict.rank,
                "waited_ms": u64::try_from(verdict.waited.as_millis()).unwrap_or(u64::MAX),
                "operations": verdict.operations,
                "within_ms": u64::try_from(verdict.window.as_millis()).unwrap_or(u64::MAX),
                "ago_ms": u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX),
            })
        });
        (skew.collect(), straggler.unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, StragglerState> {
        lock(&self.state)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the reports of rank 0 in a group of `size`. The group runs an operation every 20 ms.
    /// `last` has the last rank of each operation, and the number of milliseconds by which it is
    /// late.
    fn reports_of(size: usize, last: impl Iterator<Item = (Rank, u32)>) -> Vec<StragglerReport> {
        let straggler = StragglerDetector::new(0, size);
        let mut now = Instant::now();
        last.filter_map(|(rank, alone)| {
            now += 20 * MS;
            straggler.record_late_arrival("all_reduce", rank, alone * MS, alone * MS, now)
        })
        .collect()
    }

    #[test]
    fn always_late_rank_is_reported_once_a_minute() {
        let verdicts = reports_of(4, std::iter::repeat_n((2, 10), 7000));
        assert!(verdicts.iter().all(|verdict| verdict.rank == 2));
        // The operations take 140 s.
        assert_eq!(verdicts.len(), 3);
        let first = &verdicts[0];
        assert!(first.waited >= MIN_SOLE_WAIT && first.waited < 2 * MIN_SOLE_WAIT, "{first:?}");
        assert!((100..=101).contains(&first.operations), "{first:?}");
    }

    #[test]
    fn equally_slow_ranks_are_not_outliers() {
        assert_eq!(reports_of(4, (0..9000).map(|i| (1 + i % 3, 15))), []);
        // A rank that is late four times as often as each of the others is not an outlier.
        assert_eq!(
            reports_of(4, (0..9000).map(|i| (if i % 6 < 4 { 3 } else { 1 + i % 2 }, 15))),
            []
        );
        // Two stragglers of six ranks are both far beyond the median.
        assert!(!reports_of(6, (0..900).map(|i| (1 + i % 2, 15))).is_empty());
    }

    #[test]
    fn a_single_long_wait_is_no_straggler() {
        assert_eq!(reports_of(4, std::iter::repeat_n((2, 5000), 4)), []);
        assert_eq!(reports_of(4, std::iter::repeat_n((2, 5000), 5)).len(), 1);
    }

    #[test]
    fn straggler_of_two_ranks_takes_most_of_the_time() {
        assert_eq!(reports_of(2, std::iter::repeat_n((1, 9), 9000)), []);
        assert!(!reports_of(2, std::iter::repeat_n((1, 19), 900)).is_empty());
    }

    #[test]
    fn old_waits_do_not_count() {
        let straggler = StragglerDetector::new(0, 3);
        let mut now = Instant::now();
        for _ in 0..30 {
            // 100 ms in every three minutes.
            now += 3 * OBSERVATION_WINDOW;
            assert_eq!(straggler.record_late_arrival("barrier", 1, 100 * MS, 100 * MS, now), None);
        }
    }

    #[test]
    fn histogram_percentiles_describe_most_waits() {
        let straggler = StragglerDetector::new(0, 3);
        let now = Instant::now();
        for by in (0..98).map(|_| 100).chain([70_000, 90_000]) {
            let by = Duration::from_micros(by);
            straggler.record_late_arrival("broadcast", 2, by, Duration::ZERO, now);
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
