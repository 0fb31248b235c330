//! Tests of every kernel against the oracle, bit for bit. They cover each type, operator and
//! instruction set, vector lengths around the block size, one to eight sources, in-place folds into
//! each source, and unaligned buffers.

mod averages;
mod conversions;
#[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
mod float_modes;
mod oracle;
mod reference_vectors;
mod speed;

use super::*;

#[cfg(not(miri))]
const COUNTS: [usize; 8] = [0, 1, 3, 17, 255, 256, 257, 1023];
#[cfg(not(miri))]
const SOURCES: [usize; 6] = [1, 2, 3, 4, 5, 8];

// Miri checks the memory accesses, not the values, so few cases are enough.
#[cfg(miri)]
const COUNTS: [usize; 3] = [0, 1, 257];
#[cfg(miri)]
const SOURCES: [usize; 2] = [1, 3];

fn instruction_sets() -> Vec<Isa> {
    let mut all = vec![Isa::Portable];
    if Isa::best() != Isa::Portable {
        all.push(Isa::best());
    }
    all
}

/// The random generator xorshift64*, which gives the same inputs in every run.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns the bits of one element. The element has arbitrary bits, or is a number of ordinary
    /// size, or is zero, infinity, NaN or a neighbour of one of these.
    fn element(&mut self, dtype: DataType) -> Vec<u8> {
        let size = dtype.size();
        if dtype.is_complex() {
            let part = if dtype == DataType::C64 { DataType::F32 } else { DataType::F64 };
            return [self.element(part), self.element(part)].concat();
        }
        let any = self.next();
        let mantissa = match dtype {
            DataType::F16 => 10,
            DataType::Bf16 => 7,
            DataType::F32 => 23,
            DataType::F64 => 52,
            _ => return oracle::to_bytes(any, size),
        };
        let top = size * 8 - 1;
        let infinity = (1u64 << top) - (1 << mantissa);
        // This is the code of 1: its exponent has all bits set except the first. The exponents of
        // ordinary numbers are next to it.
        let one = (infinity / 2) >> mantissa << mantissa;
        let sign = (any >> 63) << top;
        let magnitude = match self.next() % 16 {
            0 => 0,
            1 => infinity - (any & 1),
            2 => infinity + 1 + any % (1 << (mantissa - 1)),
            3 => any % (4 << mantissa),
            4..8 => any & (infinity | ((1 << mantissa) - 1)),
            _ => one - (2 << mantissa) + any % (4 << mantissa),
        };
        oracle::to_bytes(sign | magnitude, size)
    }

    /// Returns elements of ordinary size, none of them zero or special.
    fn ordinary_elements(&mut self, dtype: DataType, count: usize) -> Vec<u8> {
        let size = dtype.size();
        let mut number = || {
            let any = self.next();
            let part = |bytes: &mut [u8]| match bytes.len() {
                4 => bytes.copy_from_slice(&(1.0 + (any % 1000) as f32 / 512.0).to_le_bytes()),
                _ => bytes.copy_from_slice(&(1.0 + (any % 1000) as f64 / 512.0).to_le_bytes()),
            };
            let mut bytes = vec![0; size];
            match dtype {
                DataType::F32 | DataType::F64 => part(&mut bytes),
                DataType::C64 | DataType::C128 => bytes.chunks_mut(size / 2).for_each(part),
                // These are codes of numbers between 1 and 2.
                DataType::F16 => bytes = oracle::to_bytes(0x3c00 | any & 0x3ff, 2),
                DataType::Bf16 => bytes = oracle::to_bytes(0x3f80 | any & 0x7f, 2),
                DataType::F8E4M3 => bytes[0] = 0x38 | (any & 7) as u8,
                DataType::F8E5M2 => bytes[0] = 0x3c | (any & 3) as u8,
                _ => bytes[0] = any.to_le_bytes()[0],
            }
            bytes
        };
        (0..count).flat_map(|_| number()).collect()
    }

    fn elements(&mut self, dtype: DataType, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.element(dtype)).collect()
    }
}

/// A buffer that starts `offset` bytes after an aligned address.
struct UnalignedBuffer {
    words: Vec<u128>,
    offset: usize,
    len: usize,
}

impl UnalignedBuffer {
    fn new(bytes: &[u8], offset: usize) -> Self {
        let words = vec![0; (bytes.len() + offset).div_ceil(16) + 1];
        let mut buffer = Self { words, offset, len: bytes.len() };
        copy(buffer.dst(), bytes.into());
        buffer
    }

