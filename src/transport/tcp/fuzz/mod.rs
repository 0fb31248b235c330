//! Entry points for the fuzz targets of connections. Each entry point takes arbitrary bytes as a
//! script, and panics if an invariant does not hold. The tests below run the committed corpus
//! through the same functions.
//!
//! This module is compiled only for fuzzing and for tests.
#![allow(clippy::panic, clippy::expect_used, reason = "a fuzz target reports a finding by a panic")]

mod control;
mod hello;

pub use control::control;
pub use hello::hello;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fuzz::replay_corpus;

    #[test]
    fn hello_corpus() {
        replay_corpus("mesh_hello", hello);
    }

    #[test]
    fn control_corpus() {
        replay_corpus("mesh_control", control);
    }
}
