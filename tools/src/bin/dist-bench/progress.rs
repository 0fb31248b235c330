//! A line on a terminal that shows the progress of the measurement. It is drawn before a run, never
//! during a run.

use crate::cell::BenchCell;
use crate::report_error;
use crate::text::size_text;
use dist_terminal::Progress;
use dist_tools::{Failure, write_output};

/// The progress line.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    line: Progress,
    /// The number of started cells.
    started: usize,
}

impl ProgressLine {
    /// Creates the line for `cells` cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self { line: Progress::of_steps(cells), started: 0 }
    }

    /// Counts the start of the next cell.
    pub(crate) fn advance(&mut self) {
        self.started += 1;
        self.line.set_steps(self.started);
    }

    /// Shows the cell, the number of the current pair, and the engine that runs now.
    pub(crate) fn show_turn(&self, cell: &BenchCell, turn: usize, engine: &str) {
        self.line.set_text(turn_text(cell, turn, engine));
    }

    /// Shows a text.
    pub(crate) fn show_text(&self, text: &str) {
        self.line.set_text(text);
    }

    /// Removes the line at the end of the measurement.
    pub(crate) fn finish(&mut self) {
        self.line.finish();
    }

    /// Writes a text to standard output, above the line.
    pub(crate) fn print_text(&self, text: &str) -> Result<(), Failure> {
        self.line.suspend(|| write_output(text))
    }

    /// Writes a message of dist-bench to standard error, above the line.
    pub(crate) fn report_error(&self, message: &str) {
        self.line.suspend(|| report_error(message));
    }
}

fn turn_text(cell: &BenchCell, turn: usize, engine: &str) -> String {
    let (ranks, op, size) = (cell.ranks, cell.op.name(), size_text(cell.bytes()));
    format!("{op} {size}, {ranks} ranks, run {turn}, {engine}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;
    use crate::ops::BenchOp;

    #[test]
    fn progress_line_names_cell_turn_and_engine() {
        let text = turn_text(&cell(BenchOp::AllGather, 65_536), 4, "mpich");
        assert_eq!(text, "all_gather 64 KiB, 2 ranks, run 4, mpich");
    }
}
