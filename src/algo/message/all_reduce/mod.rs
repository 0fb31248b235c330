//! All-reduce over messages, in place: the data of every member becomes the fold of the data of all
//! members.

mod in_place;
pub mod linear;
pub mod ordered;
pub mod rabenseifner;
pub mod recursive_doubling;
pub mod ring;

use crate::base::ids::WorldSize;
use in_place::TeamAllReduce;

/// Returns the first algorithm that pays for this size and number of ranks. All members get the
/// same algorithm.
pub fn select_team_algorithm(bytes: usize, ranks: WorldSize) -> TeamAllReduce {
    match () {
        () if linear::pays(bytes, ranks) => linear::run_team,
        () if recursive_doubling::pays(bytes, ranks) => recursive_doubling::run_team,
        () if rabenseifner::pays(bytes, ranks) => rabenseifner::run_team,
        () => ring::run_team,
    }
}
