//! The command line. This module only parses and checks options.

use crate::cell::{BufferKind, BufferMode, CallVariant};
use crate::help::HELP;
use crate::offsets::OffsetPair;
use crate::ops::BenchOp;
use crate::peer_library::PeerLibrary;
use crate::request::{REDOPS, dtype_named, redop_named};
use crate::text::parse_size;
use crate::training::TrainingOptions;
use crate::values::max_exact_ranks;
use clap::{Parser, ValueEnum};
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;
use std::path::PathBuf;

/// The default sizes in bytes.
const DEFAULT_SIZES: [usize; 8] = [4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20];
/// The size in bytes that is added to the default sizes if there are few ranks.
const LARGEST_SIZE: usize = 256 << 20;

/// The largest number of ranks for which [`LARGEST_SIZE`] is added.
const MAX_RANKS_FOR_LARGEST_SIZE: usize = 4;

/// The sizes of `--quick`.
const QUICK_SIZES: [usize; 3] = [4, 8 << 10, 512 << 10];
const QUICK_PAIRS: usize = 2;
const DEFAULT_PAIRS: usize = 10;

/// The sizes in bytes at which `--tune` compares algorithms.
const TUNED_SIZES: [usize; 11] =
    [4, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The number of runs of each algorithm with `--tune`.
const TUNED_PAIRS: usize = 5;

/// The number of operations that are measured by default.
const DEFAULT_OP_COUNT: usize = 7;

/// The default number of pairs of runs with `--against`.
const AGAINST_PAIRS: usize = 60;
/// The smallest number of pairs with `--against`. Fewer ratios have no confidence interval.
const MIN_AGAINST_PAIRS: usize = 6;

/// The options whose value is the path of a file.
const FILE_OPTIONS: [&str; 5] = ["--json", "--csv", "--plot", "--report", "--tune"];

/// The option whose value is the path of another source tree.
const AGAINST_OPTION: &str = "--against";

/// Measures what the operations of libdist cost on this host, alone or against other libraries.
#[derive(Debug, Parser)]
#[command(name = "dist-bench", version, after_long_help = HELP, max_term_width = 100)]
pub(crate) struct Options {
    /// Numbers of ranks, measured one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=60))]
    ranks: Vec<u16>,

    /// Operations: all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier, sendrecv
    /// (these seven are the default), reduce, gather, scatter, or all
    #[arg(long, value_name = "OP,...", value_delimiter = ',', value_parser = parse_ops)]
    ops: Vec<OpSelection>,

    /// Sizes in bytes, optionally with K, M or G [default: 4,64,1K,8K,64K,512K,4M,32M, and with up
    /// to 4 ranks also 256M]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,

    /// Element type, by its name in the library: f32, f64, f16, bf16, i8, u8, ...
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_dtype)]
    pub(crate) dtype: DataType,

    /// Reduction operator: sum, min, max
    #[arg(long, value_name = "OP", default_value = "sum", value_parser = parse_redop)]
    pub(crate) redop: ReduceOp,

    /// Transport between the ranks of libdist
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) transport: Transport,

    /// Memory of libdist's buffers: ordinary memory of the process, or the arena (dist_mem_alloc)
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_value = "ordinary")]
    #[arg(value_parser = parse_buffers)]
    buffers: Vec<BufferKind>,

    /// Measure buffers at the offsets 0, 16, 32 and 64 in their pages. Messages: all pairs of the
    /// source's and the destination's offset. Collectives: rank 0 has one offset, all other ranks
    /// another, and one of both is 0
    #[arg(hide_short_help = true)]
    #[arg(long, conflicts_with_all = ["buffers", "device", "tune", "against"])]
    offsets: bool,

    /// Put the buffers into GPU memory, over NCCL or staged through host memory (native). Rank R
    /// uses device R modulo the number of devices. Buffers are not rewritten between calls
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "BACKEND", conflicts_with_all = ["buffers", "mode", "peer", "limits"])]
    pub(crate) device: Option<DeviceBackend>,

    /// Whether each rank rewrites its buffer before each call
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', default_value = "rewritten")]
    mode: Vec<BufferMode>,

    /// Write results into separate buffers
    #[arg(hide_short_help = true)]
    #[arg(long)]
    out_of_place: bool,

    /// Issue each call of libdist asynchronously, and wait for its work
    #[arg(hide_short_help = true)]
    #[arg(long = "async")]
    asynchronous: bool,

    /// Peer libraries to compare with, in alternating runs
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) peer: Vec<PeerLibrary>,

    /// Compare with the dist-bench of another source tree
    ///
    /// TREE is a source tree whose release build exists, a folder with this program, or the path
    /// of a program. By default all operations, up to 32 MiB, and 60 pairs. The exit status shows
    /// whether this tree is slower
    #[arg(long, value_name = "TREE")]
    #[arg(conflicts_with_all = ["peer", "limits", "tune", "report_from"])]
    pub(crate) against: Option<PathBuf>,

    /// Runs of each engine per cell [default: 10; with --against 60, at least 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pairs: Option<u16>,

    /// Calls per run [default: 1000 up to 8 KiB, fewer above]
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    calls: Option<u32>,

    /// First measure the limits of the machine
    ///
    /// These are rates of copies and sums, the latency of a cache line between cores, and the
    /// latency of a wake-up
    #[arg(long)]
    pub(crate) limits: bool,

    /// Use few sizes, calls and runs, as a functional check without valid times
    #[arg(long)]
    pub(crate) quick: bool,

    /// Write all results to a JSON file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the figures to a CSV file with one line per engine and cell
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Draw the times over the sizes as SVG, with a row for each operation and a panel for each
    /// number of ranks
    #[arg(long, value_name = "FILE", conflicts_with = "tune")]
    pub(crate) plot: Option<PathBuf>,

    /// Write all tables into a Markdown file, between its lines <!-- dist-bench:begin --> and <!--
    /// dist-bench:end -->, and plots into docs/plots in the folder of the file
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Do not measure: build the report from result files of --json. If several files have a cell,
    /// the last file counts
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', requires = "report")]
    #[arg(conflicts_with_all = ["ranks", "ops", "sizes", "peer", "limits", "quick", "json", "csv", "plot"])]
    pub(crate) report_from: Vec<PathBuf>,

    /// Measure all algorithms of libdist, and write a tuning file (for DIST_TUNING_FILE)
    ///
    /// Runs alternate. The file has the algorithms that take at most 95 % of the time of the
    /// library's own choice
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["peer", "limits", "device", "buffers", "mode", "json", "csv", "report"])]
    pub(crate) tune: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) training: TrainingOptions,
}

