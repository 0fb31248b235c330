//! The options of the staging back end: `staging.KEY=VALUE` in the back-end options of a group.

use crate::backend::device_factory::split_prefixed_options;
use crate::base::error::{Error, Result};

/// The prefix of the staging options.
const PREFIX: &str = "staging.";

/// The default chunk size. At this size, the native back end nearly reaches its maximum bandwidth,
/// and a copy takes much longer than the call that starts it.
const DEFAULT_CHUNK_BYTES: usize = 4 << 20;

/// The minimum chunk size in bytes.
const MIN_CHUNK_BYTES: usize = 4096;
/// The maximum chunk size in bytes.
const MAX_CHUNK_BYTES: usize = 1 << 30;

/// The options of a group's staging back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagingOptions {
    /// The chunk size: the number of bytes that one round copies and transfers, and the size of a
    /// half of a staging buffer.
    pub(super) chunk_bytes: usize,
}

/// Separates the staging options of a group from its other options, and returns both.
///
/// # Errors
/// `InvalidArgument`, naming the option.
pub(super) fn split_options(options: &str) -> Result<(StagingOptions, String)> {
    let mut parsed = StagingOptions { chunk_bytes: DEFAULT_CHUNK_BYTES };
    let rest = split_prefixed_options(options, PREFIX, |option, own| {
        let chunk = own.split_once('=').filter(|(key, _)| key.trim() == "chunk_bytes");
        let chunk = chunk.and_then(|(_, value)| value.trim().parse::<usize>().ok());
        let chunk = chunk
            .filter(|chunk| (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(chunk))
            .ok_or_else(|| {
                Error::invalid(format!(
                    "backend_options: \"{option}\" is invalid: use \
                     staging.chunk_bytes={MIN_CHUNK_BYTES}..{MAX_CHUNK_BYTES}"
                ))
            })?;
        parsed.chunk_bytes = chunk;
        Ok(())
    })?;
    Ok((parsed, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_options_are_split_from_the_others() {
        let (options, rest) =
            split_options("transport=tcp; staging.chunk_bytes=65536 ;cma=0").unwrap();
        assert_eq!(options.chunk_bytes, 65_536);
        assert_eq!(rest, "transport=tcp;cma=0");
        assert_eq!(split_options("").unwrap().0.chunk_bytes, DEFAULT_CHUNK_BYTES);
        for wrong in [
            "staging.chunk_bytes=4095",
            "staging.chunk_bytes=x",
            "staging.chunk_bytes",
            "staging.other=1",
        ] {
            let error = split_options(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
    }
}
