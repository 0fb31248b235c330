//! `--training`: measures how long a training step waits for the communication of its gradients,
//! with libdist's reducer and with other libraries.
//!
//! A rank computes the gradients one by one. Each candidate (a library and a way to use it)
//! averages them over the ranks in its own way, while the rank computes further gradients. The
//! *exposed communication* is the time of a step minus the time of the same step without
//! communication, in the same process. For example, if a step takes 110 ms, and 100 ms without
//! communication, 10 ms are exposed. Steps with and without communication alternate, so that a
//! change of the machine's speed affects both kinds. All ranks begin a step together. The rank with
//! the largest median counts.
//!
//! A process group is the set of ranks that one candidate starts. A *pair* is one process group of
//! each candidate, in shuffled order. Every group has new processes, because the memory placement
//! of a process changes its times as long as the process lives. Ranks verify the averages after
//! each step.
//!
//! | file | purpose |
//! |---|---|
//! | `options` | the command line |
//! | `model` | the parameters of the models |
//! | `plan` | the plan of a process group, and what its ranks measure |
//! | `candidate`, `peers/training.c`, `peers/training.py` | the candidates and their programs |
//! | `trainer`, `reducer` | the ranks of libdist's candidates |
//! | `training_results`, `table`, `plot`, `training_files` | figures, tables, the plot, JSON |

mod candidate;
mod model;
mod options;
mod plan;
mod plot;
mod reducer;
mod table;
mod trainer;
mod training_files;
mod training_results;

pub(crate) use candidate::AS_TRAINER;
pub(crate) use options::TrainingOptions;
pub(crate) use trainer::run_trainer;

use crate::cli::Options;
use crate::engine::log_tail;
use crate::machine::HostMachine;
use crate::progress::ProgressLine;
use crate::report;
use crate::report_error;
use crate::result_files::write_file;
use crate::run_context::RunContext;
use candidate::{Candidate, TrainingProgram};
use dist::base::deadline::Deadline;
use dist::sys::clock;
use dist_tools::{Failure, count_text, write_output};
use plan::{GroupPlan, GroupRun, PLAN_SUFFIX, RankSample, SAMPLE_SUFFIX, Workload};
use rand_mt::Mt64;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use training_files::TrainingResults;
use training_results::{CandidateResult, WorkloadResult};

/// The time limit of a process group, in addition to the time that its ranks compute.
const GROUP_LIMIT: Duration = Duration::from_secs(300);

/// The file name of the plot.
const PLOT: &str = "training.svg";

/// Measures all workloads that the options select, prints the tables, and writes the files. With
/// `--report-from`, only writes a report from result files.
///
/// # Errors
/// The reason for the failure.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let target = options.report.as_deref();
    target.map_or(Ok(()), |path| report::check_markers(path, &report::TRAINING_MARKERS))?;
    if let Some(path) = target.filter(|_| !options.report_from.is_empty()) {
        let parts = options.report_from.iter().map(|file| training_files::read_results(file));
        return put_report(path, &parts.collect::<Result<Vec<TrainingResults>, Failure>>()?);
    }
    let mut bench = TrainingBenchmark::new(options)?;
    let outcome = bench.measure_all_workloads();
    bench.progress.finish();
    let results = TrainingResults {
        command: Options::shareable_command_line(),
        machine: HostMachine::current(),
        workloads: bench.workload_results,
    };
    // Write the file even if the measurement ended early. It then contains partial results.
    if let Some(path) = &options.json {
        write_file(path, &training_files::results_text(&results))?;
    }
    outcome?;
    let wrong: u64 = results.workloads.iter().map(WorkloadResult::wrong_elements).sum();
    if wrong > 0 {
        return Err(Failure::new(format!(
            "the averaged gradients have {}",
            count_of(wrong, "wrong element")
        )));
    }
    target.map_or(Ok(()), |path| put_report(path, &[results]))
}

fn count_of(number: u64, thing: &str) -> String {
    count_text(usize::try_from(number).unwrap_or(usize::MAX), thing)
}

/// Writes the tables of all parts into a file, and the plot into its plot folder.
fn put_report(path: &Path, parts: &[TrainingResults]) -> Result<(), Failure> {
    let Some(first) = parts.first() else {
        return Err(Failure::new("--report-from names no result file"));
    };
    if parts.iter().any(|part| part.machine != first.machine) {
        return Err(Failure::new("--report-from: all result files must be of one machine"));
    }
    let mut all: Vec<WorkloadResult> = Vec::new();
    for measured in parts.iter().flat_map(|part| &part.workloads) {
        // If several parts have a workload, the last part counts.
        all.retain(|before| before.workload != measured.workload);
        all.push(measured.clone());
    }
    let commands: Vec<String> = parts.iter().map(|part| part.command.clone()).collect();
    let plot = format!("{}/{PLOT}", report::PLOT_FOLDER);
    let text = table::markdown(&all, &commands, &first.machine, &plot);
    report::write_plot(path, PLOT, &plot::svg(&all)?)?;
    report::replace_report(path, &report::TRAINING_MARKERS, &text)
}

