//! The report. It consists of Markdown tables, which replace the text between two marker lines of
//! an existing file, and of one plot per operation. The results come from this run or from result
//! files, so that a long measurement can be done in parts.

mod markdown;
mod plot;
mod series;

use crate::cell::{BenchCell, CellResult};
use crate::ops::BenchOp;
use crate::result_files::{BenchResults, write_file};
use crate::results_reader::read_results;
use dist_tools::Failure;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use plot::{COLOURS, FONT, LabelledAxis, PlotArea, picture};

/// The marker lines in a Markdown file before and after a report.
#[derive(Debug)]
pub(crate) struct MarkerLines {
    begin: &'static str,
    end: &'static str,
}

/// The markers of the tables of operations.
const OP_MARKERS: MarkerLines =
    MarkerLines { begin: "<!-- dist-bench:begin -->\n", end: "<!-- dist-bench:end -->" };

/// The markers of the tables of `--training`.
pub(crate) const TRAINING_MARKERS: MarkerLines = MarkerLines {
    begin: "<!-- dist-bench-training:begin -->\n",
    end: "<!-- dist-bench-training:end -->",
};

/// The folder of the plots, relative to the folder of the file.
pub(crate) const PLOT_FOLDER: &str = "docs/plots";

/// Checks that a file has the markers of the report. The caller checks this before the measurement,
/// which may take hours.
pub(crate) fn check_target(path: &Path) -> Result<(), Failure> {
    check_markers(path, &OP_MARKERS)
}

/// Checks that a file has these markers.
pub(crate) fn check_markers(path: &Path, markers: &MarkerLines) -> Result<(), Failure> {
    replace_between(&read_text(path)?, markers, "")
        .map(drop)
        .ok_or_else(|| missing_markers(path, markers))
}

/// Replaces the text between the markers of a file.
pub(crate) fn replace_report(
    path: &Path,
    markers: &MarkerLines,
    report: &str,
) -> Result<(), Failure> {
    let text = replace_between(&read_text(path)?, markers, report);
    write_file(path, &text.ok_or_else(|| missing_markers(path, markers))?)
}

/// Writes a plot of the report to a file.
pub(crate) fn write_plot(path: &Path, name: &str, svg: &str) -> Result<(), Failure> {
    let plots = path.parent().unwrap_or(Path::new("")).join(PLOT_FOLDER);
    let created = fs::create_dir_all(&plots);
    created.map_err(|cause| Failure::new(format!("cannot create {}: {cause}", plots.display())))?;
    write_file(&plots.join(name), svg)
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path);
    text.map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
}

/// Builds the report from result files. If several files have a cell, the last file counts.
pub(crate) fn write_report_from_files(path: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let parts = files
        .iter()
        .map(|file| read_results(file))
        .collect::<Result<Vec<BenchResults>, Failure>>()?;
    write_report(path, &parts)
}

/// Writes the report into a file, and the plots into its plot folder.
pub(crate) fn write_report(path: &Path, parts: &[BenchResults]) -> Result<(), Failure> {
    let results = merge_results(parts)?;
    check_target(path)?;
    for op in measured_ops(&results) {
        let svg = plot::svg(op.name(), &series::op_panels(&results, op))?;
        write_plot(path, &format!("{}.svg", op.name()), &svg)?;
    }
    replace_report(path, &OP_MARKERS, &markdown::report(&results, parts, PLOT_FOLDER))
}

/// Draws the times of all operations into one file.
pub(crate) fn write_plot_file(path: &Path, results: &BenchResults) -> Result<(), Failure> {
    let ops = measured_ops(results).into_iter();
    let plots: Vec<(&str, Vec<plot::PlotPanel>)> =
        ops.map(|op| (op.name(), series::op_panels(results, op))).collect();
    write_file(path, &plot::svg_column(&plots)?)
}

fn missing_markers(path: &Path, markers: &MarkerLines) -> Failure {
    let (begin, end) = (markers.begin.trim_end(), markers.end);
    Failure::new(format!(
        "{}: the file lacks the lines {begin} and {end}; add them where the report belongs",
        path.display()
    ))
}

fn replace_between(text: &str, markers: &MarkerLines, report: &str) -> Option<String> {
    let MarkerLines { begin, end } = markers;
    let (head, rest) = text.split_once(begin)?;
    let (_, tail) = rest.split_once(end)?;
    Some(format!("{head}{begin}{report}{end}{tail}"))
}

