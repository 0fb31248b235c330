//! The sampler: gives each rank its share of the indices of a data set, in PyTorch's order.
//!
//! The indices are exactly those of `torch.utils.data.DistributedSampler` (PyTorch 2.15). PyTorch's
//! sampler shuffles with `torch.randperm` on the CPU generator: a Fisher-Yates shuffle with random
//! numbers from MT19937 (Matsumoto and Nishimura, 1998). A rank takes every `replicas`-th index. If
//! the data set cannot be divided evenly, the list is either extended with its first indices to a
//! multiple of `replicas`, or cut. For example, rank 2 of 4 gets the indices 2, 6 and 0 of 10
//! samples without a shuffle, or 2 and 6 if the list is cut.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::lock;
use rand_mt::Mt;
use std::sync::{Mutex, MutexGuard};

/// From this length on, `torch.randperm` uses 64-bit random numbers and another shuffle.
const LONG: u64 = u32::MAX as u64 / 20;

/// The options of a sampler.
#[derive(Clone, Copy, Debug)]
pub struct SamplerOptions {
    /// The number of samples in the data set.
    pub dataset_len: u64,
    /// The number of ranks that share the data set.
    pub replicas: u64,
    /// The rank for which the sampler returns indices.
    pub rank: u64,
    /// The seed of the shuffle, the same on all ranks.
    pub seed: u64,
    /// Whether the indices are shuffled, differently in each epoch.
    pub shuffles: bool,
    /// Whether the list is cut to a multiple of the number of ranks; otherwise it is extended with
    /// its first indices.
    pub drops_last: bool,
}

/// The indices of one rank, epoch by epoch.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    len: u64,
    state: Mutex<SamplerState>,
}

#[derive(Debug, Default)]
struct SamplerState {
    epoch: u64,
    position: u64,
    /// The indices of the epoch, if it is shuffled and has begun.
    shuffled: Option<Vec<u64>>,
}

impl Sampler {
    /// Creates a sampler at the beginning of epoch 0.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no ranks, or if `rank` is not below their number.
    pub fn new(options: SamplerOptions) -> Result<Self> {
        let SamplerOptions { dataset_len, replicas, rank, drops_last, .. } = options;
        if replicas == 0 || rank >= replicas {
            let message = format!(
                "rank {rank} of {replicas}: a sampler's rank must be less than its num_replicas"
            );
            return Err(Error::invalid(message));
        }
        let len = if drops_last { dataset_len / replicas } else { dataset_len.div_ceil(replicas) };
        Ok(Self { options, len, state: Mutex::default() })
    }

    /// Returns the number of indices of this rank in an epoch.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the rank has no index.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins an epoch.
    pub fn set_epoch(&self, epoch: u64) {
        *self.state() = SamplerState { epoch, ..SamplerState::default() };
    }

    /// Returns the number of indices taken in this epoch.
    pub fn position(&self) -> u64 {
        self.state().position
    }

    /// Continues after this number of indices of the epoch.
    ///
    /// # Errors
    /// `InvalidArgument` if the rank has fewer indices.
    pub fn seek(&self, position: u64) -> Result<()> {
        if position > self.len {
            let message =
                format!("position {position}: this rank has {} indices in an epoch", self.len);
            return Err(Error::invalid(message));
        }
        self.state().position = position;
        Ok(())
    }

    /// Passes the next indices of the epoch to `take`, at most `max_count`. Returns the number of
    /// passed indices.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no memory for the permutation of the data set. In this case, no
    /// index is taken.
    pub fn next(&self, max_count: usize, mut take: impl FnMut(u64)) -> Result<usize> {
        let mut state = self.state();
        if self.options.shuffles && state.shuffled.is_none() && !self.is_empty() {
            state.shuffled = Some(self.shuffled(state.epoch)?);
        }
        let end = self.len.min(state.position.saturating_add(max_count as u64));
        for position in state.position..end {
            take(match &state.shuffled {
                Some(indices) => usize::try_from(position)
                    .ok()
                    .and_then(|at| indices.get(at))
                    .copied()
                    .unwrap_or(0),
                None => self.index_at(position),
            });
        }
        let taken = end - std::mem::replace(&mut state.position, end);
        Ok(usize::try_from(taken).unwrap_or(max_count))
    }

