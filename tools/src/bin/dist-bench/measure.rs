//! The measurement. For each number of ranks, it starts all engines. In each cell, the engines make
//! runs in turn. One run of libdist and one run of a peer form a pair, which gives a ratio. If the
//! confidence interval of the ratios is too wide, more pairs are added, up to [`EXTRA_ROUNDS`]
//! times.

use crate::bound::BoundEngine;
use crate::bound_share::{self, bound_name};
use crate::cell::{BenchCell, BufferKind, CellResult, EngineTimes};
use crate::cli::{DeviceBackend, Options};
use crate::engine::{BenchEngine, EngineLauncher};
use crate::libdist_engine::LibdistEngine;
use crate::machine::HostMachine;
use crate::machine_limits::{self, MachineLimits};
use crate::memory_fragments::HeldFragments;
use crate::ops::BenchOp;
use crate::progress::ProgressLine;
use crate::report;
use crate::request::BenchRequest;
use crate::result_files::{self, BenchResults, RunInfo};
use crate::run_context::RunContext;
use crate::stats::{RunTimes, op_times};
use crate::table;
use crate::text::size_text;
use dist::sys::host;
use dist_tools::{Failure, write_output};

/// The number of times that pairs are added if the confidence interval is too wide.
const EXTRA_ROUNDS: usize = 2;

/// If a peer is slower than the best peer by this factor in the trial, it gets only one run. The
/// tables show this run.
const FAR_BEHIND_RATIO: f64 = 4.0;

/// If a peer is slower than the best peer by this factor after a round, it gets no further runs.
const DROP_RATIO: f64 = 1.25;

/// Measures all selected cells, prints the results, and writes the files.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    options.report.as_deref().map_or(Ok(()), report::check_target)?;
    let mut context = RunContext::new()?;
    let mut peers: Vec<Box<dyn EngineLauncher>> = Vec::new();
    for peer in &options.peer {
        peers.extend(peer.engines(&mut context)?);
    }
    if options.limits {
        peers.push(Box::new(BoundEngine));
    }
    let mut bench = PeerBenchmark {
        options,
        context,
        peers,
        limits: None,
        progress: ProgressLine::new(options.ranks().iter().map(|&n| cells(options, n).len()).sum()),
        cell_results: Vec::new(),
    };
    let ballast = (!options.quick).then(HeldFragments::new);
    let outcome = bench.measure_all_cells();
    drop(ballast);
    bench.progress.finish();
    let results = bench.into_results();
    // Write the files even if the measurement ended early. They then contain partial results.
    write_files(options, &results)?;
    outcome?;
    write_output(table::average_text(&results.cells))?;
    write_output(table::summary_text(&results.cells) + &bound_share::shares_text(&results))?;
    let wrong = results.cells.iter().filter(|measured| has_wrong_results(measured)).count();
    if wrong > 0 {
        return Err(Failure::new(format!("{wrong} cells have wrong results")));
    }
    // Replace the report only if the results are correct and complete.
    options.report.as_deref().map_or(Ok(()), |path| report::write_report(path, &[results]))
}

/// Writes the JSON and the CSV file, if the options name them.
pub(crate) fn write_files(options: &Options, results: &BenchResults) -> Result<(), Failure> {
    if let Some(path) = &options.json {
        result_files::write_file(path, &result_files::results_json(results))?;
    }
    if let Some(path) = &options.csv {
        result_files::write_file(path, &result_files::results_csv(results))?;
    }
    options.plot.as_deref().map_or(Ok(()), |path| report::write_plot_file(path, results))
}

/// Returns true if a verified call had a wrong result.
pub(crate) fn has_wrong_results(measured: &CellResult) -> bool {
    measured.libdist.wrong > 0 || measured.peers.iter().any(|peer| peer.wrong > 0)
}

/// Returns the cells for this number of ranks, in order. If two sizes give the same number of
/// elements, the cell exists only once.
pub(crate) fn cells(options: &Options, ranks: usize) -> Vec<BenchCell> {
    let (dtype, redop) = (options.dtype, options.redop);
    let mut cells: Vec<BenchCell> = Vec::new();
    for variant in options.variants() {
        let is_measured = |op: &BenchOp| match variant.buffers {
            BufferKind::Offsets(pair) => pair.is_measured(*op),
            _ => true,
        };
        for op in options.ops().into_iter().filter(is_measured) {
            let mut counts = Vec::new();
            for bytes in options.sizes(ranks) {
                let count = op.elements(bytes, dtype.size(), ranks);
                if !counts.contains(&count) {
                    counts.push(count);
                    cells.push(BenchCell { ranks, op, count, dtype, redop, variant });
                }
            }
        }
    }
    cells
}

