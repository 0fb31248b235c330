//! All-reduce over messages, in place: the data of every member become the fold of all.

mod direct;
mod doubling;
mod rabenseifner;
mod ring;

pub use direct::run as direct;
pub use doubling::run as doubling;
pub use rabenseifner::run as rabenseifner;
pub use ring::run as ring;

use super::{Call, Team};
use crate::algo::fold::Fold;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::WorldSize;

/// An algorithm.
pub type Algorithm = fn(&mut Call<'_>, Team<'_>, Fold, Dst<'_>) -> Result<()>;

/// One message each way between all is the fewest hops, and each rank sends its vector to all others.
pub fn direct_pays(bytes: usize, ranks: WorldSize) -> bool {
    bytes <= 4 << 10 && ranks <= 8
}

/// A hop more for each doubling of the ranks, and the whole vector each time.
pub fn doubling_pays(bytes: usize, _ranks: WorldSize) -> bool {
    bytes <= 32 << 10
}

/// Twice the hops of doubling, and twice the vector in all; a ring has as many hops as ranks.
pub fn rabenseifner_pays(bytes: usize, ranks: WorldSize) -> bool {
    bytes <= if ranks >= 32 { 8 << 20 } else { 1 << 20 }
}

/// The algorithm that pays; all members choose the same.
pub fn best(bytes: usize, ranks: WorldSize) -> Algorithm {
    match () {
        () if direct_pays(bytes, ranks) => direct,
        () if doubling_pays(bytes, ranks) => doubling,
        () if rabenseifner_pays(bytes, ranks) => rabenseifner,
        () => ring,
    }
}
