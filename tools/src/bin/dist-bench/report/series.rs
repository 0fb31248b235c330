//! Selects the lines of a plot: for each number of ranks, the times of each library over the sizes.
//! If a library ran with several settings, the fastest setting counts, as in the tables. The
//! functions do no I/O.

use super::plot::{PlotPanel, PlotSeries};
use crate::cell::{BenchCell, BufferMode, CellResult, EngineTimes};
use crate::libdist_engine;
use crate::ops::BenchOp;
use crate::result_files::BenchResults;
use dist_tools::count_text;

/// The libraries, as prefixes of the names of their engines. The first prefix that matches counts.
/// Its index selects the colour.
const LIBRARIES: [&str; 4] = ["openmpi", "mpich", "gloo-cpp", "gloo"];

/// The colour of all other lines, mainly of libdist's unusual variants.
const OTHER_COLOUR: usize = LIBRARIES.len() + 1;

/// Returns the panels of an operation's plot.
pub(super) fn op_panels(results: &BenchResults, op: BenchOp) -> Vec<PlotPanel> {
    let of_op = |measured: &&CellResult| measured.cell.op == op;
    let mode = Some(BufferMode::Rewritten)
        .filter(|mode| results.cells.iter().filter(of_op).any(|m| m.cell.variant.mode == *mode))
        .unwrap_or(BufferMode::Untouched);
    let shown = results.cells.iter().filter(of_op).filter(|m| m.cell.variant.mode == mode);
    let mut panels: Vec<PlotPanel> = Vec::new();
    for measured in shown {
        let title = count_text(measured.cell.ranks, "rank");
        if panels.last().is_none_or(|panel| panel.title != title) {
            panels.push(PlotPanel { title, series: Vec::new() });
        }
        let Some(panel) = panels.last_mut() else { continue };
        let name = libdist_series_name(&measured.cell);
        let colour = if name == libdist_engine::ENGINE_NAME { 0 } else { OTHER_COLOUR };
        add_point(panel, &name, colour, &measured.cell, &measured.libdist);
        for peer in &measured.peers {
            let library = LIBRARIES.iter().position(|name| peer.engine.starts_with(name));
            let name = library.map_or(peer.engine.as_str(), |index| LIBRARIES[index]);
            let colour = library.map_or(OTHER_COLOUR, |index| index + 1);
            add_point(panel, name, colour, &measured.cell, peer);
        }
    }
    panels
}

/// Returns the name of libdist's line: "libdist" and the properties of the variant that are not the
/// usual ones.
fn libdist_series_name(cell: &BenchCell) -> String {
    let words = cell.variant.describe().into_iter().skip(1);
    let usual = ["ordinary", "in place", "blocking"];
    let unusual = words.filter(|word| !usual.contains(word));
    std::iter::once(libdist_engine::ENGINE_NAME).chain(unusual).collect::<Vec<&str>>().join(", ")
}

/// Adds a point to a line. If the line already has a point of this size, the faster one remains.
#[allow(clippy::cast_precision_loss, reason = "a coordinate in a plot needs few digits")]
fn add_point(
    panel: &mut PlotPanel,
    name: &str,
    colour: usize,
    cell: &BenchCell,
    figures: &EngineTimes,
) {
    let (bytes, us) = (cell.bytes() as f64, figures.p50() / 1e3);
    if us <= 0.0 {
        return;
    }
    let series_index =
        panel.series.iter().position(|series| series.name == name).unwrap_or_else(|| {
            panel.series.push(PlotSeries { name: name.to_owned(), colour, points: Vec::new() });
            panel.series.len() - 1
        });
    let points = &mut panel.series[series_index].points;
    match points.iter_mut().find(|(x, _)| *x == bytes) {
        Some((_, y)) => *y = y.min(us),
        None => points.push((bytes, us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::BufferKind;
    use crate::cell::samples::measured;
    use crate::result_files::samples::results;

    #[test]
    fn each_library_has_one_series() {
        let peers = [("openmpi", 3000.0), ("openmpi-ring1m", 2000.0), ("gloo-cpp", 9000.0)];
        let mut arena = measured(BenchOp::AllReduce, 64, &peers);
        arena.cell.variant.buffers = BufferKind::Arena;
        let mut more = measured(BenchOp::AllReduce, 64, &[]);
        more.cell.ranks = 4;
        let cells = vec![
            measured(BenchOp::AllReduce, 64, &peers),
            arena,
            more,
            measured(BenchOp::Barrier, 0, &[]),
        ];
        let panels = op_panels(&results(cells), BenchOp::AllReduce);
        let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["2 ranks", "4 ranks"]);
        let shown: Vec<(&str, f64)> =
            panels[0].series.iter().map(|s| (s.name.as_str(), s.points[0].1)).collect();
        let expected =
            [("libdist", 1.0), ("openmpi", 2.0), ("gloo-cpp", 9.0), ("libdist, arena", 1.0)];
        assert_eq!(shown, expected);
    }
}
