//! Collectives on byte strings whose lengths differ between ranks, and messages whose length the
//! receiver does not know.
//!
//! The library allocates the received strings and passes them to the caller as a blob (a list of
//! byte strings that the caller releases).

use super::args::{OutPtr, index, null_argument, slice, src};
use super::blob;
use super::group::group;
use super::point_to_point::{optional_source, optional_tag, run_blocking, tag_number};
use super::recv_status::RecvStatusOut;
use super::submit::{WorkOut, call_options, issue_with_handle, send_options};
use super::types::*;
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::api::{BytesCall, BytesHandler, CallOptions, Group};
use crate::base::buffer::Src;
use crate::base::dtype::DataType;
use crate::base::error::{ErrorContext as _, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// The output variable of the caller for a blob. The thread that completes the operation writes it.
struct BlobOut(OutPtr<*mut dist_blob_t>);

// SAFETY: the caller lends the variable to the operation until its work is done, and any thread may
// write it.
unsafe impl Send for BlobOut {}

impl BlobOut {
    /// Takes a required output, and sets the caller's variable to NULL until there is a blob.
    fn required(out: *mut *mut dist_blob_t) -> Result<Self> {
        OutPtr::handle(out, "out").map(Self)
    }

    /// As `required`, but returns `None` for NULL. It is for ranks that may get no blob.
    fn optional(out: *mut *mut dist_blob_t) -> Option<Self> {
        OutPtr::optional_handle(out).map(Self)
    }

    fn write(self, strings: Vec<Vec<u8>>) -> Result<()> {
        blob::write_blob(&self.0, strings)
    }

    fn into_delivery(self) -> BytesHandler {
        BytesHandler::new(move |strings| self.write(strings))
    }
}

/// Runs a blocking collective. A collective with a work is issued instead, and a collective inside
/// a batch is added to the batch of the thread.
fn submit_bytes(
    group: &Arc<Group>,
    call: BytesCall<'static>,
    out: Option<BlobOut>,
    options: &CallOptions,
    work: WorkOut,
) -> Result<()> {
    if work.blocks() {
        return match (group.run_bytes(&call, options)?, out) {
            (Some(strings), Some(out)) => out.write(strings),
            _ => Ok(()),
        };
    }
    let deliver = out.map_or_else(|| BytesHandler::new(|_| Ok(())), BlobOut::into_delivery);
    issue_with_handle(group.prepare_bytes(call, options.clone(), deliver)?, work)
}

dist_export! {
    /// Gives every rank the root's byte string, which may have any length.
    ///
    /// The call is two operations with two sequence numbers: the first transfers the length, and
    /// the second transfers the bytes. The bytes are in host memory.
    ///
    /// @param group in: the group.
    /// @param data in, optional: on the root, the bytes to send; borrowed until the work completes;
    ///   NULL only if `len_bytes` is 0. Not used on other ranks.
    /// @param len_bytes in: the number of bytes on the root. Not used on other ranks.
    /// @param root in: the rank that has the bytes.
    /// @param out out: a blob with one string, also on the root; owned by the caller, released with
    ///   dist_blob_release; `*out` is NULL on failure, and until the call completes. The variable
    ///   `*out` is borrowed until the work completes.
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The call uses
    ///   only timeout_ms and label; algorithm must be NULL.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree root and label; the order of calls on the group.
    /// @blocks as dist_broadcast.
    /// @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings, which fails the group.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_broadcast_bytes(
        group: *mut dist_group_t,
        data: *const c_void,
        len_bytes: usize,
        root: i32,
        out: *mut *mut dist_blob_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (work, out) = (WorkOut::new(work), BlobOut::required(out)?);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let root = index(root, "root")?;
        let bytes = if group.rank() == root { src(data, len_bytes, "data")? } else { Src::empty() };
        submit_bytes(&group, BytesCall::broadcast(bytes, root), Some(out), options, work)
    }
}