    /// Converts a position in this rank's list to the position in the list of all indices.
    fn index_at(&self, position: u64) -> u64 {
        let SamplerOptions { dataset_len, replicas, rank, .. } = self.options;
        (rank + position * replicas) % dataset_len
    }

    /// Computes this rank's indices of an epoch.
    fn shuffled(&self, epoch: u64) -> Result<Vec<u64>> {
        // PyTorch adds the seed and the epoch as integers of unlimited size, and the generator uses
        // the lowest 32 bits of the sum. A wrapping addition gives the same 32 bits.
        let seed = self.options.seed.wrapping_add(epoch);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the seed of the generator is the lowest half"
        )]
        let generator = Mt::new(seed as u32);
        let dataset_len = self.options.dataset_len;
        let whole = match u32::try_from(dataset_len) {
            Ok(_) => Permutation::Short(permutation(dataset_len, generator)?),
            Err(_) => Permutation::Long(permutation(dataset_len, generator)?),
        };
        let mut own = Vec::new();
        let room = usize::try_from(self.len).ok().filter(|&len| own.try_reserve_exact(len).is_ok());
        room.ok_or_else(|| no_memory(self.len))?;
        own.extend((0..self.len).map(|position| whole.get(self.index_at(position))));
        Ok(own)
    }

    fn state(&self) -> MutexGuard<'_, SamplerState> {
        lock(&self.state)
    }
}

/// A permutation of a data set, in the smallest type that fits its indices.
enum Permutation {
    Short(Vec<u32>),
    Long(Vec<u64>),
}

impl Permutation {
    fn get(&self, at: u64) -> u64 {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        match self {
            Self::Short(all) => all.get(at).map_or(0, |&index| index.into()),
            Self::Long(all) => all.get(at).copied().unwrap_or(0),
        }
    }
}

/// Computes `torch.randperm(n)` for a generator on the CPU.
fn permutation<T: Copy + TryFrom<u64>>(n: u64, mut generator: Mt) -> Result<Vec<T>> {
    let mut all: Vec<T> = Vec::new();
    let len = usize::try_from(n).ok().filter(|&len| all.try_reserve_exact(len).is_ok());
    let len = len.ok_or_else(|| no_memory(n))?;
    all.extend((0..n).filter_map(|index| T::try_from(index).ok()));
    let to_index = |number: u64| usize::try_from(number).unwrap_or(0);
    if n < LONG {
        for i in 0..len.saturating_sub(1) {
            let other = i + to_index(u64::from(generator.next_u32()) % (len - i) as u64);
            all.swap(i, other);
        }
    } else {
        for i in 0..len {
            let (high, low) = (u64::from(generator.next_u32()), u64::from(generator.next_u32()));
            let other = to_index((high << 32 | low) % (i as u64 + 1));
            all.swap(i, other);
        }
    }
    Ok(all)
}

