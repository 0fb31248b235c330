//! The plan and the samples of a process group. The driver writes the plan to a file, and all ranks
//! of the group read it. Each rank writes its measurements, the sample, to a file. Both are text
//! files. `peers/training.c` and `peers/training.py` use the same formats.

use super::candidate::Candidate;
use super::model::TrainingModel;
use crate::stats::median;
use clap::ValueEnum;
use std::str::FromStr;

/// The suffix of the plan's file.
pub(super) const PLAN_SUFFIX: &str = ".plan";
/// The suffix of a rank's sample file. It follows the rank's number.
pub(super) const SAMPLE_SUFFIX: &str = ".sample";

/// How a rank computes a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComputeKind {
    /// The rank sleeps, as if an accelerator computed
    Sleep,
    /// The rank keeps its core busy, as if the CPU computed
    Spin,
    /// Gradients are ready immediately
    None,
}

impl ComputeKind {
    /// Returns the name on the command line, in plans and in files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Spin => "spin",
            Self::None => "none",
        }
    }

    /// Returns the kind with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Sleep, Self::Spin, Self::None].into_iter().find(|compute| compute.name() == name)
    }
}

/// A workload: a model, a number of ranks and a kind of computation. All candidates are measured
/// with the same workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(super) model: TrainingModel,
    pub(super) ranks: usize,
    pub(super) compute: ComputeKind,
    /// The time to compute one gradient, in microseconds. It is 0 for [`ComputeKind::None`].
    pub(super) gradient_us: u64,
    /// True if the last rank takes 30 % longer for each gradient.
    pub(super) has_slow_rank: bool,
}

impl Workload {
    /// Returns the time that a rank takes for one gradient, in nanoseconds.
    pub(super) fn gradient_ns(&self, rank: usize) -> u64 {
        let is_slow = self.has_slow_rank && rank + 1 == self.ranks;
        self.gradient_us * if is_slow { 1300 } else { 1000 }
    }
}

/// The plan of one process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupPlan {
    pub(super) candidate: Candidate,
    pub(super) compute: ComputeKind,
    /// The time to compute a gradient on the last rank, in nanoseconds.
    pub(super) last_rank_ns: u64,
    /// The time to compute a gradient on all other ranks, in nanoseconds.
    pub(super) gradient_ns: u64,
    /// The number of measured steps with communication. The number of measured steps without
    /// communication is the same.
    pub(super) steps: usize,
    /// The number of steps of each kind before the measured steps.
    pub(super) warm_up: usize,
    /// The number of elements of each parameter.
    pub(super) counts: Vec<usize>,
}

impl GroupPlan {
    /// Creates a candidate's plan for a workload.
    pub(super) fn new(workload: &Workload, candidate: Candidate, steps: usize) -> Self {
        /// The number of warm-up steps. It is 2, because torch and libdist's reducer rebuild their
        /// buckets after the first step.
        const WARM_UP: usize = 2;
        Self {
            candidate,
            compute: workload.compute,
            last_rank_ns: workload.gradient_ns(workload.ranks - 1),
            gradient_ns: workload.gradient_ns(0),
            steps,
            warm_up: WARM_UP,
            counts: workload.model.parameter_counts(),
        }
    }

    /// Returns the text of the plan.
    pub(super) fn text(&self) -> String {
        let Self { candidate, compute, gradient_ns, last_rank_ns, steps, warm_up, counts } = self;
        let numbers: String = counts.iter().map(|count| format!(" {count}")).collect();
        let (candidate, compute, n) = (candidate.name(), compute.name(), counts.len());
        format!(
            "{candidate} {compute} {gradient_ns} {last_rank_ns} {steps} {warm_up} {n}{numbers}\n"
        )
    }

    /// Parses the text of a plan.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let candidate = Candidate::from_name(words.next()?)?;
        let compute = ComputeKind::from_name(words.next()?)?;
        let numbers = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let [gradient_ns, last_rank_ns, steps, warm_up, n, counts @ ..] = &numbers[..] else {
            return None;
        };
        let size = |number: &u64| usize::try_from(*number).ok();
        let counts = counts.iter().map(size).collect::<Option<Vec<usize>>>()?;
        let (steps, warm_up) = (size(steps)?, size(warm_up)?);
        let (gradient_ns, last_rank_ns) = (*gradient_ns, *last_rank_ns);
        (size(n) == Some(counts.len())).then_some(Self {
            candidate,
            compute,
            last_rank_ns,
            gradient_ns,
            steps,
            warm_up,
            counts,
        })
    }
}

/// The measurements of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RankSample {
    /// The number of verified elements of averaged gradients that are wrong.
    pub(super) wrong_elements: u64,
    /// The number of bytes that the last step copied between gradients and buckets. `None` if the
    /// candidate does not count them.
    pub(super) copied_bytes: Option<u64>,
    /// The largest resident memory of the process, in bytes.
    pub(super) peak_bytes: u64,
    /// The time of each step with communication, in nanoseconds.
    pub(super) step_ns: Vec<u64>,
    /// The time of each step without communication, in nanoseconds.
    pub(super) local_ns: Vec<u64>,
}

