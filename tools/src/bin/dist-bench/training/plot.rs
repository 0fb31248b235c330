//! Draws the plot of `--training`. Each workload has a panel, with one bar per candidate. A bar
//! shows the exposed communication (the time that a step waits for communication) and its
//! confidence interval. The functions do no I/O.

use super::table::describe;
use super::training_results::{CandidateResult, WorkloadResult};
use crate::report::STYLE;

/// Sizes in pixels: a bar and its row, the texts to its left and right, and the margins of a panel.
const BAR: f64 = 14.0;
const ROW: f64 = 22.0;
const LABEL: f64 = 190.0;
const BARS: f64 = 420.0;
const VALUE: f64 = 90.0;
const HEAD: f64 = 30.0;
const TOP: f64 = 34.0;
const MARGIN: f64 = 12.0;

/// Returns the plot.
pub(super) fn svg(all: &[WorkloadResult]) -> String {
    let width = LABEL + BARS + VALUE;
    #[allow(clippy::cast_precision_loss, reason = "the number of bars is small")]
    let rows = |measured: &WorkloadResult| measured_candidates(measured).count() as f64;
    let height = TOP + MARGIN + all.iter().map(|panel| HEAD + ROW * rows(panel)).sum::<f64>();
    let title = "exposed communication of a training step";
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"22\">{title}, ms</text>\n"
    );
    let mut y = TOP;
    for measured in all {
        text.push_str(&format!(
            "<text x=\"{MARGIN}\" y=\"{:.1}\">{}</text>\n",
            y + HEAD - 12.0,
            describe(&measured.workload)
        ));
        y += HEAD;
        let largest = measured_candidates(measured).map(largest_exposed_ns).fold(1.0, f64::max);
        for figures in measured_candidates(measured) {
            draw_bar(&mut text, figures, y, BARS / largest);
            y += ROW;
        }
    }
    text + "</svg>\n"
}

fn measured_candidates(measured: &WorkloadResult) -> impl Iterator<Item = &CandidateResult> {
    measured.candidates.iter().filter(|figures| !figures.runs.is_empty())
}

/// Returns the value at the right end of a bar or of its interval, whichever is larger.
fn largest_exposed_ns(figures: &CandidateResult) -> f64 {
    let exposed = figures.exposed_ns();
    exposed.interval.map_or(exposed.value, |(_, high)| high.max(exposed.value))
}

/// Draws the bar of a candidate. `scale` is the number of pixels per nanosecond.
fn draw_bar(text: &mut String, figures: &CandidateResult, y: f64, scale: f64) {
    let exposed = figures.exposed_ns();
    let length = exposed.value.max(0.0) * scale;
    let colour = if figures.candidate.is_ours() { 0 } else { 1 };
    let (baseline, middle) = (y + BAR - 3.0, y + BAR / 2.0);
    text.push_str(&format!(
        "<text x=\"{:.1}\" y=\"{baseline:.1}\" text-anchor=\"end\">{}</text>\
         <g class=\"c{colour}\"><rect class=\"mark\" x=\"{LABEL}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR}\"/></g>",
        LABEL - 6.0,
        figures.candidate.title()
    ));
    let mut end = length;
    if let Some((low, high)) = exposed.interval {
        let (from, to) = (low.max(0.0) * scale, high.max(0.0) * scale);
        end = end.max(to);
        text.push_str(&format!(
            "<path class=\"frame\" d=\"M{:.1},{middle:.1}H{:.1}\"/>",
            LABEL + from,
            LABEL + to
        ));
    }
    text.push_str(&format!(
        "<text x=\"{:.1}\" y=\"{baseline:.1}\">{:.1}</text>\n",
        LABEL + end + 6.0,
        exposed.value / 1e6
    ));
}

#[cfg(test)]
mod tests {
    use super::super::candidate::Candidate;
    use super::super::training_results::samples::measured;
    use super::*;

    #[test]
    fn each_candidate_has_a_bar_and_its_value() {
        let one = measured(&[(Candidate::Arena, -1.0), (Candidate::TorchGloo, 50.0)]);
        let svg = svg(&[one.clone(), one]);
        assert_eq!(svg.matches("class=\"mark\"").count(), 4);
        for part in [">50.0<", ">torch DDP on Gloo<", "width=\"0.0\"", "model a (200 x 512 KiB)"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"));
    }
}
