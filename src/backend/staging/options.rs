//! What the caller asks of staging: `staging.KEY=VALUE` among a group's back-end options.

use crate::base::error::{Error, Result};

/// What begins those of the options that are for staging.
const PREFIX: &str = "staging.";

/// From here on the native back end carries bytes about as fast as it ever does, and a copy takes
/// far longer than to begin it.
const CHUNK: usize = 4 << 20;

/// What a chunk may be.
const LEAST: usize = 4096;
const MOST: usize = 1 << 30;

/// How a group's part behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) struct Options {
    /// The bytes that are copied and carried at once.
    pub(super) chunk: usize,
}

/// Parts a group's options into those for staging, and the rest.
///
/// # Errors
/// `InvalidArgument`, naming the option.
pub(in crate::backend) fn split(options: &str) -> Result<(Options, String)> {
    let mut found = Options { chunk: CHUNK };
    let mut rest = Vec::new();
    for option in options.split(';').map(str::trim).filter(|option| !option.is_empty()) {
        let Some(own) = option.strip_prefix(PREFIX) else {
            rest.push(option);
            continue;
        };
        let chunk = own.split_once('=').filter(|(key, _)| key.trim() == "chunk_bytes");
        let chunk = chunk.and_then(|(_, value)| value.trim().parse::<usize>().ok());
        let chunk = chunk.filter(|chunk| (LEAST..=MOST).contains(chunk)).ok_or_else(|| {
            Error::invalid(format!(
                "backend_options: \"{option}\" is not staging.chunk_bytes={LEAST}..{MOST}"
            ))
        })?;
        found.chunk = chunk;
    }
    Ok((found, rest.join(";")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_staging_are_taken_out_of_the_others() {
        let (options, rest) = split("transport=tcp; staging.chunk_bytes=65536 ;cma=0").unwrap();
        assert_eq!(options.chunk, 65_536);
        assert_eq!(rest, "transport=tcp;cma=0");
        assert_eq!(split("").unwrap().0.chunk, CHUNK);
        for wrong in [
            "staging.chunk_bytes=4095",
            "staging.chunk_bytes=x",
            "staging.chunk_bytes",
            "staging.other=1",
        ] {
            let error = split(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
    }
}
