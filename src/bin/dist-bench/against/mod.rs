//! `--against TREE`: the ranks of this program and the ranks of another tree's program take turns.
//! The ratio of their times in each cell shows whether a change has made the library slower.
//!
//! A pair is one run of calls by each side, one after the other; who goes first alternates. The
//! pairs of a cell are divided into [`PASSES`] passes. Each pass starts the ranks of both sides
//! again, in alternating order. The reason is that the place of a process's memory changes its
//! times by percents for as long as the process lives. Both sides get the same orders (`order`). An
//! order has the names of operations and types, never numbers of constants, which differ between
//! trees.
//!
//! Cells and operations above their limit are measured again with as many pairs, at most
//! [`REPEATS`] times. All pairs count.

mod text;
mod tree;
mod verdict;

use crate::ballast::Ballast;
use crate::cell::{Cell, Figures, Measured};
use crate::cli::{OnDevice, Options};
use crate::engine::{Engine, Launch};
use crate::files::Results;
use crate::measure::{cells, fits, has_wrong, run_description, run_one, write_files};
use crate::order::Order;
use crate::ours::{self, Ours};
use crate::progress::Progress;
use crate::report;
use crate::stage::Stage;
use crate::{Failure, complain, say};
use std::path::Path;
use tree::Tree;
pub(crate) use verdict::CELL_LIMIT;
use verdict::Verdict;

/// The name of the other tree's engine in tables and files.
pub(crate) const BASELINE: &str = "baseline";

/// Exit status if this tree is slower than the other one, or a cell could not be judged.
const SLOWER: u8 = 3;

/// Number of times that the ranks of both sides are started for the pairs of a cell.
const PASSES: usize = 6;

/// Number of times that as many pairs are added for a cell or an operation above its limit.
const REPEATS: usize = 2;

/// Measures all cells that the options ask for, prints them, writes the files, and fails with
/// status 3 if this tree is slower.
pub(crate) fn run(options: &Options, tree: &Path) -> Result<(), Failure> {
    options.report.as_deref().map_or(Ok(()), report::check)?;
    let stage = Stage::new()?;
    let transport = options.transport.name();
    let device = options.device.map_or("", OnDevice::backend);
    let ours = Ours { transport, device };
    let sides = Sides { ours, tree: Tree::find(tree, ours)? };
    let mut comparison = Comparison::new(options, stage, sides);
    say(&text::opening(&comparison.sides.tree, comparison.samples.len(), options.pairs()))?;
    let ballast = (!options.quick).then(Ballast::new);
    let outcome = comparison.measure_all();
    drop(ballast);
    comparison.progress.clear();
    let results = Results {
        run: run_description(options),
        limits: None,
        cells: comparison.samples.iter().filter_map(Samples::measured).collect(),
    };
    // The results so far are kept, even if the comparison was cut short.
    write_files(options, &results)?;
    outcome?;
    let verdict = Verdict::of(&results.cells);
    say(&text::summary(&verdict))?;
    let wrong = results.cells.iter().filter(|measured| has_wrong(measured)).count();
    if wrong > 0 {
        return Err(Failure::new(format!("{wrong} cells had wrong results")));
    }
    let is_no_slower = verdict.is_no_slower();
    options.report.as_deref().map_or(Ok(()), |path| report::put(path, &[results]))?;
    match is_no_slower {
        true => Ok(()),
        // The summary has the reasons.
        false => Err(Failure { status: SLOWER, message: String::new() }),
    }
}

/// Whether this tree is no slower; `None` if the cells were not measured against another tree.
pub(crate) fn is_no_slower(all: &[Measured]) -> Option<bool> {
    let is_baseline = |figures: &Figures| figures.engine == BASELINE;
    let has_baseline = all.iter().any(|measured| measured.peers.iter().any(is_baseline));
    has_baseline.then(|| Verdict::of(all).is_no_slower())
}

/// The two programs that are compared.
#[derive(Debug)]
struct Sides {
    ours: Ours,
    tree: Tree,
}

