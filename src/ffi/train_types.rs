//! C types and constants for data-parallel training.
#![allow(non_camel_case_types, reason = "C names")]
#![allow(missing_debug_implementations, reason = "incomplete types and plain C structs")]

use super::options::Options;

/// In `flags`: the sampler gives the indices in ascending order, the same in each epoch.
pub const DIST_SAMPLER_IN_ORDER: u64 = 1;

/// In `flags`: the sampler drops the last samples if the ranks cannot share them evenly.
///
/// Without it, samples from the beginning of the list are used twice.
pub const DIST_SAMPLER_DROP_LAST: u64 = 2;

/// Gives a rank its share of the indices of a data set, epoch by epoch.
///
/// Owned by the caller, released with dist_sampler_release. Any thread may use it.
#[repr(C)]
pub struct dist_sampler_t {
    _opaque: [u8; 0],
}

/// Options of dist_sampler_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dist_sampler_options_t {
    /// sizeof(dist_sampler_options_t).
    pub struct_size: usize,
    /// The set fields with a meaningful zero: DIST_FIELD_RANK.
    pub fields: u64,
    /// The number of ranks that share the data set; 0 for the number of ranks of the group.
    pub num_replicas: i32,
    /// The rank whose indices the sampler gives, with DIST_FIELD_RANK in `fields`; else the rank in
    /// the group.
    pub rank: i32,
    /// The seed of the shuffle, the same on all ranks.
    pub seed: u64,
    /// The sum of DIST_SAMPLER_ constants; or 0.
    pub flags: u64,
}

// SAFETY: repr(C), begins with a usize, and any bytes are a value of its integers.
unsafe impl Options for dist_sampler_options_t {
    const NAME: &'static str = "dist_sampler_options_t";
    const FIRST_SIZE: usize = 40;
}

const _: () = assert!(size_of::<dist_sampler_options_t>() == 40);
