//! Writes the results for other programs: all results as JSON, and the times as CSV.

use crate::against;
use crate::cell::{BenchCell, CellResult, CellVerdict, EngineTimes};
use crate::machine::HostMachine;
use crate::machine_limits::MachineLimits;
use crate::request::redop_name;
use crate::table::{op_means, tail_counts};
use dist_tools::Failure;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The properties of a whole run.
#[derive(Clone, Debug)]
pub(crate) struct RunInfo {
    pub(crate) transport: String,
    pub(crate) pairs: usize,
    /// The command line without the paths of files.
    pub(crate) command: String,
    pub(crate) machine: HostMachine,
}

/// All measured results.
#[derive(Clone, Debug)]
pub(crate) struct BenchResults {
    pub(crate) run: RunInfo,
    pub(crate) limits: Option<MachineLimits>,
    pub(crate) cells: Vec<CellResult>,
}

/// Writes a file.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
}

/// Returns all results as JSON with a line end.
pub(crate) fn results_json(results: &BenchResults) -> String {
    let BenchResults { run, limits, cells: all } = results;
    let (above, cells) = tail_counts(all);
    let means: Vec<Value> = op_means(all)
        .into_iter()
        .map(|mean| {
            let [mode, buffers, place, call] = mean.variant_words;
            json!({
                "ranks": mean.ranks, "op": mean.op, "mode": mode, "buffers": buffers, "place": place,
                "call": call, "ratio": mean.ratio, "ratio_of_means": mean.ratio_of_means, "cells": mean.cells,
                "lost": mean.lost,
            })
        })
        .collect();
    let value = json!({
        "program": "dist-bench",
        "version": env!("CARGO_PKG_VERSION"),
        "command": run.command,
        "host": run.machine.json(),
        "transport": run.transport,
        "pairs": run.pairs,
        "interval": "95 %, order statistics of the paired ratios",
        "limits": limits.as_ref().map(MachineLimits::json),
        "cells": all.iter().map(cell_json).collect::<Vec<Value>>(),
        "geometric_means": means,
        "p99_above_best_peer": {"cells": above, "of": cells},
        "no_slower": against::is_tree_no_slower(all),
    });
    format!("{value:#}\n")
}

fn cell_json(measured: &CellResult) -> Value {
    let BenchCell { ranks, op, count, dtype, redop, variant } = measured.cell;
    let [mode, buffers, place, call] = variant.describe();
    let ratio = measured.ratio();
    let interval = ratio.and_then(|ratio| ratio.interval);
    json!({
        "ranks": ranks,
        "op": op.name(),
        "size": measured.cell.bytes(),
        "count": op.shown_count(count, ranks),
        "type": dtype.name(),
        "redop": if op.reduces() { redop_name(redop) } else { "none" },
        "mode": mode,
        "buffers": buffers,
        "place": place,
        "call": call,
        "ours": figures_json(measured, &measured.libdist),
        "peers": measured.peers.iter().map(|peer| figures_json(measured, peer)).collect::<Vec<_>>(),
        "bound": measured.bound.as_ref().map(|bound| figures_json(measured, bound)),
        "left_out": measured.left_out,
        "best_peer": measured.best_peer().map(|best| best.engine.as_str()),
        "ratio": ratio.map(|ratio| ratio.value),
        "ratio_low": interval.map(|(low, _)| low),
        "ratio_high": interval.map(|(_, high)| high),
        "lost": measured.verdict().and_then(CellVerdict::loss_reason),
    })
}

fn figures_json(measured: &CellResult, figures: &EngineTimes) -> Value {
    let (algbw, busbw) = measured.bandwidths(figures.p50());
    json!({
        "engine": figures.engine,
        "p50_us": figures.p50() / 1e3,
        "p99_us": figures.p99() / 1e3,
        "mean_us": figures.mean() / 1e3,
        "root_p50_us": figures.root_p50().map(|root| root / 1e3),
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw,
        "wrong": figures.wrong,
        "runs_p50_us": figures.runs.iter().map(|times| times.p50 / 1e3).collect::<Vec<f64>>(),
    })
}

/// Returns the times as CSV, with a line for each engine of each cell.
pub(crate) fn results_csv(results: &BenchResults) -> String {
    let BenchResults { run, cells: all, .. } = results;
    let mut text = "engine,transport,ranks,op,size,count,type,redop,mode,buffers,place,call,p50_us,p99_us,mean_us,\
                    root_p50_us,algbw_gb_per_s,busbw_gb_per_s,wrong,ratio,ratio_low,ratio_high,lost\n"
        .to_owned();
    for measured in all {
        text.push_str(&csv_line(run, measured, &measured.libdist));
        for others in measured.peers.iter().chain(&measured.bound) {
            text.push_str(&csv_line(run, measured, others));
        }
    }
    text
}

