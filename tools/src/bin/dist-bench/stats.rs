//! Statistics of times: medians, percentiles, and confidence intervals for the median of ratios.
//! The functions do no I/O. The times of all engines are computed here.

use crate::ops::{BenchOp, ROOT, TimeRule};
use crate::request::RankStamps;

/// The significance level of confidence intervals: 2.5 % on each side.
const SIGNIFICANCE: f64 = 0.05;

/// The times of one run of calls, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunTimes {
    /// The median of the calls.
    pub(crate) p50: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
    /// The mean of the calls. Unlike the median, it includes the time that calls wait for earlier
    /// calls.
    pub(crate) mean: f64,
    /// The median time of the root's calls, for operations whose time rule ends with the last rank.
    pub(crate) root_p50: Option<f64>,
}

impl RunTimes {
    /// Computes the times of a run from its calls.
    fn of_calls(calls: &[f64], root: Option<f64>) -> Self {
        Self { p50: median(calls), p99: percentile(calls, 99), mean: mean(calls), root_p50: root }
    }
}

/// A median and its 95 % confidence interval. There is no interval if there are too few values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MedianEstimate {
    pub(crate) value: f64,
    pub(crate) interval: Option<(f64, f64)>,
}

impl MedianEstimate {
    /// Returns true if the width of the interval is at most 20 % of the value (10 % to each side).
    pub(crate) fn is_narrow(&self) -> bool {
        self.interval.is_some_and(|(low, high)| high - low <= 0.2 * self.value)
    }
}

/// Computes an operation's times from the stamps of all ranks. Returns `None` if a required rank
/// has no stamps.
pub(crate) fn op_times(op: BenchOp, rank_stamps: &[RankStamps]) -> Option<RunTimes> {
    let call_spans = |stamps: &RankStamps| -> Vec<f64> {
        stamps.call_times.iter().map(|&(start, end)| span_ns(start, end)).collect()
    };
    let root = rank_stamps.get(ROOT).filter(|stamps| !stamps.call_times.is_empty())?;
    Some(match op.time_rule() {
        TimeRule::HalfRoundTrip => {
            let times: Vec<f64> = call_spans(root).iter().map(|time| time / 2.0).collect();
            RunTimes::of_calls(&times, None)
        }
        TimeRule::SlowestRank => {
            let all: Vec<Vec<f64>> = rank_stamps.iter().map(call_spans).collect();
            let largest_of_ranks =
                |of: &dyn Fn(&[f64]) -> f64| all.iter().map(|t| of(t)).fold(0.0, f64::max);
            let (p50, p99) =
                (largest_of_ranks(&median), largest_of_ranks(&|times| percentile(times, 99)));
            RunTimes { p50, p99, mean: largest_of_ranks(&mean), root_p50: None }
        }
        TimeRule::LastAfterRoot => {
            let ends =
                |call: usize| rank_stamps.iter().filter_map(move |rank| rank.call_times.get(call));
            let last = |call: usize| ends(call).map(|&(_, end)| end).max().unwrap_or(0);
            let starts = root.call_times.iter().enumerate();
            let times: Vec<f64> =
                starts.map(|(call, &(start, _))| span_ns(start, last(call))).collect();
            RunTimes::of_calls(&times, Some(median(&call_spans(root))))
        }
    })
}

#[allow(clippy::cast_precision_loss, reason = "a time below 2^53 ns, 104 days")]
fn span_ns(start: u64, end: u64) -> f64 {
    end.saturating_sub(start) as f64
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Returns the median. For an even number of values, it is the mean of the two middle values.
/// Without values, it is 0.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length.is_multiple_of(2) => f64::midpoint(sorted[half - 1], sorted[half]),
        _ => sorted[half],
    }
}

/// Returns a percentile: the smallest value such that at least `of_hundred` percent of the values
/// are not larger. Without values, it is 0.
pub(crate) fn percentile(values: &[f64], of_hundred: usize) -> f64 {
    let rank_index = (values.len() * of_hundred).div_ceil(100);
    sorted(values).get(rank_index.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Returns the mean, and 0 without values.
#[allow(clippy::cast_precision_loss, reason = "the number of values is small")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the geometric mean, and 1 without values.
pub(crate) fn geometric_mean(values: &[f64]) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "the number of values is small")]
    let count = values.len().max(1) as f64;
    (values.iter().map(|value| value.ln()).sum::<f64>() / count).exp()
}

