//! Averages of integers: a sum of MPI in a representation that holds the exact sum, and a division
//! at the end.
//!
//! An integer of 8, 16 or 32 bits becomes one word of 64 bits. An integer of 64 bits becomes two
//! words: its quotient by the number of ranks, and the remainder. The sum of all vectors is then
//! the sum of the quotients times the number of ranks, plus the sum of the remainders. Neither sum
//! overflows.

use super::{Address, Call, Collective, src_view};
use crate::base::buffer::Src;
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use crate::failure::Result;
use crate::interface::*;
use crate::types;

/// The size of a word.
const WORD: usize = size_of::<u64>();

/// The sums of an average of integers, and the place of the result.
#[derive(Debug)]
pub(super) struct IntegerSums {
    dtype: DataType,
    sums: Address,
    result: Address,
    /// The number of elements of the result.
    count: usize,
}

/// Returns true if a call is an average of integers.
pub(super) fn is_integer_average(call: &Call<'_>) -> bool {
    ReduceOp::from_number(call.operation.op).is_ok_and(|op| op.is_integer_average(call.dtype))
}

fn is_signed(dtype: DataType) -> bool {
    matches!(dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64)
}

/// Returns the number of words of an element.
fn words_per_element(dtype: DataType) -> usize {
    if dtype.size() == WORD { 2 } else { 1 }
}

/// Returns the bytes of an element.
fn element_bytes<const N: usize>(elements: Src<'_>, index: usize) -> [u8; N] {
    let mut bytes = [0; N];
    super::copy(elements.slice(index * N, N).as_ptr(), bytes.as_mut_ptr(), N);
    bytes
}

/// Returns an element of an integer type. The upper bits of the word repeat the sign.
fn load(elements: Src<'_>, dtype: DataType, index: usize) -> u64 {
    macro_rules! signed {
        ($int:ty) => {
            i64::from(<$int>::from_ne_bytes(element_bytes(elements, index))).cast_unsigned()
        };
    }
    macro_rules! unsigned {
        ($int:ty) => {
            u64::from(<$int>::from_ne_bytes(element_bytes(elements, index)))
        };
    }
    match dtype {
        DataType::I8 => signed!(i8),
        DataType::I16 => signed!(i16),
        DataType::I32 => signed!(i32),
        DataType::U8 => unsigned!(u8),
        DataType::U16 => unsigned!(u16),
        DataType::U32 => unsigned!(u32),
        // The bits of an i64 are the bits of the word.
        _ => u64::from_ne_bytes(element_bytes(elements, index)),
    }
}

/// Stores the lowest `size` bytes of a word as an integer.
fn store(value: u64, size: usize, to: *mut u8) {
    let bytes = value.to_ne_bytes();
    let start = if cfg!(target_endian = "big") { WORD - size } else { 0 };
    super::copy(bytes[start..].as_ptr(), to, size);
}

/// Writes the words of elements to `to`.
fn widen(dtype: DataType, elements: Src<'_>, to: *mut u8, ranks: u64) {
    let words = words_per_element(dtype);
    for index in 0..elements.len() / dtype.size() {
        let value = load(elements, dtype, index);
        let pair = match (words, is_signed(dtype)) {
            (1, _) => [value, 0],
            (_, true) => {
                let (value, ranks) = (value.cast_signed(), ranks.cast_signed());
                [(value / ranks).cast_unsigned(), (value % ranks).cast_unsigned()]
            }
            (_, false) => [value / ranks, value % ranks],
        };
        for (word, value) in pair[..words].iter().enumerate() {
            store(*value, WORD, to.wrapping_add((index * words + word) * WORD));
        }
    }
}

/// Returns the average of signed numbers, rounded towards zero, from the sum of their quotients and
/// the sum of their remainders.
fn signed_average(quotients: i64, remainders: i64, ranks: i64) -> i64 {
    // The exact sum is `whole * ranks + rest`, with a rest smaller than `ranks`.
    let (whole, rest) = (quotients.wrapping_add(remainders / ranks), remainders % ranks);
    match (whole.signum(), rest.signum()) {
        (1, -1) => whole - 1,
        (-1, 1) => whole + 1,
        _ => whole,
    }
}

