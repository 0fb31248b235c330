//! The measurement: engines are started for each number of ranks, and then take turns at each cell
//! until it is certain who is faster, or twice as many pairs have not made it certain.

use crate::ballast::Ballast;
use crate::bound::Bound;
use crate::cell::{Cell, Figures, Measured};
use crate::cli::{OnDevice, Options};
use crate::engine::{Engine, Launch};
use crate::files::{self, Results, Run};
use crate::limits::{self, Limits};
use crate::machine::Machine;
use crate::order::Order;
use crate::ours::Ours;
use crate::progress::Progress;
use crate::report;
use crate::shares::{self, bound_name};
use crate::stage::Stage;
use crate::stats::{Times, judge};
use crate::table;
use crate::text::size;
use crate::{Failure, complain, say};
use dist::sys::host;

/// How often pairs are added where the interval is too wide.
const REPEATS: usize = 2;

/// A peer that is so many times slower than the best one in a trial has one turn, to be shown, and
/// no more.
const FAR: f64 = 4.0;

/// One that is so many times slower after a round has no further turns.
const BEHIND: f64 = 1.25;

/// Measures all that the options ask for, prints it, and writes the files.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    options.report.as_deref().map_or(Ok(()), report::check)?;
    let mut stage = Stage::new()?;
    let mut peers: Vec<Box<dyn Launch>> = Vec::new();
    for peer in &options.peer {
        peers.extend(peer.engines(&mut stage)?);
    }
    if options.limits {
        peers.push(Box::new(Bound));
    }
    let mut bench = Bench {
        options,
        stage,
        peers,
        limits: None,
        progress: Progress::new(options.ranks().iter().map(|&n| cells(options, n).len()).sum()),
        done: Vec::new(),
    };
    let ballast = (!options.quick).then(Ballast::new);
    let outcome = bench.measure_all();
    drop(ballast);
    bench.progress.clear();
    let results = bench.into_results();
    // What there is of results is kept, whatever has ended the measurement.
    write_files(options, &results)?;
    outcome?;
    say(&(table::summary(&results.cells) + &shares::text(&results)))?;
    let wrong = results.cells.iter().filter(|measured| has_wrong(measured)).count();
    if wrong > 0 {
        return Err(Failure::new(format!("{wrong} cells had wrong results")));
    }
    // Only what is right and whole replaces a report.
    options.report.as_deref().map_or(Ok(()), |path| report::put(path, &[results]))
}

/// Writes the files for other programs.
pub(crate) fn write_files(options: &Options, results: &Results) -> Result<(), Failure> {
    if let Some(path) = &options.json {
        files::write(path, &files::json(results))?;
    }
    if let Some(path) = &options.csv {
        files::write(path, &files::csv(results))?;
    }
    Ok(())
}

/// True if a checked call had a wrong result.
pub(crate) fn has_wrong(measured: &Measured) -> bool {
    measured.ours.wrong > 0 || measured.peers.iter().any(|peer| peer.wrong > 0)
}

/// What is measured with so many ranks, in order. Sizes that come to the same are one.
pub(crate) fn cells(options: &Options, ranks: usize) -> Vec<Cell> {
    let (dtype, redop) = (options.dtype, options.redop);
    let mut cells: Vec<Cell> = Vec::new();
    for variant in options.variants() {
        for op in options.ops() {
            let mut counts = Vec::new();
            for bytes in options.sizes(ranks) {
                let count = op.elements(bytes, dtype.size(), ranks);
                if !counts.contains(&count) {
                    counts.push(count);
                    cells.push(Cell { ranks, op, count, dtype, redop, variant });
                }
            }
        }
    }
    cells
}

/// An engine that takes part in a cell.
struct Part {
    /// Its place in the list of engines; ours is the first.
    engine: usize,
    order: Order,
    figures: Figures,
    is_bound: bool,
    /// How many turns it has at most.
    turns: usize,
}

impl Part {
    /// It is a library to compare with.
    fn is_peer(&self) -> bool {
        self.engine > 0 && !self.is_bound
    }

    fn has_a_turn(&self) -> bool {
        self.figures.runs.len() < self.turns
    }
}

/// The measurement under way.
struct Bench<'a> {
    options: &'a Options,
    stage: Stage,
    peers: Vec<Box<dyn Launch>>,
    limits: Option<Limits>,
    progress: Progress,
    done: Vec<Measured>,
}

