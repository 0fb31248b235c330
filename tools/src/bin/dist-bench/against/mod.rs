//! `--against TREE`: the ranks of this program and the ranks of another tree's program take turns.
//! The ratio of their times in each cell (operation, size and variant) shows whether a change has
//! made the library slower.
//!
//! A pair is one run of calls by each side, one after the other. The side that goes first
//! alternates. The pairs of a cell are divided into [`PASSES`] passes. Each pass starts the ranks
//! of both sides again, and the side that starts first and allocates its buffers first alternates.
//! The reason is that the memory placement of a process changes its times by several percent as
//! long as the process lives. Buffers of 4 MiB that are allocated first are about 1 % slower. Both
//! sides get the same requests (`request`). A request contains the names of operations and types,
//! not their numbers, because the numbers may differ between trees.
//!
//! If a cell or an operation is above its limit, it is measured again with the same number of
//! pairs, at most [`REPEATS`] times. The ratio is then computed from all pairs.

mod text;
mod tree;
mod verdict;

use crate::cell::{BenchCell, CellResult, EngineTimes};
use crate::cli::{DeviceBackend, Options};
use crate::engine::{BenchEngine, EngineLauncher};
use crate::libdist_engine::{self, LibdistEngine};
use crate::measure::{cells, check_memory, has_wrong_results, run_engine, run_info, write_files};
use crate::memory_fragments::HeldFragments;
use crate::progress::ProgressLine;
use crate::report;
use crate::report_error;
use crate::request::BenchRequest;
use crate::result_files::BenchResults;
use crate::run_context::RunContext;
use dist_tools::{Failure, write_output};
use std::path::Path;
use tree::OtherTree;
pub(crate) use verdict::CELL_LIMIT;
use verdict::TreeVerdict;

/// The name of the other tree's engine in tables and files.
pub(crate) const BASELINE: &str = "baseline";

/// The exit status if this tree is slower than the other tree, or if a cell has too few pairs for a
/// confidence interval.
const EXIT_SLOWER: u8 = 3;

/// The number of passes of a cell. Each pass starts the ranks of both sides again.
const PASSES: usize = 6;

/// The number of times that a cell or an operation above its limit is measured again.
const REPEATS: usize = 2;

/// Measures all cells that the options select, prints the results, and writes the files. If this
/// tree is slower, fails with status 3.
pub(crate) fn run(options: &Options, tree: &Path) -> Result<(), Failure> {
    options.report.as_deref().map_or(Ok(()), report::check_target)?;
    let context = RunContext::new()?;
    let transport = options.transport.name();
    let device = options.device.map_or("", DeviceBackend::backend);
    let ours = LibdistEngine { transport, device };
    let sides = ComparedEngines { libdist: ours, other_tree: OtherTree::find(tree, ours)? };
    let mut comparison = TreeComparison::new(options, context, sides);
    write_output(text::opening_text(
        &comparison.sides.other_tree,
        comparison.samples.len(),
        options.pairs(),
    ))?;
    let ballast = (!options.quick).then(HeldFragments::new);
    let outcome = comparison.measure_all_cells();
    drop(ballast);
    comparison.progress.finish();
    let results = BenchResults {
        run: run_info(options),
        limits: None,
        cells: comparison.samples.iter().filter_map(CellSamples::measured).collect(),
    };
    // Write the files even if the comparison ended early. They then contain partial results.
    write_files(options, &results)?;
    outcome?;
    let verdict = TreeVerdict::of(&results.cells);
    write_output(text::summary_text(&verdict))?;
    let wrong = results.cells.iter().filter(|measured| has_wrong_results(measured)).count();
    if wrong > 0 {
        return Err(Failure::new(format!("{wrong} cells have wrong results")));
    }
    let is_tree_no_slower = verdict.is_no_slower();
    options.report.as_deref().map_or(Ok(()), |path| report::write_report(path, &[results]))?;
    match is_tree_no_slower {
        true => Ok(()),
        // The message is empty, because the summary contains the reasons.
        false => Err(Failure { status: EXIT_SLOWER, message: String::new() }),
    }
}

/// Returns true if this tree is not slower, or `None` if the cells were not measured against
/// another tree.
pub(crate) fn is_tree_no_slower(all: &[CellResult]) -> Option<bool> {
    let is_baseline = |figures: &EngineTimes| figures.engine == BASELINE;
    let has_baseline = all.iter().any(|measured| measured.peers.iter().any(is_baseline));
    has_baseline.then(|| TreeVerdict::of(all).is_no_slower())
}

/// The two programs that are compared.
#[derive(Debug)]
struct ComparedEngines {
    libdist: LibdistEngine,
    other_tree: OtherTree,
}

