//! Functions of samplers, which give each rank its share of the indices of a data set.

use super::args::{OutPtr, null_argument};
use super::group::group;
use super::handle::{HandleKind, HandleTable};
use super::sized_struct;
use super::train_types::*;
use super::types::*;
use crate::api::reducer::sampler::{Sampler, SamplerOptions};
use crate::base::error::{Error, ErrorKind, Result};
use std::sync::Arc;

static SAMPLERS: HandleTable<Sampler> = HandleTable::new(HandleKind::Sampler);

/// The flags that this version knows.
const KNOWN_FLAGS: u64 = DIST_SAMPLER_IN_ORDER | DIST_SAMPLER_DROP_LAST;

/// Converts a number of ranks, or a rank, from the options.
fn to_unsigned(number: i32, name: &str) -> Result<u64> {
    u64::try_from(number)
        .map_err(|_| Error::invalid(format!("{name} is {number}, which is negative")))
}

/// Converts the options. A rank or a number of ranks that the options do not set comes from the
/// group.
fn sampler_options(
    group_handle: *const dist_group_t,
    dataset_len: u64,
    options: &dist_sampler_options_t,
) -> Result<SamplerOptions> {
    if options.flags & !KNOWN_FLAGS != 0 {
        let message = format!("flags is {:#x}: this version knows {KNOWN_FLAGS:#x}", options.flags);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let has_rank = options.fields & DIST_FIELD_RANK != 0;
    let mut replicas = to_unsigned(options.num_replicas, "num_replicas")?;
    let mut rank = to_unsigned(options.rank, "rank")?;
    if replicas == 0 || !has_rank {
        let group = group(group_handle)?;
        replicas = if replicas == 0 { group.size() as u64 } else { replicas };
        rank = if has_rank { rank } else { group.rank() as u64 };
    }
    Ok(SamplerOptions {
        dataset_len,
        replicas,
        rank,
        seed: options.seed,
        shuffles: options.flags & DIST_SAMPLER_IN_ORDER == 0,
        drops_last: options.flags & DIST_SAMPLER_DROP_LAST != 0,
    })
}

dist_export! {
    /// Creates a sampler, which gives each rank its share of the indices of a data set.
    ///
    /// The indices are exactly the indices of PyTorch's DistributedSampler with the same arguments.
    /// By default they are shuffled, differently in each epoch. If the ranks cannot share the
    /// indices evenly, some indices from the beginning of the list are used twice, so all ranks get
    /// the same number. For example, without a shuffle, 3 ranks share 7 samples as follows:
    ///
    /// - rank 0 gets 0, 3 and 6
    /// - rank 1 gets 1, 4 and 0
    /// - rank 2 gets 2, 5 and 1
    ///
    /// A new sampler is at the beginning of epoch 0.
    ///
    /// @param group in, optional: the group whose ranks share the data set; NULL only if the
    ///   options set `num_replicas` and `rank`. The sampler does not keep the group alive.
    /// @param dataset_len in: the number of samples of the data set.
    /// @param options in, optional: NULL for all defaults; borrowed for the call.
    /// @param out out: the sampler, owned by the caller, released with dist_sampler_release; NULL
    ///   on failure.
    /// @agree `dataset_len`, and `num_replicas`, `seed` and `flags` in the options. The library
    ///   does not check the agreement.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if the rank is not less than the number of ranks,
    ///   or an argument is wrong; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_UNSUPPORTED if the options set a field or a flag that this version does not know.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sampler_create(
        group: *const dist_group_t,
        dataset_len: u64,
        options: *const dist_sampler_options_t,
        out: *mut *mut dist_sampler_t,
    ) -> dist_status_t {
        let out = OutPtr::handle(out, "out")?;
        let options = sized_struct::read(options)?;
        let sampler = Sampler::new(sampler_options(group, dataset_len, &options)?)?;
        out.write(SAMPLERS.insert(Arc::new(sampler))?);
        Ok(())
    }
}

dist_export! {
    /// Begins an epoch at its first index.
    ///
    /// @param sampler in: the sampler.
    /// @param epoch in: the number of the epoch; any number is allowed. The library adds the number
    ///   to the seed.
    /// @agree `epoch`. The library does not check the agreement.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sampler_set_epoch(sampler: *mut dist_sampler_t, epoch: u64) -> dist_status_t {
        SAMPLERS.get(sampler)?.set_epoch(epoch);
        Ok(())
    }
}

dist_export! {
    /// Takes the next indices of the epoch.
    ///
    /// If the epoch is shuffled, its first call computes the permutation of the data set. During
    /// this call, the sampler needs 4 bytes for each sample, or 8 bytes if the data set has 2^32
    /// samples or more. It keeps 8 bytes for each index of this rank.
    ///
    /// @param sampler in: the sampler.
    /// @param indices out: a buffer for `cap` indices; NULL only if `cap` is 0.
    /// @param cap in: the most indices to take, for instance the size of a batch.
    /// @param n out: the number of indices written; 0 at the end of the epoch.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `n` or `indices` is
    ///   NULL; DIST_ERR_OUT_OF_MEMORY if there is no memory for the permutation.
    /// @threads Any thread may call this at any time. Each index is taken once.
    /// @since 0.1
    pub fn dist_sampler_next(
        sampler: *mut dist_sampler_t,
        indices: *mut u64,
        cap: usize,
        n: *mut usize,
    ) -> dist_status_t {
        let out = OutPtr::required(n, "n")?;
        out.write(0);
        if indices.is_null() && cap > 0 {
            return Err(null_argument("indices"));
        }
        let mut cell = indices;
        let count = SAMPLERS.get(sampler)?.next(cap, |index| {
            // SAFETY: the caller has space for `cap` indices, and this writes at most `cap`.
            unsafe { cell.write_unaligned(index) };
            cell = cell.wrapping_add(1);
        });
        out.write(count?);
        Ok(())
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns the number of indices of this rank in an epoch.
    ///
    /// @param sampler in: the sampler.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number, the same on all ranks; 0 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sampler_len(sampler: *const dist_sampler_t) -> u64 {
        Ok(SAMPLERS.get(sampler)?.len())
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns the number of indices taken in the current epoch, for a checkpoint.
    ///
    /// @param sampler in: the sampler.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number; 0 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sampler_position(sampler: *const dist_sampler_t) -> u64 {
        Ok(SAMPLERS.get(sampler)?.position())
    }
}

dist_export! {
    /// Moves to a position in the current epoch, for instance after a restart from a checkpoint.
    ///
    /// @param sampler in: the sampler.
    /// @param position in: the number of indices to skip from the beginning of the epoch, at most
    ///   dist_sampler_len.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `position` is more
    ///   than dist_sampler_len.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sampler_seek(sampler: *mut dist_sampler_t, position: u64) -> dist_status_t {
        SAMPLERS.get(sampler)?.seek(position)
    }
}

dist_export! {
    /// Releases a sampler.
    ///
    /// @param sampler in, optional: the sampler; NULL does nothing.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sampler_release(sampler: *mut dist_sampler_t) -> dist_status_t {
        SAMPLERS.release_handle(sampler, drop)
    }
}
