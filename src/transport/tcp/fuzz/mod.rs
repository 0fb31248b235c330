//! Entry points for the fuzz targets of connections. Each entry point takes arbitrary bytes as a
//! script, and panics if an invariant does not hold. The tests below run the committed corpus
//! through the same functions.
//!
//! This module is compiled only for fuzzing and for tests.
#![allow(clippy::panic, clippy::expect_used, reason = "a fuzz target reports a finding by a panic")]

mod control;
mod hello;
mod link;
mod resume;

pub use control::control;
pub use hello::hello;
pub use link::link;
pub use resume::resume;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fuzz::replay_corpus;

    #[test]
    fn hello_corpus() {
        replay_corpus("mesh_hello", hello);
    }

    #[test]
    fn link_corpus() {
        replay_corpus("mesh_link", link);
    }

    #[test]
    fn any_script_passes_the_link() {
        use proptest::prelude::*;
        proptest!(|(script in proptest::collection::vec(any::<u8>(), 0..400))| link(&script));
    }

    #[test]
    fn resume_corpus() {
        replay_corpus("mesh_resume", resume);
    }

    #[test]
    fn any_script_passes_the_replacement() {
        use proptest::prelude::*;
        proptest!(|(script in proptest::collection::vec(any::<u8>(), 0..400))| resume(&script));
    }

    #[test]
    fn control_corpus() {
        replay_corpus("mesh_control", control);
    }
}
