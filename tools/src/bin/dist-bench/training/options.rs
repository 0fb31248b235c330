//! The command line of `--training`.

use super::candidate::Candidate;
use super::model::TrainingModel;
use super::plan::{ComputeKind, Workload};
use clap::{Args, ValueEnum as _};

/// The models that one argument of `--model` selects.
#[derive(Clone, Debug)]
struct ModelSelection(Vec<TrainingModel>);

fn parse_models(text: &str) -> Result<ModelSelection, String> {
    match text {
        "all" => Ok(ModelSelection(TrainingModel::ALL.to_vec())),
        name => TrainingModel::from_str(name, false)
            .map(|model| ModelSelection(vec![model]))
            .map_err(|_| "expected one of: a, b, c, tiny, all".to_owned()),
    }
}

/// The options that count with `--training` only.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Training")]
pub(crate) struct TrainingOptions {
    /// Measure the exposed communication of a training step, for the reducer of libdist and for
    /// other libraries
    ///
    /// The default takes about 8 minutes: model a, a sleep of 500 us per
    /// gradient, 2 ranks, all installed candidates
    #[arg(long)]
    #[arg(conflicts_with_all = ["peer", "limits", "tune", "against", "device", "csv", "plot", "ops", "sizes"])]
    pub(crate) training: bool,

    /// Models: a (200 x 512 KiB), b (ResNet-50), c (GPT-2 small), tiny (a functional check), or all
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',', default_value = "a")]
    #[arg(value_parser = parse_models, requires = "training")]
    model: Vec<ModelSelection>,

    /// How a rank computes a gradient
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "sleep")]
    #[arg(requires = "training")]
    compute: Vec<ComputeKind>,

    /// Time to compute one gradient, in microseconds
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "500")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000), requires = "training")]
    gradient_us: Vec<u32>,

    /// Let the last rank take 30 % longer for each gradient
    #[arg(hide_short_help = true)]
    #[arg(long, requires = "training")]
    slow_rank: bool,

    /// Measured steps of each process group; it runs the same number without communication
    /// [default: 10, with --quick 3]
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "N", requires = "training")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    steps: Option<u16>,

    /// The candidates [default: all]
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "training")]
    candidates: Vec<Candidate>,
}

impl TrainingOptions {
    /// Returns all combinations that the options select, for these numbers of ranks.
    pub(super) fn workloads(&self, ranks: &[usize]) -> Vec<Workload> {
        let mut workloads: Vec<Workload> = Vec::new();
        for &model in self.model.iter().flat_map(|ModelSelection(models)| models) {
            for &ranks in ranks {
                for &compute in &self.compute {
                    for &us in &self.gradient_us {
                        let gradient_us =
                            if compute == ComputeKind::None { 0 } else { u64::from(us) };
                        let has_slow_rank = self.slow_rank;
                        let workload =
                            Workload { model, ranks, compute, gradient_us, has_slow_rank };
                        if !workloads.contains(&workload) {
                            workloads.push(workload);
                        }
                    }
                }
            }
        }
        workloads
    }

    /// Returns the number of measured steps of a process group.
    pub(super) fn steps(&self, is_quick: bool) -> usize {
        self.steps.map_or(if is_quick { 3 } else { 10 }, Into::into)
    }

    /// Returns the selected candidates without duplicates.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for &candidate in &self.candidates {
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        if candidates.is_empty() { Candidate::ALL.to_vec() } else { candidates }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Options;
    use clap::Parser as _;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(format!("dist-bench {line}").split(' '))
    }

    #[test]
    fn the_default_is_model_a_with_all_candidates() {
        let options = parse("--training").unwrap();
        let workloads = options.training.workloads(&options.ranks());
        let [Workload { model: TrainingModel::A, ranks: 2, gradient_us: 500, .. }] = workloads[..]
        else {
            panic!("{workloads:?}")
        };
        assert_eq!(options.training.candidates(), Candidate::ALL);
        assert_eq!((options.pairs(), options.training.steps(options.quick)), (10, 10));
        let quick = parse("--training --quick").unwrap();
        assert_eq!((quick.pairs(), quick.training.steps(quick.quick)), (2, 3));
    }

    #[test]
    fn workloads_are_all_combinations_each_once() {
        let options = parse(
            "--training --model all,b --compute sleep,none --gradient-us 100,500 --ranks 2,4 \
             --slow-rank --candidates arena,horovod,arena",
        )
        .unwrap();
        let workloads = options.training.workloads(&options.ranks());
        // Without computation, the time per gradient does not matter, so there is one workload
        // instead of two.
        assert_eq!(workloads.len(), 3 * 2 * 3);
        assert!(workloads.iter().all(|workload| workload.has_slow_rank));
        assert_eq!(options.training.candidates(), [Candidate::Arena, Candidate::Horovod]);
    }

    #[test]
    fn training_options_need_training_and_valid_values() {
        for wrong in [
            "--model a",
            "--training --model d",
            "--training --peer mpich",
            "--training --steps 0",
            "--training --compute gpu",
            "--slow-rank",
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
