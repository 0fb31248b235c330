//! Draws a plot as SVG: panels in a row with logarithmic axes, and a legend. Labels are SVG text,
//! not shapes. The colours follow the reader's light or dark mode. Each line has its own marker
//! shape, so that the plot is readable without colours. The functions do no I/O.

use crate::text::size_text;

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

/// The size of a panel's frame, and the margins around it, in pixels.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 46.0;
const LEGEND: f64 = 20.0;

/// Two neighbouring labels of the size axis differ by the factor 2 to the power of this number.
const LABEL_STEP_LOG2: i32 = 4;

/// The style of all plots.
pub(crate) const STYLE: &str = "\
svg{font:11px system-ui,sans-serif}.bg{fill:#fff}text{fill:#1f2328}.title{font-size:14px;font-weight:600}\
.frame{fill:none;stroke:#8c959f}.grid{stroke:#d8dee4}.line{fill:none;stroke-width:1.5}\
.c0{color:#0969da}.c1{color:#bc4c00}.c2{color:#1a7f37}.c3{color:#8250df}.c4{color:#9a6700}.c5{color:#bf3989}\
.line{stroke:currentColor}.mark{fill:currentColor}\
@media(prefers-color-scheme:dark){.bg{fill:#0d1117}text{fill:#e6edf3}.frame{stroke:#6e7681}.grid{stroke:#30363d}\
.c0{color:#58a6ff}.c1{color:#ffa657}.c2{color:#56d364}.c3{color:#d2a8ff}.c4{color:#e3b341}.c5{color:#f778ba}}";

const COLOURS: usize = 6;

/// A mapping from values to a range of pixels.
#[derive(Clone, Copy, Debug)]
struct PlotAxis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl PlotAxis {
    fn pixel(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE);
        self.from + share * (self.to - self.from)
    }
}

/// Returns the plot.
pub(super) fn svg(title: &str, panels: &[PlotPanel]) -> String {
    let (width, height) = plot_size(panels);
    svg_head(&format!("{title}: time over size"), width, height)
        + &plot_body(title, panels, width)
        + "</svg>\n"
}

/// Returns one picture with the plots below each other.
pub(super) fn svg_column(plots: &[(&str, Vec<PlotPanel>)]) -> String {
    let sizes: Vec<(f64, f64)> = plots.iter().map(|(_, panels)| plot_size(panels)).collect();
    let width = sizes.iter().fold(LEFT + WIDTH + RIGHT, |widest, &(width, _)| widest.max(width));
    let height = sizes.iter().map(|&(_, height)| height).sum();
    let mut text = svg_head("time over size", width, height);
    let mut top = 0.0;
    for ((title, panels), (width, height)) in plots.iter().zip(sizes) {
        let body = plot_body(title, panels, width);
        text.push_str(&format!("<g transform=\"translate(0,{top:.0})\">\n{body}</g>\n"));
        top += height;
    }
    text + "</svg>\n"
}

/// Returns the width and the height of a plot in pixels.
fn plot_size(panels: &[PlotPanel]) -> (f64, f64) {
    #[allow(clippy::cast_precision_loss, reason = "the number of panels and lines is small")]
    let (panel_count, lines) = (panels.len().max(1) as f64, series_names(panels).len() as f64);
    let width = panel_count * (LEFT + WIDTH + RIGHT);
    let legend_rows = (lines * 120.0 / width).ceil();
    (width, TOP + HEIGHT + BOTTOM + legend_rows * LEGEND)
}

fn svg_head(title: &str, width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n",
    )
}

/// Returns the elements of a plot of this width.
fn plot_body(title: &str, panels: &[PlotPanel], width: f64) -> String {
    let names = series_names(panels);
    let mut text = format!("<text class=\"title\" x=\"{LEFT}\" y=\"20\">{title}</text>\n");
    let (bytes, times) =
        (value_range(panels, |(bytes, _)| bytes.max(1.0).log2()), decade_range(panels));
    let mut left = 0.0;
    for panel in panels {
        let x =
            PlotAxis { low: bytes.0, high: bytes.1, from: left + LEFT, to: left + LEFT + WIDTH };
        let y = PlotAxis { low: times.0, high: times.1, from: TOP + HEIGHT, to: TOP };
        draw_frame(&mut text, panel, x, y);
        for series in &panel.series {
            let shape = names.iter().position(|(name, _)| *name == series.name).unwrap_or(0);
            draw_line(&mut text, series, shape, x, y);
        }
        left += LEFT + WIDTH + RIGHT;
    }
    draw_legend(&mut text, &names, width);
    text
}

/// Returns the names of all lines of all panels, each once, with its colour.
fn series_names(panels: &[PlotPanel]) -> Vec<(String, usize)> {
    let mut names: Vec<(String, usize)> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        if names.iter().all(|(name, _)| *name != series.name) {
            names.push((series.name.clone(), series.colour % COLOURS));
        }
    }
    names
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

