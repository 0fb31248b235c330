//! Formats the tables of `--training`, for the terminal and in Markdown. The functions do no I/O.

use super::candidate::Candidate;
use super::plan::{ComputeKind, Workload};
use super::training_results::{CandidateResult, EXPOSED_LIMITS, LimitVerdict, WorkloadResult};
use crate::machine::HostMachine;
use crate::stats::MedianEstimate;
use dist_terminal::{Alignment, text_table};
use dist_tools::count_text;

/// The columns: the title and the alignment.
const COLUMNS: [(&str, Alignment); 10] = [
    ("candidate", Alignment::Left),
    ("local ms", Alignment::Right),
    ("step ms", Alignment::Right),
    ("exposed ms", Alignment::Right),
    ("95 %", Alignment::Right),
    ("min to max", Alignment::Right),
    ("by torch", Alignment::Right),
    ("by Horovod", Alignment::Right),
    ("copied MiB", Alignment::Right),
    ("peak MiB", Alignment::Right),
];

/// Formats the workload for users.
pub(super) fn describe(workload: &Workload) -> String {
    let Workload { model, ranks, compute, gradient_us, has_slow_rank } = workload;
    let computing = match compute {
        ComputeKind::None => "no computation".to_owned(),
        _ => format!("{} of {gradient_us} us per gradient", compute.name()),
    };
    let slow = if *has_slow_rank { ", the last rank 30 % slower" } else { "" };
    format!("{}, {}, {computing}{slow}", model.title(), count_text(*ranks, "rank"))
}

/// Returns the cells of a candidate's row, in the order of [`COLUMNS`].
fn row_cells(measured: &WorkloadResult, figures: &CandidateResult) -> [String; 10] {
    let exposed = figures.exposed_ns();
    let [torch, horovod] =
        EXPOSED_LIMITS.map(|(other, _)| ratio_text(measured, figures.candidate, other));
    let (least, most) = figures.spread_ns();
    [
        figures.candidate.title().to_owned(),
        ms_text(figures.local_ns()),
        ms_text(figures.step_ns()),
        ms_text(exposed.value),
        exposed.interval.map_or_else(|| "-".to_owned(), |(low, high)| range_ms_text(low, high)),
        range_ms_text(least, most),
        torch,
        horovod,
        figures.copied_bytes().map_or_else(|| "-".to_owned(), mib_text),
        mib_text(figures.peak_bytes()),
    ]
}

/// Formats the ratio of a candidate to another candidate. Returns "-" if they are the same.
fn ratio_text(measured: &WorkloadResult, candidate: Candidate, other: Candidate) -> String {
    let ratio = measured.ratio(candidate, other).filter(|_| candidate != other);
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.3}", ratio.value))
}

fn ms_text(ns: f64) -> String {
    format!("{:.1}", ns / 1e6)
}

fn range_ms_text(low: f64, high: f64) -> String {
    format!("{} to {}", ms_text(low), ms_text(high))
}

fn mib_text(bytes: u64) -> String {
    bytes.div_ceil(1 << 20).to_string()
}

/// Formats the table for the terminal, and the verdicts below it.
pub(super) fn workload_text(measured: &WorkloadResult) -> String {
    let rows = measured_candidates(measured).map(|figures| row_cells(measured, figures));
    let mut text = format!("\n{}:\n", describe(&measured.workload));
    text.push_str(&text_table(COLUMNS, rows));
    for verdict in measured.verdicts() {
        text.push_str(&verdict_text(&verdict));
        text.push('\n');
    }
    text
}

fn measured_candidates(measured: &WorkloadResult) -> impl Iterator<Item = &CandidateResult> {
    measured.candidates.iter().filter(|figures| !figures.runs.is_empty())
}

fn verdict_text(verdict: &LimitVerdict) -> String {
    let LimitVerdict { candidate: ours, other, limit, ratio: MedianEstimate { value, interval } } =
        verdict;
    let interval =
        interval.map_or_else(String::new, |(low, high)| format!(" ({low:.3} to {high:.3})"));
    let outcome = match verdict.is_met() {
        true if verdict.is_uncertain() => "met, uncertain",
        true => "met",
        false => "missed",
    };
    format!(
        "{}: {value:.3}{interval} of {}; at most {limit:.2} is required: {outcome}",
        ours.title(),
        other.title()
    )
}

/// Returns the tables in Markdown, with a link to the plot at `plot`.
pub(super) fn markdown(
    all: &[WorkloadResult],
    commands: &[String],
    machine: &HostMachine,
    plot: &str,
) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let commands: String = commands.iter().map(|command| format!("{command}\n")).collect();
    let machine = machine.describe();
    let mut text = format!(
        "libdist {version} on {machine}:\n\n```sh\n{commands}```\n\n![exposed communication]({plot})\n"
    );
    for measured in all {
        let pairs = measured.candidates.iter().map(|figures| figures.runs.len()).max().unwrap_or(0);
        text.push_str(&format!(
            "\n{}, {} of {}:\n\n",
            describe(&measured.workload),
            count_text(pairs, "pair"),
            count_text(measured.steps, "step")
        ));
        text.push_str(&format!("| {} |\n", COLUMNS.map(|(name, _)| name).join(" | ")));
        let lines = COLUMNS.map(|(_, alignment)| match alignment {
            Alignment::Left => "---",
            Alignment::Right => "---:",
        });
        text.push_str(&format!("|{}|\n", lines.join("|")));
        for figures in measured_candidates(measured) {
            text.push_str(&format!("| {} |\n", row_cells(measured, figures).join(" | ")));
        }
        let verdicts = measured.verdicts();
        if !verdicts.is_empty() {
            text.push('\n');
        }
        for verdict in &verdicts {
            text.push_str(&format!("* {}\n", verdict_text(verdict)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::training_results::samples::measured;
    use super::*;

    const SHOWN: [(Candidate, f64); 3] =
        [(Candidate::Arena, 3.0), (Candidate::TorchGloo, 50.0), (Candidate::Horovod, 10.0)];

    #[test]
    fn the_terminal_has_figures_and_verdicts() {
        let text = workload_text(&measured(&SHOWN));
        for part in [
            "\nmodel a (200 x 512 KiB), 2 ranks, sleep of 500 us per gradient:\n",
            "\nlibdist, arena                 120.0    123.0         3.0    3.0 to 3.1    3.0 to 3.1     0.061       0.303",
            "libdist, arena: 0.061 (0.060 to 0.062) of torch DDP on Gloo; at most 0.10 is required: met\n",
            "of Horovod's scheme, Open MPI; at most 0.25 is required: missed\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn markdown_tables_have_as_many_columns_as_their_heads() {
        let machine = HostMachine::current();
        let commands = ["dist-bench --training".to_owned()];
        let text =
            markdown(&[measured(&SHOWN), measured(&SHOWN[..1])], &commands, &machine, "x.svg");
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 2 + 3 + 2 + 1);
        assert!(rows.iter().all(|row| row.matches('|').count() == 11), "{text}");
        for part in
            ["```sh\ndist-bench --training\n```", "(x.svg)", "10 pairs of 10 steps:", "* libdist"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        // A single candidate has no ratios.
        assert!(rows[7].contains(" | - | - | 100 | 300 |"), "{text}");
    }

    #[test]
    fn a_workload_is_described() {
        let mut workload = measured(&SHOWN).workload;
        workload.compute = ComputeKind::None;
        workload.has_slow_rank = true;
        let text = describe(&workload);
        assert!(text.ends_with("2 ranks, no computation, the last rank 30 % slower"), "{text}");
    }
}