impl Sides {
    /// Starts the ranks of both: ours first in the result. The order in which they start alternates
    /// with `number`.
    fn start(
        &self,
        ranks: usize,
        number: usize,
        stage: &mut Stage,
    ) -> Result<Vec<Option<Engine>>, Failure> {
        let mut launches: [&dyn Launch; 2] = [&self.ours, &self.tree];
        launches.rotate_left(number % 2);
        let mut engines = Vec::new();
        for launch in launches {
            engines.push(Some(Engine::start(launch, ranks, stage)?));
        }
        engines.rotate_right(number % 2);
        Ok(engines)
    }
}

/// One cell and the runs that it has so far.
#[derive(Debug)]
struct Samples {
    cell: Cell,
    /// The order for both sides, once a trial has shown how long a call takes.
    order: Option<Order>,
    /// The figures of our side and of the other one.
    figures: [Figures; 2],
    is_offered: bool,
}

impl Samples {
    fn new(cell: Cell) -> Self {
        let figures = [ours::NAME, BASELINE].map(|engine| Figures {
            engine: engine.to_owned(),
            runs: Vec::new(),
            wrong: 0,
        });
        Self { cell, order: None, figures, is_offered: true }
    }

    /// The cell in the form of tables and files; nothing before the first pair.
    fn measured(&self) -> Option<Measured> {
        let [ours, baseline] = self.figures.clone();
        let is_left_out = !self.is_offered;
        (is_left_out || !ours.runs.is_empty()).then(|| Measured {
            cell: self.cell,
            ours,
            peers: if is_left_out { Vec::new() } else { vec![baseline] },
            bound: None,
            left_out: if is_left_out { vec![BASELINE.to_owned()] } else { Vec::new() },
        })
    }
}

/// The comparison under way.
struct Comparison<'a> {
    options: &'a Options,
    stage: Stage,
    sides: Sides,
    progress: Progress,
    samples: Vec<Samples>,
    /// Number of passes so far.
    passes: usize,
}

impl<'a> Comparison<'a> {
    fn new(options: &'a Options, stage: Stage, sides: Sides) -> Self {
        let cells = options.ranks().into_iter().flat_map(|ranks| cells(options, ranks));
        let fitting = cells.filter(|cell| {
            let refusal = fits(cell, 2).err();
            refusal.iter().for_each(|why| complain(why));
            refusal.is_none()
        });
        let samples: Vec<Samples> = fitting.map(Samples::new).collect();
        Self { options, stage, sides, progress: Progress::new(0), samples, passes: 0 }
    }

    fn measure_all(&mut self) -> Result<(), Failure> {
        let all: Vec<usize> = (0..self.samples.len()).collect();
        self.measure(&all)?;
        for _ in 0..REPEATS {
            let measured: Vec<Option<Measured>> =
                self.samples.iter().map(Samples::measured).collect();
            let exceeding = verdict::exceeding(&measured);
            if exceeding.is_empty() {
                break;
            }
            self.progress.clear();
            say(&text::repeating(exceeding.len()))?;
            self.measure(&exceeding)?;
        }
        Ok(())
    }

    /// Adds as many pairs as the options ask for to each of these cells, and prints them.
    fn measure(&mut self, chosen: &[usize]) -> Result<(), Failure> {
        let pairs = self.options.pairs();
        let passes = PASSES.min(pairs);
        self.progress = Progress::new(chosen.len() * passes);
        let mut numbers = self.options.ranks();
        numbers.dedup();
        let mut before: Option<Cell> = None;
        for ranks in numbers {
            let own: Vec<usize> =
                chosen.iter().copied().filter(|&i| self.samples[i].cell.ranks == ranks).collect();
            for pass in 0..passes {
                if own.is_empty() {
                    break;
                }
                let mut engines = self.sides.start(ranks, self.passes, &mut self.stage)?;
                self.passes += 1;
                let count = share_of_pass(pairs, passes, pass);
                for &index in &own {
                    self.progress.next();
                    self.add_pairs(index, count, &mut engines)?;
                    if pass + 1 == passes {
                        self.print(index, &mut before)?;
                    }
                }
                for engine in engines.into_iter().flatten() {
                    engine.end(&mut self.stage)?;
                }
            }
        }
        Ok(())
    }

