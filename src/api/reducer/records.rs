//! Exchange of byte strings between the ranks: records that the ranks compare, and data that one
//! rank sends to all ranks.

use crate::api::collective::bytes::BytesCall;
use crate::api::collective::call::CallOptions;
use crate::api::group::process_group::Group;
use crate::base::buffer::Src;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;

/// Gathers the byte strings of all ranks.
pub(super) fn gather(group: &Group, bytes: &[u8], options: &CallOptions) -> Result<Vec<Vec<u8>>> {
    let gathered = group.run_bytes(&BytesCall::all_gather(Src::from(bytes)), options)?;
    gathered.ok_or_else(|| Error::internal("an all-gather returned no result"))
}

/// Broadcasts the bytes of one rank. The bytes of the other ranks are ignored.
pub(super) fn broadcast(
    group: &Group,
    bytes: &[u8],
    root: Rank,
    options: &CallOptions,
) -> Result<Vec<u8>> {
    let bytes = group.run_bytes(&BytesCall::broadcast(Src::from(bytes), root), options)?;
    let bytes = bytes.and_then(|strings| strings.into_iter().next());
    bytes.ok_or_else(|| Error::internal("a broadcast returned no result"))
}

/// Gathers the encoded records of all ranks, and decodes them. `own` is the record of this rank.
///
/// # Errors
/// `Mismatch` for a record that `decode` does not understand; the errors of a gather.
pub(super) fn exchange<R>(
    group: &Group,
    own: &[u8],
    decode: impl Fn(&[u8]) -> Option<R>,
    options: &CallOptions,
) -> Result<Vec<R>> {
    let gathered = gather(group, own, options)?;
    let records: Option<Vec<R>> = gathered.iter().map(|bytes| decode(bytes)).collect();
    records.ok_or_else(|| {
        let message = "the ranks have different versions of libdist: use the same one on all ranks";
        Error::new(ErrorKind::Mismatch, message)
    })
}

/// Compares the options of all ranks.
///
/// # Errors
/// `Mismatch`, with the first rank that differs from rank 0.
pub(super) fn check_equal_options<'r>(mut options: impl Iterator<Item = &'r str>) -> Result<()> {
    let Some(first) = options.next() else { return Ok(()) };
    let Some((rank, other)) = (1..).zip(options).find(|&(_, other)| other != first) else {
        return Ok(());
    };
    let message =
        format!("the ranks have different options: rank 0 has {first}, and rank {rank} {other}");
    Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank))
}
