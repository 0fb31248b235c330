//! Estimates the differences between the hosts' clocks from common operations. The functions do no
//! I/O.
//!
//! In a barrier, and in every collective whose result depends on all ranks, no rank ends the
//! operation before all ranks have begun it. Let x be the number that must be added to the second
//! host's clock so that it agrees with the first host's clock. The second host ends (at `end on the
//! second + x`) after the first host has begun, and the other way round. So each operation limits x
//! to an interval:
//!
//! ```text
//! begin on the first - end on the second  <=  x  <=  end on the first - begin on the second
//! ```
//!
//! If x is constant, all intervals contain x. The estimate is then the middle of their
//! intersection, and its maximum error is half of the width of the intersection. For example, the
//! intersection of the intervals 3 to 9 us and 5 to 12 us is 5 to 9 us. So x is 7 us, with an error
//! of at most 2 us.
//!
//! If the intersection is empty, the clocks have different rates, so x changes with time. The trace
//! is then divided into shorter periods, and a line is fitted to the middles of the intersections
//! of the periods.
//!
//! If a host has no operation in common with the first host, its clock is aligned to the clock of
//! another host that is already aligned. If it has no operation in common with such a host either,
//! it is aligned by its wall clock.

use super::trace_reader::TraceSource;
use std::collections::{BTreeMap, HashMap};

/// The number of periods into which the trace is divided to estimate the rate difference.
const MAX_FIT_PARTS: usize = 32;

/// The smallest number of operations in a period.
const MIN_OPERATIONS_PER_PART: usize = 4;

/// The method by which a clock was aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockSource {
    /// The reference clock, to which all other clocks are aligned.
    Reference,
    /// The clock was aligned by `count` common operations. The error is at most `max_error_ns`.
    CommonOperations { count: usize, max_error_ns: i64 },
    /// The clock was aligned by the wall clocks of the hosts.
    WallClock,
}

/// The correction of a clock: `offset` at the time `origin`, plus `rate` per nanosecond after it.
#[derive(Clone, Copy, Debug)]
struct ClockCorrection {
    offset: f64,
    rate: f64,
    origin: i64,
}

/// One host's clock.
#[derive(Debug)]
pub(crate) struct HostClock {
    pub(crate) domain: String,
    pub(crate) source: ClockSource,
    /// The correction in the middle of the trace.
    pub(crate) offset_ns: i64,
    /// The corrections that are applied in sequence. The first one converts to the clock of the
    /// host to which this host was aligned. The second one converts to the clock to which that host
    /// was aligned, and so on up to the reference clock.
    corrections: Vec<ClockCorrection>,
}

/// The clocks of all hosts.
#[derive(Debug)]
pub(crate) struct ClockAlignment {
    pub(crate) hosts: Vec<HostClock>,
}

/// The bounds for x that one operation gives. `at` is the time of the operation on the second
/// host's clock.
#[derive(Clone, Copy, Debug)]
struct OffsetBounds {
    at: i64,
    low: i64,
    high: i64,
}

/// For each operation, the last begin and the first end on the ranks of one host.
type OperationSpans = HashMap<(u128, u64), (i64, i64)>;

impl ClockCorrection {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "differences of times are far below 2^53 ns"
    )]
    fn apply(&self, ns: i64) -> i64 {
        let added = self.offset + self.rate * (ns.saturating_sub(self.origin)) as f64;
        ns.saturating_add(added.round() as i64)
    }
}

impl ClockAlignment {
    /// Converts a time on the clock of a domain (the processes that share a clock) to the common
    /// clock.
    pub(crate) fn to_common_clock(&self, domain: &str, ns: i64) -> i64 {
        let host = self.hosts.iter().find(|host| host.domain == domain);
        host.map_or(ns, |host| {
            host.corrections.iter().fold(ns, |ns, correction| correction.apply(ns))
        })
    }
}

