//! The routes of the ranks' output streams. Each stream goes to the console, to a log file, or to
//! both, as torchrun's specs (`--tee` and `--redirects`) select.

use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// One of the two output streams of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl OutputStream {
    /// Returns the stream's name for the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Out => "standard output",
            Self::Err => "standard error",
        }
    }

    /// Returns the name of the stream's file in a rank's log folder.
    pub(crate) const fn file_name(self) -> &'static str {
        match self {
            Self::Out => "stdout.log",
            Self::Err => "stderr.log",
        }
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Out => 1,
            Self::Err => 2,
        }
    }
}

/// The selected streams of each local rank. The number 0 means none, 1 standard output, 2 standard
/// error, and 3 both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamSpec {
    /// The same streams for all ranks.
    All(u8),
    /// Pairs of a local rank and its streams. The other ranks have no selected streams.
    Each(Vec<(usize, u8)>),
}

impl StreamSpec {
    fn includes(&self, local_rank: usize, stream: OutputStream) -> bool {
        let streams = match self {
            Self::All(streams) => *streams,
            Self::Each(list) => list
                .iter()
                .rev()
                .find(|(rank, _)| *rank == local_rank)
                .map_or(0, |(_, streams)| *streams),
        };
        streams & stream.bit() != 0
    }
}

impl FromStr for StreamSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "\"{text}\" is neither 0, 1, 2 or 3, nor a list of these numbers by local rank (0:1,1:3)"
            )
        };
        let streams = |text: &str| text.parse().ok().filter(|&number: &u8| number <= 3);
        if let Some(all) = streams(text) {
            return Ok(Self::All(all));
        }
        let pairs = text.strip_suffix(',').unwrap_or(text).split(',').map(|pair| {
            let (rank, value) = pair.split_once(':')?;
            Some((rank.parse().ok()?, streams(value)?))
        });
        pairs.collect::<Option<_>>().map(Self::Each).ok_or_else(invalid)
    }
}

/// A list of local ranks, for example 0,2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalRankList(Vec<usize>);

impl LocalRankList {
    /// Returns true if the rank is in the list.
    pub(crate) fn contains(&self, local_rank: usize) -> bool {
        self.0.contains(&local_rank)
    }
}

impl FromStr for LocalRankList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranks: Result<_, _> = text.split(',').map(str::parse).collect();
        ranks.map(Self).map_err(|_| format!("\"{text}\" is not a list of local ranks (0,1)"))
    }
}

/// The destinations of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRoute {
    /// True if the stream is forwarded to the same stream of distrun.
    pub(crate) console: bool,
    /// True if the stream is written to the rank's log file.
    pub(crate) file: bool,
}

/// Returns the destinations of a stream. Like in torchrun, a stream in `tee` is forwarded even if
/// it is also in `redirects`. If there is a log folder but neither spec, all streams are logged.
pub(crate) fn route_stream(
    has_log_dir: bool,
    tee: Option<&StreamSpec>,
    redirects: Option<&StreamSpec>,
    local_rank: usize,
    stream: OutputStream,
) -> StreamRoute {
    if tee.is_none() && redirects.is_none() {
        return StreamRoute { console: true, file: has_log_dir };
    }
    let is_included =
        |spec: Option<&StreamSpec>| spec.is_some_and(|spec| spec.includes(local_rank, stream));
    let (teed, redirected) = (is_included(tee), is_included(redirects));
    StreamRoute { console: teed || !redirected, file: teed || redirected }
}

/// Creates an empty log file in a rank's folder. Creates the folder if it is missing.
///
/// # Errors
/// The reason, with the name of the file.
pub(crate) fn create_log(folder: &Path, stream: OutputStream) -> Result<File, String> {
    let path = folder.join(stream.file_name());
    let created: io::Result<File> =
        std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
    created.map_err(|cause| format!("cannot create the log {}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Option<StreamSpec> {
        text.parse().ok()
    }

    #[test]
    fn stream_specs_match_torchrun() {
        assert_eq!(spec("3"), Some(StreamSpec::All(3)));
        assert_eq!(spec("0:1,1:3"), Some(StreamSpec::Each(vec![(0, 1), (1, 3)])));
        assert_eq!(spec("12:2,"), Some(StreamSpec::Each(vec![(12, 2)])));
        for wrong in ["", "4", "-1", "0:4", "0:", ":1", "a:1", "0:1 1:1", "0:1,,1:1", "both"] {
            assert_eq!(spec(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_stream_goes_where_the_flags_say() {
        let to = |tee, redirects, rank, stream| {
            let (tee, redirects): (Option<StreamSpec>, Option<StreamSpec>) =
                (spec(tee), spec(redirects));
            let StreamRoute { console, file } =
                route_stream(true, tee.as_ref(), redirects.as_ref(), rank, stream);
            (console, file)
        };
        assert_eq!(to("", "", 0, OutputStream::Out), (true, true));
        assert_eq!(to("", "1", 0, OutputStream::Out), (false, true));
        assert_eq!(to("", "1", 0, OutputStream::Err), (true, false));
        assert_eq!(to("2", "", 0, OutputStream::Err), (true, true));
        assert_eq!(to("3", "3", 0, OutputStream::Err), (true, true));
        assert_eq!(to("", "1:2", 0, OutputStream::Err), (true, false));
        assert_eq!(to("", "1:2", 1, OutputStream::Err), (false, true));
        let nowhere = route_stream(false, None, None, 0, OutputStream::Out);
        assert_eq!((nowhere.console, nowhere.file), (true, false));
    }
}