    fn dst(&mut self) -> Dst<'_> {
        let start = self.words.as_mut_ptr().cast::<u8>().wrapping_add(self.offset);
        // SAFETY: `words` has at least `offset + len` bytes, and is borrowed as long as the view.
        unsafe { Dst::new(start, self.len) }
    }

    fn src(&self) -> Src<'_> {
        let start = self.words.as_ptr().cast::<u8>().wrapping_add(self.offset);
        // SAFETY: as in `dst`.
        unsafe { Src::new(start, self.len) }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        copy(Dst::from(&mut bytes[..]), self.src());
        bytes
    }
}

fn expected(dtype: DataType, op: ReduceOp, inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size();
    (0..inputs[0].len() / size)
        .flat_map(|i| {
            let elements: Vec<&[u8]> = inputs.iter().map(|s| &s[i * size..][..size]).collect();
            oracle::fold_element(dtype, op, &elements)
        })
        .collect()
}

/// Checks folds on every instruction set, into a separate buffer and in place into each source.
/// There are two additional destinations: a separate buffer and the memory of the next source.
fn check_fold(dtype: DataType, op: ReduceOp, inputs: &[Vec<u8>]) {
    let expected = expected(dtype, op, inputs);
    let (count, size) = (expected.len() / dtype.size(), inputs.len());
    for isa in instruction_sets() {
        let kernel = table::fold_kernel(isa, dtype, op).unwrap();
        for in_place in 0..=size {
            let offset = |position: usize| (position + in_place + size) % 2;
            let extra_buffers = [vec![0xa5; expected.len()], vec![0x5a; expected.len()]];
            let all = inputs.iter().chain(&extra_buffers).enumerate();
            let mut buffers: Vec<UnalignedBuffer> =
                all.map(|(i, s)| UnalignedBuffer::new(s, offset(i))).collect();
            let next = (in_place + 1) % size;
            let mut results = vec![in_place, size + 1];
            results.extend((in_place < size && next != in_place).then_some(next));
            // SAFETY: the memory outlives the call, and during the call its owners use it only
            // through views.
            let detached_view = |dst: Dst<'_>| unsafe { Dst::new(dst.as_mut_ptr(), dst.len()) };
            let dsts: Vec<Dst<'_>> =
                results.iter().map(|&i| detached_view(buffers[i].dst())).collect();
            let views: Vec<Src<'_>> = buffers[..size].iter().map(UnalignedBuffer::src).collect();
            let target = FoldTarget { dst: dsts[0], extra_dsts: &dsts[1..] };
            // SAFETY: all views have the same length, of whole elements; this processor has `isa`.
            unsafe { kernel(target, &views, size) }
            for &position in &results {
                let result = buffers[position].bytes();
                let differs = result.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(
                    differs.is_none(),
                    "{op} on {dtype}, {isa:?}, {size} sources, {count} elements, in place at {in_place}, result {position}: \
                     byte {differs:?} differs"
                );
            }
        }
    }
}

fn check_type(dtype: DataType) {
    for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(dtype)) {
        let mut random = XorShift(0x9e37_79b9_7f4a_7c15);
        for count in COUNTS {
            for sources in SOURCES {
                let inputs: Vec<Vec<u8>> =
                    (0..sources).map(|_| random.elements(dtype, count)).collect();
                check_fold(dtype, op, &inputs);
            }
        }
    }
}

macro_rules! fold_tests {
    ($($name:ident: $dtypes:expr;)*) => {$(
        #[test]
        fn $name() {
            $dtypes.into_iter().for_each(check_type);
        }
    )*};
}

// The tests are split by groups of types, so that they run in parallel.
fold_tests! {
    folds_bytes: [DataType::I8, DataType::U8, DataType::Bool];
    folds_short_integers: [DataType::I16, DataType::U16];
    folds_integers: [DataType::I32, DataType::U32];
    folds_long_integers: [DataType::I64, DataType::U64];
    folds_halves: [DataType::F16, DataType::Bf16];
    folds_floats: [DataType::F32, DataType::F64];
    folds_complex: [DataType::C64, DataType::C128];
    folds_float8: [DataType::F8E4M3, DataType::F8E5M2];
}

#[test]
fn signed_zeros_are_ordered_at_every_position() {
    for (op, want) in [(ReduceOp::Min, -0.0f32), (ReduceOp::Max, 0.0)] {
        for (first, second) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
            let inputs = [first, second].map(|v| oracle::to_bytes(v.to_bits().into(), 4));
            let mut result = [0; 4];
            let views = [Src::from(&inputs[0][..]), Src::from(&inputs[1][..])];
            fold(DataType::F32, op, Dst::from(&mut result[..]), &views);
            assert_eq!(oracle::element_bits(&result), u64::from(want.to_bits()), "{op}");
        }
    }
}