impl ComparedEngines {
    /// Starts the ranks of both sides. The engine of this tree comes first in the result. Which
    /// side starts first depends on whether `number` is even.
    fn start(
        &self,
        ranks: usize,
        number: usize,
        context: &mut RunContext,
    ) -> Result<Vec<Option<BenchEngine>>, Failure> {
        let mut launches: [&dyn EngineLauncher; 2] = [&self.libdist, &self.other_tree];
        launches.rotate_left(number % 2);
        let mut engines = Vec::new();
        for launch in launches {
            engines.push(Some(BenchEngine::start(launch, ranks, context)?));
        }
        engines.rotate_right(number % 2);
        Ok(engines)
    }
}

/// One cell and the runs that it has so far.
#[derive(Debug)]
struct CellSamples {
    cell: BenchCell,
    /// The request for both sides. It is set after the first trial, which shows the time of a call.
    request: Option<BenchRequest>,
    /// The times of this tree and of the other tree.
    figures: [EngineTimes; 2],
    is_offered: bool,
}

impl CellSamples {
    fn new(cell: BenchCell) -> Self {
        let figures = [libdist_engine::ENGINE_NAME, BASELINE].map(|engine| EngineTimes {
            engine: engine.to_owned(),
            runs: Vec::new(),
            wrong: 0,
        });
        Self { cell, request: None, figures, is_offered: true }
    }

    /// Returns the cell's result for tables and files, or `None` before the first pair.
    fn measured(&self) -> Option<CellResult> {
        let [ours, baseline] = self.figures.clone();
        let is_left_out = !self.is_offered;
        (is_left_out || !ours.runs.is_empty()).then(|| CellResult {
            cell: self.cell,
            libdist: ours,
            peers: if is_left_out { Vec::new() } else { vec![baseline] },
            bound: None,
            left_out: if is_left_out { vec![BASELINE.to_owned()] } else { Vec::new() },
        })
    }
}

/// The comparison in progress.
struct TreeComparison<'a> {
    options: &'a Options,
    context: RunContext,
    sides: ComparedEngines,
    progress: ProgressLine,
    samples: Vec<CellSamples>,
    /// The number of completed passes.
    passes_done: usize,
}

impl<'a> TreeComparison<'a> {
    fn new(options: &'a Options, context: RunContext, sides: ComparedEngines) -> Self {
        let cells = options.ranks().into_iter().flat_map(|ranks| cells(options, ranks));
        let fitting = cells.filter(|cell| {
            let refusal = check_memory(cell, 2).err();
            refusal.iter().for_each(|reason| report_error(reason));
            refusal.is_none()
        });
        let samples: Vec<CellSamples> = fitting.map(CellSamples::new).collect();
        Self { options, context, sides, progress: ProgressLine::new(0), samples, passes_done: 0 }
    }

    fn measure_all_cells(&mut self) -> Result<(), Failure> {
        let all: Vec<usize> = (0..self.samples.len()).collect();
        self.measure(&all)?;
        for _ in 0..REPEATS {
            let measured: Vec<Option<CellResult>> =
                self.samples.iter().map(CellSamples::measured).collect();
            let exceeding = verdict::cells_above_limit(&measured);
            if exceeding.is_empty() {
                break;
            }
            self.progress.print_text(&text::repetition_text(exceeding.len()))?;
            self.measure(&exceeding)?;
        }
        Ok(())
    }

    /// Measures each of these cells with as many pairs as the options select, in addition to
    /// earlier pairs, and prints the results.
    fn measure(&mut self, cell_indices: &[usize]) -> Result<(), Failure> {
        let pairs = self.options.pairs();
        let passes = PASSES.min(pairs);
        self.progress = ProgressLine::new(cell_indices.len() * passes);
        let mut numbers = self.options.ranks();
        numbers.dedup();
        let mut previous_cell: Option<BenchCell> = None;
        for ranks in numbers {
            let cells_of_ranks: Vec<usize> = cell_indices
                .iter()
                .copied()
                .filter(|&i| self.samples[i].cell.ranks == ranks)
                .collect();
            for pass in 0..passes {
                if cells_of_ranks.is_empty() {
                    break;
                }
                let mut engines = self.sides.start(ranks, self.passes_done, &mut self.context)?;
                self.passes_done += 1;
                let count = pairs_in_pass(pairs, passes, pass);
                for &index in &cells_of_ranks {
                    self.progress.advance();
                    self.add_run_pairs(index, count, &mut engines)?;
                    if pass + 1 == passes {
                        self.print_cell(index, &mut previous_cell)?;
                    }
                }
                for engine in engines.into_iter().flatten() {
                    engine.shut_down(&mut self.context)?;
                }
            }
        }
        Ok(())
    }