/// An engine that takes part in a cell.
struct CellParticipant {
    /// The index in the list of engines. libdist has index 0.
    engine_index: usize,
    request: BenchRequest,
    figures: EngineTimes,
    is_bound: bool,
    /// The number of runs after which the engine is not run again.
    max_runs: usize,
}

impl CellParticipant {
    /// Returns true if the engine is a library to compare with.
    fn is_peer(&self) -> bool {
        self.engine_index > 0 && !self.is_bound
    }

    fn has_runs_left(&self) -> bool {
        self.figures.runs.len() < self.max_runs
    }
}

/// The measurement in progress.
struct PeerBenchmark<'a> {
    options: &'a Options,
    context: RunContext,
    peers: Vec<Box<dyn EngineLauncher>>,
    limits: Option<MachineLimits>,
    progress: ProgressLine,
    cell_results: Vec<CellResult>,
}

impl PeerBenchmark<'_> {
    fn measure_all_cells(&mut self) -> Result<(), Failure> {
        if self.options.limits {
            let limits = machine_limits::measure_limits()?;
            write_output(limits.text())?;
            self.limits = Some(limits);
        }
        for ranks in self.options.ranks() {
            let cells = cells(self.options, ranks);
            let device = self.options.device.map_or("", DeviceBackend::backend);
            let ours = LibdistEngine { transport: self.options.transport.name(), device };
            let mut engines = vec![Some(BenchEngine::start(&ours, ranks, &mut self.context)?)];
            for peer in &self.peers {
                let is_wanted = cells.iter().any(|cell| peer.supports_cell(cell));
                engines.push(match is_wanted {
                    true => Some(BenchEngine::start(&**peer, ranks, &mut self.context)?),
                    false => None,
                });
            }
            let mut previous_cell: Option<BenchCell> = None;
            for cell in cells {
                self.progress.advance();
                let is_new =
                    previous_cell.is_none_or(|b| (b.op, b.variant) != (cell.op, cell.variant));
                if is_new {
                    let transport = self.options.transport.name();
                    self.progress.print_text(&table::table_header(
                        &cell,
                        transport,
                        !self.options.peer.is_empty(),
                    ))?;
                }
                previous_cell = Some(cell);
                if let Some(measured) = self.measure_cell(&cell, &mut engines)? {
                    let has_peers = !self.options.peer.is_empty();
                    self.progress.print_text(&table::table_row(&measured, has_peers))?;
                    self.cell_results.push(measured);
                }
            }
            for engine in engines.into_iter().flatten() {
                engine.shut_down(&mut self.context)?;
            }
        }
        Ok(())
    }

    /// Measures a cell. Returns `None` if this host does not have enough memory.
    fn measure_cell(
        &mut self,
        cell: &BenchCell,
        engines: &mut [Option<BenchEngine>],
    ) -> Result<Option<CellResult>, Failure> {
        if !self.has_memory(cell) {
            return Ok(None);
        }
        let (mut participants, mut left_out) = self.run_trial(cell, engines)?;
        for round in 0..=EXTRA_ROUNDS {
            for pair in 0..self.options.pairs() {
                let turn = round * self.options.pairs() + pair;
                // Each pair begins with another engine, because a run may influence the run after
                // it.
                let mut run_order: Vec<usize> =
                    (0..participants.len()).filter(|&i| participants[i].has_runs_left()).collect();
                let first = turn % run_order.len();
                run_order.rotate_left(first);
                for index in run_order {
                    let Some(participant) = participants.get_mut(index) else { continue };
                    let name = participant.figures.engine.clone();
                    self.progress.show_turn(cell, turn + 1, &name);
                    let outcome = run_engine(
                        engines,
                        participant.engine_index,
                        &participant.request,
                        &mut self.context,
                    );
                    let refused = || {
                        Failure::new(format!("{name}: refused a request that it supported before"))
                    };
                    match outcome.and_then(|done| done.ok_or_else(refused)) {
                        Ok((times, _)) => participant.figures.runs.push(times),
                        Err(failure) => {
                            self.drop_peer(engines, participant.engine_index, failure)?;
                            left_out.push(name);
                        }
                    }
                }
                participants.retain(|participant| engines[participant.engine_index].is_some());
            }
            let so_far = cell_result(cell, &participants, &left_out)?;
            if is_conclusive(&so_far) {
                break;
            }
            let limit = so_far.best_peer().map_or(f64::INFINITY, EngineTimes::p50) * DROP_RATIO;
            for participant in participants.iter_mut().filter(|participant| participant.is_peer()) {
                if participant.figures.p50() > limit {
                    participant.max_runs = participant.figures.runs.len();
                }
            }
        }
        cell_result(cell, &participants, &left_out).map(Some)
    }

    /// Returns true if this host has memory for the buffers of all engines.
    fn has_memory(&self, cell: &BenchCell) -> bool {
        let takes = self.peers.iter().filter(|peer| peer.supports_cell(cell));
        let Err(reason) = check_memory(cell, 1 + takes.count()) else { return true };
        self.progress.report_error(&reason);
        false
    }

    /// Runs the trial of a cell: verifies the results of all engines, and finds the peers that are
    /// fast enough to compare. Also returns the names of the engines that failed.
    fn run_trial(
        &mut self,
        cell: &BenchCell,
        engines: &mut [Option<BenchEngine>],
    ) -> Result<(Vec<CellParticipant>, Vec<String>), Failure> {
        let calls = self.options.calls();
        let trial_request = cell.trial_request(calls);
        let (mut trial_results, mut left_out) = (Vec::new(), Vec::new());
        for index in 0..engines.len() {
            let takes = index == 0 || self.peers[index - 1].supports_cell(cell);
            let Some(engine) = engines[index].as_ref().filter(|_| takes) else { continue };
            let name = engine.name().to_owned();
            self.progress.show_turn(cell, 0, &name);
            match run_engine(engines, index, &trial_request, &mut self.context) {
                Ok(Some((times, wrong))) => {
                    let request = cell.request(calls, times.p50);
                    let figures = EngineTimes { engine: name, runs: Vec::new(), wrong };
                    let is_bound = index > 0 && self.peers[index - 1].is_bound_engine();
                    trial_results.push((
                        times.p50,
                        CellParticipant {
                            engine_index: index,
                            request,
                            figures,
                            is_bound,
                            max_runs: usize::MAX,
                        },
                    ));
                }
                // The engine does not support this cell.
                Ok(None) => {}
                Err(failure) => {
                    self.drop_peer(engines, index, failure)?;
                    left_out.push(name);
                }
            }
        }
        let peers = trial_results
            .iter()
            .filter(|(_, participant)| participant.is_peer())
            .map(|(p50, _)| *p50);
        let best = peers.fold(f64::INFINITY, f64::min);
        let with_run_limits = trial_results.into_iter().map(|(p50, participant)| {
            let is_far_behind = participant.is_peer() && p50 > FAR_BEHIND_RATIO * best;
            CellParticipant {
                max_runs: if is_far_behind { 1 } else { participant.max_runs },
                ..participant
            }
        });
        let participants = with_run_limits.collect();
        Ok((participants, left_out))
    }

    /// Continues without a peer that has failed. If libdist failed or a signal arrived, returns the
    /// failure.
    fn drop_peer(
        &mut self,
        engines: &mut [Option<BenchEngine>],
        index: usize,
        failure: Failure,
    ) -> Result<(), Failure> {
        if index == 0 || failure.is_signal() {
            return Err(failure);
        }
        self.progress.report_error(&format!(
            "{}\n  the measurement continues without this peer",
            failure.message
        ));
        match engines[index].take() {
            Some(engine) => engine.terminate_ranks(&mut self.context),
            None => Ok(()),
        }
    }

    fn into_results(self) -> BenchResults {
        BenchResults { run: run_info(self.options), limits: self.limits, cells: self.cell_results }
    }
}

