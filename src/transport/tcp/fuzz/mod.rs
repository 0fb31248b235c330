//! Entry points for the fuzz targets of connections: each takes arbitrary bytes as a script, and
//! panics where something that must always hold does not. The tests below run the committed corpus
//! through the same functions.
//!
//! Compiled for fuzzing and for tests alone; not a part of the library.
#![allow(clippy::panic, clippy::expect_used, reason = "a panic is how a finding is told")]

mod control;
mod hello;

pub use control::control;
pub use hello::hello;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fuzz::replay;

    #[test]
    fn the_hellos_corpus() {
        replay("mesh_hello", hello);
    }

    #[test]
    fn the_controls_corpus() {
        replay("mesh_control", control);
    }
}
