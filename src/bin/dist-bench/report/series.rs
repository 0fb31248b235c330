//! What a plot shows: for each number of ranks the times of each library over the sizes. Of a
//! library that runs with several settings the best one counts, as it does in tables. Pure.

use super::plot::{Panel, Series};
use crate::cell::{Cell, Figures, Measured, Mode};
use crate::files::Results;
use crate::ops::Op;
use crate::ours;
use crate::text::count;

/// The libraries, by how the names of their engines begin; the first that fits. Their places are
/// those of their colours.
const LIBRARIES: [&str; 4] = ["openmpi", "mpich", "gloo-cpp", "gloo"];

/// The colour of all else: ours called in an unusual way, above all.
const OTHERS: usize = LIBRARIES.len() + 1;

/// The panels of an operation's plot.
pub(super) fn panels(results: &Results, op: Op) -> Vec<Panel> {
    let of_op = |measured: &&Measured| measured.cell.op == op;
    let mode = Some(Mode::Rewritten)
        .filter(|mode| results.cells.iter().filter(of_op).any(|m| m.cell.variant.mode == *mode))
        .unwrap_or(Mode::Untouched);
    let shown = results.cells.iter().filter(of_op).filter(|m| m.cell.variant.mode == mode);
    let mut panels: Vec<Panel> = Vec::new();
    for measured in shown {
        let title = count(measured.cell.ranks, "rank");
        if panels.last().is_none_or(|panel| panel.title != title) {
            panels.push(Panel { title, series: Vec::new() });
        }
        let Some(panel) = panels.last_mut() else { continue };
        let name = own_name(&measured.cell);
        let colour = if name == ours::NAME { 0 } else { OTHERS };
        add(panel, &name, colour, &measured.cell, &measured.ours);
        for peer in &measured.peers {
            let library = LIBRARIES.iter().position(|name| peer.engine.starts_with(name));
            let name = library.map_or(peer.engine.as_str(), |place| LIBRARIES[place]);
            let colour = library.map_or(OTHERS, |place| place + 1);
            add(panel, name, colour, &measured.cell, peer);
        }
    }
    panels
}

/// Ours, with what is unusual in how it was called.
fn own_name(cell: &Cell) -> String {
    let words = cell.variant.describe().into_iter().skip(1);
    let usual = ["ordinary", "in place", "blocking"];
    let unusual = words.filter(|word| !usual.contains(word));
    std::iter::once(ours::NAME).chain(unusual).collect::<Vec<&str>>().join(", ")
}

/// Adds a point; of several for a size the lowest stays.
#[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
fn add(panel: &mut Panel, name: &str, colour: usize, cell: &Cell, figures: &Figures) {
    let (bytes, us) = (cell.bytes() as f64, figures.p50() / 1e3);
    if us <= 0.0 {
        return;
    }
    let place = panel.series.iter().position(|series| series.name == name).unwrap_or_else(|| {
        panel.series.push(Series { name: name.to_owned(), colour, points: Vec::new() });
        panel.series.len() - 1
    });
    let points = &mut panel.series[place].points;
    match points.iter_mut().find(|(x, _)| *x == bytes) {
        Some((_, y)) => *y = y.min(us),
        None => points.push((bytes, us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Buffers;
    use crate::cell::samples::measured;
    use crate::files::samples::results;

    #[test]
    fn libraries_have_one_line_each() {
        let peers = [("openmpi", 3000.0), ("openmpi-ring1m", 2000.0), ("gloo-cpp", 9000.0)];
        let mut arena = measured(Op::AllReduce, 64, &peers);
        arena.cell.variant.buffers = Buffers::Arena;
        let mut more = measured(Op::AllReduce, 64, &[]);
        more.cell.ranks = 4;
        let cells =
            vec![measured(Op::AllReduce, 64, &peers), arena, more, measured(Op::Barrier, 0, &[])];
        let panels = panels(&results(cells), Op::AllReduce);
        let titles: Vec<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["2 ranks", "4 ranks"]);
        let shown: Vec<(&str, f64)> =
            panels[0].series.iter().map(|s| (s.name.as_str(), s.points[0].1)).collect();
        let expected =
            [("libdist", 1.0), ("openmpi", 2.0), ("gloo-cpp", 9.0), ("libdist, arena", 1.0)];
        assert_eq!(shown, expected);
    }
}
