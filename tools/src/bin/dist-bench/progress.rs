//! A line on a terminal that shows the progress of the measurement.

use crate::cell::BenchCell;
use crate::text::size_text;
use dist_tools::{Failure, write_error, write_output};
use std::io::IsTerminal as _;

/// The progress line. It is only shown if standard error is a terminal.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    is_shown: bool,
    total: usize,
    /// The number of started cells.
    started: usize,
}

impl ProgressLine {
    /// Creates the line for `cells` cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), total: cells, started: 0 }
    }

    /// Counts the start of the next cell.
    pub(crate) fn advance(&mut self) {
        self.started += 1;
    }

    /// Shows the cell, the number of the current pair, and the engine that runs now.
    pub(crate) fn show_turn(&self, cell: &BenchCell, turn: usize, engine: &str) {
        if self.is_shown {
            let line = self.turn_line(cell, turn, engine);
            write_error(&format!("\r{line}\u{1b}[K"));
        }
    }

    /// Shows the number of started cells, and a text.
    pub(crate) fn show_text(&self, text: &str) {
        if self.is_shown {
            write_error(&format!("\r{} of {}: {text}\u{1b}[K", self.started, self.total));
        }
    }

    /// Removes the line, so that other text can be printed.
    pub(crate) fn clear(&self) {
        if self.is_shown {
            write_error("\r\u{1b}[K");
        }
    }

    /// Removes the line, and writes a text to standard output.
    pub(crate) fn print_text(&self, text: &str) -> Result<(), Failure> {
        self.clear();
        write_output(text)
    }

    fn turn_line(&self, cell: &BenchCell, turn: usize, engine: &str) -> String {
        let Self { started, total, .. } = self;
        let (ranks, op, size) = (cell.ranks, cell.op.name(), size_text(cell.bytes()));
        format!("cell {started} of {total}: {op} {size}, {ranks} ranks, run {turn}, {engine}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;
    use crate::ops::BenchOp;

    #[test]
    fn progress_line_names_cell_turn_and_engine() {
        let line = ProgressLine { is_shown: false, total: 57, started: 3 };
        let text = line.turn_line(&cell(BenchOp::AllGather, 65_536), 4, "mpich");
        assert_eq!(text, "cell 3 of 57: all_gather 64 KiB, 2 ranks, run 4, mpich");
    }
}
