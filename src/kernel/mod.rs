//! Reduction loops.