/// The measurement in progress.
struct TrainingBenchmark<'a> {
    options: &'a Options,
    context: RunContext,
    programs: Vec<(Candidate, TrainingProgram)>,
    progress: ProgressLine,
    /// Shuffles the candidates of a pair.
    random: Mt64,
    workload_results: Vec<WorkloadResult>,
}

impl<'a> TrainingBenchmark<'a> {
    /// Finds the programs of the candidates. A candidate that is not installed is skipped with a
    /// message.
    fn new(options: &'a Options) -> Result<Self, Failure> {
        let mut context = RunContext::new()?;
        let mut programs = Vec::new();
        for candidate in options.training.candidates() {
            match candidate.find_program(&mut context) {
                Ok(program) => programs.push((candidate, program)),
                Err(failure) if failure.is_signal() => return Err(failure),
                Err(failure) => {
                    report_error(&format!("{} is skipped: {}", candidate.name(), failure.message));
                }
            }
        }
        if programs.is_empty() {
            return Err(Failure::new("all candidates are skipped: none is installed"));
        }
        let random = Mt64::new(clock::monotonic_ns());
        Ok(Self {
            options,
            context,
            programs,
            progress: ProgressLine::new(0),
            random,
            workload_results: Vec::new(),
        })
    }

    fn measure_all_workloads(&mut self) -> Result<(), Failure> {
        let workloads = self.options.training.workloads(&self.options.ranks());
        let groups = workloads.len() * self.options.pairs() * self.programs.len();
        self.progress = ProgressLine::new(groups);
        if cfg!(debug_assertions) {
            write_output("This program is a debug build: its times are not valid.\n")?;
        }
        write_output(format!(
            "{}, {}, {}, {} of {} each\n",
            count_text(workloads.len(), "workload"),
            count_text(self.programs.len(), "candidate"),
            count_text(self.options.pairs(), "pair"),
            "process groups",
            count_text(self.options.training.steps(self.options.quick), "step"),
        ))?;
        for workload in workloads {
            let outcome = self.measure_workload(&workload);
            if let Some(measured) =
                self.workload_results.last().filter(|last| last.workload == workload)
            {
                self.progress.print_text(&table::workload_text(measured))?;
            }
            outcome?;
        }
        Ok(())
    }

    /// Measures a workload. If this fails, the results of the complete pairs are kept.
    fn measure_workload(&mut self, workload: &Workload) -> Result<(), Failure> {
        let steps = self.options.training.steps(self.options.quick);
        let new = |&(candidate, _): &(Candidate, TrainingProgram)| CandidateResult {
            candidate,
            runs: Vec::new(),
        };
        let candidates = self.programs.iter().map(new).collect();
        let left_out = Vec::new();
        self.workload_results.push(WorkloadResult {
            workload: *workload,
            steps,
            candidates,
            left_out,
        });
        for pair in 0..self.options.pairs() {
            for index in self.shuffled_indices() {
                let candidate = self.programs[index].0;
                self.progress.advance();
                self.progress.show_text(&format!(
                    "{}, pair {}, {}",
                    table::describe(workload),
                    pair + 1,
                    candidate.title()
                ));
                if self.is_left_out(candidate) {
                    continue;
                }
                match self.run_group(workload, index, steps) {
                    Ok(run) => self.add_run(candidate, run),
                    Err(failure) if failure.is_signal() || candidate.is_ours() => {
                        return Err(failure);
                    }
                    Err(failure) => self.leave_out_candidate(candidate, &failure),
                }
            }
        }
        Ok(())
    }