dist_export! {
    /// Gives every rank the byte strings of all ranks; each string may have any length.
    ///
    /// The call is two operations, one for the lengths and one for the bytes (see
    /// dist_broadcast_bytes).
    ///
    /// @param group in: the group.
    /// @param data in: this rank's bytes; borrowed until the work completes; NULL only if
    ///   `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes on this rank.
    /// @param out out: a blob with one string per rank, in rank order; owned by the caller,
    ///   released with dist_blob_release; `*out` is NULL on failure, and until the call completes.
    ///   The variable `*out` is borrowed until the work completes.
    /// @param options in, optional: as dist_broadcast_bytes.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree label, and the order of calls on the group.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings, which fails the group.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_all_gather_bytes(
        group: *mut dist_group_t,
        data: *const c_void,
        len_bytes: usize,
        out: *mut *mut dist_blob_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (work, out) = (WorkOut::new(work), BlobOut::required(out)?);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let bytes = src(data, len_bytes, "data")?;
        submit_bytes(&group, BytesCall::all_gather(bytes), Some(out), options, work)
    }
}

dist_export! {
    /// Gives the root the byte strings of all ranks; each string may have any length.
    ///
    /// The call is two operations, one for the lengths and one for the bytes (see
    /// dist_broadcast_bytes).
    ///
    /// @param group in: the group.
    /// @param data in: this rank's bytes; borrowed until the work completes; NULL only if
    ///   `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes on this rank.
    /// @param root in: the rank that gets the strings.
    /// @param out out, optional: on the root, a blob with one string per rank, in rank order; owned
    ///   by the caller, released with dist_blob_release; `*out` is NULL on failure, and until the
    ///   call completes. The variable `*out` is borrowed until the work completes. On other ranks
    ///   `out` may be NULL, and `*out` is set to NULL.
    /// @param options in, optional: as dist_broadcast_bytes.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree root and label; the order of calls on the group.
    /// @blocks as dist_gather.
    /// @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings, which fails the group.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_gather_bytes(
        group: *mut dist_group_t,
        data: *const c_void,
        len_bytes: usize,
        root: i32,
        out: *mut *mut dist_blob_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (work, optional_out) = (WorkOut::new(work), BlobOut::optional(out));
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let root = index(root, "root")?;
        let out = match group.rank() == root {
            true => Some(optional_out.ok_or_else(|| null_argument("out"))?),
            false => None,
        };
        let bytes = src(data, len_bytes, "data")?;
        submit_bytes(&group, BytesCall::gather(bytes, root), out, options, work)
    }
}

dist_export! {
    /// Gives each rank a byte string of its own from the root; each string may have any length.
    ///
    /// The call is two operations, one for the lengths and one for the bytes (see
    /// dist_broadcast_bytes).
    ///
    /// @param group in: the group.
    /// @param data in, optional: on the root, an array of one pointer per rank, borrowed for the
    ///   call. The bytes at `data[i]` are for rank i and are borrowed until the work completes;
    ///   `data[i]` is NULL only if `lens_bytes[i]` is 0. Not used on other ranks.
    /// @param lens_bytes in, optional: on the root, one length per rank, in bytes; borrowed for the
    ///   call. Not used on other ranks.
    /// @param root in: the rank that has the strings.
    /// @param out out: a blob with one string; owned by the caller, released with
    ///   dist_blob_release; `*out` is NULL on failure, and until the call completes. The variable
    ///   `*out` is borrowed until the work completes.
    /// @param options in, optional: as dist_broadcast_bytes.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree root and label; the order of calls on the group.
    /// @blocks as dist_scatter.
    /// @return as dist_all_reduce. DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings, which fails the group.
    /// @threads as dist_all_reduce.
    /// @since 0.1
    pub fn dist_scatter_bytes(
        group: *mut dist_group_t,
        data: *const *const c_void,
        lens_bytes: *const usize,
        root: i32,
        out: *mut *mut dist_blob_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (work, out) = (WorkOut::new(work), BlobOut::required(out)?);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let root = index(root, "root")?;
        let strings = match group.rank() == root {
            true => Some(read_byte_strings(data, lens_bytes, group.size())?),
            false => None,
        };
        submit_bytes(&group, BytesCall::scatter(strings, root), Some(out), options, work)
    }
}

