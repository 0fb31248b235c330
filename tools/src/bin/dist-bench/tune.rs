//! `--tune`: compares the algorithms of libdist with each other, and with the algorithm that the
//! library chooses itself. The runs of all of them alternate. If an algorithm is clearly faster
//! than the library's own choice, it gets a row in a tuning file (docs/tuning.md). The library
//! reads this file if `DIST_TUNING_FILE` names it.

use crate::cell::BenchCell;
use crate::cli::Options;
use crate::engine::BenchEngine;
use crate::libdist_engine::LibdistEngine;
use crate::machine::HostMachine;
use crate::measure::cells;
use crate::ops::BenchOp;
use crate::progress::ProgressLine;
use crate::request::BenchRequest;
use crate::result_files;
use crate::run_context::RunContext;
use crate::stats::{median, op_times};
use crate::text::size_text;
use dist::algo::algorithms;
use dist::transport::OpKind;
use dist_tools::{Failure, write_output};
use serde_json::{Value, json};
use std::path::Path;

/// An algorithm gets a row if the ratio of its time to the time of the library's own choice is at
/// most this number. A smaller gain may be noise.
const WIN_RATIO: f64 = 0.95;

/// The name of the library's own choice.
const OWN_CHOICE: &str = "own choice";

/// Returns the library's name for the operation, or `None` for send and receive, which have no
/// algorithms.
fn op_kind(op: BenchOp) -> Option<OpKind> {
    OpKind::ALL.into_iter().find(|kind| kind.name() == op.name())
}

/// Measures all algorithms of the selected operations, and writes a tuning file.
pub(crate) fn run(options: &Options, path: &Path) -> Result<(), Failure> {
    let mut context = RunContext::new()?;
    let all = |&ranks: &usize| cells(options, ranks).len();
    let mut tuner = Tuner {
        options,
        progress: ProgressLine::new(options.ranks().iter().map(all).sum()),
        rows: Vec::new(),
    };
    for ranks in options.ranks() {
        let ours = LibdistEngine { transport: options.transport.name(), device: "" };
        let mut engine = BenchEngine::start(&ours, ranks, &mut context)?;
        tuner.tune_ranks(ranks, &mut engine, &mut context)?;
        engine.shut_down(&mut context)?;
    }
    tuner.progress.finish();
    let Tuner { rows, .. } = tuner;
    let machine = HostMachine::current();
    let comment = format!(
        "{}, on {} cores of {}",
        Options::shareable_command_line(),
        machine.cores,
        machine.processor
    );
    let file = json!({ "comment": comment, "rows": rows });
    result_files::write_file(path, &format!("{file:#}\n"))?;
    let rows = match rows.len() {
        0 => "no rows: no algorithm is faster than the library's own choice".to_owned(),
        1 => "1 row".to_owned(),
        many => format!("{many} rows"),
    };
    write_output(format!("\n{}: {rows}. To use it, set DIST_TUNING_FILE={0}\n", path.display()))
}

/// The tuning in progress.
struct Tuner<'a> {
    options: &'a Options,
    progress: ProgressLine,
    rows: Vec<Value>,
}

/// One algorithm in a cell: its name, its request, and the median of each of its runs in
/// nanoseconds.
struct AlgorithmTimes {
    name: &'static str,
    request: BenchRequest,
    medians_ns: Vec<f64>,
}

impl Tuner<'_> {
    /// Measures all cells for one number of ranks.
    fn tune_ranks(
        &mut self,
        ranks: usize,
        engine: &mut BenchEngine,
        context: &mut RunContext,
    ) -> Result<(), Failure> {
        for cells in cells(self.options, ranks).chunk_by(|a, b| a.op == b.op) {
            let Some((op, kind)) =
                cells.first().and_then(|cell| Some((cell.op, op_kind(cell.op)?)))
            else {
                continue;
            };
            self.progress.print_text(&format!("\n{}, {ranks} ranks, us:\n", op.name()))?;
            let mut fastest = Vec::new();
            for cell in cells {
                self.progress.advance();
                let algorithm_times = self.measure_algorithms(cell, kind, engine, context)?;
                let winner = fastest_algorithm(&algorithm_times);
                self.progress.print_text(&result_line(cell, &algorithm_times, winner))?;
                // In a tuning file, the size of a call is its count argument, in bytes.
                fastest.push((op.shown_count(cell.count, ranks) * cell.dtype.size(), winner));
            }
            self.add_rows(op, &fastest, ranks);
        }
        Ok(())
    }

    /// Measures all algorithms that support a cell, in alternating runs.
    fn measure_algorithms(
        &self,
        cell: &BenchCell,
        kind: OpKind,
        engine: &mut BenchEngine,
        context: &mut RunContext,
    ) -> Result<Vec<AlgorithmTimes>, Failure> {
        let calls = self.options.calls();
        let names = std::iter::once(None).chain(algorithms(kind).map(|row| Some(row.name)));
        let mut algorithm_times = Vec::new();
        for name in names {
            let algorithm = name.map(str::to_owned);
            let trial_request =
                BenchRequest { algorithm: algorithm.clone(), ..cell.trial_request(calls) };
            self.progress.show_turn(cell, 0, name.unwrap_or(OWN_CHOICE));
            let Some(stamps) = engine.run_request(&trial_request, context)? else { continue };
            let wrong: u64 = stamps.iter().map(|rank| rank.wrong_elements).sum();
            let name = name.unwrap_or(OWN_CHOICE);
            let Some(times) = op_times(cell.op, &stamps).filter(|_| wrong == 0) else {
                let what = format!(
                    "{} with the algorithm {name}: {wrong} elements are wrong",
                    cell.op.name()
                );
                return Err(Failure::new(what));
            };
            let request = BenchRequest { algorithm, ..cell.request(calls, times.p50) };
            algorithm_times.push(AlgorithmTimes { name, request, medians_ns: Vec::new() });
        }
        for turn in 0..self.options.pairs() {
            // Each round begins with another algorithm, because a run may influence the run after
            // it.
            let first = turn % algorithm_times.len();
            algorithm_times.rotate_left(first);
            for contender in &mut algorithm_times {
                self.progress.show_turn(cell, turn + 1, contender.name);
                let stamps = engine.run_request(&contender.request, context)?;
                let times = stamps.and_then(|stamps| op_times(cell.op, &stamps));
                let refused = || {
                    Failure::new(format!(
                        "{}: refused a request that it supported before",
                        contender.name
                    ))
                };
                contender.medians_ns.push(times.ok_or_else(refused)?.p50);
            }
        }
        Ok(algorithm_times)
    }

    /// Adds the rows of one operation.
    fn add_rows(&mut self, op: BenchOp, fastest: &[(usize, &'static str)], ranks: usize) {
        for (algorithm, least, most) in winning_ranges(fastest) {
            let mut row = json!({
                "operation": op.name(),
                "algorithm": algorithm,
                "ranks": [ranks, ranks],
                "nodes": [1, 1],
            });
            if least > 0 {
                row["min_bytes"] = least.into();
            }
            if let Some(most) = most {
                row["max_bytes"] = most.into();
            }
            self.rows.push(row);
        }
    }
}

/// Returns the fastest algorithm if it is clearly faster than the library's own choice, otherwise
/// the own choice.
fn fastest_algorithm(contenders: &[AlgorithmTimes]) -> &'static str {
    let time =
        |name: &str| contenders.iter().find(|it| it.name == name).map(|it| median(&it.medians_ns));
    let named = contenders.iter().filter(|it| it.name != OWN_CHOICE);
    let best = named.min_by(|a, b| median(&a.medians_ns).total_cmp(&median(&b.medians_ns)));
    match (best, time(OWN_CHOICE)) {
        (Some(best), Some(own)) if median(&best.medians_ns) <= WIN_RATIO * own => best.name,
        _ => OWN_CHOICE,
    }
}