impl RankSample {
    /// Returns the sample as text. The first line contains the wrong elements, the copied bytes (-1
    /// if not counted) and the peak memory. Each further line contains the time of a step with
    /// communication and of the step without communication after it.
    pub(super) fn text(&self) -> String {
        let copied = self.copied_bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
        let mut text = format!("{} {copied} {}\n", self.wrong_elements, self.peak_bytes);
        for (step, local) in self.step_ns.iter().zip(&self.local_ns) {
            text.push_str(&format!("{step} {local}\n"));
        }
        text
    }

    /// Parses the sample of a rank that measured `steps` steps of each kind.
    pub(super) fn parse(text: &str, steps: usize) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let wrong = parse_number(words.next()?)?;
        let copied = match words.next()? {
            "-1" => None,
            bytes => Some(parse_number(bytes)?),
        };
        let peak = parse_number(words.next()?)?;
        let times = words.map(parse_number).collect::<Option<Vec<u64>>>()?;
        let (pairs, rest) = times.as_chunks::<2>();
        let (step_ns, local_ns) = pairs.iter().map(|[step, local]| (*step, *local)).unzip();
        let is_whole = rest.is_empty() && pairs.len() == steps;
        is_whole.then_some(Self {
            wrong_elements: wrong,
            copied_bytes: copied,
            peak_bytes: peak,
            step_ns,
            local_ns,
        })
    }
}

fn parse_number<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

/// The results of one process group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupRun {
    /// The median time of a step with communication, on the rank with the largest median, in
    /// nanoseconds.
    pub(super) step_ns: f64,
    /// The median time of a step without communication, on the rank with the largest median, in
    /// nanoseconds.
    pub(super) local_ns: f64,
    pub(super) wrong_elements: u64,
    pub(super) copied_bytes: Option<u64>,
    /// The largest resident memory of a rank.
    pub(super) peak_bytes: u64,
}

impl GroupRun {
    /// Computes the results of a group from the samples of its ranks.
    pub(super) fn from_samples(samples: &[RankSample]) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a time below 2^53 ns, 104 days")]
        let middle = |times: &[u64]| -> f64 {
            median(&times.iter().map(|&ns| ns as f64).collect::<Vec<f64>>())
        };
        let slowest = |of: &dyn Fn(&RankSample) -> f64| samples.iter().map(of).fold(0.0, f64::max);
        Self {
            step_ns: slowest(&|sample| middle(&sample.step_ns)),
            local_ns: slowest(&|sample| middle(&sample.local_ns)),
            wrong_elements: samples.iter().map(|sample| sample.wrong_elements).sum(),
            copied_bytes: samples.iter().filter_map(|sample| sample.copied_bytes).max(),
            peak_bytes: samples.iter().map(|sample| sample.peak_bytes).max().unwrap_or(0),
        }
    }

    /// Returns the exposed communication in nanoseconds: the time of a step with communication
    /// minus the time of a step without communication.
    pub(super) fn exposed_ns(&self) -> f64 {
        self.step_ns - self.local_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        let (compute, gradient_us) = (ComputeKind::Sleep, 500);
        Workload { model: TrainingModel::Tiny, ranks: 3, compute, gradient_us, has_slow_rank: true }
    }

    #[test]
    fn plan_survives_text_round_trip() {
        let plan = GroupPlan::new(&workload(), Candidate::Horovod, 10);
        let text = plan.text();
        assert!(text.starts_with("horovod sleep 500000 650000 10 2 12 1 2 4 "), "{text}");
        assert_eq!(GroupPlan::parse(&text), Some(plan));
        for wrong in ["", "horovod sleep 1 1 1", &text.replace(" 12 ", " 13 "), &format!("{text}1")]
        {
            assert_eq!(GroupPlan::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sample_survives_text_round_trip() {
        let (step_ns, local_ns) = (vec![20, 40, 30], vec![10, 11, 19]);
        let sample = RankSample {
            wrong_elements: 1,
            copied_bytes: None,
            peak_bytes: 4096,
            step_ns,
            local_ns,
        };
        assert_eq!(RankSample::parse(&sample.text(), 3), Some(sample.clone()));
        assert_eq!(RankSample::parse(&sample.text(), 2), None);
        let counted = RankSample { copied_bytes: Some(7), ..sample };
        assert_eq!(RankSample::parse(&counted.text(), 3), Some(counted));
        assert_eq!(RankSample::parse("0 0", 0), None);
    }

    #[test]
    fn group_run_uses_the_slowest_rank() {
        let rank = |step: u64, local: u64| RankSample {
            peak_bytes: step,
            copied_bytes: Some(local),
            step_ns: vec![step, step + 2, step + 1],
            local_ns: vec![local; 3],
            wrong_elements: 1,
        };
        let run = GroupRun::from_samples(&[rank(50, 20), rank(49, 30)]);
        assert_eq!((run.step_ns, run.local_ns, run.exposed_ns()), (51.0, 30.0, 21.0));
        assert_eq!((run.wrong_elements, run.copied_bytes, run.peak_bytes), (2, Some(30), 50));
    }

    #[test]
    fn only_the_last_rank_is_slow() {
        let workload = workload();
        let times: Vec<u64> = (0..3).map(|rank| workload.gradient_ns(rank)).collect();
        assert_eq!(times, [500_000, 500_000, 650_000]);
        let even = Workload { has_slow_rank: false, ..workload };
        assert_eq!(even.gradient_ns(2), 500_000);
    }
}