fn csv_line(run: &RunInfo, measured: &CellResult, figures: &EngineTimes) -> String {
    let BenchCell { ranks, op, count, dtype, redop, variant } = measured.cell;
    let is_ours = figures.engine == measured.libdist.engine;
    let (algbw, busbw) = measured.bandwidths(figures.p50());
    let number = |number: Option<f64>| number.map_or_else(String::new, |n| format!("{n:.4}"));
    let ratio = measured.ratio().filter(|_| is_ours);
    let interval = ratio.and_then(|ratio| ratio.interval);
    let lost = measured.verdict().filter(|_| is_ours).and_then(CellVerdict::loss_reason);
    let words = [
        figures.engine.clone(),
        if is_ours { run.transport.clone() } else { String::new() },
        ranks.to_string(),
        op.name().to_owned(),
        measured.cell.bytes().to_string(),
        op.shown_count(count, ranks).to_string(),
        dtype.name().to_owned(),
        if op.reduces() { redop_name(redop) } else { "none" }.to_owned(),
        variant.describe().join(","),
        number(Some(figures.p50() / 1e3)),
        number(Some(figures.p99() / 1e3)),
        number(Some(figures.mean() / 1e3)),
        number(figures.root_p50().map(|root| root / 1e3)),
        number(Some(algbw)),
        number(Some(busbw)),
        figures.wrong.to_string(),
        number(ratio.map(|ratio| ratio.value)),
        number(interval.map(|(low, _)| low)),
        number(interval.map(|(_, high)| high)),
        lost.unwrap_or("").to_owned(),
    ];
    words.join(",") + "\n"
}

/// Results for tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn results(cells: Vec<CellResult>) -> BenchResults {
        let machine = HostMachine {
            cores: 2,
            processor: "Some Processor".to_owned(),
            memory: 24 << 30,
            system: "Linux 6.1".to_owned(),
        };
        let (transport, command) = ("auto".to_owned(), "dist-bench --peer mpich".to_owned());
        BenchResults {
            run: RunInfo { transport, pairs: 10, command, machine },
            limits: None,
            cells,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::results;
    use super::*;
    use crate::cell::samples::measured;
    use crate::ops::BenchOp;

    #[test]
    fn json_has_cells_and_means() {
        let all = [
            measured(BenchOp::AllReduce, 64, &[("openmpi", 800.0), ("mpich", 4000.0)]),
            measured(BenchOp::Barrier, 0, &[]),
        ];
        let value: Value = serde_json::from_str(&results_json(&results(all.to_vec()))).unwrap();
        let cell = &value["cells"][0];
        assert_eq!((&cell["op"], &cell["size"]), (&json!("all_reduce"), &json!(64)));
        assert_eq!((&cell["best_peer"], &cell["lost"]), (&json!("openmpi"), &json!("slower")));
        assert_eq!((&cell["ratio"], &cell["ratio_high"]), (&json!(1.25), &json!(1.25)));
        assert_eq!(cell["ours"]["p50_us"], json!(1.0));
        assert_eq!(cell["peers"][1]["runs_p50_us"].as_array().map(Vec::len), Some(10));
        assert_eq!(value["cells"][1]["ratio"], Value::Null);
        assert_eq!(value["geometric_means"][0]["lost"], json!(1));
        assert_eq!(value["geometric_means"][0]["ratio_of_means"], json!(1.25));
        assert_eq!(value["p99_above_best_peer"], json!({"cells": 1, "of": 1}));
    }

    #[test]
    fn csv_rows_have_as_many_fields_as_the_header() {
        let all = [measured(BenchOp::AllGather, 64, &[("openmpi", 800.0)])];
        let text = results_csv(&results(all.to_vec()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let words = |line: &str| line.split(',').count();
        assert!(lines.iter().all(|line| words(line) == words(lines[0])), "{text}");
        assert!(lines[1].starts_with("libdist,auto,2,all_gather,64,8,f32,none,rewritten,"));
        assert!(lines[1].ends_with(",0,1.2500,1.2500,1.2500,slower"), "{text}");
        assert!(lines[2].starts_with("openmpi,,2,") && lines[2].ends_with(",0,,,,"), "{text}");
    }
}
