//! The types that all layers share: errors, element types, identifiers, deadlines, configuration
//! and the log. This layer does not depend on the rest of the library, and uses the system only
//! through the standard library.

pub mod backtrace;
pub mod buffer;
mod c_numbers;
pub mod config;
pub mod copy;
pub mod deadline;
pub mod debug;
pub mod dtype;
pub mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod gpu;
pub mod ids;
pub mod label;
pub mod log;
mod misspelt;
pub mod nan_check;
pub mod nodes;
pub mod op;
pub mod plural;
pub mod processor;
pub mod progress_observer;
pub mod renamed;
pub mod sequence_stamp;
pub mod sort;
pub mod sync;
pub(crate) mod trait_object_debug;
mod vector_copy;

pub use buffer::{Dst, Src};
pub use deadline::Deadline;
pub use dtype::DataType;
pub use error::{Error, ErrorKind, Result};
pub use ids::{GroupId, Nonce, Rank, WorldSize};
pub use op::ReduceOp;
