//! Tuning: every algorithm of ours takes turns with the library's own choice, and where one of them
//! is clearly faster it gets a row of a tuning file (docs/tuning.md), which `DIST_TUNING_FILE`
//! names to the library.

use crate::cell::Cell;
use crate::cli::Options;
use crate::engine::Engine;
use crate::files;
use crate::machine::Machine;
use crate::measure::cells;
use crate::ops::Op;
use crate::order::Order;
use crate::ours::Ours;
use crate::progress::Progress;
use crate::stage::Stage;
use crate::stats::{judge, median};
use crate::text::size;
use crate::{Failure, say};
use dist::algo::algorithms;
use dist::transport::OpKind;
use serde_json::{Value, json};
use std::path::Path;

/// An algorithm gets its row where it takes no more than this of the time of the library's own
/// choice: less is noise.
const CLEARLY: f64 = 0.95;

/// What the library chooses itself.
const OWN: &str = "own choice";

/// The operation as the library numbers it; none for messages, which have no algorithms.
fn kind(op: Op) -> Option<OpKind> {
    OpKind::ALL.into_iter().find(|kind| kind.name() == op.name())
}

/// Measures all algorithms of the operations that are asked for, and writes a tuning file.
pub(crate) fn run(options: &Options, path: &Path) -> Result<(), Failure> {
    let mut stage = Stage::new()?;
    let all = |&ranks: &usize| cells(options, ranks).len();
    let mut tuner = Tuner {
        options,
        progress: Progress::new(options.ranks().iter().map(all).sum()),
        rows: Vec::new(),
    };
    for ranks in options.ranks() {
        let ours = Ours { transport: options.transport.name(), device: "" };
        let mut engine = Engine::start(&ours, ranks, &mut stage)?;
        tuner.tune(ranks, &mut engine, &mut stage)?;
        engine.end(&mut stage)?;
    }
    tuner.progress.clear();
    let Tuner { rows, .. } = tuner;
    let machine = Machine::here();
    let comment =
        format!("{}, on {} cores of {}", Options::told(), machine.cores, machine.processor);
    let file = json!({ "comment": comment, "rows": rows });
    files::write(path, &format!("{file:#}\n"))?;
    let rows = match rows.len() {
        0 => "no rows: the library chooses best by itself here".to_owned(),
        1 => "1 row".to_owned(),
        many => format!("{many} rows"),
    };
    say(&format!("\n{}: {rows}. DIST_TUNING_FILE={0} has it used\n", path.display()))
}

/// The tuning under way.
struct Tuner<'a> {
    options: &'a Options,
    progress: Progress,
    rows: Vec<Value>,
}

/// What one algorithm took for a cell: its name, and the median of each turn in nanoseconds.
struct Contender {
    name: &'static str,
    order: Order,
    turns: Vec<f64>,
}

