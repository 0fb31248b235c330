//! Draws a plot as SVG: panels in a row with logarithmic axes. Each line has its own marker shape,
//! so that the plot is readable without colours. The functions do no I/O.

use crate::text::size_text;
use dist_tools::Failure;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// A line of a panel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlotSeries {
    pub(super) name: String,
    /// The index of the colour.
    pub(super) colour: usize,
    /// The points: the size in bytes and the time in microseconds. Both are above 0, except that an
    /// operation without a size has the size 0.
    pub(super) points: Vec<(f64, f64)>,
}

/// The panel of one number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlotPanel {
    pub(super) title: String,
    pub(super) series: Vec<PlotSeries>,
}

/// The part of a picture in which a plot is drawn.
pub(crate) type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The size of a panel with its labels, and the height of a plot with its title, in pixels.
const PANEL_WIDTH: u32 = 386;
const PLOT_HEIGHT: u32 = 370;

/// The font of all plots.
pub(crate) const FONT: &str = "sans-serif";

/// The colours of the lines. The first one is libdist's.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(9, 105, 218),
    RGBColor(188, 76, 0),
    RGBColor(26, 127, 55),
    RGBColor(130, 80, 223),
    RGBColor(154, 103, 0),
    RGBColor(191, 57, 137),
];

/// Two neighbouring labels of the size axis differ by the factor 2 to the power of this number.
const LABEL_STEP_LOG2: usize = 4;

/// An axis with labels at these values.
pub(crate) struct LabelledAxis {
    range: RangedCoordf64,
    labels: Vec<f64>,
}

impl LabelledAxis {
    pub(crate) fn new(range: Range<f64>, labels: Vec<f64>) -> Self {
        Self { range: range.into(), labels }
    }
}

impl Ranged for LabelledAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light points are lines without labels between the labels.
        if hint.weight().allow_light_points() { Vec::new() } else { self.labels.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.range()
    }
}

/// Returns the plot.
pub(super) fn svg(title: &str, panels: &[PlotPanel]) -> Result<String, Failure> {
    svg_column(&[(title, panels.to_vec())])
}

/// Returns one picture with the plots below each other.
pub(super) fn svg_column(plots: &[(&str, Vec<PlotPanel>)]) -> Result<String, Failure> {
    let panels = plots.iter().map(|(_, panels)| panels.len()).max().unwrap_or(0).max(1);
    let pixels = |count: usize, each: u32| u32::try_from(count).unwrap_or(1).saturating_mul(each);
    let size = (pixels(panels, PANEL_WIDTH), pixels(plots.len().max(1), PLOT_HEIGHT));
    picture("time over size", size, |whole| {
        let mut rest = whole.clone();
        for (title, panels) in plots {
            let (area, below) = rest.split_vertically(PLOT_HEIGHT);
            draw_plot(&area, title, panels)?;
            rest = below;
        }
        Ok(())
    })
}

