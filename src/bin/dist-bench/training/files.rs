//! The JSON of `--training`, written and read. Figures are computed again from the runs of each
//! process group.

use super::candidate::Candidate;
use super::model::Model;
use super::plan::{Compute, GroupRun, Workload};
use super::results::{Figures, LIMITS, Measured};
use crate::Failure;
use crate::machine::Machine;
use crate::read;
use serde_json::{Value, json};
use std::path::Path;

/// All that one run of the program measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Results {
    /// The command line, without the files that it names.
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) workloads: Vec<Measured>,
}

/// The JSON, with a line's end.
pub(super) fn text(results: &Results) -> String {
    let value = json!({
        "program": "dist-bench",
        "version": env!("CARGO_PKG_VERSION"),
        "command": results.command,
        "host": results.machine.json(),
        "interval": "95 %, order statistics of the pairs",
        "training": results.workloads.iter().map(measured_json).collect::<Vec<Value>>(),
    });
    format!("{value:#}\n")
}

fn measured_json(measured: &Measured) -> Value {
    let Workload { model, ranks, compute, gradient_us, has_slow_rank } = measured.workload;
    let counts = model.counts();
    json!({
        "model": model.name(),
        "gradients": counts.len(),
        "elements": counts.iter().sum::<usize>(),
        "ranks": ranks,
        "compute": compute.name(),
        "gradient_us": gradient_us,
        "slow_rank": has_slow_rank,
        "steps": measured.steps,
        "candidates": measured.candidates.iter().map(|figures| figures_json(measured, figures)).collect::<Vec<Value>>(),
        "left_out": measured.left_out,
    })
}

fn figures_json(measured: &Measured, figures: &Figures) -> Value {
    let exposed = figures.exposed_ns();
    let [torch, horovod] =
        LIMITS.map(|(other, _)| measured.ratio(figures.candidate, other).map(|ratio| ratio.value));
    let run = |run: &GroupRun| {
        json!({
            "step_ns": run.step_ns, "local_ns": run.local_ns, "wrong": run.wrong, "bytes_copied": run.copied,
            "peak_bytes": run.peak,
        })
    };
    json!({
        "candidate": figures.candidate.name(),
        "local_ms": figures.local_ns() / 1e6,
        "step_ms": figures.step_ns() / 1e6,
        "exposed_ms": exposed.value / 1e6,
        "exposed_low_ms": exposed.interval.map(|(low, _)| low / 1e6),
        "exposed_high_ms": exposed.interval.map(|(_, high)| high / 1e6),
        "by_torch_gloo": torch,
        "by_horovod": horovod,
        "bytes_copied": figures.copied(),
        "peak_bytes": figures.peak(),
        "wrong": figures.wrong(),
        "runs": figures.runs.iter().map(run).collect::<Vec<Value>>(),
    })
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Results, Failure> {
    let why = "it is not what dist-bench --training --json writes";
    parse(&read::json(path)?).ok_or_else(|| read::wrong(path, why))
}

fn parse(value: &Value) -> Option<Results> {
    Some(Results {
        command: value["command"].as_str()?.to_owned(),
        machine: Machine::from_json(&value["host"])?,
        workloads: value["training"].as_array()?.iter().map(measured).collect::<Option<_>>()?,
    })
}

fn measured(value: &Value) -> Option<Measured> {
    let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let workload = Workload {
        model: Model::named(value["model"].as_str()?)?,
        ranks: size(&value["ranks"]).filter(|ranks| (2..=60).contains(ranks))?,
        compute: Compute::named(value["compute"].as_str()?)?,
        gradient_us: value["gradient_us"].as_u64().filter(|us| *us <= 1_000_000)?,
        has_slow_rank: value["slow_rank"].as_bool()?,
    };
    let names = value["left_out"].as_array()?.iter();
    Some(Measured {
        workload,
        steps: size(&value["steps"])?,
        candidates: value["candidates"].as_array()?.iter().map(figures).collect::<Option<_>>()?,
        left_out: names.map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?,
    })
}

fn figures(value: &Value) -> Option<Figures> {
    Some(Figures {
        candidate: Candidate::named(value["candidate"].as_str()?)?,
        runs: value["runs"].as_array()?.iter().map(group_run).collect::<Option<_>>()?,
    })
}

fn group_run(value: &Value) -> Option<GroupRun> {
    let ns = |value: &Value| value.as_f64().filter(|ns| ns.is_finite() && *ns >= 0.0);
    let copied = match &value["bytes_copied"] {
        Value::Null => None,
        bytes => Some(bytes.as_u64()?),
    };
    Some(GroupRun {
        step_ns: ns(&value["step_ns"])?,
        local_ns: ns(&value["local_ns"])?,
        wrong: value["wrong"].as_u64()?,
        copied,
        peak: value["peak_bytes"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::samples;
    use super::*;

    fn results() -> Results {
        let mut measured =
            samples::measured(&[(Candidate::Arena, 3.0), (Candidate::TorchGloo, 50.0)]);
        measured.left_out.push("horovod".to_owned());
        Results {
            command: "dist-bench --training".to_owned(),
            machine: Machine::here(),
            workloads: vec![measured],
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let value: Value = serde_json::from_str(&text(&results())).unwrap();
        assert_eq!(parse(&value), Some(results()));
        let arena = &value["training"][0]["candidates"][0];
        assert_eq!((&arena["candidate"], &arena["wrong"]), (&json!("arena"), &json!(0)));
        assert!((arena["by_torch_gloo"].as_f64().unwrap() - 0.0609).abs() < 0.001);
        assert_eq!(
            (&arena["by_horovod"], &arena["bytes_copied"]),
            (&Value::Null, &json!(100 << 20))
        );
    }

    #[test]
    fn other_files_are_refused() {
        let good: Value = serde_json::from_str(&text(&results())).unwrap();
        let mut wrong = good.clone();
        wrong["training"][0]["ranks"] = json!(1);
        assert_eq!(parse(&wrong), None);
        let mut wrong = good;
        wrong["training"][0]["candidates"][0]["runs"][0]["step_ns"] = json!(-1.0);
        assert_eq!(parse(&wrong), None);
        assert_eq!(parse(&json!({})), None);
    }
}