/// Returns the properties of the run that are the same for all cells.
pub(crate) fn run_info(options: &Options) -> RunInfo {
    RunInfo {
        transport: options.transport.name().to_owned(),
        pairs: options.pairs(),
        command: Options::shareable_command_line(),
        machine: HostMachine::current(),
    }
}

/// Checks that this host has memory for the buffers of `engines` engines. All engines hold their
/// buffers at the same time, because an engine keeps its buffers until a request with another size.
///
/// # Errors
/// The message about the skipped cell.
pub(crate) fn check_memory(cell: &BenchCell, engines: usize) -> Result<(), String> {
    let needed = cell.buffer_bytes().saturating_mul(engines);
    let available = host::memory_available().and_then(|bytes| usize::try_from(bytes).ok());
    // Leave a quarter of the memory free for the engines themselves.
    match available {
        Some(available) if needed > available / 4 * 3 => {
            let (op, bytes) = (cell.op.name(), size_text(cell.bytes()));
            let (needed, available) = (needed >> 20, available >> 20);
            Err(format!(
                "{op} of {bytes} is skipped: its buffers need {needed} MiB, more than 3/4 of the available {available} MiB"
            ))
        }
        _ => Ok(()),
    }
}

/// Lets one engine execute a request. Returns the engine's times and the number of wrong elements,
/// or `None` if the engine does not support the request.
pub(crate) fn run_engine(
    engines: &mut [Option<BenchEngine>],
    index: usize,
    request: &BenchRequest,
    context: &mut RunContext,
) -> Result<Option<(RunTimes, u64)>, Failure> {
    let Some(engine) = engines.get_mut(index).and_then(Option::as_mut) else {
        return Err(Failure::new("an engine of the cell does not run"));
    };
    let Some(stamps) = engine.run_request(request, context)? else { return Ok(None) };
    let wrong = stamps.iter().map(|rank| rank.wrong_elements).sum();
    let times = op_times(request.op, &stamps);
    times.map(|times| Some((times, wrong))).ok_or_else(|| Failure::new("a rank reported no times"))
}

