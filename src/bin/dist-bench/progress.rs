//! A line on a terminal that says how far the measurement is.

use crate::cell::BenchCell;
use crate::text::size_text;
use crate::write_error;
use std::io::IsTerminal as _;

/// The line, if there is a terminal.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    is_shown: bool,
    total: usize,
    /// How many of them have begun.
    started: usize,
}

impl ProgressLine {
    /// For so many cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), total: cells, started: 0 }
    }

    /// The next cell begins.
    pub(crate) fn advance(&mut self) {
        self.started += 1;
    }

    /// Says that an engine is at work on a cell.
    pub(crate) fn show_turn(&self, cell: &BenchCell, turn: usize, engine: &str) {
        if self.is_shown {
            let line = turn_line((self.started, self.total), cell, turn, engine);
            write_error(&format!("\r{line}\u{1b}[K"));
        }
    }

    /// Shows how many of the cells have begun, and a text.
    pub(crate) fn show_text(&self, text: &str) {
        if self.is_shown {
            write_error(&format!("\r{} of {}: {text}\u{1b}[K", self.started, self.total));
        }
    }

    /// Takes the line away, so that something else can be printed.
    pub(crate) fn clear(&self) {
        if self.is_shown {
            write_error("\r\u{1b}[K");
        }
    }
}

fn turn_line(
    (begun, cells): (usize, usize),
    cell: &BenchCell,
    turn: usize,
    engine: &str,
) -> String {
    let (ranks, op, size) = (cell.ranks, cell.op.name(), size_text(cell.bytes()));
    format!("cell {begun} of {cells}: {op} {size}, {ranks} ranks, turn {turn}, {engine}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;
    use crate::ops::BenchOp;

    #[test]
    fn progress_line_names_cell_turn_and_engine() {
        let text = turn_line((3, 57), &cell(BenchOp::AllGather, 65_536), 4, "mpich");
        assert_eq!(text, "cell 3 of 57: all_gather 64 KiB, 2 ranks, turn 4, mpich");
    }
}