/// Aligns all clocks to the clock of the host with the lowest rank.
pub(crate) fn align_clocks(sources: &[TraceSource]) -> ClockAlignment {
    let mut of_domain: BTreeMap<&str, Vec<&TraceSource>> = BTreeMap::new();
    for source in sources {
        of_domain.entry(&source.clock.domain).or_default().push(source);
    }
    let mut unplaced: Vec<(&str, Vec<&TraceSource>, OperationSpans)> = of_domain
        .into_iter()
        .map(|(domain, sources)| (domain, sources.clone(), operation_spans(&sources)))
        .collect();
    let lowest =
        |sources: &[&TraceSource]| sources.iter().filter_map(|s| s.ranks.first().copied()).min();
    unplaced.sort_by_key(|(_, sources, _)| lowest(sources).unwrap_or(usize::MAX));
    let mut aligned: Vec<(HostClock, OperationSpans, i64)> = Vec::new();
    while !unplaced.is_empty() {
        // Take the first unaligned host that has an operation in common with an aligned host. If
        // there is no such host, take the first unaligned host.
        let link = unplaced.iter().enumerate().find_map(|(i, (_, _, operations))| {
            let meets =
                |(_, other, _): &(HostClock, OperationSpans, i64)| offset_bounds(other, operations);
            let (by, bounds) = aligned.iter().enumerate().find_map(|(by, host)| {
                Some((by, meets(host))).filter(|(_, bounds)| !bounds.is_empty())
            })?;
            Some((i, by, bounds))
        });
        let (i, by) = link.as_ref().map_or((0, None), |(i, by, bounds)| (*i, Some((*by, bounds))));
        let (domain, sources, operations) = unplaced.remove(i);
        let since_wall = wall_offset_ns(&sources);
        let host = match (by, aligned.first()) {
            (Some((by, bounds)), _) => align_to_host(domain, &aligned[by].0, bounds),
            (None, Some((_, _, reference))) => align_by_wall_clock(domain, *reference, since_wall),
            (None, None) => {
                let (domain, source) = (domain.to_owned(), ClockSource::Reference);
                HostClock { domain, source, offset_ns: 0, corrections: Vec::new() }
            }
        };
        aligned.push((host, operations, since_wall));
    }
    ClockAlignment { hosts: aligned.into_iter().map(|(host, ..)| host).collect() }
}

fn align_to_host(domain: &str, reference_host: &HostClock, bounds: &[OffsetBounds]) -> HostClock {
    let (correction, max_error) = estimate_correction(bounds);
    let host_error = match reference_host.source {
        ClockSource::CommonOperations { max_error_ns, .. } => max_error_ns,
        ClockSource::Reference | ClockSource::WallClock => 0,
    };
    let source = match reference_host.source {
        ClockSource::WallClock => ClockSource::WallClock,
        _ => ClockSource::CommonOperations {
            count: bounds.len(),
            max_error_ns: max_error.saturating_add(host_error),
        },
    };
    let corrections: Vec<ClockCorrection> =
        std::iter::once(correction).chain(reference_host.corrections.iter().copied()).collect();
    let middle = bounds[bounds.len() / 2].at;
    let offset_ns = corrections
        .iter()
        .fold(middle, |ns, correction| correction.apply(ns))
        .saturating_sub(middle);
    HostClock { domain: domain.to_owned(), source, offset_ns, corrections }
}

#[allow(clippy::cast_precision_loss, reason = "wall clocks are less exact than this cast")]
fn align_by_wall_clock(domain: &str, reference: i64, wall_offset: i64) -> HostClock {
    let offset_ns = wall_offset.saturating_sub(reference);
    let correction = ClockCorrection { offset: offset_ns as f64, rate: 0.0, origin: 0 };
    HostClock {
        domain: domain.to_owned(),
        source: ClockSource::WallClock,
        offset_ns,
        corrections: vec![correction],
    }
}

/// Returns the difference between the wall clock and the host's clock.
fn wall_offset_ns(sources: &[&TraceSource]) -> i64 {
    let first = sources.first().map(|source| &source.clock);
    first.map_or(0, |clock| clock.wall_ns.saturating_sub(clock.monotonic_ns))
}

