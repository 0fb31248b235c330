//! The plan of one process group, which all its ranks read from a file, and the sample that each
//! rank writes. Both are text, which `peers/training.c` and `peers/training.py` read and write too.

use super::candidate::Candidate;
use super::model::Model;
use crate::stats::median;
use clap::ValueEnum;
use std::str::FromStr;

/// The endings of the names: of the plan and of the samples, after the rank.
pub(super) const PLAN: &str = ".plan";
pub(super) const SAMPLE: &str = ".sample";

/// How a rank computes a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compute {
    /// The rank sleeps: an accelerator computes
    Sleep,
    /// The rank keeps its core busy: a CPU computes
    Spin,
    /// Gradients are there at once
    None,
}

impl Compute {
    /// The word in plans and files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Spin => "spin",
            Self::None => "none",
        }
    }

    /// The kind with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Sleep, Self::Spin, Self::None].into_iter().find(|compute| compute.name() == name)
    }
}

/// A model, ranks and a computation: everything but the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(super) model: Model,
    pub(super) ranks: usize,
    pub(super) compute: Compute,
    /// The time for one gradient; 0 with [`Compute::None`].
    pub(super) gradient_us: u64,
    /// The last rank takes 30 % longer for each gradient.
    pub(super) has_slow_rank: bool,
}

impl Workload {
    /// The time that a rank takes for one gradient, in nanoseconds.
    pub(super) fn gradient_ns(&self, rank: usize) -> u64 {
        let is_slow = self.has_slow_rank && rank + 1 == self.ranks;
        self.gradient_us * if is_slow { 1300 } else { 1000 }
    }
}

/// The plan of one process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) candidate: Candidate,
    pub(super) compute: Compute,
    /// The time for a gradient on the last rank and on the others.
    pub(super) last_rank_ns: u64,
    pub(super) gradient_ns: u64,
    /// Measured steps with communication, and as many without.
    pub(super) steps: usize,
    /// Steps of each kind before the measured ones.
    pub(super) warm_up: usize,
    /// Elements of each parameter.
    pub(super) counts: Vec<usize>,
}

impl Plan {
    /// A candidate's plan for a workload.
    pub(super) fn new(workload: &Workload, candidate: Candidate, steps: usize) -> Self {
        /// torch rebuilds its buckets after the first step, and so does the reducer.
        const WARM_UP: usize = 2;
        Self {
            candidate,
            compute: workload.compute,
            last_rank_ns: workload.gradient_ns(workload.ranks - 1),
            gradient_ns: workload.gradient_ns(0),
            steps,
            warm_up: WARM_UP,
            counts: workload.model.counts(),
        }
    }

    /// The text.
    pub(super) fn text(&self) -> String {
        let Self { candidate, compute, gradient_ns, last_rank_ns, steps, warm_up, counts } = self;
        let numbers: String = counts.iter().map(|count| format!(" {count}")).collect();
        let (candidate, compute, n) = (candidate.name(), compute.name(), counts.len());
        format!(
            "{candidate} {compute} {gradient_ns} {last_rank_ns} {steps} {warm_up} {n}{numbers}\n"
        )
    }

    /// Reads the text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let candidate = Candidate::named(words.next()?)?;
        let compute = Compute::named(words.next()?)?;
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
pub(super) struct Sample {
    /// Checked elements of averaged gradients that have a wrong value.
    pub(super) wrong: u64,
    /// Bytes that the last step copied between gradients and buckets; `None` if the candidate does
    /// not count them.
    pub(super) copied: Option<u64>,
    /// The largest resident memory of the process, in bytes.
    pub(super) peak: u64,
    /// The time of each step with communication, in nanoseconds.
    pub(super) step_ns: Vec<u64>,
    /// The time of each step without communication.
    pub(super) local_ns: Vec<u64>,
}

impl Sample {
    /// The text: wrong elements, copied bytes (-1 if not counted), the peak, and the times of the
    /// steps in pairs.
    pub(super) fn text(&self) -> String {
        let copied = self.copied.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
        let mut text = format!("{} {copied} {}\n", self.wrong, self.peak);
        for (step, local) in self.step_ns.iter().zip(&self.local_ns) {
            text.push_str(&format!("{step} {local}\n"));
        }
        text
    }

