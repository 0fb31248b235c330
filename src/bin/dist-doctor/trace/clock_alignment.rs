//! How the clocks of hosts differ, from what their ranks did together. Pure.
//!
//! In a barrier, and in every collective whose result needs something of all ranks, nobody ends
//! before everybody has begun. So for two hosts, with x what has to be added to the second one's
//! clock: x <= end on the first - begin on the second, and x >= begin on the first - end on the
//! second. Of many operations these are many intervals, and x is in all of them: its middle is
//! taken, and half its width is how wrong that may be. Where no x is in all of them, the clocks go
//! at different speeds; then a line is fitted to the middles of shorter times. Hosts that have no
//! operation in common with the first are set by another that has, and else by the clocks on their
//! walls.

use super::trace_reader::TraceSource;
use std::collections::{BTreeMap, HashMap};

/// Into how many parts the time is cut, to see how two clocks go.
const MAX_FIT_PARTS: usize = 32;

/// The fewest operations of a part.
const MIN_OPERATIONS_PER_PART: usize = 4;

/// By what a clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockSource {
    /// It is the one that all are set to.
    Reference,
    /// By so many operations; it may be wrong by so much.
    CommonOperations { count: usize, max_error_ns: i64 },
    /// By the clocks on the walls.
    WallClock,
}

/// What has to be added to a clock: `offset` at the time `origin`, and `rate` more each nanosecond.
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
    /// What is added in the middle of the trace.
    pub(crate) offset_ns: i64,
    /// One after the other: to the host that it was set by, to the one that this was, and so on.
    corrections: Vec<ClockCorrection>,
}

/// The clocks of all hosts.
#[derive(Debug)]
pub(crate) struct ClockAlignment {
    pub(crate) hosts: Vec<HostClock>,
}

/// What one operation says about x, at a time of the second host.
#[derive(Clone, Copy, Debug)]
struct OffsetBounds {
    at: i64,
    low: i64,
    high: i64,
}

/// When the last rank of a host began an operation, and the first one ended it.
type OperationSpans = HashMap<(u128, u64), (i64, i64)>;

impl ClockCorrection {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "differences of times"
    )]
    fn apply(&self, ns: i64) -> i64 {
        let added = self.offset + self.rate * (ns.saturating_sub(self.origin)) as f64;
        ns.saturating_add(added.round() as i64)
    }
}

impl ClockAlignment {
    /// A time of a domain by the common clock.
    pub(crate) fn to_common_clock(&self, domain: &str, ns: i64) -> i64 {
        let host = self.hosts.iter().find(|host| host.domain == domain);
        host.map_or(ns, |host| host.corrections.iter().fold(ns, |ns, line| line.apply(ns)))
    }
}

/// Sets all clocks to that of the lowest rank's host.
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
        // The first host that has something in common with one that is placed, else the first.
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
        ClockSource::CommonOperations { max_error_ns: off_ns, .. } => off_ns,
        ClockSource::Reference | ClockSource::WallClock => 0,
    };
    let source = match reference_host.source {
        ClockSource::WallClock => ClockSource::WallClock,
        _ => ClockSource::CommonOperations {
            count: bounds.len(),
            max_error_ns: max_error.saturating_add(host_error),
        },
    };
    let lines: Vec<ClockCorrection> =
        std::iter::once(correction).chain(reference_host.corrections.iter().copied()).collect();
    let middle = bounds[bounds.len() / 2].at;
    let offset_ns = lines.iter().fold(middle, |ns, line| line.apply(ns)).saturating_sub(middle);
    HostClock { domain: domain.to_owned(), source, offset_ns, corrections: lines }
}

#[allow(clippy::cast_precision_loss, reason = "clocks on walls are not that exact")]
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

/// What the wall has more than the host's clock.
fn wall_offset_ns(sources: &[&TraceSource]) -> i64 {
    let first = sources.first().map(|source| &source.clock);
    first.map_or(0, |clock| clock.wall_ns.saturating_sub(clock.monotonic_ns))
}

fn operation_spans(sources: &[&TraceSource]) -> OperationSpans {
    let mut all = OperationSpans::new();
    for sighting in sources.iter().flat_map(|source| &source.clock_samples) {
        let (begun, ended) = all.entry(sighting.key).or_insert((i64::MIN, i64::MAX));
        *begun = (*begun).max(sighting.begun_ns);
        *ended = (*ended).min(sighting.ended_ns);
    }
    all
}

/// What the operations that two hosts have in common say about the second one's clock, in the order
/// of time.
fn offset_bounds(first: &OperationSpans, second: &OperationSpans) -> Vec<OffsetBounds> {
    let both = second.iter().filter_map(|(key, theirs)| Some((first.get(key)?, theirs)));
    let bounds = both.map(|(&(begun, ended), &(their_begun, their_ended))| OffsetBounds {
        at: their_begun,
        low: begun.saturating_sub(their_ended),
        high: ended.saturating_sub(their_begun),
    });
    let mut bounds: Vec<OffsetBounds> = bounds.collect();
    bounds.sort_by_key(|bounds| bounds.at);
    bounds
}

/// What is in all intervals: the greatest lower and the least upper bound.
fn intersection(bounds: &[OffsetBounds]) -> (i64, i64) {
    let low = bounds.iter().map(|bounds| bounds.low).max().unwrap_or(0);
    let high = bounds.iter().map(|bounds| bounds.high).min().unwrap_or(0);
    (low, high)
}

/// What has to be added to the second clock, and how wrong that may be. There is at least one
/// interval.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "differences of times"
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
    // How far it is outside of any interval, at worst, and the usual half width.
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

/// The line of least squares through the middles of parts; narrow parts count more.
#[allow(clippy::cast_precision_loss, reason = "differences of times")]
fn fit_line<'a>(parts: impl Iterator<Item = &'a [OffsetBounds]>, origin: i64) -> ClockCorrection {
    let (mut weights, mut times, mut values) = (0.0, 0.0, 0.0);
    let (mut squares, mut products) = (0.0, 0.0);
    for part in parts {
        let (low, high) = intersection(part);
        let at = (part[part.len() / 2].at.saturating_sub(origin)) as f64;
        let value = (low as f64 + high as f64) / 2.0;
        // In microseconds, and never without a width.
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