    /// Prints a cell, below a head if its operation differs from the cell printed before.
    fn print(&self, index: usize, before: &mut Option<Cell>) -> Result<(), Failure> {
        let samples = &self.samples[index];
        let cell = samples.cell;
        let is_new = before
            .is_none_or(|b| (b.ranks, b.op, b.variant) != (cell.ranks, cell.op, cell.variant));
        self.progress.clear();
        if is_new {
            say(&text::head(&cell, self.options.transport.name()))?;
        }
        *before = Some(cell);
        samples.measured().map_or(Ok(()), |measured| say(&text::row(&measured)))
    }

    /// A trial, and so many pairs.
    fn add_pairs(
        &mut self,
        index: usize,
        count: usize,
        engines: &mut [Option<Engine>],
    ) -> Result<(), Failure> {
        let Some(order) = self.trial(index, engines)? else { return Ok(()) };
        let Self { samples, stage, progress, .. } = self;
        let samples = &mut samples[index];
        for _ in 0..count {
            let turn = samples.figures[0].runs.len();
            let mut sides = [0, 1];
            sides.rotate_left(turn % 2);
            let mut runs = [None, None];
            for side in sides {
                let name = &samples.figures[side].engine;
                progress.tell(&samples.cell, turn + 1, name);
                let refused = || Failure::new(format!("{name}: not offered any more"));
                let done = run_one(engines, side, &order, stage)?.ok_or_else(refused)?;
                runs[side] = Some(done.0);
            }
            for (figures, run) in samples.figures.iter_mut().zip(runs) {
                figures.runs.extend(run);
            }
        }
        Ok(())
    }

    /// Checks the results of both sides, and sets the order of the cell. `None`: the other tree
    /// does not offer it.
    fn trial(
        &mut self,
        index: usize,
        engines: &mut [Option<Engine>],
    ) -> Result<Option<Order>, Failure> {
        let calls = self.options.calls();
        let samples = &mut self.samples[index];
        if !samples.is_offered {
            return Ok(None);
        }
        let trial = samples.cell.trial(calls);
        let mut slowest = 0.0f64;
        for side in [0, 1] {
            self.progress.tell(&samples.cell, 0, &samples.figures[side].engine);
            let Some((times, wrong)) = run_one(engines, side, &trial, &mut self.stage)? else {
                samples.is_offered = false;
                return Ok(None);
            };
            samples.figures[side].wrong += wrong;
            slowest = slowest.max(times.p50);
        }
        // Both sides make as many calls, and as many in each pass.
        let order = samples.order.get_or_insert_with(|| samples.cell.order(calls, slowest));
        Ok(Some(order.clone()))
    }
}

/// How many of the pairs belong to a pass: all passes together have all pairs.
fn share_of_pass(pairs: usize, passes: usize, pass: usize) -> usize {
    pairs * (pass + 1) / passes - pairs * pass / passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;
    use crate::ops::Op;
    use crate::stats::Times;

    #[test]
    fn passes_have_all_pairs_together() {
        for (pairs, passes) in [(60, 6), (7, 6), (6, 6), (61, 6)] {
            let shares: Vec<usize> =
                (0..passes).map(|pass| share_of_pass(pairs, passes, pass)).collect();
            assert_eq!(shares.iter().sum::<usize>(), pairs);
            assert!(shares.iter().all(|&share| share >= 1 && share <= pairs.div_ceil(passes)));
        }
    }

    #[test]
    fn a_cell_that_is_not_offered_has_no_ratio() {
        let mut samples = Samples::new(cell(Op::AllReduce, 4));
        assert!(samples.measured().is_none());
        let run = Times { p50: 10.0, p99: 20.0, mean: 11.0, root: None };
        samples.figures.iter_mut().for_each(|figures| figures.runs = vec![run; 6]);
        let measured = samples.measured().unwrap();
        assert_eq!(measured.best().map(|best| best.engine.as_str()), Some(BASELINE));
        samples.is_offered = false;
        let measured = samples.measured().unwrap();
        assert!(measured.ratio().is_none());
        assert_eq!(measured.left_out, [BASELINE]);
    }
}
