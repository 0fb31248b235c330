//! The results of `--training`: the runs of all process groups, and the medians and ratios that are
//! computed from them. The module does no I/O.

use super::candidate::Candidate;
use super::model::TrainingModel;
use super::plan::{ComputeKind, GroupRun, Workload};
use crate::stats::{MedianEstimate, estimate, median};

/// The results of one candidate for a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CandidateResult {
    pub(super) candidate: Candidate,
    /// The results of each process group, in the order of the pairs. A pair is one process group of
    /// each candidate.
    pub(super) runs: Vec<GroupRun>,
}

impl CandidateResult {
    fn values_of_runs(&self, of: impl Fn(&GroupRun) -> f64) -> Vec<f64> {
        self.runs.iter().map(of).collect()
    }

    /// Returns the median time of a step without communication, in nanoseconds.
    pub(super) fn local_ns(&self) -> f64 {
        median(&self.values_of_runs(|run| run.local_ns))
    }

    /// Returns the median time of a step with communication, in nanoseconds.
    pub(super) fn step_ns(&self) -> f64 {
        median(&self.values_of_runs(|run| run.step_ns))
    }

    /// Returns the median of the exposed communication over all pairs, and its confidence interval.
    pub(super) fn exposed_ns(&self) -> MedianEstimate {
        estimate(&self.values_of_runs(GroupRun::exposed_ns))
    }

    /// Returns the smallest and the largest exposed communication of a pair.
    pub(super) fn spread_ns(&self) -> (f64, f64) {
        let exposed = self.values_of_runs(GroupRun::exposed_ns).into_iter();
        exposed
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), ns| (low.min(ns), high.max(ns)))
    }

    /// Returns the bytes that a step copies, if the candidate counts them.
    pub(super) fn copied_bytes(&self) -> Option<u64> {
        self.runs.iter().filter_map(|run| run.copied_bytes).max()
    }

    /// Returns the largest resident memory of a rank.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0)
    }

    /// Returns the number of wrong elements in all steps of all groups.
    pub(super) fn wrong_elements(&self) -> u64 {
        self.runs.iter().map(|run| run.wrong_elements).sum()
    }
}

/// The results of all candidates for a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkloadResult {
    pub(super) workload: Workload,
    /// The number of measured steps of each kind in a process group.
    pub(super) steps: usize,
    pub(super) candidates: Vec<CandidateResult>,
    /// The names of candidates that failed.
    pub(super) left_out: Vec<String>,
}

/// The verdict on a limit: the exposed communication of `candidate`, divided by that of `other`,
/// must be at most `limit`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitVerdict {
    pub(super) candidate: Candidate,
    pub(super) other: Candidate,
    pub(super) limit: f64,
    pub(super) ratio: MedianEstimate,
}

impl LimitVerdict {
    pub(super) fn is_met(&self) -> bool {
        self.ratio.value <= self.limit
    }

    /// Returns true if the interval of the ratio reaches above the limit, or if there is no
    /// interval.
    pub(super) fn is_uncertain(&self) -> bool {
        self.ratio.interval.is_none_or(|(_, high)| high > self.limit)
    }
}

/// The candidates with which the reducer is compared, and the largest ratio of the exposed
/// communication that the project accepts.
pub(super) const EXPOSED_LIMITS: [(Candidate, f64); 2] =
    [(Candidate::TorchGloo, 0.10), (Candidate::Horovod, 0.25)];

impl WorkloadResult {
    /// Returns the results of a candidate, or `None` if it has no runs.
    pub(super) fn candidate_result(&self, candidate: Candidate) -> Option<&CandidateResult> {
        self.candidates
            .iter()
            .find(|figures| figures.candidate == candidate && !figures.runs.is_empty())
    }

    /// Returns the median ratio of a candidate's exposed communication to another candidate's, over
    /// the pairs. If the other candidate exposes nothing in a pair, the ratio of this pair counts
    /// as infinite. Returns `None` if the median is infinite.
    pub(super) fn ratio(&self, candidate: Candidate, other: Candidate) -> Option<MedianEstimate> {
        let (of, by) = (self.candidate_result(candidate)?, self.candidate_result(other)?);
        let ratio = |(of, by): (&GroupRun, &GroupRun)| match by.exposed_ns() {
            ns if ns > 0.0 => of.exposed_ns() / ns,
            _ => f64::INFINITY,
        };
        let ratios: Vec<f64> = of.runs.iter().zip(&by.runs).map(ratio).collect();
        Some(estimate(&ratios)).filter(|ratio| ratio.value.is_finite())
    }