impl Tuner<'_> {
    /// All cells for one number of ranks.
    fn tune(
        &mut self,
        ranks: usize,
        engine: &mut Engine,
        stage: &mut Stage,
    ) -> Result<(), Failure> {
        for cells in cells(self.options, ranks).chunk_by(|a, b| a.op == b.op) {
            let Some((op, kind)) = cells.first().and_then(|cell| Some((cell.op, kind(cell.op)?)))
            else {
                continue;
            };
            self.print(&format!("\n{}, {ranks} ranks, us:\n", op.name()))?;
            let mut fastest = Vec::new();
            for cell in cells {
                self.progress.next();
                let contenders = self.contest(cell, kind, engine, stage)?;
                let winner = winner(&contenders);
                self.print(&line(cell, &contenders, winner))?;
                // What a tuning file counts in: the bytes of the count argument.
                fastest.push((op.shown_count(cell.count, ranks) * cell.dtype.size(), winner));
            }
            self.add_rows(op, &fastest, ranks);
        }
        Ok(())
    }

    /// Lets all that can do a cell take turns.
    fn contest(
        &self,
        cell: &Cell,
        kind: OpKind,
        engine: &mut Engine,
        stage: &mut Stage,
    ) -> Result<Vec<Contender>, Failure> {
        let calls = self.options.calls();
        let names = std::iter::once(None).chain(algorithms(kind).map(|row| Some(row.name)));
        let mut contenders = Vec::new();
        for name in names {
            let algorithm = name.map(str::to_owned);
            let trial = Order { algorithm: algorithm.clone(), ..cell.trial(calls) };
            self.progress.tell(cell, 0, name.unwrap_or(OWN));
            let Some(stamps) = engine.run(&trial, stage)? else { continue };
            let wrong: u64 = stamps.iter().map(|rank| rank.wrong).sum();
            let name = name.unwrap_or(OWN);
            let Some(times) = judge(cell.op, &stamps).filter(|_| wrong == 0) else {
                let what = format!("{} by {name}: {wrong} elements are wrong", cell.op.name());
                return Err(Failure::new(what));
            };
            let order = Order { algorithm, ..cell.order(calls, times.p50) };
            contenders.push(Contender { name, order, turns: Vec::new() });
        }
        for turn in 0..self.options.pairs() {
            // Who goes first changes, since what went before leaves the machine as it is.
            let first = turn % contenders.len();
            contenders.rotate_left(first);
            for contender in &mut contenders {
                self.progress.tell(cell, turn + 1, contender.name);
                let stamps = engine.run(&contender.order, stage)?;
                let times = stamps.and_then(|stamps| judge(cell.op, &stamps));
                let refused = || Failure::new(format!("{}: not offered any more", contender.name));
                contender.turns.push(times.ok_or_else(refused)?.p50);
            }
        }
        Ok(contenders)
    }

    /// Adds what one operation has come to.
    fn add_rows(&mut self, op: Op, fastest: &[(usize, &'static str)], ranks: usize) {
        for (algorithm, least, most) in ranges(fastest) {
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

    fn print(&self, text: &str) -> Result<(), Failure> {
        self.progress.clear();
        say(text)
    }
}

/// Who is fastest: an algorithm only where it clearly is.
fn winner(contenders: &[Contender]) -> &'static str {
    let time =
        |name: &str| contenders.iter().find(|it| it.name == name).map(|it| median(&it.turns));
    let named = contenders.iter().filter(|it| it.name != OWN);
    let best = named.min_by(|a, b| median(&a.turns).total_cmp(&median(&b.turns)));
    match (best, time(OWN)) {
        (Some(best), Some(own)) if median(&best.turns) <= CLEARLY * own => best.name,
        _ => OWN,
    }
}

/// A line of the table: who took how long, the fastest marked.
fn line(cell: &Cell, contenders: &[Contender], winner: &str) -> String {
    let mut sorted: Vec<&Contender> = contenders.iter().collect();
    sorted.sort_by(|a, b| median(&a.turns).total_cmp(&median(&b.turns)));
    let told = sorted.iter().map(|it| {
        let mark = if it.name == winner { "*" } else { "" };
        format!("{}{mark} {:.3}", it.name, median(&it.turns) / 1000.0)
    });
    format!("{:>10}  {}\n", size(cell.bytes()), told.collect::<Vec<_>>().join(", "))
}

/// Ranges of bytes in which one algorithm is fastest, but for those of the library's own choice:
/// between two sizes of which each has another winner the border is in the geometric middle.
fn ranges(fastest: &[(usize, &'static str)]) -> Vec<(&'static str, usize, Option<usize>)> {
    let mut found = Vec::new();
    let mut least = 0;
    let mut runs = fastest.chunk_by(|a, b| a.1 == b.1).peekable();
    while let Some(run) = runs.next() {
        let (Some(&(last, name)), next) = (run.last(), runs.peek()) else { continue };
        let most =
            next.and_then(|next| next.first()).map(|next| last.saturating_mul(next.0).isqrt());
        if name != OWN {
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

    fn contender(name: &'static str, turns: &[f64]) -> Contender {
        let order = samples::cell(Op::AllReduce, 64).order(None, 1.0);
        Contender { name, order, turns: turns.to_vec() }
    }

    #[test]
    fn only_who_is_clearly_faster_wins() {
        let own = || contender(OWN, &[100.0, 110.0, 105.0]);
        let near = contender("two_shot", &[101.0, 102.0, 103.0]);
        assert_eq!(winner(&[own(), near]), OWN);
        let far = contender("cma_read", &[80.0, 500.0, 90.0]);
        assert_eq!(winner(&[contender("inline", &[94.0, 94.0, 94.0]), own(), far]), "cma_read");
        assert_eq!(winner(&[own()]), OWN);
    }

    #[test]
    fn borders_are_between_the_sizes_that_were_measured() {
        let fastest = [(4, OWN), (64, "a"), (1024, "a"), (4096, "b"), (65_536, OWN)];
        let expected = [("a", 17, Some(2048)), ("b", 2049, Some(16_384))];
        assert_eq!(ranges(&fastest), expected);
        assert_eq!(ranges(&[(4, "a"), (64, "a")]), [("a", 0, None)]);
        assert_eq!(ranges(&[(0, OWN)]), []);
        assert_eq!(ranges(&[]), []);
    }

    #[test]
    fn operations_have_the_names_of_the_library() {
        let without = Op::ALL.into_iter().filter(|&op| kind(op).is_none()).collect::<Vec<_>>();
        assert_eq!(without, [Op::SendRecv]);
    }
}
