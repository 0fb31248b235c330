//! Writes and reads the JSON files of `--training`. The reader computes all derived results again,
//! from the runs of each process group.

use super::candidate::Candidate;
use super::model::TrainingModel;
use super::plan::{ComputeKind, GroupRun, Workload};
use super::training_results::{CandidateResult, EXPOSED_LIMITS, WorkloadResult};
use crate::machine::HostMachine;
use crate::results_reader;
use dist_tools::Failure;
use serde_json::{Value, json};
use std::path::Path;

/// The results of one run of the program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrainingResults {
    /// The command line without the paths of files.
    pub(super) command: String,
    pub(super) machine: HostMachine,
    pub(super) workloads: Vec<WorkloadResult>,
}

/// Returns the JSON with a line end.
pub(super) fn results_text(results: &TrainingResults) -> String {
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

fn measured_json(measured: &WorkloadResult) -> Value {
    let Workload { model, ranks, compute, gradient_us, has_slow_rank } = measured.workload;
    let counts = model.parameter_counts();
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

fn figures_json(measured: &WorkloadResult, figures: &CandidateResult) -> Value {
    let exposed = figures.exposed_ns();
    let [torch, horovod] = EXPOSED_LIMITS
        .map(|(other, _)| measured.ratio(figures.candidate, other).map(|ratio| ratio.value));
    let run = |run: &GroupRun| {
        json!({
            "step_ns": run.step_ns, "local_ns": run.local_ns, "wrong": run.wrong_elements, "bytes_copied": run.copied_bytes,
            "peak_bytes": run.peak_bytes,
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
        "bytes_copied": figures.copied_bytes(),
        "peak_bytes": figures.peak_bytes(),
        "wrong": figures.wrong_elements(),
        "runs": figures.runs.iter().map(run).collect::<Vec<Value>>(),
    })
}

/// Reads a result file.
pub(super) fn read_results(path: &Path) -> Result<TrainingResults, Failure> {
    let reason = "not in the format of dist-bench --training --json";
    parse_results(&results_reader::read_json(path)?)
        .ok_or_else(|| results_reader::read_failure(path, reason))
}

fn parse_results(value: &Value) -> Option<TrainingResults> {
    Some(TrainingResults {
        command: value["command"].as_str()?.to_owned(),
        machine: HostMachine::from_json(&value["host"])?,
        workloads: value["training"]
            .as_array()?
            .iter()
            .map(parse_workload)
            .collect::<Option<_>>()?,
    })
}

fn parse_workload(value: &Value) -> Option<WorkloadResult> {
    let size = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let workload = Workload {
        model: TrainingModel::from_name(value["model"].as_str()?)?,
        ranks: size(&value["ranks"]).filter(|ranks| (2..=60).contains(ranks))?,
        compute: ComputeKind::from_name(value["compute"].as_str()?)?,
        gradient_us: value["gradient_us"].as_u64().filter(|us| *us <= 1_000_000)?,
        has_slow_rank: value["slow_rank"].as_bool()?,
    };
    let names = value["left_out"].as_array()?.iter();
    Some(WorkloadResult {
        workload,
        steps: size(&value["steps"])?,
        candidates: value["candidates"]
            .as_array()?
            .iter()
            .map(parse_candidate)
            .collect::<Option<_>>()?,
        left_out: names.map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?,
    })
}

fn parse_candidate(value: &Value) -> Option<CandidateResult> {
    Some(CandidateResult {
        candidate: Candidate::from_name(value["candidate"].as_str()?)?,
        runs: value["runs"].as_array()?.iter().map(parse_group_run).collect::<Option<_>>()?,
    })
}

fn parse_group_run(value: &Value) -> Option<GroupRun> {
    let ns = |value: &Value| value.as_f64().filter(|ns| ns.is_finite() && *ns >= 0.0);
    let copied = match &value["bytes_copied"] {
        Value::Null => None,
        bytes => Some(bytes.as_u64()?),
    };
    Some(GroupRun {
        step_ns: ns(&value["step_ns"])?,
        local_ns: ns(&value["local_ns"])?,
        wrong_elements: value["wrong"].as_u64()?,
        copied_bytes: copied,
        peak_bytes: value["peak_bytes"].as_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::training_results::samples;
    use super::*;

    fn results() -> TrainingResults {
        let mut measured =
            samples::measured(&[(Candidate::Arena, 3.0), (Candidate::TorchGloo, 50.0)]);
        measured.left_out.push("horovod".to_owned());
        TrainingResults {
            command: "dist-bench --training".to_owned(),
            machine: HostMachine::current(),
            workloads: vec![measured],
        }
    }

    #[test]
    fn results_survive_json_round_trip() {
        let value: Value = serde_json::from_str(&results_text(&results())).unwrap();
        assert_eq!(parse_results(&value), Some(results()));
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
        let good: Value = serde_json::from_str(&results_text(&results())).unwrap();
        let mut wrong = good.clone();
        wrong["training"][0]["ranks"] = json!(1);
        assert_eq!(parse_results(&wrong), None);
        let mut wrong = good;
        wrong["training"][0]["candidates"][0]["runs"][0]["step_ns"] = json!(-1.0);
        assert_eq!(parse_results(&wrong), None);
        assert_eq!(parse_results(&json!({})), None);
    }
}