/// Returns true if more pairs are not needed:
///
/// * The confidence interval is narrow.
/// * The interval is entirely above 1, so libdist is certainly slower.
/// * There is no interval, because the user chose too few pairs.
fn is_conclusive(measured: &CellResult) -> bool {
    let Some(ratio) = measured.ratio() else { return true };
    ratio.is_narrow() || ratio.interval.is_none_or(|(low, _)| low > 1.0)
}

fn cell_result(
    cell: &BenchCell,
    participants: &[CellParticipant],
    left_out: &[String],
) -> Result<CellResult, Failure> {
    let ours = participants.iter().find(|participant| participant.engine_index == 0);
    let ours =
        ours.ok_or_else(|| Failure::new("libdist has no times for the cell"))?.figures.clone();
    let peers = participants.iter().filter(|participant| participant.is_peer());
    let peers = peers.map(|participant| participant.figures.clone()).collect();
    let bound = participants.iter().find(|participant| participant.is_bound).map(|participant| {
        EngineTimes {
            engine: bound_name(cell.variant.buffers).to_owned(),
            ..participant.figures.clone()
        }
    });
    Ok(CellResult { cell: *cell, libdist: ours, peers, bound, left_out: left_out.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples;
    use clap::Parser as _;

    #[test]
    fn narrow_or_slower_interval_is_conclusive() {
        let against = |runs: &[f64]| {
            let mut measured = samples::measured(BenchOp::AllReduce, 64, &[("a", 1000.0)]);
            measured.peers[0] = samples::figures("a", runs);
            is_conclusive(&measured)
        };
        assert!(against(&[900.0, 910.0, 920.0, 930.0, 940.0, 950.0]));
        assert!(against(&[500.0, 600.0, 700.0, 800.0, 900.0, 950.0]));
        assert!(!against(&[500.0, 600.0, 700.0, 800.0, 900.0, 1050.0]));
        assert!(
            against(&[500.0, 2000.0])
                && is_conclusive(&samples::measured(BenchOp::Barrier, 0, &[]))
        );
    }

    #[test]
    fn cells_are_the_product_of_all_options() {
        let line = "dist-bench --sizes 4,8,64 --ops all_reduce,all_gather,barrier --mode \
                    rewritten,untouched";
        let options = Options::parse_from(line.split(' '));
        let cells = cells(&options, 4);
        // With four ranks, 4 and 8 bytes of all_gather are both one element per rank, so they are
        // one cell. A barrier has no size, so it has one cell.
        let of = |op: BenchOp| cells.iter().filter(|cell| cell.op == op).count();
        assert_eq!([BenchOp::AllReduce, BenchOp::AllGather, BenchOp::Barrier].map(of), [6, 4, 2]);
        let gathered: Vec<usize> =
            cells.iter().filter(|c| c.op == BenchOp::AllGather).map(BenchCell::bytes).collect();
        assert_eq!(gathered, [16, 64, 16, 64]);
    }
}