fn operation_spans(sources: &[&TraceSource]) -> OperationSpans {
    let mut all = OperationSpans::new();
    for sample in sources.iter().flat_map(|source| &source.clock_samples) {
        let (begun, ended) = all.entry(sample.key).or_insert((i64::MIN, i64::MAX));
        *begun = (*begun).max(sample.begun_ns);
        *ended = (*ended).min(sample.ended_ns);
    }
    all
}

/// Returns the bounds for the second host's correction from common operations, ordered by time.
fn offset_bounds(first: &OperationSpans, second: &OperationSpans) -> Vec<OffsetBounds> {
    let both = second.iter().filter_map(|(key, second_span)| Some((first.get(key)?, second_span)));
    let bounds = both.map(|(&(begun, ended), &(second_begun, second_ended))| OffsetBounds {
        at: second_begun,
        low: begun.saturating_sub(second_ended),
        high: ended.saturating_sub(second_begun),
    });
    let mut bounds: Vec<OffsetBounds> = bounds.collect();
    bounds.sort_by_key(|bounds| bounds.at);
    bounds
}

/// Returns the intersection of the intervals: the largest lower bound and the smallest upper bound.
fn intersection(bounds: &[OffsetBounds]) -> (i64, i64) {
    let low = bounds.iter().map(|bounds| bounds.low).max().unwrap_or(0);
    let high = bounds.iter().map(|bounds| bounds.high).min().unwrap_or(0);
    (low, high)
}

/// Returns the correction of the second clock and its maximum error. The caller passes at least one
/// interval.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "differences of times are far below 2^53 ns"
)]
fn estimate_correction(bounds: &[OffsetBounds]) -> (ClockCorrection, i64) {
    let (low, high) = intersection(bounds);
    let origin = bounds[bounds.len() / 2].at;
    let middle_offset = (low as f64 + high as f64) / 2.0;
    if low <= high {
        return (
            ClockCorrection { offset: middle_offset, rate: 0.0, origin },
            high.saturating_sub(low) / 2,
        );
    }
    let part_count = (bounds.len() / MIN_OPERATIONS_PER_PART).min(MAX_FIT_PARTS);
    let correction = if part_count < 2 {
        ClockCorrection { offset: middle_offset, rate: 0.0, origin }
    } else {
        fit_line(bounds.chunks(bounds.len().div_ceil(part_count)), origin)
    };
    // The maximum error is the largest distance of the line from an interval that does not contain
    // it, plus the usual half width of an intersection.
    let added = |at: i64| correction.offset + correction.rate * (at.saturating_sub(origin)) as f64;
    let outside = bounds.iter().map(|one| {
        let x = added(one.at);
        (one.low as f64 - x).max(x - one.high as f64).max(0.0)
    });
    let worst = outside.fold(0.0, f64::max);
    let mut widths: Vec<i64> =
        bounds.iter().map(|one| one.high.saturating_sub(one.low) / 2).collect();
    widths.sort_unstable();
    (correction, (worst as i64).saturating_add(widths[widths.len() / 2]))
}

/// Fits a least-squares line through the middles of the intersections of the periods. A period with
/// a narrow intersection has a larger weight.
#[allow(clippy::cast_precision_loss, reason = "differences of times are far below 2^53 ns")]
fn fit_line<'a>(parts: impl Iterator<Item = &'a [OffsetBounds]>, origin: i64) -> ClockCorrection {
    let (mut weights, mut times, mut values) = (0.0, 0.0, 0.0);
    let (mut squares, mut products) = (0.0, 0.0);
    for part in parts {
        let (low, high) = intersection(part);
        let at = (part[part.len() / 2].at.saturating_sub(origin)) as f64;
        let value = (low as f64 + high as f64) / 2.0;
        // The width of the intersection in microseconds, at least 1.
        let width = ((high as f64 - low as f64).abs() / 1000.0).max(1.0);
        let weight = 1.0 / (width * width);
        weights += weight;
        times += weight * at;
        values += weight * value;
        squares += weight * at * at;
        products += weight * at * value;
    }
    let spread = weights * squares - times * times;
    let rate = if spread > 0.0 { (weights * products - times * values) / spread } else { 0.0 };
    ClockCorrection { offset: (values - rate * times) / weights, rate, origin }
}