    /// Returns the indices of all candidates in random order.
    fn shuffled_indices(&mut self) -> Vec<usize> {
        let mut order: Vec<(u64, usize)> =
            (0..self.programs.len()).map(|index| (self.random.next_u64(), index)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, index)| index).collect()
    }

    fn is_left_out(&self, candidate: Candidate) -> bool {
        let names = self.workload_results.last().map_or(&[][..], |measured| &measured.left_out);
        names.iter().any(|name| name == candidate.name())
    }

    fn add_run(&mut self, candidate: Candidate, run: GroupRun) {
        let candidates = self.workload_results.last_mut().map(|measured| &mut measured.candidates);
        let mut all = candidates.into_iter().flatten();
        if let Some(figures) = all.find(|figures| figures.candidate == candidate) {
            figures.runs.push(run);
        }
    }

    /// Continues without a candidate that failed. Drops its runs, because a ratio needs the runs of
    /// both candidates in each pair.
    fn leave_out_candidate(&mut self, candidate: Candidate, failure: &Failure) {
        self.progress.report_error(&format!(
            "{}\n  the measurement continues without this candidate",
            failure.message
        ));
        if let Some(measured) = self.workload_results.last_mut() {
            measured.candidates.retain(|figures| figures.candidate != candidate);
            measured.left_out.push(candidate.name().to_owned());
        }
    }

    /// Starts the ranks of a candidate, waits until they have ended, and reads their samples.
    fn run_group(
        &mut self,
        workload: &Workload,
        index: usize,
        steps: usize,
    ) -> Result<GroupRun, Failure> {
        let Self { context, programs, .. } = self;
        let (candidate, program) = &programs[index];
        // The number of processes makes the name unique.
        let name = format!("training-{}-{}", candidate.name(), context.process_count());
        let path_prefix = context.folder().join(name);
        let plan = GroupPlan::new(workload, *candidate, steps);
        write_file(&with_suffix(&path_prefix, PLAN_SUFFIX), &plan.text())?;
        let log = with_suffix(&path_prefix, ".log");
        let mut process_indices = Vec::new();
        for mut command in program.commands(workload.ranks, &path_prefix) {
            process_indices.push(context.start(&mut command, &log)?);
        }
        let deadline = Deadline::after(GROUP_LIMIT + total_computation(&plan));
        await_group(context, &process_indices, &deadline)
            .and_then(|()| {
                let samples =
                    (0..workload.ranks).map(|rank| read_sample(&path_prefix, rank, steps));
                samples.collect::<Result<Vec<RankSample>, Failure>>()
            })
            .map(|samples| GroupRun::from_samples(&samples))
            .map_err(|failure| with_log_tail(failure, *candidate, &log))
    }
}

/// Returns the time that the slowest rank computes in all steps of the plan.
fn total_computation(plan: &GroupPlan) -> Duration {
    let steps = 2 * (plan.steps + plan.warm_up) * plan.counts.len();
    Duration::from_nanos(plan.last_rank_ns.max(plan.gradient_ns))
        .saturating_mul(steps.try_into().unwrap_or(u32::MAX))
}

/// Waits until all processes have succeeded. If a process fails or the deadline passes, terminates
/// all processes.
fn await_group(
    context: &mut RunContext,
    process_indices: &[usize],
    deadline: &Deadline,
) -> Result<(), Failure> {
    /// The interval at which the driver checks for a failed process.
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    loop {
        let mut exits = process_indices.iter().filter_map(|&number| context.exit_status(number));
        let failed = exits.find(|exit| !exit.is_success());
        if let Some(exit) = failed {
            context.terminate(process_indices)?;
            let status = exit.shell_status();
            return Err(Failure::new(format!("one of its processes ended with status {status}")));
        }
        if context.await_exits(process_indices, &deadline.capped(POLL_INTERVAL))? {
            // All processes have exited. Check the status of each one again.
            if process_indices
                .iter()
                .all(|&number| context.exit_status(number).is_some_and(|exit| exit.is_success()))
            {
                return Ok(());
            }
        } else if deadline.has_passed() {
            context.terminate(process_indices)?;
            let seconds = deadline.timeout().as_secs();
            return Err(Failure::new(format!("the process group did not end within {seconds} s")));
        }
    }
}

fn read_sample(path_prefix: &Path, rank: usize, steps: usize) -> Result<RankSample, Failure> {
    let path = with_suffix(path_prefix, &format!(".{rank}{SAMPLE_SUFFIX}"));
    let failed = |reason: String| Failure::new(format!("{}: {reason}", path.display()));
    let text = fs::read_to_string(&path).map_err(|cause| failed(cause.to_string()))?;
    RankSample::parse(&text, steps).ok_or_else(|| failed("not a valid sample".to_owned()))
}

fn with_suffix(path_prefix: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path_prefix.display()))
}

/// Adds the name of the candidate and the last lines of its output to a failure.
fn with_log_tail(failure: Failure, candidate: Candidate, log: &Path) -> Failure {
    if failure.is_signal() {
        return failure;
    }
    let shown = log_tail(log);
    Failure::new(format!("{}: {}{shown}", candidate.name(), failure.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dist::sys::host;

    #[test]
    fn a_failure_shows_the_last_lines_of_output() {
        let folder = std::env::temp_dir().join(format!("dist-bench-log-{}", host::pid()));
        fs::write(&folder, "first\n\nno module\n").unwrap();
        let failure = with_log_tail(Failure::new("it failed"), Candidate::TorchGloo, &folder);
        fs::remove_file(&folder).unwrap();
        assert_eq!(failure.message, "torch-gloo: it failed\n  | first\n  | no module");
    }

    #[test]
    fn files_are_named_after_their_group() {
        let path = with_suffix(Path::new("/tmp/x/training-arena-0"), PLAN_SUFFIX);
        assert_eq!(path, PathBuf::from("/tmp/x/training-arena-0.plan"));
    }
}
