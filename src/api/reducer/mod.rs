//! Data-parallel training: which rank trains on which samples.

pub mod sampler;
