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

use super::read::Source;
use std::collections::{BTreeMap, HashMap};

/// Into how many parts the time is cut, to see how two clocks go.
const PARTS: usize = 32;

/// The fewest operations of a part.
const FEWEST: usize = 4;

/// By what a clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is the one that all are set to.
    Reference,
    /// By so many operations; it may be wrong by so much.
    Operations { count: usize, off_ns: i64 },
    /// By the clocks on the walls.
    Wall,
}

/// What has to be added to a clock: `offset` at the time `origin`, and `rate` more each nanosecond.
#[derive(Clone, Copy, Debug)]
struct Line {
    offset: f64,
    rate: f64,
    origin: i64,
}

/// One host's clock.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) domain: String,
    pub(crate) found: Found,
    /// What is added in the middle of the trace.
    pub(crate) offset_ns: i64,
    /// One after the other: to the host that it was set by, to the one that this was, and so on.
    lines: Vec<Line>,
}

/// The clocks of all hosts.
#[derive(Debug)]
pub(crate) struct Alignment {
    pub(crate) hosts: Vec<Host>,
}

/// What one operation says about x, at a time of the second host.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    at: i64,
    low: i64,
    high: i64,
}

/// When the last rank of a host began an operation, and the first one ended it.
type Operations = HashMap<(u128, u64), (i64, i64)>;

impl Line {
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

impl Alignment {
    /// A time of a domain by the common clock.
    pub(crate) fn correct(&self, domain: &str, ns: i64) -> i64 {
        let host = self.hosts.iter().find(|host| host.domain == domain);
        host.map_or(ns, |host| host.lines.iter().fold(ns, |ns, line| line.apply(ns)))
    }
}

/// Sets all clocks to that of the lowest rank's host.
pub(crate) fn align(sources: &[Source]) -> Alignment {
    let mut of_domain: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        of_domain.entry(&source.clock.domain).or_default().push(source);
    }
    let mut rest: Vec<(&str, Vec<&Source>, Operations)> = of_domain
        .into_iter()
        .map(|(domain, sources)| (domain, sources.clone(), operations(&sources)))
        .collect();
    let lowest =
        |sources: &[&Source]| sources.iter().filter_map(|s| s.ranks.first().copied()).min();
    rest.sort_by_key(|(_, sources, _)| lowest(sources).unwrap_or(usize::MAX));
    let mut placed: Vec<(Host, Operations, i64)> = Vec::new();
    while !rest.is_empty() {
        // The first host that has something in common with one that is placed, else the first.
        let found = rest.iter().enumerate().find_map(|(i, (_, _, operations))| {
            let meets = |(_, other, _): &(Host, Operations, i64)| bounds(other, operations);
            let (by, bounds) = placed.iter().enumerate().find_map(|(by, host)| {
                Some((by, meets(host))).filter(|(_, bounds)| !bounds.is_empty())
            })?;
            Some((i, by, bounds))
        });
        let (i, by) = found.as_ref().map_or((0, None), |(i, by, bounds)| (*i, Some((*by, bounds))));
        let (domain, sources, operations) = rest.remove(i);
        let since_wall = wall(&sources);
        let host = match (by, placed.first()) {
            (Some((by, bounds)), _) => set_by(domain, &placed[by].0, bounds),
            (None, Some((_, _, reference))) => set_by_wall(domain, *reference, since_wall),
            (None, None) => {
                let (domain, found) = (domain.to_owned(), Found::Reference);
                Host { domain, found, offset_ns: 0, lines: Vec::new() }
            }
        };
        placed.push((host, operations, since_wall));
    }
    Alignment { hosts: placed.into_iter().map(|(host, ..)| host).collect() }
}