/// Reads the byte strings of a root, one for each rank.
fn read_byte_strings(
    data: *const *const c_void,
    lens: *const usize,
    size: usize,
) -> Result<Vec<Src<'static>>> {
    let (data, lens) = (slice(data, size, "data")?, slice(lens, size, "lens_bytes")?);
    let string = |(i, (&data, &len)): (usize, (&*const c_void, &usize))| {
        src(data, len, "data").context(|| format!("rank {i}"))
    };
    data.iter().zip(lens).enumerate().map(string).collect()
}

dist_export! {
    /// Sends a byte string of any length to one rank of a group.
    ///
    /// The message is the same as that of dist_send with `len_bytes` elements of DIST_U8. The
    /// receiver may call dist_recv_bytes, or dist_recv with DIST_U8.
    ///
    /// @param group in: the group.
    /// @param data in: the bytes; borrowed until the work completes; NULL only if `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes.
    /// @param peer in: the receiver, a rank of the group, this rank included.
    /// @param tag in: 0 or more.
    /// @param options in, optional: as dist_send.
    /// @param work out, optional: as dist_send.
    /// @agree the sender and the receiver agree on the tag.
    /// @blocks as dist_send.
    /// @return as dist_send.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_send_bytes(
        group: *mut dist_group_t,
        data: *const c_void,
        len_bytes: usize,
        peer: i32,
        tag: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = send_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let bytes = src(data, len_bytes, "data")?;
        let (peer, tag) = (index(peer, "peer")?, tag_number(tag)?);
        let call = group.send(bytes, DataType::U8, peer, tag, options.clone())?;
        if !work.blocks() {
            return issue_with_handle(call, work);
        }
        reject_blocking_in_callback("a blocking send")?;
        run_blocking(call).map(drop)
    }
}

dist_export! {
    /// Receives a byte string of any length from one rank of a group.
    ///
    /// The call receives the first message that matches `peer` and `tag`. The sender calls
    /// dist_send_bytes, or dist_send with DIST_U8.
    ///
    /// @param group in: the group.
    /// @param out out: a blob with one string; owned by the caller, released with
    ///   dist_blob_release; `*out` is NULL on failure, and until the call completes. The variable
    ///   `*out` is borrowed until the work completes.
    /// @param max_bytes in: the longest message that the call accepts, in bytes; 0 for any length.
    /// @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
    /// @param tag in: 0 or more, or DIST_ANY_TAG.
    /// @param status out, optional: as dist_recv. The count in `status` is the length of the
    ///   message in bytes.
    /// @param options in, optional: as dist_recv.
    /// @param work out, optional: as dist_recv. dist_work_received_count returns the length of the
    ///   message in bytes.
    /// @agree the sender and the receiver agree on the tag.
    /// @blocks as dist_recv.
    /// @return as dist_send. DIST_ERR_MISMATCH also if the message is longer than `max_bytes` or
    ///   has another dtype; DIST_ERR_OUT_OF_MEMORY also if there is no memory for the message.
    ///   After these two errors the message stays for the next receive.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_recv_bytes(
        group: *mut dist_group_t,
        out: *mut *mut dist_blob_t,
        max_bytes: usize,
        peer: i32,
        tag: i32,
        status: *mut dist_recv_status_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let (work, out) = (WorkOut::new(work), BlobOut::required(out)?);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let (peer, tag) = (optional_source(peer, "peer")?, optional_tag(tag)?);
        let status = RecvStatusOut::new(status)?;
        let most = if max_bytes == 0 { usize::MAX } else { max_bytes };
        let call = group.receive_bytes(most, out.into_delivery(), peer, tag, options.clone())?;
        if !work.blocks() {
            status.refuse_without_blocking()?;
            return issue_with_handle(call, work);
        }
        reject_blocking_in_callback("a blocking receive")?;
        status.write(run_blocking(call)?, DataType::U8)
    }
}