#[cold]
fn no_memory(indices: u64) -> Error {
    let message =
        format!("cannot allocate a permutation of {indices} indices: sample without a shuffle");
    Error::new(ErrorKind::OutOfMemory, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Indices that PyTorch 2.15 computed.
    const VECTORS: &str = include_str!("../../../ffi-tests/data/sampler_vectors.json");

    fn take(sampler: &Sampler, max_count: usize) -> Vec<u64> {
        let mut indices = Vec::new();
        assert_eq!(sampler.next(max_count, |index| indices.push(index)).unwrap(), indices.len());
        indices
    }

    fn all(sampler: &Sampler) -> Vec<u64> {
        let indices = take(sampler, usize::MAX);
        assert_eq!((indices.len() as u64, take(sampler, 1).len()), (sampler.len(), 0));
        indices
    }

    /// Computes the CRC-32 of the indices as little-endian u64 (reflected 0x04c11db7).
    fn crc32(indices: &[u64]) -> u64 {
        let mut crc = u32::MAX;
        for byte in indices.iter().flat_map(|index| index.to_le_bytes()) {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        u64::from(!crc)
    }

    fn list(value: &Value) -> Vec<u64> {
        value.as_array().unwrap().iter().map(|index| index.as_u64().unwrap()).collect()
    }

    #[test]
    fn every_index_is_that_of_pytorch() {
        let cases: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
        assert_eq!(cases.len(), 810);
        for case in cases {
            let number = |name: &str| case[name].as_u64().unwrap();
            let options = SamplerOptions {
                dataset_len: number("dataset_len"),
                replicas: number("num_replicas"),
                rank: number("rank"),
                seed: number("seed"),
                shuffles: case["shuffle"].as_bool().unwrap(),
                drops_last: case["drop_last"].as_bool().unwrap(),
            };
            let sampler = Sampler::new(options).unwrap();
            sampler.set_epoch(number("epoch"));
            let indices = all(&sampler);
            if let Some(expected) = case.get("indices") {
                assert_eq!(indices, list(expected), "{options:?}");
                continue;
            }
            let (head, tail) = (list(&case["head"]), list(&case["tail"]));
            assert_eq!(indices.len() as u64, number("len"), "{options:?}");
            assert_eq!(indices[..head.len()], head, "{options:?}");
            assert_eq!(indices[indices.len() - tail.len()..], tail, "{options:?}");
            assert_eq!(crc32(&indices), number("crc32"), "{options:?}");
        }
    }

    #[test]
    fn seek_repeats_indices_in_order() {
        let options = SamplerOptions {
            dataset_len: 10,
            replicas: 3,
            rank: 1,
            seed: 7,
            shuffles: true,
            drops_last: false,
        };
        let sampler = Sampler::new(options).unwrap();
        let whole = all(&sampler);
        assert_eq!((sampler.len(), sampler.position()), (4, 4));
        sampler.seek(1).unwrap();
        assert_eq!(take(&sampler, 2), whole[1..3]);
        assert_eq!((sampler.position(), take(&sampler, 2).len()), (3, 1));
        assert!(sampler.seek(5).unwrap_err().message().contains("4 indices"));
        sampler.set_epoch(1);
        assert_ne!(all(&sampler), whole);
        sampler.set_epoch(0);
        assert_eq!(all(&sampler), whole);
    }

    #[test]
    fn the_ranks_share_the_data_set() {
        for dataset_len in [0, 1, 5, 64, 100] {
            for replicas in [1, 3, 8] {
                let of = |rank, drops_last| {
                    let options = SamplerOptions {
                        dataset_len,
                        replicas,
                        rank,
                        seed: 0,
                        shuffles: true,
                        drops_last,
                    };
                    all(&Sampler::new(options).unwrap())
                };
                let mut seen: Vec<u64> = (0..replicas).flat_map(|rank| of(rank, true)).collect();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len() as u64, dataset_len / replicas * replicas, "each index once");
                let mut seen: Vec<u64> = (0..replicas).flat_map(|rank| of(rank, false)).collect();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen, (0..dataset_len).collect::<Vec<_>>(), "all indices");
            }
        }
    }

    #[test]
    fn rank_outside_the_replicas_is_refused() {
        let options = SamplerOptions {
            dataset_len: 1,
            replicas: 2,
            rank: 2,
            seed: 0,
            shuffles: false,
            drops_last: false,
        };
        assert!(Sampler::new(options).unwrap_err().message().contains("rank 2 of 2"));
        assert!(Sampler::new(SamplerOptions { replicas: 0, rank: 0, ..options }).is_err());
    }

    #[test]
    #[ignore = "needs 2 GB; the values are torch.randperm's"]
    fn long_permutations_are_those_of_pytorch() {
        let ends = |n: u64| {
            let all: Vec<u32> = permutation(n, Mt::new(5)).unwrap();
            [&all[..4], &all[all.len() - 3..]].concat()
        };
        let long =
            [91_252_029, 200_188_117, 89_143_689, 193_777_243, 187_111_702, 34_808_228, 34_345_194];
        assert_eq!(ends(LONG + 3), long);
        let shortest =
            [91_252_029, 200_188_117, 89_143_689, 193_777_243, 4_461_331, 91_157_322, 61_735_368];
        assert_eq!(ends(LONG), shortest);
        let longest =
            [94_459_959, 22_248_453, 89_044_632, 134_552_128, 72_828_988, 150_459_666, 186_880_338];
        assert_eq!(ends(LONG - 1), longest);
    }
}