/// Formats a line of the table with the times of all algorithms. Marks `winner`.
fn result_line(cell: &BenchCell, contenders: &[AlgorithmTimes], winner: &str) -> String {
    let mut sorted: Vec<&AlgorithmTimes> = contenders.iter().collect();
    sorted.sort_by(|a, b| median(&a.medians_ns).total_cmp(&median(&b.medians_ns)));
    let columns = sorted.iter().map(|it| {
        let mark = if it.name == winner { "*" } else { "" };
        format!("{}{mark} {:.3}", it.name, median(&it.medians_ns) / 1000.0)
    });
    format!("{:>10}  {}\n", size_text(cell.bytes()), columns.collect::<Vec<_>>().join(", "))
}

/// Returns the ranges of sizes in which one algorithm is the fastest, without the ranges of the own
/// choice. If two neighbouring sizes have different winners, the border between their ranges is the
/// geometric mean of the sizes.
fn winning_ranges(fastest: &[(usize, &'static str)]) -> Vec<(&'static str, usize, Option<usize>)> {
    let mut found = Vec::new();
    let mut least = 0;
    let mut runs = fastest.chunk_by(|a, b| a.1 == b.1).peekable();
    while let Some(run) = runs.next() {
        let (Some(&(last, name)), next) = (run.last(), runs.peek()) else { continue };
        let most =
            next.and_then(|next| next.first()).map(|next| last.saturating_mul(next.0).isqrt());
        if name != OWN_CHOICE {
            found.push((name, least, most));
        }
        least = most.map_or(0, |most| most + 1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples;

    fn contender(name: &'static str, turns: &[f64]) -> AlgorithmTimes {
        let request = samples::cell(BenchOp::AllReduce, 64).request(None, 1.0);
        AlgorithmTimes { name, request, medians_ns: turns.to_vec() }
    }

    #[test]
    fn algorithm_wins_only_when_5_percent_faster() {
        let own = || contender(OWN_CHOICE, &[100.0, 110.0, 105.0]);
        let near = contender("two_shot", &[101.0, 102.0, 103.0]);
        assert_eq!(fastest_algorithm(&[own(), near]), OWN_CHOICE);
        let far = contender("cma_read", &[80.0, 500.0, 90.0]);
        assert_eq!(
            fastest_algorithm(&[contender("inline", &[94.0, 94.0, 94.0]), own(), far]),
            "cma_read"
        );
        assert_eq!(fastest_algorithm(&[own()]), OWN_CHOICE);
    }

    #[test]
    fn range_borders_are_geometric_means_of_sizes() {
        let fastest = [(4, OWN_CHOICE), (64, "a"), (1024, "a"), (4096, "b"), (65_536, OWN_CHOICE)];
        let expected = [("a", 17, Some(2048)), ("b", 2049, Some(16_384))];
        assert_eq!(winning_ranges(&fastest), expected);
        assert_eq!(winning_ranges(&[(4, "a"), (64, "a")]), [("a", 0, None)]);
        assert_eq!(winning_ranges(&[(0, OWN_CHOICE)]), []);
        assert_eq!(winning_ranges(&[]), []);
    }

    #[test]
    fn operation_names_match_the_library() {
        let without =
            BenchOp::ALL.into_iter().filter(|&op| op_kind(op).is_none()).collect::<Vec<_>>();
        assert_eq!(without, [BenchOp::SendRecv]);
    }
}
