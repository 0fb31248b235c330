//! The protocol between the driver and the ranks of an engine. A request names the operation, its
//! size, the number of calls, and how to call. It is a line of words. `peers/rank.h` and
//! `peers/gloo.py` implement the same protocol. A rank writes its stamps into a file of 64-bit
//! little-endian numbers: the number of wrong elements, and then the start and end time of each
//! call.

use crate::offsets::OffsetPair;
use crate::ops::BenchOp;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;
use std::str::{FromStr, SplitAsciiWhitespace};

/// The word that tells a rank to exit.
pub(crate) const QUIT_WORD: &str = "quit";

/// The response of a rank that has executed a request.
pub(crate) const DONE_RESPONSE: &str = "ok";

/// The response of a rank whose library does not support the request. All ranks of an engine give
/// the same response.
pub(crate) const UNSUPPORTED_RESPONSE: &str = "not offered";

/// The first word of a request.
const RUN_WORD: &str = "run";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BenchRequest {
    pub(crate) op: BenchOp,
    pub(crate) dtype: DataType,
    pub(crate) redop: ReduceOp,
    /// The number of elements: the sum over all blocks if the operation has one block per rank.
    pub(crate) count: usize,
    /// The number of untimed calls before the timed calls.
    pub(crate) warm_up: usize,
    /// The number of timed calls.
    pub(crate) calls: usize,
    /// True if all ranks synchronise before each call.
    pub(crate) has_barrier: bool,
    /// The word with which a rank fills its buffer before each call. If it is 0, the rank does not
    /// write the buffer.
    pub(crate) rewrite_word: u64,
    /// True if the result replaces the input.
    pub(crate) is_in_place: bool,
    /// True if the buffers are allocated by the library.
    pub(crate) uses_arena: bool,
    /// True if each call is asynchronous, so that it returns a work and the rank waits for this
    /// work.
    pub(crate) is_asynchronous: bool,
    /// True if the rank makes a call on known values before the timed calls, and verifies its
    /// result.
    pub(crate) is_verified: bool,
    /// The offsets of the buffers. If both are 0, the line has no word for them, so that an older
    /// rank understands it.
    pub(crate) offsets: OffsetPair,
    /// The algorithm of libdist, or `None` if the library chooses. If it is `None`, the line has no
    /// word for it, so that the programs of peers need not parse this word.
    pub(crate) algorithm: Option<String>,
}

impl BenchRequest {
    /// Returns the request as a line with its line end.
    pub(crate) fn to_line(&self) -> String {
        let Self { op, dtype, redop, count, warm_up, calls, rewrite_word: rewrite, .. } = self;
        let flags = [
            self.has_barrier,
            self.is_in_place,
            self.uses_arena,
            self.is_asynchronous,
            self.is_verified,
        ];
        let flags: Vec<String> = flags.iter().map(|&flag| u8::from(flag).to_string()).collect();
        let (op, dtype, redop) = (op.name(), dtype.name(), redop_name(*redop));
        let offsets = match self.offsets.bytes() {
            (0, 0) => String::new(),
            (first, second) => format!(" @{first},{second}"),
        };
        let algorithm = self.algorithm.iter().map(|name| format!(" {name}")).collect::<String>();
        format!(
            "{RUN_WORD} {op} {dtype} {redop} {count} {warm_up} {calls} {rewrite} {}{offsets}{algorithm}\n",
            flags.join(" ")
        )
    }

    /// Parses a line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        if words.next()? != RUN_WORD {
            return None;
        }
        let mut request = Self {
            op: next_value(&mut words)?,
            dtype: words.next().and_then(dtype_named)?,
            redop: words.next().and_then(redop_named)?,
            count: next_value(&mut words)?,
            warm_up: next_value(&mut words)?,
            calls: next_value(&mut words)?,
            rewrite_word: next_value(&mut words)?,
            has_barrier: next_flag(&mut words)?,
            is_in_place: next_flag(&mut words)?,
            uses_arena: next_flag(&mut words)?,
            is_asynchronous: next_flag(&mut words)?,
            is_verified: next_flag(&mut words)?,
            offsets: OffsetPair::default(),
            algorithm: None,
        };
        let mut word = words.next();
        if let Some(offsets) = word.and_then(|word| word.strip_prefix('@')) {
            let (first, second) = offsets.split_once(',')?;
            request.offsets = OffsetPair::from_bytes(first.parse().ok()?, second.parse().ok()?)?;
            word = words.next();
        }
        request.algorithm = word.map(str::to_owned);
        words.next().is_none().then_some(request)
    }
}

fn next_value<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

