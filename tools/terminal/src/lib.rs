//! The output of the programs on a terminal: the progress of long operations, and tables.
//!
//! | file | content |
//! |---|---|
//! | `progress` | a line on standard error that shows the progress of an operation |
//! | `text_table` | tables of text with aligned columns |

mod progress;
mod text_table;

pub use progress::Progress;
pub use text_table::{Alignment, text_table};