#[test]
fn one_buffer_may_be_every_source_and_the_destination() {
    let mut bytes = vec![3u8; 1000];
    let dst = Dst::from(&mut bytes[..]);
    fold(DataType::U8, ReduceOp::Sum, dst, &[dst.as_src(); 3]);
    assert_eq!(bytes, vec![9; 1000]);
}

#[test]
fn scales_every_type() {
    let mut random = XorShift(0x0123_4567_89ab_cdef);
    for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for (factor, count) in
            [0.5, -1.0, 1.0 / 3.0, 1e300, f64::NAN].into_iter().zip(COUNTS.into_iter().rev())
        {
            let input = random.elements(dtype, count);
            let expected: Vec<u8> = input
                .chunks(dtype.size())
                .flat_map(|element| oracle::scale_element(dtype, factor, element))
                .collect();
            for isa in instruction_sets() {
                let kernel = table::scale_kernel(isa, dtype).unwrap();
                let mut target = UnalignedBuffer::new(&vec![0xa5; input.len()], 1);
                // SAFETY: the lengths are equal, of whole elements; this processor has `isa`.
                unsafe { kernel(target.dst(), Src::from(&input[..]), factor) }
                assert!(target.bytes() == expected, "{dtype} times {factor}, {isa:?}");
                let mut in_place = UnalignedBuffer::new(&input, 1);
                let dst = in_place.dst();
                // SAFETY: as above.
                unsafe { kernel(dst, dst.as_src(), factor) }
                assert!(in_place.bytes() == expected, "{dtype} times {factor} in place");
            }
        }
    }
}

#[test]
fn copies_with_any_overlap() {
    let original: Vec<u8> = (0..=255).collect();
    for (from, to) in [(0, 0), (0, 1), (1, 0), (0, 100), (100, 0)] {
        let mut bytes = original.clone();
        let whole = Dst::from(&mut bytes[..]);
        copy(whole.slice(to, 150), whole.as_src().slice(from, 150));
        assert_eq!(bytes[to..to + 150], original[from..from + 150]);
    }
    copy(Dst::empty(), Src::empty());
}

#[test]
fn empty_folds_touch_nothing() {
    fold(DataType::C128, ReduceOp::Sum, Dst::empty(), &[Src::empty()]);
    scale_copy(DataType::F16, 2.0, Dst::empty(), Src::empty());
}

/// Returns the text with which a call panics.
fn panic_message(call: impl FnOnce(Dst<'_>, Src<'_>) + std::panic::UnwindSafe) -> String {
    let outcome = std::panic::catch_unwind(|| {
        let (mut target, source) = ([0u8; 6], [0u8; 6]);
        call(Dst::from(&mut target[..]), Src::from(&source[..]));
    });
    *outcome.unwrap_err().downcast::<String>().unwrap()
}

#[test]
fn invalid_arguments_panic_with_a_reason() {
    let max = ReduceOp::Max;
    let undefined = panic_message(|dst, src| fold(DataType::C64, max, dst, &[src]));
    assert!(undefined.contains("MAX is not defined on c64"), "{undefined}");
    let broken = panic_message(|dst, src| fold(DataType::F32, max, dst, &[src]));
    assert!(broken.contains("6 bytes are not a whole number of f32"), "{broken}");
    let short = panic_message(|dst, src| fold(DataType::U8, max, dst, &[src, src.slice(0, 5)]));
    assert!(short.contains("5 bytes for a destination of 6"), "{short}");
    let short = panic_message(|dst, src| {
        let target = FoldTarget { dst, extra_dsts: &[dst.slice(0, 5)] };
        fold_to_all(DataType::U8, max, target, &[src]);
    });
    assert!(short.contains("5 bytes for a destination of 6"), "{short}");
    let short = panic_message(|dst, src| copy(dst, src.slice(0, 5)));
    assert!(short.contains("5 bytes for a destination of 6"), "{short}");
    let short = panic_message(|dst, src| scale_copy(DataType::F16, 1.0, dst, src.slice(0, 4)));
    assert!(short.contains("4 bytes for a destination of 6"), "{short}");
    let integer = panic_message(|dst, src| scale_copy(DataType::I16, 1.0, dst, src));
    assert!(integer.contains("PREMUL_SUM is not defined on i16"), "{integer}");
    let integer = panic_message(|dst, src| fold_average(DataType::I16, dst, &[src], 2));
    assert!(integer.contains("partial averages of i16 elements"), "{integer}");
    let integer = panic_message(|dst, src| add_to_average(DataType::I16, dst, src, src, 2));
    assert!(integer.contains("i16 elements cannot be added"), "{integer}");
}

#[test]
#[should_panic(expected = "at least one source")]
fn fold_without_sources_panics() {
    fold(DataType::U8, ReduceOp::Sum, Dst::empty(), &[]);
}