/// Draws the frame of a panel with the labels of its axes.
fn draw_frame(text: &mut String, panel: &PlotPanel, x: PlotAxis, y: PlotAxis) {
    let middle = f64::midpoint(x.from, x.to);
    text.push_str(&format!(
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
        TOP - 8.0,
        panel.title
    ));
    #[allow(clippy::cast_possible_truncation, reason = "exponents of times and sizes are small")]
    let (decades, powers) = (y.low as i32..=y.high as i32, x.low.ceil() as i32..=x.high as i32);
    for decade in decades {
        let at = y.pixel(f64::from(decade));
        text.push_str(&format!(
            "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            x.from,
            x.to,
            x.from - 6.0,
            at + 4.0,
            decade_label(decade)
        ));
    }
    let first = *powers.start();
    for power in powers.filter(|power| (power - first) % LABEL_STEP_LOG2 == 0 && *power > 0) {
        let at = x.pixel(f64::from(power));
        text.push_str(&format!(
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            y.to,
            y.from,
            y.from + 16.0,
            size_text(1usize << power.clamp(0, 60))
        ));
    }
    text.push_str(&format!(
        "<rect class=\"frame\" x=\"{:.1}\" y=\"{:.1}\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        x.from, y.to
    ));
}

/// Formats a power of ten of microseconds in a suitable unit.
fn decade_label(decade: i32) -> String {
    match decade {
        ..0 => format!("{} ns", 10f64.powi(decade + 3)),
        0..3 => format!("{} µs", 10f64.powi(decade)),
        3..6 => format!("{} ms", 10f64.powi(decade - 3)),
        _ => format!("{} s", 10f64.powi(decade - 6)),
    }
}

fn draw_line(text: &mut String, series: &PlotSeries, shape: usize, x: PlotAxis, y: PlotAxis) {
    let mut points: Vec<(f64, f64)> = series
        .points
        .iter()
        .map(|&(bytes, us)| (x.pixel(bytes.max(1.0).log2()), y.pixel(us.log10())))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let coordinates: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let marks: String = points.iter().map(|&point| marker_path(shape, point)).collect();
    text.push_str(&format!(
        "<g class=\"c{}\"><polyline class=\"line\" points=\"{}\"/>{marks}</g>\n",
        series.colour % COLOURS,
        coordinates.join(" ")
    ));
}

/// Draws a marker: a circle, a square, a triangle up or down, a diamond, or a crossbar.
fn marker_path(shape: usize, (x, y): (f64, f64)) -> String {
    let path = match shape % 6 {
        0 => return format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"),
        1 => "m-3,-3h6v6h-6z",
        2 => "m0,-4l4,7h-8z",
        3 => "m0,4l4,-7h-8z",
        4 => "m0,-4l4,4l-4,4l-4,-4z",
        _ => "m-4,-1h8v2h-8z",
    };
    format!("<path class=\"mark\" d=\"M{x:.1},{y:.1}{path}\"/>")
}

fn draw_legend(text: &mut String, names: &[(String, usize)], width: f64) {
    let (mut x, mut y) = (LEFT, TOP + HEIGHT + BOTTOM - 4.0);
    for (shape, (name, colour)) in names.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "the length of a name is small")]
        let needed = 30.0 + 7.0 * name.len() as f64;
        if x + needed > width && x > LEFT {
            (x, y) = (LEFT, y + LEGEND);
        }
        text.push_str(&format!(
            "<g class=\"c{colour}\"><path class=\"line\" d=\"M{:.1},{y:.1}h20\"/>{}</g>\
             <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
            x - 4.0,
            marker_path(shape, (x + 6.0, y)),
            x + 21.0,
            y + 4.0
        ));
        x += needed;
    }
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

    #[test]
    fn points_are_placed_by_logarithm() {
        let x = PlotAxis { low: 2.0, high: 12.0, from: 0.0, to: 100.0 };
        assert_eq!([2.0, 7.0, 12.0].map(|power| x.pixel(power)), [0.0, 50.0, 100.0]);
        let svg = svg("all_reduce", &[panel(&[(4096.0, 10.0), (4.0, 1.0)])]);
        // From the lower left to the upper right corner of the frame, ordered by size.
        let (bottom, right) = (TOP + HEIGHT, LEFT + WIDTH);
        assert!(
            svg.contains(&format!("points=\"{LEFT:.1},{bottom:.1} {right:.1},{TOP:.1}\"")),
            "{svg}"
        );
        for label in ["4 B", "64 B", "1 KiB", "1 µs", "10 µs", ">mpich<", ">2 ranks<"] {
            assert!(svg.contains(label), "{label}");
        }
    }

    #[test]
    fn plots_are_below_each_other_in_one_file() {
        let plots = [("all_reduce", vec![panel(&[(4.0, 1.0)])]), ("barrier", vec![])];
        let column = svg_column(&plots);
        let (_, first) = plot_size(&plots[0].1);
        let (_, second) = plot_size(&plots[1].1);
        assert!(column.contains(&format!("translate(0,{first:.0})")), "{column}");
        assert!(column.contains(&format!("height=\"{:.0}\"", first + second)), "{column}");
        assert_eq!(column.matches("<svg").count(), 1);
        assert!(column.contains(">all_reduce<") && column.contains(">barrier<"), "{column}");
    }

    #[test]
    fn svg_elements_are_closed() {
        let panels = [panel(&[(4.0, 1.0), (64.0, 3000.0)]), panel(&[(0.0, 0.2)]), panel(&[])];
        for panels in [&panels[..], &panels[1..], &panels[2..], &[]] {
            let svg = svg("barrier", panels);
            assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
        }
        assert_eq!(
            [-1, 0, 2, 4, 6].map(decade_label),
            ["100 ns", "1 µs", "100 µs", "10 ms", "1 s"]
        );
    }
}