impl Bench<'_> {
    fn measure_all(&mut self) -> Result<(), Failure> {
        if self.options.limits {
            let limits = limits::measure()?;
            say(&limits.text())?;
            self.limits = Some(limits);
        }
        for ranks in self.options.ranks() {
            let cells = cells(self.options, ranks);
            let device = self.options.device.map_or("", OnDevice::backend);
            let ours = Ours { transport: self.options.transport.name(), device };
            let mut engines = vec![Some(Engine::start(&ours, ranks, &mut self.stage)?)];
            for peer in &self.peers {
                let is_wanted = cells.iter().any(|cell| peer.takes(cell));
                engines.push(match is_wanted {
                    true => Some(Engine::start(&**peer, ranks, &mut self.stage)?),
                    false => None,
                });
            }
            let mut before: Option<Cell> = None;
            for cell in cells {
                self.progress.next();
                let is_new = before.is_none_or(|b| (b.op, b.variant) != (cell.op, cell.variant));
                if is_new {
                    let transport = self.options.transport.name();
                    self.print(&table::head(&cell, transport, !self.options.peer.is_empty()))?;
                }
                before = Some(cell);
                if let Some(measured) = self.measure(&cell, &mut engines)? {
                    self.print(&table::row(&measured))?;
                    self.done.push(measured);
                }
            }
            for engine in engines.into_iter().flatten() {
                engine.end(&mut self.stage)?;
            }
        }
        Ok(())
    }

    /// Measures a cell; nothing where this host has not the memory.
    fn measure(
        &mut self,
        cell: &Cell,
        engines: &mut [Option<Engine>],
    ) -> Result<Option<Measured>, Failure> {
        if !self.has_memory(cell) {
            return Ok(None);
        }
        let (mut parts, mut left_out) = self.trial(cell, engines)?;
        for round in 0..=REPEATS {
            for pair in 0..self.options.pairs() {
                let turn = round * self.options.pairs() + pair;
                // Who goes first changes, since what went before leaves the machine as it is.
                let mut turns: Vec<usize> =
                    (0..parts.len()).filter(|&i| parts[i].has_a_turn()).collect();
                let first = turn % turns.len();
                turns.rotate_left(first);
                for index in turns {
                    let Some(part) = parts.get_mut(index) else { continue };
                    let name = part.figures.engine.clone();
                    self.progress.tell(cell, turn + 1, &name);
                    let outcome = run_one(engines, part.engine, &part.order, &mut self.stage);
                    let refused = || Failure::new(format!("{name}: not offered any more"));
                    match outcome.and_then(|done| done.ok_or_else(refused)) {
                        Ok((times, _)) => part.figures.runs.push(times),
                        Err(failure) => {
                            self.give_up(engines, part.engine, failure)?;
                            left_out.push(name);
                        }
                    }
                }
                parts.retain(|part| engines[part.engine].is_some());
            }
            let so_far = assemble(cell, &parts, &left_out)?;
            if is_certain(&so_far) {
                break;
            }
            let limit = so_far.best().map_or(f64::INFINITY, Figures::p50) * BEHIND;
            for part in parts.iter_mut().filter(|part| part.is_peer()) {
                if part.figures.p50() > limit {
                    part.turns = part.figures.runs.len();
                }
            }
        }
        assemble(cell, &parts, &left_out).map(Some)
    }

    /// Whether this host has memory for the buffers of all engines.
    fn has_memory(&self, cell: &Cell) -> bool {
        let takes = self.peers.iter().filter(|peer| peer.takes(cell));
        let Err(why) = fits(cell, 1 + takes.count()) else { return true };
        self.progress.clear();
        complain(&why);
        false
    }

    /// Checks all engines' results and finds the peers that are worth their turns.
    fn trial(
        &mut self,
        cell: &Cell,
        engines: &mut [Option<Engine>],
    ) -> Result<(Vec<Part>, Vec<String>), Failure> {
        let calls = self.options.calls();
        let trial = cell.trial(calls);
        let (mut tried, mut left_out) = (Vec::new(), Vec::new());
        for index in 0..engines.len() {
            let takes = index == 0 || self.peers[index - 1].takes(cell);
            let Some(engine) = engines[index].as_ref().filter(|_| takes) else { continue };
            let name = engine.name().to_owned();
            self.progress.tell(cell, 0, &name);
            match run_one(engines, index, &trial, &mut self.stage) {
                Ok(Some((times, wrong))) => {
                    let order = cell.order(calls, times.p50);
                    let figures = Figures { engine: name, runs: Vec::new(), wrong };
                    let is_bound = index > 0 && self.peers[index - 1].is_bound();
                    let (engine, turns) = (index, usize::MAX);
                    tried.push((times.p50, Part { engine, order, figures, is_bound, turns }));
                }
                // It has no part in this cell.
                Ok(None) => {}
                Err(failure) => {
                    self.give_up(engines, index, failure)?;
                    left_out.push(name);
                }
            }
        }
        let peers = tried.iter().filter(|(_, part)| part.is_peer()).map(|(p50, _)| *p50);
        let best = peers.fold(f64::INFINITY, f64::min);
        let judged = tried.into_iter().map(|(p50, part)| {
            let is_far = part.is_peer() && p50 > FAR * best;
            Part { turns: if is_far { 1 } else { part.turns }, ..part }
        });
        let parts = judged.collect();
        Ok((parts, left_out))
    }

    /// Goes on without a peer that has failed; without ours, or where a signal has come, there is
    /// nothing to go on with.
    fn give_up(
        &mut self,
        engines: &mut [Option<Engine>],
        index: usize,
        failure: Failure,
    ) -> Result<(), Failure> {
        if index == 0 || failure.is_signal() {
            return Err(failure);
        }
        self.progress.clear();
        complain(&format!("{}\n  the measurement goes on without it", failure.message));
        match engines[index].take() {
            Some(engine) => engine.abandon(&mut self.stage),
            None => Ok(()),
        }
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        self.progress.clear();
        say(text)
    }

    fn into_results(self) -> Results {
        Results { run: run_description(self.options), limits: self.limits, cells: self.done }
    }
}