fn set_by(domain: &str, by: &Host, bounds: &[Bounds]) -> Host {
    let (line, off) = estimate(bounds);
    let before = match by.found {
        Found::Operations { off_ns, .. } => off_ns,
        Found::Reference | Found::Wall => 0,
    };
    let found = match by.found {
        Found::Wall => Found::Wall,
        _ => Found::Operations { count: bounds.len(), off_ns: off.saturating_add(before) },
    };
    let lines: Vec<Line> = std::iter::once(line).chain(by.lines.iter().copied()).collect();
    let middle = bounds[bounds.len() / 2].at;
    let offset_ns = lines.iter().fold(middle, |ns, line| line.apply(ns)).saturating_sub(middle);
    Host { domain: domain.to_owned(), found, offset_ns, lines }
}

#[allow(clippy::cast_precision_loss, reason = "clocks on walls are not that exact")]
fn set_by_wall(domain: &str, reference: i64, mine: i64) -> Host {
    let offset_ns = mine.saturating_sub(reference);
    let line = Line { offset: offset_ns as f64, rate: 0.0, origin: 0 };
    Host { domain: domain.to_owned(), found: Found::Wall, offset_ns, lines: vec![line] }
}

/// What the wall has more than the host's clock.
fn wall(sources: &[&Source]) -> i64 {
    let first = sources.first().map(|source| &source.clock);
    first.map_or(0, |clock| clock.wall_ns.saturating_sub(clock.monotonic_ns))
}

fn operations(sources: &[&Source]) -> Operations {
    let mut all = Operations::new();
    for sighting in sources.iter().flat_map(|source| &source.sightings) {
        let (begun, ended) = all.entry(sighting.key).or_insert((i64::MIN, i64::MAX));
        *begun = (*begun).max(sighting.begun_ns);
        *ended = (*ended).min(sighting.ended_ns);
    }
    all
}

/// What the operations that two hosts have in common say about the second one's clock, in the order
/// of time.
fn bounds(first: &Operations, second: &Operations) -> Vec<Bounds> {
    let both = second.iter().filter_map(|(key, theirs)| Some((first.get(key)?, theirs)));
    let bounds = both.map(|(&(begun, ended), &(their_begun, their_ended))| Bounds {
        at: their_begun,
        low: begun.saturating_sub(their_ended),
        high: ended.saturating_sub(their_begun),
    });
    let mut bounds: Vec<Bounds> = bounds.collect();
    bounds.sort_by_key(|bounds| bounds.at);
    bounds
}

/// What is in all intervals: the greatest lower and the least upper bound.
fn common(bounds: &[Bounds]) -> (i64, i64) {
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
fn estimate(bounds: &[Bounds]) -> (Line, i64) {
    let (low, high) = common(bounds);
    let origin = bounds[bounds.len() / 2].at;
    let middle = (low as f64 + high as f64) / 2.0;
    if low <= high {
        return (Line { offset: middle, rate: 0.0, origin }, high.saturating_sub(low) / 2);
    }
    let parts = (bounds.len() / FEWEST).min(PARTS);
    let line = if parts < 2 {
        Line { offset: middle, rate: 0.0, origin }
    } else {
        fit(bounds.chunks(bounds.len().div_ceil(parts)), origin)
    };
    // How far it is outside of any interval, at worst, and the usual half width.
    let added = |at: i64| line.offset + line.rate * (at.saturating_sub(origin)) as f64;
    let outside = bounds.iter().map(|one| {
        let x = added(one.at);
        (one.low as f64 - x).max(x - one.high as f64).max(0.0)
    });
    let worst = outside.fold(0.0, f64::max);
    let mut widths: Vec<i64> =
        bounds.iter().map(|one| one.high.saturating_sub(one.low) / 2).collect();
    widths.sort_unstable();
    (line, (worst as i64).saturating_add(widths[widths.len() / 2]))
}

/// The line of least squares through the middles of parts; narrow parts count more.
#[allow(clippy::cast_precision_loss, reason = "differences of times")]
fn fit<'a>(parts: impl Iterator<Item = &'a [Bounds]>, origin: i64) -> Line {
    let (mut weights, mut times, mut values) = (0.0, 0.0, 0.0);
    let (mut squares, mut products) = (0.0, 0.0);
    for part in parts {
        let (low, high) = common(part);
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
    Line { offset: (values - rate * times) / weights, rate, origin }
}