/// The transports of the native back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Auto,
    Shm,
    Tcp,
}

/// The back ends for memory of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceBackend {
    Nccl,
    Native,
}

impl DeviceBackend {
    /// Returns the map of back ends for `dist_init`.
    pub(crate) const fn backend(self) -> &'static str {
        match self {
            Self::Nccl => "cpu:native,cuda:nccl",
            Self::Native => "cpu:native,cuda:native",
        }
    }
}

impl Transport {
    /// Returns the name of the transport in the options of the native back end.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// The operations that one argument of `--ops` selects.
#[derive(Clone, Debug)]
struct OpSelection(Vec<BenchOp>);

fn parse_ops(text: &str) -> Result<OpSelection, String> {
    match text {
        "all" => Ok(OpSelection(BenchOp::ALL.to_vec())),
        name => name.parse().map(|op| OpSelection(vec![op])),
    }
}

fn parse_buffers(text: &str) -> Result<BufferKind, String> {
    match text {
        "ordinary" => Ok(BufferKind::Ordinary),
        "arena" => Ok(BufferKind::Arena),
        _ => Err("expected one of: ordinary, arena".to_owned()),
    }
}

fn parse_dtype(text: &str) -> Result<DataType, String> {
    dtype_named(text).ok_or_else(|| {
        let names: Vec<&str> = DataType::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("expected one of: {}", names.join(", "))
    })
}

fn parse_redop(text: &str) -> Result<ReduceOp, String> {
    redop_named(text).ok_or_else(|| {
        let names = REDOPS.map(|(name, _)| name);
        format!("expected one of: {}", names.join(", "))
    })
}

fn without_files(words: impl Iterator<Item = String>) -> String {
    let (mut kept_words, mut is_file) = (vec!["dist-bench".to_owned()], false);
    for word in words {
        let (name, value) = word.split_once('=').map_or((&word[..], None), |(n, v)| (n, Some(v)));
        let names_tree = name == AGAINST_OPTION;
        let names_file = names_tree || FILE_OPTIONS.contains(&name);
        if !is_file && !names_file {
            kept_words.push(word.clone());
        }
        if !is_file && names_tree {
            kept_words.push(format!("{AGAINST_OPTION} TREE"));
        }
        is_file = !is_file && names_file && value.is_none();
    }
    kept_words.join(" ")
}

impl Options {
    /// Checks that the options are consistent; the error is a message for the user.
    pub(crate) fn check_combination(&self) -> Result<(), String> {
        let Self { dtype, redop, .. } = self;
        if !redop.is_defined_for(*dtype) && self.ops().iter().any(|op| op.reduces()) {
            return Err(format!("--redop {redop} is not defined for elements of type {dtype}"));
        }
        if self.peer.iter().any(|peer| !peer.supports_dtype(*dtype)) {
            return Err(format!(
                "--peer: a peer library does not support elements of type {dtype}"
            ));
        }
        if self.against.is_some() && self.pairs() < MIN_AGAINST_PAIRS {
            return Err(format!(
                "{AGAINST_OPTION} needs --pairs {MIN_AGAINST_PAIRS} or more: with fewer pairs, the ratio has no interval"
            ));
        }
        let max_ranks = max_exact_ranks(*dtype);
        if self.ranks().iter().any(|&ranks| ranks > max_ranks) {
            return Err(format!(
                "--ranks: dist-bench can check results of type {dtype} for at most {max_ranks} ranks"
            ));
        }
        Ok(())
    }

