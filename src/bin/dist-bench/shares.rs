//! What comes of the machine's limits: how much of what is possible an all_reduce between two ranks
//! reaches. Pure.

use crate::cell::{Buffers, Measured};
use crate::files::Results;
use crate::ops::Op;
use crate::text::{microseconds, size};

/// The shortest all_reduce: each rank shows its value in a line of its own and sees the other's,
/// which is half a line's way more than two, since both do that at once and neither knows when; and
/// a call takes a little before and after.
const LINES: f64 = 2.5;
const CALL_NS: f64 = 60.0;

/// The largest all_reduce that fits into a line, with what else has to be in it.
const ONE_LINE: usize = 4;

/// One cell against what is possible.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) what: String,
    /// What is possible.
    pub(crate) bound: String,
    pub(crate) bound_ns: f64,
    pub(crate) ours_ns: f64,
}

impl Share {
    /// The bound by our time: 1 is all that is possible.
    pub(crate) fn share(&self) -> f64 {
        self.bound_ns / self.ours_ns.max(1.0)
    }
}

/// All cells for which there is a bound.
pub(crate) fn shares(results: &Results) -> Vec<Share> {
    let line = results.limits.as_ref().and_then(|limits| limits.line());
    let share = |measured: &Measured| {
        let Measured { cell, ours, bound, .. } = measured;
        let fits = cell.op == Op::AllReduce && cell.ranks == 2 && cell.bytes() <= ONE_LINE;
        let (bound, bound_ns) = match (bound, line) {
            (Some(bound), _) => (bound.engine.clone(), bound.p50()),
            (None, Some(line)) if fits => {
                (format!("{LINES} cache lines + {CALL_NS} ns"), LINES * line + CALL_NS)
            }
            _ => return None,
        };
        let [mode, buffers, ..] = cell.variant.describe();
        let what = format!("{} {}, {buffers}, {mode}", cell.op.name(), size(cell.bytes()));
        Some(Share { what, bound, bound_ns, ours_ns: ours.p50() })
    };
    results.cells.iter().filter_map(share).collect()
}

/// What is done by hand for a kind of buffer.
pub(crate) const fn bound_name(buffers: Buffers) -> &'static str {
    match buffers {
        Buffers::Ordinary => "cma_read",
        Buffers::Arena => "direct",
        Buffers::Device => "nothing",
    }
}

/// As people read them; nothing where there are none.
pub(crate) fn text(results: &Results) -> String {
    let shares = shares(results);
    if shares.is_empty() {
        return String::new();
    }
    let mut text = "\nShares of the limits of the machine:\n".to_owned();
    for share in shares {
        let (bound, ours) = (microseconds(share.bound_ns), microseconds(share.ours_ns));
        text.push_str(&format!(
            "{:>6.2}  {}: {ours} us, {} {bound} us\n",
            share.share(),
            share.what,
            share.bound
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::{figures, measured};
    use crate::files::samples::results;
    use crate::limits::Limits;
    use serde_json::json;

    #[test]
    fn cells_with_a_bound_have_a_share() {
        let mut long = measured(Op::AllReduce, 4 << 20, &[]);
        long.bound = Some(figures("cma_read", &[900.0; 3]));
        let cells = vec![measured(Op::AllReduce, 4, &[]), long, measured(Op::Broadcast, 4, &[])];
        let mut results = results(cells);
        assert_eq!(shares(&results).len(), 1);
        let limits = json!({"cores": 2, "cache_line_one_way_us": 0.16, "rates": []});
        results.limits = Limits::from_json(&limits);
        let found: Vec<f64> =
            shares(&results).iter().map(|share| (share.share() * 100.0).round()).collect();
        assert_eq!(found, [46.0, 90.0]);
        let text = text(&results);
        assert!(text.contains("  0.90  all_reduce 4 MiB, ordinary, rewritten: 1.000 us"), "{text}");
        assert!(text.contains("2.5 cache lines + 60 ns 0.460 us"), "{text}");
    }
}
