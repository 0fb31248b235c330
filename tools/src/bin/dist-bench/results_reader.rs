//! Reads the files that `--json` wrote. A user may have changed a file, so the reader checks
//! everything that it uses. It computes all derived results again, with the same code as a
//! measurement.

use crate::cell::{BenchCell, BufferKind, BufferMode, CallVariant, CellResult, EngineTimes};
use crate::machine::HostMachine;
use crate::machine_limits::MachineLimits;
use crate::offsets::OffsetPair;
use crate::ops::BenchOp;
use crate::request::{dtype_named, redop_named};
use crate::result_files::{BenchResults, RunInfo};
use crate::stats::RunTimes;
use dist::base::op::ReduceOp;
use dist_tools::Failure;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The largest accepted size of a result file in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads a result file.
pub(crate) fn read_results(path: &Path) -> Result<BenchResults, Failure> {
    parse_results(&read_json(path)?).map_err(|what| {
        read_failure(
            path,
            format!("{what} is missing or is not in the format of dist-bench --json"),
        )
    })
}

/// Reads the JSON of a result file.
pub(crate) fn read_json(path: &Path) -> Result<Value, Failure> {
    let size = fs::metadata(path).map_err(|cause| read_failure(path, cause))?.len();
    if size > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES >> 20;
        let reason = format!("larger than {limit} MiB, the limit for a result file of dist-bench");
        return Err(read_failure(path, reason));
    }
    let bytes = fs::read(path).map_err(|cause| read_failure(path, cause))?;
    serde_json::from_slice(&bytes).map_err(|cause| read_failure(path, cause))
}

/// Builds the failure for an unreadable file.
pub(crate) fn read_failure(path: &Path, reason: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {reason}", path.display()))
}

/// Parses all results. The error names the invalid part.
pub(crate) fn parse_results(value: &Value) -> Result<BenchResults, String> {
    let run = parse_run_info(value).ok_or("the description of the run")?;
    let limits = match &value["limits"] {
        Value::Null => None,
        limits => Some(MachineLimits::from_json(limits).ok_or("\"limits\"")?),
    };
    let cells = value["cells"].as_array().ok_or("\"cells\"")?;
    let parsed = cells.iter().enumerate().map(|(number, value)| {
        parse_cell(value).ok_or_else(|| format!("cell {number} of \"cells\""))
    });
    Ok(BenchResults { run, limits, cells: parsed.collect::<Result<_, String>>()? })
}

fn parse_run_info(value: &Value) -> Option<RunInfo> {
    Some(RunInfo {
        transport: value["transport"].as_str()?.to_owned(),
        pairs: parse_number(&value["pairs"])?,
        command: value["command"].as_str()?.to_owned(),
        machine: HostMachine::from_json(&value["host"])?,
    })
}

fn parse_number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn parse_cell(value: &Value) -> Option<CellResult> {
    let op: BenchOp = value["op"].as_str()?.parse().ok()?;
    let dtype = dtype_named(value["type"].as_str()?)?;
    let redop = if op.reduces() { redop_named(value["redop"].as_str()?)? } else { ReduceOp::Sum };
    let ranks = parse_number(&value["ranks"]).filter(|ranks| (2..=60).contains(ranks))?;
    let count = parse_number(&value["size"])? / dtype.size();
    let cell = BenchCell { ranks, op, count, dtype, redop, variant: parse_variant(value)? };
    let peers = value["peers"].as_array()?.iter().map(parse_times).collect::<Option<_>>()?;
    let names = value["left_out"].as_array()?.iter();
    let left_out = names.map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    let bound = match &value["bound"] {
        Value::Null => None,
        bound => Some(parse_times(bound)?),
    };
    Some(CellResult { cell, libdist: parse_times(&value["ours"])?, peers, bound, left_out })
}

fn parse_variant(value: &Value) -> Option<CallVariant> {
    let parse_flag = |name: &str, yes: &str, no: &str| match value[name].as_str()? {
        word if word == yes => Some(true),
        word if word == no => Some(false),
        _ => None,
    };
    let is_rewritten = parse_flag("mode", "rewritten", "untouched")?;
    let offsets = OffsetPair::all().map(BufferKind::Offsets);
    let mut kinds =
        [BufferKind::Ordinary, BufferKind::Arena, BufferKind::Device].into_iter().chain(offsets);
    let named = value["buffers"].as_str()?;
    Some(CallVariant {
        mode: if is_rewritten { BufferMode::Rewritten } else { BufferMode::Untouched },
        buffers: kinds.find(|kind| kind.name() == named)?,
        in_place: parse_flag("place", "in place", "out of place")?,
        asynchronous: parse_flag("call", "async", "blocking")?,
    })
}

/// Parses the times of an engine. A file has the median of each run, but only one value for all
/// runs of the other times.
fn parse_times(value: &Value) -> Option<EngineTimes> {
    let ns = |value: &Value| {
        let us = value.as_f64().filter(|us| us.is_finite() && *us >= 0.0);
        us.map(|us| us * 1e3)
    };
    let (p99, mean) = (ns(&value["p99_us"])?, ns(&value["mean_us"])?);
    let root = match &value["root_p50_us"] {
        Value::Null => None,
        root => Some(ns(root)?),
    };
    let runs = value["runs_p50_us"].as_array()?.iter();
    let runs = runs.map(|run| Some(RunTimes { p50: ns(run)?, p99, mean, root_p50: root }));
    Some(EngineTimes {
        engine: value["engine"].as_str()?.to_owned(),
        runs: runs.collect::<Option<_>>()?,
        wrong: value["wrong"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::{figures, measured};
    use crate::result_files::{results_json, samples::results};
    use serde_json::json as value;

    fn written(results: &BenchResults) -> Value {
        serde_json::from_str(&results_json(results)).unwrap()
    }

    #[test]
    fn results_survive_json_round_trip() {
        let mut broadcast = measured(BenchOp::Broadcast, 64, &[("mpich", 500.0)]);
        broadcast.libdist.runs.iter_mut().for_each(|times| times.root_p50 = Some(250.0));
        let mut all_reduce =
            measured(BenchOp::AllReduce, 4096, &[("openmpi", 800.0), ("gloo", 9e5)]);
        all_reduce.bound = Some(figures("cma_read", &[750.0; 10]));
        all_reduce.left_out = vec!["mpich".to_owned()];
        let results = results(vec![all_reduce, broadcast, measured(BenchOp::Barrier, 0, &[])]);
        let value = written(&results);
        let read = parse_results(&value).unwrap();
        assert_eq!(written(&read), value);
        assert_eq!(read.cells[1].libdist.root_p50(), Some(250.0));
        assert_eq!(read.run.machine, results.run.machine);
    }

    #[test]
    fn malformed_results_are_named() {
        let good = written(&results(vec![measured(BenchOp::AllReduce, 64, &[("mpich", 500.0)])]));
        let mut wrong = good.clone();
        wrong["cells"][0]["peers"][0]["p99_us"] = value!(-1.0);
        assert_eq!(parse_results(&wrong).unwrap_err(), "cell 0 of \"cells\"");
        let mut wrong = good.clone();
        wrong["cells"][0]["ranks"] = value!(1);
        assert!(parse_results(&wrong).is_err());
        let mut wrong = good;
        wrong["limits"] = value!({"cores": "two"});
        assert_eq!(parse_results(&wrong).unwrap_err(), "\"limits\"");
        assert!(parse_results(&value!([1, 2])).is_err());
    }
}