    /// Returns the command line without the paths of files, so that it can be published.
    pub(crate) fn shareable_command_line() -> String {
        without_files(std::env::args().skip(1))
    }

    /// Returns the numbers of ranks.
    pub(crate) fn ranks(&self) -> Vec<usize> {
        self.ranks.iter().map(|&ranks| ranks.into()).collect()
    }

    /// Returns the operations.
    pub(crate) fn ops(&self) -> Vec<BenchOp> {
        let mut ops: Vec<BenchOp> = Vec::new();
        for &op in self.ops.iter().flat_map(|OpSelection(named)| named) {
            if !ops.contains(&op) {
                ops.push(op);
            }
        }
        match ops.is_empty() {
            true if self.tune.is_some() || self.against.is_some() => BenchOp::ALL.to_vec(),
            true => BenchOp::ALL[..DEFAULT_OP_COUNT].to_vec(),
            false => ops,
        }
    }

    /// Returns the sizes for this number of ranks, in bytes.
    pub(crate) fn sizes(&self, ranks: usize) -> Vec<usize> {
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        if self.quick {
            return QUICK_SIZES.to_vec();
        }
        if self.tune.is_some() {
            return TUNED_SIZES.to_vec();
        }
        let has_largest = ranks <= MAX_RANKS_FOR_LARGEST_SIZE && self.against.is_none();
        let largest = has_largest.then_some(LARGEST_SIZE);
        DEFAULT_SIZES.into_iter().chain(largest).collect()
    }

    /// Returns the number of runs of each engine.
    pub(crate) fn pairs(&self) -> usize {
        let default = match self.quick {
            true if self.against.is_some() => MIN_AGAINST_PAIRS,
            true => QUICK_PAIRS,
            false if self.tune.is_some() => TUNED_PAIRS,
            false if self.against.is_some() => AGAINST_PAIRS,
            false => DEFAULT_PAIRS,
        };
        self.pairs.map_or(default, Into::into)
    }

    /// Returns the number of calls in a run, if given.
    pub(crate) fn calls(&self) -> Option<usize> {
        let calls = self.calls.map(|calls| calls as usize);
        calls.or(self.quick.then_some(20))
    }

    /// Returns the ways in which libdist is called.
    pub(crate) fn variants(&self) -> Vec<CallVariant> {
        let variant = |mode: BufferMode, buffers: BufferKind| CallVariant {
            mode,
            buffers,
            in_place: !self.out_of_place,
            asynchronous: self.asynchronous,
        };
        if self.device.is_some() {
            return vec![variant(BufferMode::Untouched, BufferKind::Device)];
        }
        if self.offsets {
            let of_mode = |&mode: &BufferMode| {
                OffsetPair::all().map(move |pair| variant(mode, BufferKind::Offsets(pair)))
            };
            return self.mode.iter().flat_map(of_mode).collect();
        }
        let of_mode =
            |&mode: &BufferMode| self.buffers.iter().map(move |&kind| variant(mode, kind));
        self.mode.iter().flat_map(of_mode).collect()
    }
}

#[cfg(test)]
mod tests;
