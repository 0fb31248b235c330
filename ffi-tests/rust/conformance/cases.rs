//! The calls to make, their inputs, and what each rank must hold at the end.

use crate::oracle;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;

/// Long vectors repeat after this many elements, so that the oracle has less to do; a prime, so that no
/// chunk begins where another one did.
const PERIOD: usize = 10_007;

/// `len` bytes that repeat `period`.
fn repeat(period: Vec<u8>, len: usize) -> Vec<u8> {
    period.into_iter().cycle().take(len).collect()
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) count: usize,
    pub(crate) in_place: bool,
    pub(crate) algorithm: Option<&'static str>,
    /// Floating-point inputs are such that the result is the same in whatever order they are folded, and however
    /// often what came out for some of them is rounded.
    pub(crate) exact: bool,
}

impl Case {
    /// The operations that cases are of; `moves` has the others.
    pub(crate) const KINDS: [OpKind; 5] = [
        OpKind::AllReduce,
        OpKind::Reduce,
        OpKind::Broadcast,
        OpKind::AllGather,
        OpKind::ReduceScatter,
    ];

    /// The bytes of the count argument.
    pub(crate) fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }
}

/// Every rank's contribution; all ranks compute the same.
pub(crate) struct Inputs(Vec<Vec<u8>>);

impl Inputs {
    pub(crate) fn new(case: &Case, size: usize) -> Self {
        let blocks = if case.kind == OpKind::ReduceScatter { size } else { 1 };
        let count = blocks * case.count;
        let vector = |rank: usize| {
            let seed = (rank as u64 + 1) << 32 | case.dtype as u64;
            let one = |i: usize| {
                let word = mix(seed ^ (i as u64) << 8);
                match case.op {
                    Some(op) if case.exact => {
                        // Of two neighbours, so that there is one sum to round.
                        let counts = [i % size, (i + 1) % size].contains(&rank);
                        exact_element(case.dtype, op, word, counts)
                    }
                    _ => element(case.dtype, word),
                }
            };
            repeat((0..count.min(PERIOD)).flat_map(one).collect(), count * case.dtype.size())
        };
        Self((0..size).map(vector).collect())
    }

    pub(crate) fn of(&self, rank: usize) -> &[u8] {
        &self.0[rank]
    }

    /// A rank's factor for `PREMUL_SUM`.
    pub(crate) fn factor(rank: usize) -> f64 {
        0.5 + [1.0, 0.25, 2.0][rank % 3]
    }
}

/// A case with its inputs and what must come out, computed once for all ranks.
pub(crate) struct Prepared {
    pub(crate) inputs: Inputs,
    pub(crate) root: usize,
    /// What the ranks get: the same for all, or one block each.
    output: Vec<u8>,
}

/// Part of an output, as it must be.
pub(crate) struct Expected<'a> {
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
}

impl Prepared {
    pub(crate) fn new(case: &Case, size: usize) -> Self {
        let inputs = Inputs::new(case, size);
        let root = case.count % size;
        let output = match (case.kind, case.op) {
            (OpKind::Broadcast, _) => inputs.of(root).to_vec(),
            (_, Some(op)) => fold(case, op, &inputs, size),
            (_, None) => inputs.0.concat(),
        };
        Self { inputs, root, output }
    }

    pub(crate) fn expected(&self, case: &Case, rank: usize) -> Expected<'_> {
        let block = case.bytes();
        match case.kind {
            OpKind::Reduce if rank != self.root => Expected { offset: 0, bytes: &[] },
            OpKind::ReduceScatter => Expected {
                offset: if case.in_place { rank * block } else { 0 },
                bytes: &self.output[rank * block..][..block],
            },
            _ => Expected { offset: 0, bytes: &self.output },
        }
    }
}

/// The fold of the inputs of all ranks in their order.
fn fold(case: &Case, op: ReduceOp, inputs: &Inputs, size: usize) -> Vec<u8> {
    let width = case.dtype.size();
    let one = |i: usize| {
        let at = i * width;
        let scaled = |rank: usize| {
            let element = &inputs.0[rank][at..at + width];
            match op {
                ReduceOp::PremulSum => {
                    oracle::scale_element(case.dtype, Inputs::factor(rank), element)
                }
                _ => element.to_vec(),
            }
        };
        let elements: Vec<Vec<u8>> = (0..size).map(scaled).collect();
        let borrowed: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
        oracle::fold_element(case.dtype, op, &borrowed)
    };
    let len = inputs.of(0).len();
    repeat((0..PERIOD.min(len / width)).flat_map(one).collect(), len)
}

/// An element made of a random word: any bits for integers, for floats mostly ordinary numbers and now
/// and then any bits, NaN and infinities among them.
fn element(dtype: DataType, word: u64) -> Vec<u8> {
    let ordinary = !word.is_multiple_of(16);
    let real = |part: DataType, word: u64| {
        let value = f64::from(u32::try_from(word >> 40).unwrap()) / 1024.0 - 8000.0;
        match part {
            _ if !ordinary => word.to_le_bytes()[..part.size()].to_vec(),
            DataType::F64 => value.to_le_bytes().to_vec(),
            #[allow(clippy::cast_possible_truncation, reason = "any nearby number will do")]
            _ => oracle::to_bytes(oracle::encode(part, (value / 1000.0) as f32), part.size()),
        }
    };
    match dtype {
        DataType::C64 => [real(DataType::F32, word), real(DataType::F32, mix(word))].concat(),
        DataType::C128 => [real(DataType::F64, word), real(DataType::F64, mix(word))].concat(),
        _ if dtype.is_float() => real(dtype, word),
        _ => word.to_le_bytes()[..dtype.size()].to_vec(),
    }
}

/// An element for exact results; `counts` where its rank is one of the two whose scaled or divided elements are not zero.
fn exact_element(dtype: DataType, op: ReduceOp, word: u64, counts: bool) -> Vec<u8> {
    let pick =
        |values: &[f32], word: u64| values[usize::try_from(word >> 32).unwrap() % values.len()];
    let value = |word: u64| match op {
        ReduceOp::Sum => pick(&[-1.0, 0.0, 1.0], word),
        // Parts of averages are divided one by one.
        ReduceOp::Avg if counts => pick(&[-1.0, 0.0, 1.0], word),
        ReduceOp::Product => pick(&[1.0, -1.0, 2.0, 0.5], word),
        ReduceOp::PremulSum if counts => pick(&[-1.0, 1.0, 2.0], word),
        _ => 0.0,
    };
    let real = |part: DataType, word: u64| match part {
        DataType::F64 => f64::from(value(word)).to_le_bytes().to_vec(),
        _ => oracle::to_bytes(oracle::encode(part, value(word)), part.size()),
    };
    match (dtype, op) {
        (_, ReduceOp::Min | ReduceOp::Max) => element(dtype, word),
        (DataType::C64, _) => [real(DataType::F32, word), real(DataType::F32, mix(word))].concat(),
        (DataType::C128, _) => [real(DataType::F64, word), real(DataType::F64, mix(word))].concat(),
        _ if dtype.is_float() => real(dtype, word),
        _ => element(dtype, word),
    }
}

/// SplitMix64's finaliser (Steele, Lea, Flood, 2014): spreads the bits of a counter.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
