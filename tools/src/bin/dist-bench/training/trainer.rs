//! A training rank of `--training` that uses libdist's reducer. Each rank is a process of this
//! program.

use super::plan::{ComputeKind, GroupPlan, PLAN_SUFFIX, RankSample, SAMPLE_SUFFIX};
use super::reducer::{BenchReducer, GradientBuffers};
use crate::ops::RankPosition;
use crate::rank::RankWorld;
use dist::sys::clock;
use std::fs;
use std::time::Duration;

/// Makes the training steps of the plan, and writes the measurements to the sample file. `words`
/// are the rank, the number of ranks, and the path prefix of the files.
///
/// # Errors
/// The reason for the failure.
pub(crate) fn run_trainer(words: &[String]) -> Result<(), String> {
    let [rank, ranks, path_prefix] = words else {
        return Err(
            "only dist-bench itself starts training ranks; use dist-bench --training".to_owned()
        );
    };
    let number = |word: &String| word.parse::<usize>().map_err(|error| error.to_string());
    let position = RankPosition { rank: number(rank)?, ranks: number(ranks)? };
    let text = fs::read_to_string(format!("{path_prefix}{PLAN_SUFFIX}"));
    let text = text.map_err(|cause| format!("cannot read the plan: {cause}"))?;
    let plan = GroupPlan::parse(&text).ok_or("the plan is not valid")?;
    let world = RankWorld::join(&format!("file://{path_prefix}.store"), position, "auto", None)?;
    let mut trainer = TrainerRank::new(&world, plan)?;
    let sample = trainer.train()?;
    trainer.reducer.release()?;
    world.leave()?;
    let path = format!("{path_prefix}.{}{SAMPLE_SUFFIX}", position.rank);
    fs::write(&path, sample.text()).map_err(|cause| format!("cannot write the sample: {cause}"))
}

/// The state of a training rank.
struct TrainerRank<'w> {
    world: &'w RankWorld,
    plan: GroupPlan,
    reducer: BenchReducer,
    grads: GradientBuffers,
}

impl<'w> TrainerRank<'w> {
    fn new(world: &'w RankWorld, plan: GroupPlan) -> Result<Self, String> {
        let (reducer, grads) = BenchReducer::new(world.group(), &plan.counts, plan.candidate)?;
        Ok(Self { world, plan, reducer, grads })
    }

    /// Makes all steps. Steps with and without communication alternate, so that a change of the
    /// machine's speed affects both kinds.
    fn train(&mut self) -> Result<RankSample, String> {
        let mut sample = RankSample::default();
        for number in 0..self.plan.warm_up + self.plan.steps {
            let step_ns = self.run_step(number, true)?;
            sample.wrong_elements += self.count_wrong(number)?;
            let local_ns = self.run_step(number, false)?;
            if number >= self.plan.warm_up {
                sample.step_ns.push(step_ns);
                sample.local_ns.push(local_ns);
            }
        }
        sample.copied_bytes = Some(self.reducer.bytes_copied()?);
        sample.peak_bytes = peak_bytes();
        Ok(sample)
    }

    /// Makes one step together with all other ranks. Returns its time in nanoseconds.
    fn run_step(&mut self, number: usize, communicates: bool) -> Result<u64, String> {
        self.world.barrier()?;
        let start = clock::monotonic_ns();
        if communicates {
            self.reducer.begin_step()?;
        }
        for param in (0..self.plan.counts.len()).rev() {
            self.compute_gradient();
            self.grads.fill(param, rank_factor(self.world.rank) * base_value(number, param));
            if communicates {
                self.reducer.mark_ready(param)?;
            }
        }
        if communicates {
            self.reducer.end_step()?;
        }
        Ok(clock::monotonic_ns() - start)
    }

    /// Computes one gradient.
    fn compute_gradient(&self) {
        let is_last = self.world.rank + 1 == self.world.ranks;
        let ns = if is_last { self.plan.last_rank_ns } else { self.plan.gradient_ns };
        match self.plan.compute {
            ComputeKind::None => {}
            #[allow(clippy::disallowed_methods, reason = "a computation has no abort condition")]
            ComputeKind::Sleep => std::thread::sleep(Duration::from_nanos(ns)),
            ComputeKind::Spin => {
                let end = clock::monotonic_ns() + ns;
                while clock::monotonic_ns() < end {}
            }
        }
    }

    /// Counts the wrong elements among three elements of each averaged gradient.
    fn count_wrong(&self, number: usize) -> Result<u64, String> {
        let mut wrong = 0;
        // The mean of the rank factors 1, 2, ..., `ranks`.
        let mean = rank_factor(self.world.ranks) / 2.0;
        for param in 0..self.plan.counts.len() {
            let expected = mean * base_value(number, param);
            let values = self.reducer.result(param)?;
            wrong += values.iter().filter(|value| !is_near(**value, expected)).count() as u64;
        }
        Ok(wrong)
    }
}

/// Returns the factor of a rank. An element of its gradients is this factor times [`base_value`].
#[allow(clippy::cast_precision_loss, reason = "the number is at most 61")]
fn rank_factor(rank: usize) -> f32 {
    (rank + 1) as f32
}

/// Returns the value of the elements of a gradient without the rank's factor. The value is
/// different in four consecutive steps, so that a stale average is detected.
fn base_value(step: usize, param: usize) -> f32 {
    [1.0, 2.0, 3.0, 4.0][(step + param) % 4]
}

/// Returns true if a value equals the expected value within the precision of bf16.
fn is_near(value: f32, expected: f32) -> bool {
    (value - expected).abs() < 0.01 * expected
}

/// Returns the largest resident memory of this process so far, or 0 if the kernel does not report
/// it.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_unreduced_gradients_are_wrong() {
        let mean = (rank_factor(0) + rank_factor(1)) / 2.0;
        for step in 0..4 {
            let expected = mean * base_value(step, 5);
            assert!(is_near(expected, expected) && is_near(expected * 1.004, expected));
            assert!(!is_near(mean * base_value(step + 1, 5), expected));
            assert!(!is_near(rank_factor(0) * base_value(step, 5), expected));
            assert!(!is_near(rank_factor(1) * base_value(step, 5), expected));
            assert!(!is_near(f32::NAN, expected));
        }
    }

    #[test]
    fn peak_memory_of_this_process_is_known() {
        assert!(peak_bytes() > 1 << 20);
    }
}