    /// Prints the result of a cell. If its operation differs from the cell that was printed before,
    /// prints a table header above it.
    fn print_cell(
        &self,
        index: usize,
        previous_cell: &mut Option<BenchCell>,
    ) -> Result<(), Failure> {
        let samples = &self.samples[index];
        let cell = samples.cell;
        let is_new = previous_cell
            .is_none_or(|b| (b.ranks, b.op, b.variant) != (cell.ranks, cell.op, cell.variant));
        if is_new {
            let header = text::table_header(&cell, self.options.transport.name());
            self.progress.print_text(&header)?;
        }
        *previous_cell = Some(cell);
        let row = samples.measured().map(|measured| text::table_row(&measured));
        row.map_or(Ok(()), |row| self.progress.print_text(&row))
    }

    /// Runs a trial, then `count` pairs.
    fn add_run_pairs(
        &mut self,
        index: usize,
        count: usize,
        engines: &mut [Option<BenchEngine>],
    ) -> Result<(), Failure> {
        let Some(request) = self.run_trial(index, engines)? else { return Ok(()) };
        let Self { samples, context, progress, .. } = self;
        let samples = &mut samples[index];
        for _ in 0..count {
            let turn = samples.figures[0].runs.len();
            let mut sides = [0, 1];
            sides.rotate_left(turn % 2);
            let mut runs = [None, None];
            for side in sides {
                let name = &samples.figures[side].engine;
                progress.show_turn(&samples.cell, turn + 1, name);
                let refused =
                    || Failure::new(format!("{name}: refused a request that it supported before"));
                let times_and_wrong =
                    run_engine(engines, side, &request, context)?.ok_or_else(refused)?;
                runs[side] = Some(times_and_wrong.0);
            }
            for (figures, run) in samples.figures.iter_mut().zip(runs) {
                figures.runs.extend(run);
            }
        }
        Ok(())
    }

    /// Verifies the results of both sides, and sets the request of the cell. Returns `None` if the
    /// other tree does not support the cell.
    fn run_trial(
        &mut self,
        index: usize,
        engines: &mut [Option<BenchEngine>],
    ) -> Result<Option<BenchRequest>, Failure> {
        let calls = self.options.calls();
        let samples = &mut self.samples[index];
        if !samples.is_offered {
            return Ok(None);
        }
        let trial_request = samples.cell.trial_request(calls);
        let mut slowest = 0.0f64;
        // A trial also allocates the buffers of its side.
        let mut sides = [0, 1];
        sides.rotate_left(self.passes_done / 2 % 2);
        for side in sides {
            self.progress.show_turn(&samples.cell, 0, &samples.figures[side].engine);
            let Some((times, wrong)) =
                run_engine(engines, side, &trial_request, &mut self.context)?
            else {
                samples.is_offered = false;
                return Ok(None);
            };
            samples.figures[side].wrong += wrong;
            slowest = slowest.max(times.p50);
        }
        // Both sides make the same number of calls in all passes.
        let request = samples.request.get_or_insert_with(|| samples.cell.request(calls, slowest));
        Ok(Some(request.clone()))
    }
}

/// Returns the number of pairs in the pass number `pass`. The sum over all passes is `pairs`.
fn pairs_in_pass(pairs: usize, passes: usize, pass: usize) -> usize {
    pairs * (pass + 1) / passes - pairs * pass / passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;
    use crate::ops::BenchOp;
    use crate::stats::RunTimes;

    #[test]
    fn pairs_of_all_passes_add_up() {
        for (pairs, passes) in [(60, 6), (7, 6), (6, 6), (61, 6)] {
            let shares: Vec<usize> =
                (0..passes).map(|pass| pairs_in_pass(pairs, passes, pass)).collect();
            assert_eq!(shares.iter().sum::<usize>(), pairs);
            assert!(shares.iter().all(|&share| share >= 1 && share <= pairs.div_ceil(passes)));
        }
    }

    #[test]
    fn unsupported_cell_has_no_ratio() {
        let mut samples = CellSamples::new(cell(BenchOp::AllReduce, 4));
        assert!(samples.measured().is_none());
        let run = RunTimes { p50: 10.0, p99: 20.0, mean: 11.0, root_p50: None };
        samples.figures.iter_mut().for_each(|figures| figures.runs = vec![run; 6]);
        let measured = samples.measured().unwrap();
        assert_eq!(measured.best_peer().map(|best| best.engine.as_str()), Some(BASELINE));
        samples.is_offered = false;
        let measured = samples.measured().unwrap();
        assert!(measured.ratio().is_none());
        assert_eq!(measured.left_out, [BASELINE]);
    }
}