/// Returns a picture with this title, which screen readers read. `draw` draws its content.
pub(crate) fn picture(
    title: &str,
    size: (u32, u32),
    draw: impl FnOnce(&PlotArea<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, Failure> {
    let mut text = String::new();
    let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = whole
        .fill(&WHITE)
        .map_err(Box::from)
        .and_then(|()| draw(&whole))
        .and_then(|()| whole.present().map_err(Box::from));
    drawn.map_err(|cause| Failure::new(format!("cannot draw the plot: {cause}")))?;
    drop(whole);
    Ok(text.replacen(">\n", &format!(">\n<title>{title}</title>\n"), 1))
}

/// Draws the panels of a plot next to each other.
fn draw_plot(area: &PlotArea<'_>, title: &str, panels: &[PlotPanel]) -> Result<(), Box<dyn Error>> {
    let area = area.titled(title, (FONT, 16))?;
    let names = series_names(panels);
    let bytes = value_range(panels, |(bytes, _)| log2_of(bytes));
    let times = decade_range(panels);
    for (panel, area) in panels.iter().zip(area.split_evenly((1, panels.len().max(1)))) {
        draw_panel(&area, panel, &names, bytes, times)?;
    }
    Ok(())
}

/// Draws a panel. The axes have the logarithms of the values, to base 2 for sizes and to base 10
/// for times.
fn draw_panel(
    area: &PlotArea<'_>,
    panel: &PlotPanel,
    names: &[String],
    bytes: (f64, f64),
    times: (f64, f64),
) -> Result<(), Box<dyn Error>> {
    let sizes = whole_numbers(bytes.0, bytes.1).into_iter().filter(|power| *power > 0.0);
    let sizes: Vec<f64> = sizes.step_by(LABEL_STEP_LOG2).collect();
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 13))
        .margin(8)
        .set_label_area_size(LabelAreaPosition::Left, 52)
        .set_label_area_size(LabelAreaPosition::Bottom, 26)
        .build_cartesian_2d(
            LabelledAxis::new(bytes.0..bytes.1, sizes),
            LabelledAxis::new(times.0..times.1, whole_numbers(times.0, times.1)),
        )?;
    chart
        .configure_mesh()
        .x_label_formatter(&|power| size_label(*power))
        .y_label_formatter(&|decade| decade_label(*decade))
        .label_style((FONT, 12))
        .draw()?;
    for series in &panel.series {
        let shape = names.iter().position(|name| *name == series.name).unwrap_or(0);
        let colour = COLOURS[series.colour % COLOURS.len()];
        let mut points: Vec<(f64, f64)> =
            series.points.iter().map(|&(bytes, us)| (log2_of(bytes), us.log10())).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let line = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), line))?
            .label(&series.name)
            .legend(move |at| {
                EmptyElement::at(at)
                    + PathElement::new(vec![(0, 0), (16, 0)], line)
                    + Polygon::new(marker_outline(shape, 8), colour.filled())
            });
        let marker = |&point: &(f64, f64)| {
            EmptyElement::at(point) + Polygon::new(marker_outline(shape, 0), colour.filled())
        };
        chart.draw_series(points.iter().map(marker))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 12))
        .draw()?;
    Ok(())
}

/// Returns the names of all lines of all panels, each once.
fn series_names(panels: &[PlotPanel]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&series.name) {
            names.push(series.name.clone());
        }
    }
    names
}

/// Returns the position of a size on its axis. An operation without a size is at the position 0.
fn log2_of(bytes: f64) -> f64 {
    bytes.max(1.0).log2()
}

/// Returns the smallest and the largest value of all points. If they are equal, returns a larger
/// range.
fn value_range(panels: &[PlotPanel], of: impl Fn((f64, f64)) -> f64) -> (f64, f64) {
    let series = panels.iter().flat_map(|panel| &panel.series);
    let values = series.flat_map(|series| series.points.iter().map(|&point| of(point)));
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    match () {
        () if low > high => (0.0, 1.0),
        () if low == high => (low - 1.0, high + 1.0),
        () => (low, high),
    }
}

/// Returns the powers of ten that enclose all times.
fn decade_range(panels: &[PlotPanel]) -> (f64, f64) {
    let (low, high) = value_range(panels, |(_, us)| us.log10());
    (low.floor(), high.ceil().max(low.floor() + 1.0))
}

/// Returns the whole numbers from `low` to `high`.
fn whole_numbers(low: f64, high: f64) -> Vec<f64> {
    std::iter::successors(Some(low.ceil()), |number| Some(number + 1.0))
        .take_while(|number| *number <= high)
        .collect()
}

/// Formats a power of two of bytes.
#[allow(clippy::cast_possible_truncation, reason = "the exponent of a size is small")]
#[allow(clippy::cast_sign_loss, reason = "only exponents above 0 have labels")]
fn size_label(power: f64) -> String {
    size_text(1usize << (power as u32).min(60))
}

/// Formats a power of ten of microseconds in a suitable unit.
#[allow(clippy::cast_possible_truncation, reason = "the exponent of a time is small")]
fn decade_label(decade: f64) -> String {
    let decade = decade as i32;
    match decade {
        ..0 => format!("{} ns", 10f64.powi(decade + 3)),
        0..3 => format!("{} µs", 10f64.powi(decade)),
        3..6 => format!("{} ms", 10f64.powi(decade - 3)),
        _ => format!("{} s", 10f64.powi(decade - 6)),
    }
}