fn next_flag(words: &mut SplitAsciiWhitespace<'_>) -> Option<bool> {
    match words.next()? {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Returns the element type with this name.
pub(crate) fn dtype_named(name: &str) -> Option<DataType> {
    DataType::ALL.into_iter().find(|dtype| dtype.name() == name)
}

/// The measured operators with their names.
pub(crate) const REDOPS: [(&str, ReduceOp); 3] =
    [("sum", ReduceOp::Sum), ("min", ReduceOp::Min), ("max", ReduceOp::Max)];

/// Returns the operator with this name.
pub(crate) fn redop_named(name: &str) -> Option<ReduceOp> {
    REDOPS.into_iter().find(|(known, _)| *known == name).map(|(_, op)| op)
}

/// Returns the name of an operator.
pub(crate) fn redop_name(op: ReduceOp) -> &'static str {
    REDOPS.into_iter().find(|(_, known)| *known == op).map_or("none", |(name, _)| name)
}

/// The measurements of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankStamps {
    /// The number of wrong elements in the result of the verified call.
    pub(crate) wrong_elements: u64,
    /// Start and end of each timed call on the kernel's monotonic clock, in nanoseconds.
    pub(crate) call_times: Vec<(u64, u64)>,
}

impl RankStamps {
    /// Encodes the stamps as the bytes of a file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let times = self.call_times.iter().flat_map(|&(start, end)| [start, end]);
        std::iter::once(self.wrong_elements).chain(times).flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes the bytes of a file with `calls` calls.
    pub(crate) fn decode(bytes: &[u8], calls: usize) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let (wrong, times) = numbers.split_first()?;
        let (times, half) = times.as_chunks::<2>();
        let calls_are =
            times.iter().map(|[start, end]| (u64::from_le_bytes(*start), u64::from_le_bytes(*end)));
        let stamps =
            Self { wrong_elements: u64::from_le_bytes(*wrong), call_times: calls_are.collect() };
        // A rank that does not take part in an operation has no times.
        let is_whole = rest.is_empty() && half.is_empty();
        (is_whole && [0, calls].contains(&stamps.call_times.len())).then_some(stamps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_request() -> BenchRequest {
        BenchRequest {
            op: BenchOp::AllGather,
            dtype: DataType::Bf16,
            redop: ReduceOp::Max,
            count: 1000,
            warm_up: 7,
            calls: 30,
            has_barrier: true,
            rewrite_word: u64::MAX,
            is_in_place: false,
            uses_arena: true,
            is_asynchronous: false,
            is_verified: true,
            offsets: OffsetPair::default(),
            algorithm: None,
        }
    }

    #[test]
    fn request_survives_text_round_trip() {
        let line = sample_request().to_line();
        assert_eq!(line, format!("run all_gather bf16 max 1000 7 30 {} 1 0 1 0 1\n", u64::MAX));
        assert_eq!(BenchRequest::parse(&line), Some(sample_request()));
        let named = BenchRequest { algorithm: Some("staged".into()), ..sample_request() };
        assert_eq!(named.to_line(), line.replace('\n', " staged\n"));
        let offsets = OffsetPair::from_bytes(16, 64).unwrap();
        let moved = BenchRequest { offsets, ..named.clone() };
        assert_eq!(BenchRequest::parse(&named.to_line()), Some(named));
        assert_eq!(moved.to_line(), line.replace('\n', " @16,64 staged\n"));
        assert_eq!(BenchRequest::parse(&moved.to_line()), Some(moved));
        let longer = format!("{line} staged 1");
        for wrong in [
            "",
            "run",
            "run all_gather",
            &line.replace("run", "go"),
            &longer,
            &format!("{line} @16,8"),
        ] {
            assert_eq!(BenchRequest::parse(wrong), None, "{wrong}");
        }
    }

    /// With `--against`, the ranks of another source tree parse these names. A changed name would
    /// break every comparison with older trees.
    #[test]
    fn type_and_operator_names_are_stable() {
        let dtypes: Vec<&str> = DataType::ALL.iter().map(|dtype| dtype.name()).collect();
        let words = "i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 c64 c128 bool f8e4m3 f8e5m2";
        assert_eq!(dtypes.join(" "), words);
        assert_eq!(REDOPS.map(|(name, _)| name), ["sum", "min", "max"]);
        let ops = BenchOp::ALL.map(BenchOp::name).join(" ");
        let words = "all_reduce broadcast all_gather reduce_scatter all_to_all barrier sendrecv reduce gather scatter";
        assert_eq!(ops, words);
    }

    #[test]
    fn stamps_survive_byte_round_trip() {
        let stamps = RankStamps { wrong_elements: 3, call_times: vec![(1, 2), (5, u64::MAX)] };
        let bytes = stamps.encode();
        assert_eq!(RankStamps::decode(&bytes, 2), Some(stamps));
        assert_eq!(RankStamps::decode(&bytes, 3), None);
        assert_eq!(RankStamps::decode(&bytes[..bytes.len() - 1], 2), None);
        assert_eq!(RankStamps::decode(&[], 2), None);
        assert_eq!(RankStamps::decode(&[0; 8], 2), Some(RankStamps::default()));
    }
}