/// Returns the measured operations, in the order of [`BenchOp::ALL`].
fn measured_ops(results: &BenchResults) -> Vec<BenchOp> {
    let has = |op: &BenchOp| results.cells.iter().any(|measured| measured.cell.op == *op);
    BenchOp::ALL.into_iter().filter(has).collect()
}

/// Merges the cells of all parts in order. If several parts have a cell, the last part counts.
fn merge_results(parts: &[BenchResults]) -> Result<BenchResults, Failure> {
    let mut parts = parts.iter().cloned();
    let mut all = parts.next().ok_or_else(|| Failure::new("--report-from names no result file"))?;
    for part in parts {
        let (first_run, run) = (&all.run, &part.run);
        if (&first_run.machine, &first_run.transport) != (&run.machine, &run.transport) {
            let described = [first_run, run]
                .map(|run| format!("{}, transport {}", run.machine.describe(), run.transport));
            return Err(Failure::new(format!(
                "--report-from: all result files must be of one machine and one transport, not of {}",
                described.join(" and of ")
            )));
        }
        all.cells
            .retain(|old| part.cells.iter().all(|new| sort_key(&new.cell) != sort_key(&old.cell)));
        all.cells.extend(part.cells);
        all.limits = part.limits.or(all.limits);
    }
    if !all.cells.iter().all(|measured| has_type_of(&measured.cell, &all.cells)) {
        return Err(Failure::new(
            "--report-from: all cells must have one type of elements and one operator",
        ));
    }
    all.cells.sort_by_key(|measured| sort_key(&measured.cell));
    Ok(all)
}

/// Returns the sort key of a cell in a report.
fn sort_key(cell: &BenchCell) -> (usize, usize, [bool; 4], usize) {
    let op_index = BenchOp::ALL.iter().position(|op| *op == cell.op);
    let [mode, buffers, in_place, call] = cell.variant.describe();
    // The usual variants come first.
    let unusual =
        [mode != "rewritten", buffers != "ordinary", in_place != "in place", call != "blocking"];
    (op_index.unwrap_or(0), cell.ranks, unusual, cell.bytes())
}

fn has_type_of(cell: &BenchCell, all: &[CellResult]) -> bool {
    let is_alike = |other: &BenchCell| {
        let may_differ = !(cell.op.reduces() && other.op.reduces());
        cell.dtype == other.dtype && (may_differ || cell.redop == other.redop)
    };
    all.iter().all(|measured| is_alike(&measured.cell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::measured;
    use crate::result_files::samples::results;

    #[test]
    fn last_file_wins_for_the_same_cell() {
        let first = vec![
            measured(BenchOp::Barrier, 0, &[]),
            measured(BenchOp::AllReduce, 64, &[("mpich", 500.0)]),
            measured(BenchOp::AllReduce, 4, &[]),
        ];
        let second = vec![measured(BenchOp::AllReduce, 64, &[("openmpi", 2000.0)])];
        let all = merge_results(&[results(first), results(second)]).unwrap();
        let shown: Vec<(BenchOp, usize)> =
            all.cells.iter().map(|m| (m.cell.op, m.cell.bytes())).collect();
        assert_eq!(
            shown,
            [(BenchOp::AllReduce, 4), (BenchOp::AllReduce, 64), (BenchOp::Barrier, 0)]
        );
        assert_eq!(all.cells[1].peers[0].engine, "openmpi");
    }

    #[test]
    fn incompatible_results_are_refused() {
        let one = results(vec![measured(BenchOp::AllReduce, 64, &[])]);
        let mut other = one.clone();
        other.run.transport = "tcp".to_owned();
        let failure = merge_results(&[one.clone(), other]).unwrap_err();
        assert!(failure.message.contains("one transport"), "{}", failure.message);
        let mut other = one.clone();
        other.cells[0].cell.dtype = dist::base::dtype::DataType::F64;
        assert!(merge_results(&[one, other]).unwrap_err().message.contains("one type of elements"));
        assert!(merge_results(&[]).is_err());
    }

    #[test]
    fn text_around_the_markers_is_kept() {
        let text = format!("before\n{}old\n{}\nafter\n", OP_MARKERS.begin, OP_MARKERS.end);
        let new = replace_between(&text, &OP_MARKERS, "new\n").unwrap();
        assert_eq!(new, text.replace("old", "new"));
        assert_eq!(replace_between("nothing", &OP_MARKERS, "new"), None);
    }
}
