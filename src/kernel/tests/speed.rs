//! How fast the kernels are, against copying: a table for `BENCHMARKS.md`.

use super::*;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The sizes of the table: what stays in the second-level cache, and what does not.
const SIZES: [usize; 2] = [64 << 10, 4 << 20];

/// How long a cell is measured, and in how many parts, of which the fastest counts: others slow the
/// machine down, nothing speeds it up.
const PART: Duration = Duration::from_millis(1);
const PARTS: usize = 30;

/// The bytes per second of something that makes `bytes` of result.
fn speed(bytes: usize, mut act: impl FnMut()) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..PARTS {
        let (began, mut turns) = (Instant::now(), 0);
        while began.elapsed() < PART {
            act();
            turns += 1;
        }
        best = best.min(began.elapsed() / turns);
    }
    bytes as f64 / best.as_secs_f64()
}

/// Buffers of a size, of which each begins at a page, as slots and large buffers do.
struct Pages(Vec<u8>, usize);

impl Pages {
    fn new(bytes: &[u8]) -> Self {
        let mut memory = vec![0; bytes.len() + 4096];
        let start = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr();
        memory[start..start + bytes.len()].copy_from_slice(bytes);
        Self(memory, start)
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.1;
        let end = self.0.len() - (4096 - start);
        &mut self.0[start..end]
    }
}

/// Each type and operator at both sizes, as a share of what copying reaches.
#[test]
#[ignore = "measures: cargo test --release --lib kernel::tests::speed -- --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "a table is what is wanted")]
fn table_of_speeds() {
    for size in SIZES {
        let mut random = Random(1);
        // Ordinary numbers: what is rare must not be what is measured.
        let inputs = |random: &mut Random, dtype: DataType| {
            let one = random.ordinary(dtype, 4096 / dtype.size());
            Pages::new(&one.repeat(size / one.len()))
        };
        let (mut from, mut to) = (inputs(&mut random, DataType::U8), Pages::new(&vec![0; size]));
        let copying = speed(size, || copy(Dst::from(to.bytes()), Src::from(&*from.bytes())));
        println!("\n{} KiB; copying {:.1} GB/s; percent of that:", size >> 10, copying / 1e9);
        let names: Vec<String> = ReduceOp::ALL.iter().map(ToString::to_string).collect();
        println!("| type | {} |", names.join(" | "));
        println!("|---|{}", "--:|".repeat(names.len()));
        for dtype in DataType::ALL {
            let (mut one, mut two) = (inputs(&mut random, dtype), inputs(&mut random, dtype));
            let cells: Vec<String> = ReduceOp::ALL
                .iter()
                .map(|&op| {
                    if !op.is_defined_for(dtype) {
                        return String::new();
                    }
                    let reached = speed(size, || {
                        let sources = [Src::from(&*one.bytes()), Src::from(&*two.bytes())];
                        fold(dtype, op, Dst::from(black_box(to.bytes())), &sources);
                    });
                    format!("{:.0}", 100.0 * reached / copying)
                })
                .collect();
            println!("| {dtype} | {} |", cells.join(" | "));
        }
    }
}
