//! The plots of the summary in `BENCHMARKS.md`. Their data are the tables of the same page, so the
//! plots show what the tables say.

use crate::GeneratedFile;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (860, 320);
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 3] =
    [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44)];
/// The part of a category's width that its bars fill.
const FILLED: f64 = 0.8;
/// The height of the axis divided by the largest value. The legend is above the bars.
const HEADROOM: f64 = 1.4;

/// A chart with a group of bars for each category, and a bar for each series in each group.
#[derive(Debug)]
struct BarChart<'a> {
    title: &'a str,
    y_label: &'a str,
    categories: Vec<String>,
    series: Vec<Bars>,
}

/// The bars of one color.
#[derive(Debug)]
struct Bars {
    name: String,
    /// A value for each category; `None` without a measurement.
    values: Vec<Option<f64>>,
}

/// Returns the plots, by their paths below `docs/plots`.
pub(crate) fn summary_plots(root: &Path) -> Vec<GeneratedFile> {
    let path = root.join("BENCHMARKS.md");
    let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    vec![
        GeneratedFile::new("summary-mpi.svg", draw(&ratio_chart(&page))),
        GeneratedFile::new("summary-store.svg", draw(&store_chart(&page))),
    ]
}

/// Returns the cells of the rows of a table. The table begins after the line `start`.
fn table_rows<'a>(page: &'a str, start: &str) -> Vec<Vec<&'a str>> {
    let (_, rest) = page.split_once(start).unwrap_or_else(|| panic!("no line {start:?}"));
    let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the chart of the ratios to MPI, from the geometric means of the operations.
fn ratio_chart(page: &str) -> BarChart<'static> {
    let rows = table_rows(page, "### Ratio to the time of the best peer\n");
    let ordinary: Vec<_> = rows.iter().filter(|row| row[2].contains(", ordinary,")).collect();
    let mut categories: Vec<String> = Vec::new();
    for row in &ordinary {
        if !categories.iter().any(|name| name == row[0]) {
            categories.push(row[0].to_owned());
        }
    }
    let series = ["2", "4", "8"].map(|ranks| {
        let value = |operation: &String| {
            let row = ordinary.iter().find(|row| row[0] == operation && row[1] == ranks)?;
            row[3].parse().ok()
        };
        Bars { name: format!("{ranks} ranks"), values: categories.iter().map(value).collect() }
    });
    BarChart {
        title: "Time of libdist divided by the time of the faster MPI (below 1: libdist is faster)",
        y_label: "geometric mean",
        categories,
        series: series.into(),
    }
}

/// The rows of the table of the store that the chart shows, and their short names.
const STORE_ROWS: [(&str, &str); 5] = [
    ("1000 sets, then a round trip, 16 B, 1 client, ", "1000 sets"),
    ("get, 16 B, 1 client, ", "get"),
    ("add, 1 client, ", "add"),
    ("wait for an existing key, 16 B, 1 client, ", "wait"),
    ("check, 16 B, 1 client, ", "check"),
];

/// Returns the chart of the store's rates.
fn store_chart(page: &str) -> BarChart<'static> {
    let rows = table_rows(page, "<!-- store:begin -->\n");
    let series = ["one core", "two cores"].map(|cores| {
        let value = |(start, _): &(&str, &str)| {
            let name = format!("{start}{cores}");
            rows.iter().find(|row| row[0] == name)?[3].parse().ok()
        };
        Bars { name: cores.to_owned(), values: STORE_ROWS.iter().map(value).collect() }
    });
    BarChart {
        title: "Calls of the store, 16 B, 1 client (above 1: libdist is faster than torch)",
        y_label: "times as good",
        categories: STORE_ROWS.iter().map(|(_, name)| (*name).to_owned()).collect(),
        series: series.into(),
    }
}

/// Returns a chart as SVG.
fn draw(chart: &BarChart<'_>) -> String {
    let mut text = String::new();
    draw_into(chart, &mut text).expect("a text takes the whole plot");
    text + "\n"
}

fn draw_into(chart: &BarChart<'_>, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let values = chart.series.iter().flat_map(|bars| bars.values.iter().flatten());
    let top = values.fold(1.0, |top: f64, &value| top.max(value)) * HEADROOM;
    let count = f64::from(u32::try_from(chart.categories.len())?);
    let mut plot = ChartBuilder::on(&area)
        .caption(chart.title, (FONT, 15))
        .margin(10)
        .set_label_area_size(LabelAreaPosition::Left, 50)
        .set_label_area_size(LabelAreaPosition::Bottom, 30)
        .build_cartesian_2d(0.0..count, 0.0..top)?;
    plot.configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(6)
        .y_max_light_lines(1)
        .y_desc(chart.y_label)
        .label_style((FONT, 12))
        .draw()?;
    let series_count = f64::from(u32::try_from(chart.series.len())?);
    let width = FILLED / series_count;
    for (bars, (number, color)) in chart.series.iter().zip((0u32..).zip(COLORS)) {
        let begin = (1.0 - FILLED) / 2.0 + width * f64::from(number);
        let measured = (0u32..).zip(&bars.values).filter_map(|(at, value)| Some((at, (*value)?)));
        let rectangles = measured.map(|(category, value)| {
            let left = f64::from(category) + begin;
            Rectangle::new([(left, 0.0), (left + width, value)], color.filled())
        });
        plot.draw_series(rectangles)?
            .label(&bars.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled()));
    }
    plot.draw_series(LineSeries::new([(0.0, 1.0), (count, 1.0)], BLACK))?;
    plot.configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .label_font((FONT, 12))
        .draw()?;
    let (columns, _) = plot.plotting_area().dim_in_pixel();
    let (left, _) = plot.plotting_area().get_base_pixel();
    let width = f64::from(columns) / count;
    let style =
        (FONT, 12).into_font().into_text_style(&area).pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Center,
            plotters::style::text_anchor::VPos::Center,
        ));
    for (number, name) in (0u32..).zip(&chart.categories) {
        #[allow(clippy::cast_possible_truncation, reason = "a number of pixels is small")]
        let center = left + (width * (f64::from(number) + 0.5)) as i32;
        area.draw_text(name, &style, (center, i32::try_from(SIZE.1)? - 25))?;
    }
    area.present()?;
    drop(plot);
    drop(area);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_the_tables_of_the_page() {
        let page = "### Ratio to the time of the best peer\n\n| operation | ranks | called | mean |\n\
                    |---|---:|---|---:|\n| all_reduce | 2 | x, ordinary, y | 0.51 |\n\
                    | all_reduce | 2 | x, arena, y | 0.28 |\n| barrier | 8 | x, ordinary, y | 0.56 |\n\
                    \n<!-- store:begin -->\n\n| | libdist | torch | times |\n|---|---|---|---|\n\
                    | get, 16 B, 1 client, one core | 1 | 2 | 3.77 |\n\n";
        let chart = ratio_chart(page);
        assert_eq!(chart.categories, ["all_reduce", "barrier"]);
        assert_eq!(chart.series[0].values, [Some(0.51), None]);
        assert_eq!(chart.series[2].values, [None, Some(0.56)]);
        assert_eq!(store_chart(page).series[0].values[1], Some(3.77));
        let svg = draw(&chart);
        assert!(svg.starts_with("<svg") && svg.contains("barrier"), "{svg}");
    }
}
