//! A line on a terminal that says how far the measurement is.

use crate::cell::Cell;
use crate::text::size;
use crate::write_error;
use std::io::IsTerminal as _;

/// The line, if there is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
    cells: usize,
    /// How many of them have begun.
    begun: usize,
}

impl Progress {
    /// For so many cells.
    pub(crate) fn new(cells: usize) -> Self {
        Self { is_shown: std::io::stderr().is_terminal(), cells, begun: 0 }
    }

    /// The next cell begins.
    pub(crate) fn next(&mut self) {
        self.begun += 1;
    }

    /// Says that an engine is at work on a cell.
    pub(crate) fn tell(&self, cell: &Cell, turn: usize, engine: &str) {
        if self.is_shown {
            let line = line((self.begun, self.cells), cell, turn, engine);
            write_error(&format!("\r{line}\u{1b}[K"));
        }
    }

    /// Shows how many of the cells have begun, and a text.
    pub(crate) fn show(&self, text: &str) {
        if self.is_shown {
            write_error(&format!("\r{} of {}: {text}\u{1b}[K", self.begun, self.cells));
        }
    }

    /// Takes the line away, so that something else can be printed.
    pub(crate) fn clear(&self) {
        if self.is_shown {
            write_error("\r\u{1b}[K");
        }
    }
}

fn line((begun, cells): (usize, usize), cell: &Cell, turn: usize, engine: &str) -> String {
    let (ranks, op, size) = (cell.ranks, cell.op.name(), size(cell.bytes()));
    format!("cell {begun} of {cells}: {op} {size}, {ranks} ranks, turn {turn}, {engine}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::cell;
    use crate::ops::Op;

    #[test]
    fn it_is_said_who_does_what() {
        let text = line((3, 57), &cell(Op::AllGather, 65_536), 4, "mpich");
        assert_eq!(text, "cell 3 of 57: all_gather 64 KiB, 2 ranks, turn 4, mpich");
    }
}