impl IntegerSums {
    /// Divides the sums and stores the averages.
    pub(super) fn finish(&self, ranks: usize) {
        let words = words_per_element(self.dtype);
        let sums = src_view(self.sums.0, self.count * words * WORD);
        let ranks = ranks as u64;
        for index in 0..self.count {
            let first = load(sums, DataType::U64, index * words);
            let average = match (words, is_signed(self.dtype)) {
                (1, true) => (first.cast_signed() / ranks.cast_signed()).cast_unsigned(),
                (1, false) => first / ranks,
                (_, is_signed) => {
                    let rest = load(sums, DataType::U64, index * words + 1);
                    if is_signed {
                        signed_average(first.cast_signed(), rest.cast_signed(), ranks.cast_signed())
                            .cast_unsigned()
                    } else {
                        first + rest / ranks
                    }
                }
            };
            let size = self.dtype.size();
            store(average, size, self.result.0.wrapping_add(index * size));
        }
    }
}

impl Collective {
    /// Runs an average of integers as a sum of words.
    pub(super) fn integer_average(&mut self, call: &Call<'_>) -> Result<()> {
        let (operation, group, dtype) = (call.operation, call.group, call.dtype);
        let words = words_per_element(dtype);
        let send_counts = call.list(operation.send_counts);
        let (sent, received) = match operation.kind {
            DIST_KIND_REDUCE_SCATTER => (operation.count * group.size, operation.count),
            DIST_KIND_REDUCE_SCATTER_V => {
                (send_counts.iter().sum(), send_counts.get(group.rank).copied().unwrap_or(0))
            }
            DIST_KIND_REDUCE if !call.is_root() => (operation.count, 0),
            _ => (operation.count, operation.count),
        };
        let send = self.scratch(sent * words * WORD)?;
        let sums = self.scratch(received * words * WORD)?;
        // The words of the blocks are contiguous, in rank order.
        let displs: Vec<usize> = starts(send_counts, words * WORD).collect();
        let ranks = group.size as u64;
        if operation.kind == DIST_KIND_REDUCE_SCATTER_V {
            let offsets = call.list(operation.send_displs);
            for ((&count, &offset), &start) in send_counts.iter().zip(offsets).zip(&displs) {
                let block = src_view(call.send().wrapping_add(offset), count * dtype.size());
                widen(dtype, block, send.wrapping_add(start), ranks);
            }
        } else {
            widen(dtype, src_view(call.send(), sent * dtype.size()), send, ranks);
        }
        let word_counts: Vec<usize> = send_counts.iter().map(|count| count * words).collect();
        let word_type = if is_signed(dtype) { DataType::I64 } else { DataType::U64 };
        let in_words = dist_backend_operation_t {
            dtype: word_type.number(),
            op: ReduceOp::Sum.number(),
            count: operation.count * words,
            recv_count: operation.recv_count * words,
            send: send.cast_const().cast(),
            recv: sums.cast(),
            send_counts: word_counts.as_ptr(),
            send_displs: displs.as_ptr(),
            flags: operation.flags & !u64::from(DIST_BACKEND_IN_PLACE.cast_unsigned()),
            ..*operation
        };
        self.post(&Call {
            operation: &in_words,
            group,
            dtype: word_type,
            datatype: types::datatype(word_type),
            element_bytes: WORD,
        })?;
        let (sums, result) = (Address(sums), Address(call.recv()));
        self.final_work.integer_sums =
            (received > 0).then_some(IntegerSums { dtype, sums, result, count: received });
        Ok(())
    }
}

/// Returns the offsets of contiguous blocks with these numbers of elements.
fn starts(counts: &[usize], element_bytes: usize) -> impl Iterator<Item = usize> {
    counts.iter().scan(0, move |end, &count| {
        let start = *end;
        *end += count * element_bytes;
        Some(start)
    })
}