/// The part of the results that is the same for all cells.
pub(crate) fn run_description(options: &Options) -> Run {
    Run {
        transport: options.transport.name().to_owned(),
        pairs: options.pairs(),
        command: Options::told(),
        machine: Machine::here(),
    }
}

/// Checks that this host has memory for the buffers of so many engines, which keep them until the
/// next order of another size.
///
/// # Errors
/// The message about the cell that is left out.
pub(crate) fn fits(cell: &Cell, engines: usize) -> Result<(), String> {
    let needed = cell.memory().saturating_mul(engines);
    let there = host::memory_available().and_then(|bytes| usize::try_from(bytes).ok());
    // Not to the last byte: the engines need some themselves.
    match there {
        Some(there) if needed > there / 4 * 3 => {
            let (op, bytes, needed, there) =
                (cell.op.name(), size(cell.bytes()), needed >> 20, there >> 20);
            Err(format!(
                "{op} of {bytes} is left out: buffers would take {needed} MiB, of {there} MiB that there are"
            ))
        }
        _ => Ok(()),
    }
}

/// Has one engine carry out an order; what it took, and how many elements were wrong. `None`: it
/// has nothing for that.
pub(crate) fn run_one(
    engines: &mut [Option<Engine>],
    index: usize,
    order: &Order,
    stage: &mut Stage,
) -> Result<Option<(Times, u64)>, Failure> {
    let Some(engine) = engines.get_mut(index).and_then(Option::as_mut) else {
        return Err(Failure::new("an engine is not there"));
    };
    let Some(stamps) = engine.run(order, stage)? else { return Ok(None) };
    let wrong = stamps.iter().map(|rank| rank.wrong).sum();
    let times = judge(order.op, &stamps);
    times
        .map(|times| Some((times, wrong)))
        .ok_or_else(|| Failure::new("a rank has not measured anything"))
}

/// Whether more pairs would tell nothing new: the interval is narrow, or all of it says that we are
/// slower. Too few pairs for an interval are what the user wants.
fn is_certain(measured: &Measured) -> bool {
    let Some(ratio) = measured.ratio() else { return true };
    ratio.is_narrow() || ratio.interval.is_none_or(|(low, _)| low > 1.0)
}

fn assemble(cell: &Cell, parts: &[Part], left_out: &[String]) -> Result<Measured, Failure> {
    let ours = parts.iter().find(|part| part.engine == 0);
    let ours = ours.ok_or_else(|| Failure::new("nothing was measured"))?.figures.clone();
    let peers = parts.iter().filter(|part| part.is_peer());
    let peers = peers.map(|part| part.figures.clone()).collect();
    let bound = parts.iter().find(|part| part.is_bound).map(|part| Figures {
        engine: bound_name(cell.variant.buffers).to_owned(),
        ..part.figures.clone()
    });
    Ok(Measured { cell: *cell, ours, peers, bound, left_out: left_out.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples;
    use crate::ops::Op;
    use clap::Parser as _;

    #[test]
    fn it_is_certain_where_more_pairs_would_tell_nothing() {
        let against = |runs: &[f64]| {
            let mut measured = samples::measured(Op::AllReduce, 64, &[("a", 1000.0)]);
            measured.peers[0] = samples::figures("a", runs);
            is_certain(&measured)
        };
        assert!(against(&[900.0, 910.0, 920.0, 930.0, 940.0, 950.0]));
        assert!(against(&[500.0, 600.0, 700.0, 800.0, 900.0, 950.0]));
        assert!(!against(&[500.0, 600.0, 700.0, 800.0, 900.0, 1050.0]));
        assert!(against(&[500.0, 2000.0]) && is_certain(&samples::measured(Op::Barrier, 0, &[])));
    }

    #[test]
    fn cells_are_the_product_of_all_that_is_asked_for() {
        let line = "dist-bench --sizes 4,8,64 --ops all_reduce,all_gather,barrier --mode \
                    rewritten,untouched";
        let options = Options::parse_from(line.split(' '));
        let cells = cells(&options, 4);
        // 4 and 8 bytes of all_gather are both one element of each of four ranks, and a barrier has
        // no size.
        let of = |op: Op| cells.iter().filter(|cell| cell.op == op).count();
        assert_eq!([Op::AllReduce, Op::AllGather, Op::Barrier].map(of), [6, 4, 2]);
        let gathered: Vec<usize> =
            cells.iter().filter(|c| c.op == Op::AllGather).map(Cell::bytes).collect();
        assert_eq!(gathered, [16, 64, 16, 64]);
    }
}
