//! Compares the time of an all_reduce between two ranks with its lower bound on this machine. The
//! functions do no I/O.

use crate::cell::{BufferKind, CellResult};
use crate::ops::BenchOp;
use crate::result_files::BenchResults;
use crate::text::{microseconds_text, size_text};

/// The time of the shortest all_reduce, in transfers of a cache line from core to core. Each rank
/// writes its value into its own cache line and reads the cache line of the other rank. This takes
/// at least two transfers. It takes half a transfer more, because the two ranks write at the same
/// time, and neither knows when the other writes.
const CACHE_LINES_PER_CALL: f64 = 2.5;
/// The time of a call in addition to the transfers, in nanoseconds.
const CALL_OVERHEAD_NS: f64 = 60.0;

/// The largest all_reduce that fits into a cache line together with its control data.
const INLINE_BYTES: usize = 4;

/// The comparison of one cell (one measured case) with its lower bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BoundShare {
    pub(crate) cell_name: String,
    /// The name of the method that gives the bound.
    pub(crate) bound_label: String,
    pub(crate) bound_ns: f64,
    pub(crate) libdist_ns: f64,
}

impl BoundShare {
    /// Returns the bound divided by libdist's time: 1 is the best possible value.
    pub(crate) fn ratio(&self) -> f64 {
        self.bound_ns / self.libdist_ns.max(1.0)
    }
}

/// Returns the comparisons of all cells that have a bound.
pub(crate) fn bound_shares(results: &BenchResults) -> Vec<BoundShare> {
    let line = results.limits.as_ref().and_then(|limits| limits.cache_line_ns());
    let share = |measured: &CellResult| {
        let CellResult { cell, libdist: ours, bound, .. } = measured;
        let fits = cell.op == BenchOp::AllReduce && cell.ranks == 2 && cell.bytes() <= INLINE_BYTES;
        let (bound, bound_ns) = match (bound, line) {
            (Some(bound), _) => (bound.engine.clone(), bound.p50()),
            (None, Some(line)) if fits => (
                format!("{CACHE_LINES_PER_CALL} cache lines + {CALL_OVERHEAD_NS} ns"),
                CACHE_LINES_PER_CALL * line + CALL_OVERHEAD_NS,
            ),
            _ => return None,
        };
        let [mode, buffers, ..] = cell.variant.describe();
        let what = format!("{} {}, {buffers}, {mode}", cell.op.name(), size_text(cell.bytes()));
        Some(BoundShare { cell_name: what, bound_label: bound, bound_ns, libdist_ns: ours.p50() })
    };
    results.cells.iter().filter_map(share).collect()
}

/// Returns the name of the handwritten method for a kind of buffer.
pub(crate) const fn bound_name(buffers: BufferKind) -> &'static str {
    match buffers {
        BufferKind::Ordinary => "cma_read",
        BufferKind::Arena => "direct",
        BufferKind::Offsets(_) | BufferKind::Device => "nothing",
    }
}

/// Formats the comparisons for users. Returns an empty text if no cell has a bound.
pub(crate) fn shares_text(results: &BenchResults) -> String {
    let shares = bound_shares(results);
    if shares.is_empty() {
        return String::new();
    }
    let mut text = "\nShares of the limits of the machine:\n".to_owned();
    for share in shares {
        let (bound, ours) =
            (microseconds_text(share.bound_ns), microseconds_text(share.libdist_ns));
        text.push_str(&format!(
            "{:>6.2}  {}: {ours} us, {} {bound} us\n",
            share.ratio(),
            share.cell_name,
            share.bound_label
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::samples::{figures, measured};
    use crate::machine_limits::MachineLimits;
    use crate::result_files::samples::results;
    use serde_json::json;

    #[test]
    fn only_cells_with_a_bound_have_a_share() {
        let mut long = measured(BenchOp::AllReduce, 4 << 20, &[]);
        long.bound = Some(figures("cma_read", &[900.0; 3]));
        let cells =
            vec![measured(BenchOp::AllReduce, 4, &[]), long, measured(BenchOp::Broadcast, 4, &[])];
        let mut results = results(cells);
        assert_eq!(bound_shares(&results).len(), 1);
        let limits = json!({"cores": 2, "cache_line_one_way_us": 0.16, "rates": []});
        results.limits = MachineLimits::from_json(&limits);
        let found: Vec<f64> =
            bound_shares(&results).iter().map(|share| (share.ratio() * 100.0).round()).collect();
        assert_eq!(found, [46.0, 90.0]);
        let text = shares_text(&results);
        assert!(text.contains("  0.90  all_reduce 4 MiB, ordinary, rewritten: 1.000 us"), "{text}");
        assert!(text.contains("2.5 cache lines + 60 ns 0.460 us"), "{text}");
    }
}