    /// Reads the text of a rank that made so many steps.
    pub(super) fn parse(text: &str, steps: usize) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let wrong = number(words.next()?)?;
        let copied = match words.next()? {
            "-1" => None,
            bytes => Some(number(bytes)?),
        };
        let peak = number(words.next()?)?;
        let times = words.map(number).collect::<Option<Vec<u64>>>()?;
        let (pairs, rest) = times.as_chunks::<2>();
        let (step_ns, local_ns) = pairs.iter().map(|[step, local]| (*step, *local)).unzip();
        let is_whole = rest.is_empty() && pairs.len() == steps;
        is_whole.then_some(Self { wrong, copied, peak, step_ns, local_ns })
    }
}

fn number<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

/// The figures of one process group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupRun {
    /// The median step with communication, on the rank where it is largest, in nanoseconds.
    pub(super) step_ns: f64,
    /// The same without communication.
    pub(super) local_ns: f64,
    pub(super) wrong: u64,
    pub(super) copied: Option<u64>,
    /// The largest resident memory of a rank.
    pub(super) peak: u64,
}

impl GroupRun {
    /// The figures of a group from the samples of its ranks.
    pub(super) fn of(samples: &[Sample]) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a time of less than a month")]
        let middle = |times: &[u64]| -> f64 {
            median(&times.iter().map(|&ns| ns as f64).collect::<Vec<f64>>())
        };
        let slowest = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).fold(0.0, f64::max);
        Self {
            step_ns: slowest(&|sample| middle(&sample.step_ns)),
            local_ns: slowest(&|sample| middle(&sample.local_ns)),
            wrong: samples.iter().map(|sample| sample.wrong).sum(),
            copied: samples.iter().filter_map(|sample| sample.copied).max(),
            peak: samples.iter().map(|sample| sample.peak).max().unwrap_or(0),
        }
    }

    /// The exposed communication, in nanoseconds: by how much a step with communication takes
    /// longer than one without.
    pub(super) fn exposed_ns(&self) -> f64 {
        self.step_ns - self.local_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        let (compute, gradient_us) = (Compute::Sleep, 500);
        Workload { model: Model::Tiny, ranks: 3, compute, gradient_us, has_slow_rank: true }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let plan = Plan::new(&workload(), Candidate::Horovod, 10);
        let text = plan.text();
        assert!(text.starts_with("horovod sleep 500000 650000 10 2 12 1 2 4 "), "{text}");
        assert_eq!(Plan::parse(&text), Some(plan));
        for wrong in ["", "horovod sleep 1 1 1", &text.replace(" 12 ", " 13 "), &format!("{text}1")]
        {
            assert_eq!(Plan::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_sample_is_read_as_it_was_written() {
        let (step_ns, local_ns) = (vec![20, 40, 30], vec![10, 11, 19]);
        let sample = Sample { wrong: 1, copied: None, peak: 4096, step_ns, local_ns };
        assert_eq!(Sample::parse(&sample.text(), 3), Some(sample.clone()));
        assert_eq!(Sample::parse(&sample.text(), 2), None);
        let counted = Sample { copied: Some(7), ..sample };
        assert_eq!(Sample::parse(&counted.text(), 3), Some(counted));
        assert_eq!(Sample::parse("0 0", 0), None);
    }

    #[test]
    fn the_slowest_rank_counts_with_and_without() {
        let rank = |step: u64, local: u64| Sample {
            peak: step,
            copied: Some(local),
            step_ns: vec![step, step + 2, step + 1],
            local_ns: vec![local; 3],
            wrong: 1,
        };
        let run = GroupRun::of(&[rank(50, 20), rank(49, 30)]);
        assert_eq!((run.step_ns, run.local_ns, run.exposed_ns()), (51.0, 30.0, 21.0));
        assert_eq!((run.wrong, run.copied, run.peak), (2, Some(30), 50));
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
