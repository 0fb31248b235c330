//! What `--json` has written, read back: from a file, which anybody may have changed, so that
//! nothing in it is believed that was not looked at. Figures are computed anew, by the same code as
//! those of a run.

use crate::Failure;
use crate::cell::{Buffers, Cell, Figures, Measured, Mode, Variant};
use crate::files::{Results, Run};
use crate::limits::Limits;
use crate::machine::Machine;
use crate::ops::Op;
use crate::order::{dtype_named, redop_named};
use crate::stats::Times;
use dist::base::op::ReduceOp;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// No result is larger than this, in bytes.
const LARGEST: u64 = 64 << 20;

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Results, Failure> {
    parse(&json(path)?)
        .map_err(|what| wrong(path, format!("{what} is not what dist-bench --json writes")))
}

/// The JSON of a file of results.
pub(crate) fn json(path: &Path) -> Result<Value, Failure> {
    let size = fs::metadata(path).map_err(|cause| wrong(path, cause))?.len();
    if size > LARGEST {
        return Err(wrong(path, "it is too large for a result of dist-bench"));
    }
    let bytes = fs::read(path).map_err(|cause| wrong(path, cause))?;
    serde_json::from_slice(&bytes).map_err(|cause| wrong(path, cause))
}

/// The failure to read a file.
pub(crate) fn wrong(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {why}", path.display()))
}

/// All of it; else what cannot be understood.
pub(crate) fn parse(value: &Value) -> Result<Results, String> {
    let run = run(value).ok_or("the description of the run")?;
    let limits = match &value["limits"] {
        Value::Null => None,
        limits => Some(Limits::from_json(limits).ok_or("\"limits\"")?),
    };
    let cells = value["cells"].as_array().ok_or("\"cells\"")?;
    let parsed = cells.iter().enumerate().map(|(number, value)| {
        measured(value).ok_or_else(|| format!("number {number} of \"cells\""))
    });
    Ok(Results { run, limits, cells: parsed.collect::<Result<_, String>>()? })
}

fn run(value: &Value) -> Option<Run> {
    Some(Run {
        transport: value["transport"].as_str()?.to_owned(),
        pairs: number(&value["pairs"])?,
        command: value["command"].as_str()?.to_owned(),
        machine: Machine::from_json(&value["host"])?,
    })
}

fn number(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn measured(value: &Value) -> Option<Measured> {
    let op: Op = value["op"].as_str()?.parse().ok()?;
    let dtype = dtype_named(value["type"].as_str()?)?;
    let redop = if op.reduces() { redop_named(value["redop"].as_str()?)? } else { ReduceOp::Sum };
    let ranks = number(&value["ranks"]).filter(|ranks| (2..=60).contains(ranks))?;
    let count = number(&value["size"])? / dtype.size();
    let cell = Cell { ranks, op, count, dtype, redop, variant: variant(value)? };
    let peers = value["peers"].as_array()?.iter().map(figures).collect::<Option<_>>()?;
    let names = value["left_out"].as_array()?.iter();
    let left_out = names.map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    let bound = match &value["bound"] {
        Value::Null => None,
        bound => Some(figures(bound)?),
    };
    Some(Measured { cell, ours: figures(&value["ours"])?, peers, bound, left_out })
}

fn variant(value: &Value) -> Option<Variant> {
    let either = |name: &str, yes: &str, no: &str| match value[name].as_str()? {
        word if word == yes => Some(true),
        word if word == no => Some(false),
        _ => None,
    };
    let is_rewritten = either("mode", "rewritten", "untouched")?;
    let kinds = [Buffers::Ordinary, Buffers::Arena, Buffers::Device];
    let named = value["buffers"].as_str()?;
    Some(Variant {
        mode: if is_rewritten { Mode::Rewritten } else { Mode::Untouched },
        buffers: kinds.into_iter().find(|kind| kind.name() == named)?,
        in_place: either("place", "in place", "out of place")?,
        asynchronous: either("call", "async", "blocking")?,
    })
}

/// Of all but the medians there is only one figure, which is that of all runs.
fn figures(value: &Value) -> Option<Figures> {
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
    let runs = runs.map(|run| Some(Times { p50: ns(run)?, p99, mean, root }));
    Some(Figures {
        engine: value["engine"].as_str()?.to_owned(),
        runs: runs.collect::<Option<_>>()?,
        wrong: value["wrong"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::{figures, measured};
    use crate::files::{json, samples::results};
    use serde_json::json as value;

    fn written(results: &Results) -> Value {
        serde_json::from_str(&json(results)).unwrap()
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let mut broadcast = measured(Op::Broadcast, 64, &[("mpich", 500.0)]);
        broadcast.ours.runs.iter_mut().for_each(|times| times.root = Some(250.0));
        let mut all_reduce = measured(Op::AllReduce, 4096, &[("openmpi", 800.0), ("gloo", 9e5)]);
        all_reduce.bound = Some(figures("cma_read", &[750.0; 10]));
        all_reduce.left_out = vec!["mpich".to_owned()];
        let results = results(vec![all_reduce, broadcast, measured(Op::Barrier, 0, &[])]);
        let value = written(&results);
        let read = parse(&value).unwrap();
        assert_eq!(written(&read), value);
        assert_eq!(read.cells[1].ours.root(), Some(250.0));
        assert_eq!(read.run.machine, results.run.machine);
    }

    #[test]
    fn what_is_something_else_is_told() {
        let good = written(&results(vec![measured(Op::AllReduce, 64, &[("mpich", 500.0)])]));
        let mut wrong = good.clone();
        wrong["cells"][0]["peers"][0]["p99_us"] = value!(-1.0);
        assert_eq!(parse(&wrong).unwrap_err(), "number 0 of \"cells\"");
        let mut wrong = good.clone();
        wrong["cells"][0]["ranks"] = value!(1);
        assert!(parse(&wrong).is_err());
        let mut wrong = good;
        wrong["limits"] = value!({"cores": "two"});
        assert_eq!(parse(&wrong).unwrap_err(), "\"limits\"");
        assert!(parse(&value!([1, 2])).is_err());
    }
}