/// Returns the median of ratios and its confidence interval. The method is the sign test, which
/// holds for any distribution. Each ratio is above or below the true median with equal probability,
/// like the toss of a fair coin. The interval is from the k-th smallest to the k-th largest ratio.
/// It misses the true median only if at most k - 1 ratios are on one side of it. This is as
/// probable as at most k - 1 heads, or at most k - 1 tails, in a series of coin tosses.
/// `binomial_cut` returns the largest k for which the probability of this is at most 5 %. For
/// example, the interval of ten ratios is from the second smallest to the second largest. Fewer
/// than six ratios have no interval.
pub(crate) fn estimate(ratios: &[f64]) -> MedianEstimate {
    let value = median(ratios);
    let (sorted, rank_cut) = (sorted(ratios), binomial_cut(ratios.len()));
    let interval = (rank_cut > 0).then(|| (sorted[rank_cut - 1], sorted[sorted.len() - rank_cut]));
    MedianEstimate { value, interval }
}

/// Returns 1 plus the largest number k for which a fair coin shows at most k heads in `tosses`
/// tosses with a probability of at most 2.5 %. Returns 0 if even k = 0 is more probable.
fn binomial_cut(tosses: usize) -> usize {
    #[allow(clippy::cast_precision_loss, reason = "the number of pairs is small")]
    let number = |count: usize| count as f64;
    let (mut chance, mut sum) = (0.5f64.powf(number(tosses)), 0.0);
    for heads in 0..tosses {
        sum += chance;
        if sum > SIGNIFICANCE / 2.0 {
            return heads;
        }
        chance *= number(tosses - heads) / number(heads + 1);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(calls: &[(u64, u64)]) -> RankStamps {
        RankStamps { wrong_elements: 0, call_times: calls.to_vec() }
    }

    #[test]
    fn medians_percentiles_and_means() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99), 99.0);
        assert_eq!(percentile(&hundred[..10], 99), 100.0);
        assert_eq!(percentile(&[], 99), 0.0);
        assert!((geometric_mean(&[0.5, 2.0, 8.0]) - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), 1.0);
        assert_eq!((mean(&[1.0, 2.0, 6.0]), mean(&[])), (3.0, 0.0));
    }

    #[test]
    fn all_reduce_time_is_that_of_the_slowest_rank() {
        let quick = stamps(&[(0, 10), (20, 30), (40, 50)]);
        let slow = stamps(&[(0, 30), (20, 45), (40, 57)]);
        let times = op_times(BenchOp::AllReduce, &[quick.clone(), slow]).unwrap();
        assert_eq!(times, RunTimes { p50: 25.0, p99: 30.0, mean: 24.0, root_p50: None });
        assert!(op_times(BenchOp::AllReduce, &[RankStamps::default(), quick]).is_none());
    }

    #[test]
    fn broadcast_time_is_root_start_to_last_end() {
        let root = stamps(&[(100, 110), (200, 210), (300, 312)]);
        let others = [stamps(&[(90, 150), (190, 240), (320, 330)]), stamps(&[(0, 120); 3])];
        let all = [root, others[0].clone(), others[1].clone()];
        let times = op_times(BenchOp::Broadcast, &all).unwrap();
        assert_eq!(times, RunTimes { p50: 40.0, p99: 50.0, mean: 40.0, root_p50: Some(10.0) });
    }

    #[test]
    fn ping_pong_time_is_half_the_round_trip() {
        let all = [stamps(&[(0, 10), (10, 30)]), stamps(&[(0, 1000); 2]), RankStamps::default()];
        let times = op_times(BenchOp::SendRecv, &all).unwrap();
        assert_eq!((times.p50, times.mean), (7.5, 7.5));
    }

    #[test]
    fn interval_follows_the_binomial_distribution() {
        assert_eq!([5, 6, 8, 9, 10, 20, 30].map(binomial_cut), [0, 1, 1, 2, 2, 6, 10]);
        let ratios: Vec<f64> = (1..=10).map(f64::from).collect();
        let MedianEstimate { value, interval } = estimate(&ratios);
        assert_eq!((value, interval), (5.5, Some((2.0, 9.0))));
        assert_eq!(estimate(&ratios[..5]).interval, None);
        assert_eq!(estimate(&[]).interval, None);
    }

    #[test]
    fn narrow_interval_is_within_ten_percent() {
        let with = |low, high| MedianEstimate { value: 1.0, interval: Some((low, high)) };
        assert!(with(0.95, 1.1).is_narrow() && !with(0.85, 1.1).is_narrow());
        assert!(!MedianEstimate { value: 1.0, interval: None }.is_narrow());
    }
}
