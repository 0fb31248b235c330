//! Draws the plot of `--training`. Each workload has a panel, with one bar per candidate. A bar
//! shows the exposed communication (the time that a step waits for communication) and its
//! confidence interval. The functions do no I/O.

use super::table::describe;
use super::training_results::{CandidateResult, WorkloadResult};
use crate::report::{COLOURS, FONT, LabelledAxis, PlotArea, picture};
use dist_tools::Failure;
use plotters::prelude::*;
use std::error::Error;

/// Sizes in pixels: the width, the height of the title and of a row, and the height of the title
/// and the axis of a panel.
const WIDTH: u32 = 720;
const TITLE_HEIGHT: u32 = 30;
const ROW_HEIGHT: u32 = 24;
const FRAME_HEIGHT: u32 = 70;
const LABEL_WIDTH: u32 = 190;

/// The largest time divided by the length of the axis: the values are to the right of the bars.
const FILLED: f64 = 0.88;

/// The height of a bar divided by that of its row.
const BAR: f64 = 0.6;

const NS_PER_MS: f64 = 1e6;

/// Returns the plot.
pub(super) fn svg(all: &[WorkloadResult]) -> Result<String, Failure> {
    let height = TITLE_HEIGHT + all.iter().map(panel_height).sum::<u32>();
    picture("exposed communication of a training step", (WIDTH, height), |whole| {
        let title = "exposed communication of a training step, ms";
        let mut rest = whole.titled(title, (FONT, 16))?;
        for measured in all {
            let (area, below) = rest.split_vertically(panel_height(measured));
            draw_panel(&area, measured)?;
            rest = below;
        }
        Ok(())
    })
}

fn panel_height(measured: &WorkloadResult) -> u32 {
    let rows = u32::try_from(measured_candidates(measured).count()).unwrap_or(1);
    FRAME_HEIGHT + ROW_HEIGHT * rows
}

fn measured_candidates(measured: &WorkloadResult) -> impl Iterator<Item = &CandidateResult> {
    measured.candidates.iter().filter(|figures| !figures.runs.is_empty())
}

/// Returns the value at the right end of a bar or of its interval, whichever is larger.
fn largest_exposed_ns(figures: &CandidateResult) -> f64 {
    let exposed = figures.exposed_ns();
    exposed.interval.map_or(exposed.value, |(_, high)| high.max(exposed.value))
}

/// Draws the bars of a workload, the first candidate at the top. Row n is around -n on the axis.
fn draw_panel(area: &PlotArea<'_>, measured: &WorkloadResult) -> Result<(), Box<dyn Error>> {
    let rows: Vec<(f64, &CandidateResult)> =
        (0..).map(|row| -f64::from(row)).zip(measured_candidates(measured)).collect();
    let longest = rows.iter().map(|(_, it)| largest_exposed_ns(it)).fold(1.0, f64::max);
    let last = rows.last().map_or(0.0, |(row, _)| *row);
    let centers = rows.iter().map(|(row, _)| *row).collect();
    let title_of = |at: &f64| {
        let row = rows.iter().find(|(row, _)| row == at);
        row.map_or_else(String::new, |(_, figures)| figures.candidate.title().to_owned())
    };
    let mut chart = ChartBuilder::on(area)
        .caption(describe(&measured.workload), (FONT, 13))
        .margin(8)
        .set_label_area_size(LabelAreaPosition::Left, LABEL_WIDTH)
        .set_label_area_size(LabelAreaPosition::Bottom, 20)
        .build_cartesian_2d(
            0.0..longest / NS_PER_MS / FILLED,
            LabelledAxis::new(last - 0.5..0.5, centers),
        )?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_labels(6)
        .x_max_light_lines(1)
        .y_label_formatter(&title_of)
        .label_style((FONT, 12))
        .draw()?;
    for &(row, figures) in &rows {
        let exposed = figures.exposed_ns();
        let colour = COLOURS[usize::from(!figures.candidate.is_ours())];
        let length = exposed.value.max(0.0) / NS_PER_MS;
        let corners = [(0.0, row - BAR / 2.0), (length, row + BAR / 2.0)];
        chart.draw_series([Rectangle::new(corners, colour.filled())])?;
        if let Some((low, high)) = exposed.interval {
            let ends = [low, high].map(|end| (end.max(0.0) / NS_PER_MS, row));
            chart.draw_series([PathElement::new(ends, BLACK.stroke_width(1))])?;
        }
        let end = largest_exposed_ns(figures).max(0.0) / NS_PER_MS;
        let value = format!("{:.1}", exposed.value / NS_PER_MS);
        let text = EmptyElement::at((end, row)) + Text::new(value, (6, -6), (FONT, 12));
        chart.draw_series([text])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::candidate::Candidate;
    use super::super::training_results::samples::measured;
    use super::*;

    #[test]
    fn each_candidate_has_a_bar_and_its_value() {
        let one = measured(&[(Candidate::Arena, -1.0), (Candidate::TorchGloo, 50.0)]);
        let svg = svg(&[one.clone(), one]).unwrap();
        // The background is the only other rectangle that is filled.
        let bars = svg.matches("<rect ").count() - 1;
        assert_eq!(bars, 4, "{svg}");
        for part in ["\n-1.0\n", "\ntorch DDP on Gloo\n", "\nmodel a (200 x 512 KiB)"] {
            assert_eq!(svg.matches(part).count(), 2, "{part}: {svg}");
        }
        // This value is also a label of the axis.
        assert_eq!(svg.matches("\n50.0\n").count(), 4, "{svg}");
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
