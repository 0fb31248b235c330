//! Index arithmetic that algorithms share; no input or output, tested for all small sizes.

pub mod slices;