    /// Returns the verdicts on the candidates of libdist. Only one workload has limits. For all
    /// other workloads, the list is empty.
    pub(super) fn verdicts(&self) -> Vec<LimitVerdict> {
        let limited = Workload {
            model: TrainingModel::A,
            ranks: 2,
            compute: ComputeKind::Sleep,
            gradient_us: 500,
            has_slow_rank: false,
        };
        if self.workload != limited {
            return Vec::new();
        }
        let ours = Candidate::ALL.into_iter().filter(|candidate| candidate.is_ours());
        ours.flat_map(|ours| {
            EXPOSED_LIMITS.iter().filter_map(move |&(other, limit)| {
                let ratio = self.ratio(ours, other)?;
                Some(LimitVerdict { candidate: ours, other, limit, ratio })
            })
        })
        .collect()
    }

    /// Returns the number of wrong elements of all candidates.
    pub(super) fn wrong_elements(&self) -> u64 {
        self.candidates.iter().map(CandidateResult::wrong_elements).sum()
    }
}

/// Results for tests.
#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// Builds the results of ten pairs in which the candidates expose about these times, in
    /// milliseconds.
    pub(in crate::training) fn measured(exposed_ms: &[(Candidate, f64)]) -> WorkloadResult {
        let figures = |&(candidate, exposed): &(Candidate, f64)| CandidateResult {
            candidate,
            runs: (0..10)
                .map(|pair| GroupRun {
                    step_ns: (120.0 + exposed + f64::from(pair) * 0.01) * 1e6,
                    local_ns: 120e6,
                    wrong_elements: 0,
                    copied_bytes: (candidate != Candidate::TorchGloo).then_some(100 << 20),
                    peak_bytes: 300 << 20,
                })
                .collect(),
        };
        let workload = Workload {
            model: TrainingModel::A,
            ranks: 2,
            compute: ComputeKind::Sleep,
            gradient_us: 500,
            has_slow_rank: false,
        };
        let candidates = exposed_ms.iter().map(figures).collect();
        WorkloadResult { workload, steps: 10, candidates, left_out: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::measured;
    use super::*;

    const FOUR: [(Candidate, f64); 3] =
        [(Candidate::Arena, 3.0), (Candidate::TorchGloo, 50.0), (Candidate::Horovod, 10.0)];

    #[test]
    fn figures_are_medians_over_pairs() {
        let measured = measured(&FOUR);
        let arena = measured.candidate_result(Candidate::Arena).unwrap();
        let MedianEstimate { value, interval } = arena.exposed_ns();
        assert!((value - 3.045e6).abs() < 1.0);
        let (low, high) = interval.unwrap();
        assert!((low - 3.01e6).abs() < 1.0 && (high - 3.08e6).abs() < 1.0);
        let (least, most) = arena.spread_ns();
        assert!((least - 3.0e6).abs() < 1.0 && (most - 3.09e6).abs() < 1.0);
        assert_eq!(
            (arena.local_ns(), arena.copied_bytes(), arena.wrong_elements()),
            (120e6, Some(100 << 20), 0)
        );
        assert!(measured.candidate_result(Candidate::Bf16).is_none());
    }

    #[test]
    fn limits_hold_for_one_workload() {
        let measured = measured(&FOUR);
        let verdicts = measured.verdicts();
        let met: Vec<(Candidate, bool)> =
            verdicts.iter().map(|verdict| (verdict.other, verdict.is_met())).collect();
        assert_eq!(met, [(Candidate::TorchGloo, true), (Candidate::Horovod, false)]);
        let mut met = verdicts[0].clone();
        assert!(!met.is_uncertain());
        met.ratio.interval = Some((0.01, 0.11));
        assert!(met.is_met() && met.is_uncertain());
        let mut slow = measured;
        slow.workload.has_slow_rank = true;
        assert!(slow.verdicts().is_empty());
    }

    #[test]
    fn a_denominator_below_0_counts_as_an_infinite_ratio() {
        let with =
            |horovod: f64| measured(&[(Candidate::Arena, 3.0), (Candidate::Horovod, horovod)]);
        let by_horovod = |horovod| with(horovod).ratio(Candidate::Arena, Candidate::Horovod);
        assert!(by_horovod(-1.0).is_none());
        // The exposed communication grows with the number of the pair. So only in one of ten pairs
        // it is below 0.
        let ratio = by_horovod(-0.005).unwrap();
        assert!(ratio.value > 30.0 && ratio.value.is_finite(), "{ratio:?}");
        let inverse = with(-1.0).ratio(Candidate::Horovod, Candidate::Arena).unwrap();
        assert!(inverse.value < 0.0, "{inverse:?}");
    }
}
