//! The verdict on the dumps of a job.

use crate::cli::Verdict;
use crate::{Outcome, files, say};

/// Reads the dumps, and tells what they are.
pub(crate) fn main(options: &Verdict) -> Outcome {
    let found = files::read(&options.places)?;
    for dump in &found.dumps {
        say(&format!("{}: pid {}, host {}\n", dump.file, dump.pid, dump.host))?;
    }
    Ok(0)
}
