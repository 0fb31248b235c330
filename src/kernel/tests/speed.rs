//! Measurements of the kernels' throughput relative to copies: a table for `BENCHMARKS.md`.

use super::*;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The sizes of the table in bytes. The first size fits in the L2 cache, the second does not.
const SIZES: [usize; 2] = [64 << 10, 4 << 20];

/// The time of one sample.
const SAMPLE_TIME: Duration = Duration::from_millis(1);
/// The number of samples of a cell. The fastest sample counts, because other programs can only slow
/// the machine down.
const SAMPLES: usize = 30;

/// Returns the throughput of a function that produces `bytes` bytes of result, in bytes per second.
fn measure_throughput(bytes: usize, mut run: impl FnMut()) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..SAMPLES {
        let (began, mut iterations) = (Instant::now(), 0);
        while began.elapsed() < SAMPLE_TIME {
            run();
            iterations += 1;
        }
        best = best.min(began.elapsed() / iterations);
    }
    bytes as f64 / best.as_secs_f64()
}

/// A buffer that starts at a page, as data slots and large buffers do.
struct PageAlignedBuffer(Vec<u8>, usize);

impl PageAlignedBuffer {
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

/// Prints the throughput of each type and operator at both sizes, as a percentage of the throughput
/// of copies.
#[test]
#[ignore = "measures: cargo test --release --lib kernel::tests::speed -- --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "the test prints a table")]
fn throughput_table() {
    for size in SIZES {
        let mut random = XorShift(1);
        // The inputs are ordinary numbers, so that the measurement does not depend on the cost of
        // special values.
        let inputs = |random: &mut XorShift, dtype: DataType| {
            let one = random.ordinary_elements(dtype, 4096 / dtype.size());
            PageAlignedBuffer::new(&one.repeat(size / one.len()))
        };
        let (mut from, mut to) =
            (inputs(&mut random, DataType::U8), PageAlignedBuffer::new(&vec![0; size]));
        let copy_throughput =
            measure_throughput(size, || copy(Dst::from(to.bytes()), Src::from(&*from.bytes())));
        println!(
            "\n{} KiB; copying {:.1} GB/s; percent of that:",
            size >> 10,
            copy_throughput / 1e9
        );
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
                    let throughput = measure_throughput(size, || {
                        let sources = [Src::from(&*one.bytes()), Src::from(&*two.bytes())];
                        fold(dtype, op, Dst::from(black_box(to.bytes())), &sources);
                    });
                    format!("{:.0}", 100.0 * throughput / copy_throughput)
                })
                .collect();
            println!("| {dtype} | {} |", cells.join(" | "));
        }
    }
}
