//! The report: tables in Markdown, between two marks of a file that has more to say, and a plot for
//! each operation beside it. It is made of results, whether these were measured now or read from
//! files, so that a long measurement can be made in pieces.

mod markdown;
mod plot;
mod series;

use crate::Failure;
use crate::cell::{Cell, Measured};
use crate::files::{Results, write};
use crate::ops::Op;
use crate::read::read;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use plot::STYLE;

/// The lines of a Markdown file between which a report is put.
#[derive(Debug)]
pub(crate) struct Marks {
    begin: &'static str,
    end: &'static str,
}

/// The marks of the tables of operations.
const MARKS: Marks = Marks { begin: "<!-- dist-bench:begin -->\n", end: "<!-- dist-bench:end -->" };

/// The marks of the tables of `--training`.
pub(crate) const TRAINING_MARKS: Marks = Marks {
    begin: "<!-- dist-bench-training:begin -->\n",
    end: "<!-- dist-bench-training:end -->",
};

/// Where the plots are, seen from the folder of the file.
pub(crate) const PLOTS: &str = "docs/plots";

/// Whether a file can take the report: to be asked before hours are spent.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    check_marks(path, &MARKS)
}

/// Whether a file has these marks.
pub(crate) fn check_marks(path: &Path, marks: &Marks) -> Result<(), Failure> {
    between_marks(&read_text(path)?, marks, "").map(drop).ok_or_else(|| lacks_marks(path, marks))
}

/// Replaces the text between the marks of a file.
pub(crate) fn replace(path: &Path, marks: &Marks, report: &str) -> Result<(), Failure> {
    let text = between_marks(&read_text(path)?, marks, report);
    write(path, &text.ok_or_else(|| lacks_marks(path, marks))?)
}

/// Writes a plot of the report in a file.
pub(crate) fn put_plot(path: &Path, name: &str, svg: &str) -> Result<(), Failure> {
    let plots = path.parent().unwrap_or(Path::new("")).join(PLOTS);
    let made = fs::create_dir_all(&plots);
    made.map_err(|cause| Failure::new(format!("{}: {cause}", plots.display())))?;
    write(&plots.join(name), svg)
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path);
    text.map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
}

/// Makes the report of files that were written before, in this order.
pub(crate) fn make(path: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let parts = files.iter().map(|file| read(file)).collect::<Result<Vec<Results>, Failure>>()?;
    put(path, &parts)
}

/// Puts the report into a file, and the plots beside it.
pub(crate) fn put(path: &Path, parts: &[Results]) -> Result<(), Failure> {
    let results = merged(parts)?;
    check(path)?;
    for op in ops(&results) {
        let svg = plot::svg(op.name(), &series::panels(&results, op));
        put_plot(path, &format!("{}.svg", op.name()), &svg)?;
    }
    replace(path, &MARKS, &markdown::report(&results, parts, PLOTS))
}

fn lacks_marks(path: &Path, marks: &Marks) -> Failure {
    let (begin, end) = (marks.begin.trim_end(), marks.end);
    Failure::new(format!(
        "{}: it lacks the lines {begin} and {end}, between which the report is put",
        path.display()
    ))
}

fn between_marks(text: &str, marks: &Marks, report: &str) -> Option<String> {
    let Marks { begin, end } = marks;
    let (head, rest) = text.split_once(begin)?;
    let (_, tail) = rest.split_once(end)?;
    Some(format!("{head}{begin}{report}{end}{tail}"))
}

/// The operations that were measured, in their order.
fn ops(results: &Results) -> Vec<Op> {
    let has = |op: &Op| results.cells.iter().any(|measured| measured.cell.op == *op);
    Op::ALL.into_iter().filter(has).collect()
}

/// All cells of all parts, in order; of a cell that several have, the last one's.
fn merged(parts: &[Results]) -> Result<Results, Failure> {
    let mut parts = parts.iter().cloned();
    let mut all = parts.next().ok_or_else(|| Failure::new("a report of nothing"))?;
    for part in parts {
        let (before, now) = (&all.run, &part.run);
        if (&before.machine, &before.transport) != (&now.machine, &now.transport) {
            let described = [before, now]
                .map(|run| format!("{}, transport {}", run.machine.describe(), run.transport));
            return Err(Failure::new(format!(
                "a report is of one machine and one transport, not of {}",
                described.join(" and of ")
            )));
        }
        all.cells.retain(|old| part.cells.iter().all(|new| key(&new.cell) != key(&old.cell)));
        all.cells.extend(part.cells);
        all.limits = part.limits.or(all.limits);
    }
    if !all.cells.iter().all(|measured| has_type_of(&measured.cell, &all.cells)) {
        return Err(Failure::new("a report is of one type of elements and one operator"));
    }
    all.cells.sort_by_key(|measured| key(&measured.cell));
    Ok(all)
}

/// What tells cells of a report apart, in the order in which they are shown.
fn key(cell: &Cell) -> (usize, usize, [bool; 4], usize) {
    let place = Op::ALL.iter().position(|op| *op == cell.op);
    let [mode, buffers, in_place, call] = cell.variant.describe();
    // What is usual comes first.
    let unusual =
        [mode != "rewritten", buffers != "ordinary", in_place != "in place", call != "blocking"];
    (place.unwrap_or(0), cell.ranks, unusual, cell.bytes())
}

fn has_type_of(cell: &Cell, all: &[Measured]) -> bool {
    let is_alike = |other: &Cell| {
        let may_differ = !(cell.op.reduces() && other.op.reduces());
        cell.dtype == other.dtype && (may_differ || cell.redop == other.redop)
    };
    all.iter().all(|measured| is_alike(&measured.cell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::measured;
    use crate::files::samples::results;

    #[test]
    fn later_parts_win_for_the_same_cell() {
        let first = vec![
            measured(Op::Barrier, 0, &[]),
            measured(Op::AllReduce, 64, &[("mpich", 500.0)]),
            measured(Op::AllReduce, 4, &[]),
        ];
        let second = vec![measured(Op::AllReduce, 64, &[("openmpi", 2000.0)])];
        let all = merged(&[results(first), results(second)]).unwrap();
        let shown: Vec<(Op, usize)> =
            all.cells.iter().map(|m| (m.cell.op, m.cell.bytes())).collect();
        assert_eq!(shown, [(Op::AllReduce, 4), (Op::AllReduce, 64), (Op::Barrier, 0)]);
        assert_eq!(all.cells[1].peers[0].engine, "openmpi");
    }

    #[test]
    fn parts_that_cannot_be_compared_are_refused() {
        let one = results(vec![measured(Op::AllReduce, 64, &[])]);
        let mut other = one.clone();
        other.run.transport = "tcp".to_owned();
        let failure = merged(&[one.clone(), other]).unwrap_err();
        assert!(failure.message.contains("one transport"), "{}", failure.message);
        let mut other = one.clone();
        other.cells[0].cell.dtype = dist::base::dtype::DataType::F64;
        assert!(merged(&[one, other]).unwrap_err().message.contains("one type of elements"));
        assert!(merged(&[]).is_err());
    }

    #[test]
    fn what_is_around_the_marks_stays() {
        let text = format!("before\n{}old\n{}\nafter\n", MARKS.begin, MARKS.end);
        let new = between_marks(&text, &MARKS, "new\n").unwrap();
        assert_eq!(new, text.replace("old", "new"));
        assert_eq!(between_marks("nothing", &MARKS, "new"), None);
    }
}