/// Returns the outline of a marker around the point (`x`, 0): an octagon, a square, a triangle up
/// or down, a diamond, or a crossbar.
fn marker_outline(shape: usize, x: i32) -> Vec<(i32, i32)> {
    let outline: &[(i32, i32)] = match shape % 6 {
        0 => &[(-1, -3), (1, -3), (3, -1), (3, 1), (1, 3), (-1, 3), (-3, 1), (-3, -1)],
        1 => &[(-3, -3), (3, -3), (3, 3), (-3, 3)],
        2 => &[(0, -4), (4, 3), (-4, 3)],
        3 => &[(0, 4), (4, -3), (-4, -3)],
        4 => &[(0, -4), (4, 0), (0, 4), (-4, 0)],
        _ => &[(-4, -1), (4, -1), (4, 1), (-4, 1)],
    };
    outline.iter().map(|&(dx, dy)| (x + dx, dy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: &[(f64, f64)]) -> PlotPanel {
        let series = |name: &str, colour| PlotSeries {
            name: name.to_owned(),
            colour,
            points: points.to_vec(),
        };
        PlotPanel {
            title: "2 ranks".to_owned(),
            series: vec![series("libdist", 0), series("mpich", 2)],
        }
    }

    /// Returns the points of the first line of a plot, in pixels.
    fn first_line(svg: &str) -> Vec<(i32, i32)> {
        // The line in the legend comes later.
        let mut lines = svg.split("<polyline ").skip(1);
        let line = lines.find(|it| it.contains("#0969DA")).unwrap();
        let points = line.split_once("points=\"").unwrap().1.split('"').next().unwrap();
        let pair = |text: &str| {
            let (x, y) = text.split_once(',').unwrap();
            (x.parse().unwrap(), y.parse().unwrap())
        };
        points.split_whitespace().map(pair).collect()
    }

    #[test]
    fn points_are_placed_by_logarithm() {
        let svg = svg("all_reduce", &[panel(&[(4096.0, 100.0), (4.0, 1.0), (128.0, 10.0)])]);
        let svg = svg.unwrap();
        for label in ["4 B", "64 B", "1 KiB", "1 µs", "10 µs", "mpich", "2 ranks", "all_reduce"] {
            assert!(svg.contains(&format!("\n{label}\n")), "{label}: {svg}");
        }
        // Ordered by size, on a straight line.
        let points = first_line(&svg);
        assert_eq!(points.len(), 3, "{svg}");
        let [(x0, y0), (x1, y1), (x2, y2)] = points[..] else { panic!("{points:?}") };
        assert!(x0 < x1 && x1 < x2 && y0 > y1 && y1 > y2, "{points:?}");
        assert!((x0 + x2 - 2 * x1).abs() <= 2 && (y0 + y2 - 2 * y1).abs() <= 2, "{points:?}");
    }

    #[test]
    fn plots_are_below_each_other_in_one_file() {
        let plots = [("all_reduce", vec![panel(&[(4.0, 1.0)])]), ("barrier", vec![])];
        let column = svg_column(&plots).unwrap();
        assert!(column.contains(&format!("height=\"{}\"", 2 * PLOT_HEIGHT)), "{column}");
        assert_eq!(column.matches("<svg").count(), 1);
        let positions = ["\nall_reduce\n", "\nbarrier\n"].map(|name| column.find(name).unwrap());
        assert!(positions[0] < positions[1], "{column}");
    }

    #[test]
    fn every_plot_is_complete() {
        let panels = [panel(&[(4.0, 1.0), (64.0, 3000.0)]), panel(&[(0.0, 0.2)]), panel(&[])];
        for panels in [&panels[..], &panels[1..], &panels[2..], &[]] {
            let svg = svg("barrier", panels).unwrap();
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
            assert!(svg.contains("<title>time over size</title>") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let labels = [-1.0, 0.0, 2.0, 4.0, 6.0].map(decade_label);
        assert_eq!(labels, ["100 ns", "1 µs", "100 µs", "10 ms", "1 s"]);
        assert_eq!(whole_numbers(0.5, 3.0), [1.0, 2.0, 3.0]);
    }
}
