//! Collectives on byte strings of any length per rank, and messages whose length the receiver does
//! not know.

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

/// The output for a blob, written by any thread.
struct BlobOut(OutPtr<*mut dist_blob_t>);

// SAFETY: the caller lends the variable to the operation until its work is done, on any thread.
unsafe impl Send for BlobOut {}

impl BlobOut {
    /// Sets the caller's variable to NULL until there is a blob.
    fn required(out: *mut *mut dist_blob_t) -> Result<Self> {
        OutPtr::handle(out, "out").map(Self)
    }

    /// As `required`, for a rank that may get no blob.
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

/// Runs a collective, issues it, or adds it to the thread's batch.
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
    /// Gives every rank the root's byte string, of any length.
    ///
    /// The call is two operations with two sequence numbers: the first transfers the length, the
    /// second the bytes. The bytes are in host memory. Of the options, only timeout_ms and label
    /// count, and algorithm must be NULL.
    ///
    /// @param group in: the group.
    /// @param data in, optional: on the root its bytes; borrowed until the work completes; NULL
    ///   only if `len_bytes` is 0. Not used on other ranks.
    /// @param len_bytes in: the number of bytes on the root. Not used on other ranks.
    /// @param root in: the rank that has the bytes.
    /// @param out out: a blob with one string, on the root too; owned by the caller, released with
    ///   dist_blob_release; NULL until the blob is there and on failure. The variable is borrowed
    ///   until the work completes.
    /// @param options in, optional: NULL for all defaults; borrowed for the call.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, root and label.
    /// @blocks as dist_broadcast.
    /// @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings: the group fails.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let root = index(root, "root")?;
        let bytes = if group.rank() == root { src(data, len_bytes, "data")? } else { Src::empty() };
        submit_bytes(&group, BytesCall::broadcast(bytes, root), Some(out), options, work)
    }
}

dist_export! {
    /// Gives every rank the byte strings of all ranks, each of any length.
    ///
    /// The call is two operations, as dist_broadcast_bytes.
    ///
    /// @param group in: the group.
    /// @param data in: this rank's bytes; borrowed until the work completes; NULL only if
    ///   `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes on this rank.
    /// @param out out: a blob with one string per rank, in rank order; owned by the caller,
    ///   released with dist_blob_release; NULL until the blob is there and on failure. The variable
    ///   is borrowed until the work completes.
    /// @param options in, optional: as dist_broadcast_bytes.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, and label.
    /// @blocks as dist_all_reduce.
    /// @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings: the group fails.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let bytes = src(data, len_bytes, "data")?;
        submit_bytes(&group, BytesCall::all_gather(bytes), Some(out), options, work)
    }
}

dist_export! {
    /// Gives the root the byte strings of all ranks, each of any length.
    ///
    /// The call is two operations, as dist_broadcast_bytes.
    ///
    /// @param group in: the group.
    /// @param data in: this rank's bytes; borrowed until the work completes; NULL only if
    ///   `len_bytes` is 0.
    /// @param len_bytes in: the number of bytes on this rank.
    /// @param root in: the rank that gets the strings.
    /// @param out out, optional: on the root a blob with one string per rank, in rank order; owned
    ///   by the caller, released with dist_blob_release; NULL until the blob is there and on
    ///   failure. The variable is borrowed until the work completes. On other ranks it may be NULL,
    ///   and gets NULL.
    /// @param options in, optional: as dist_broadcast_bytes.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, root and label.
    /// @blocks as dist_gather.
    /// @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings: the group fails.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let (work, out_when_given) = (WorkOut::new(work), BlobOut::optional(out));
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let root = index(root, "root")?;
        let out = match group.rank() == root {
            true => Some(out_when_given.ok_or_else(|| null_argument("out"))?),
            false => None,
        };
        let bytes = src(data, len_bytes, "data")?;
        submit_bytes(&group, BytesCall::gather(bytes, root), out, options, work)
    }
}

dist_export! {
    /// Gives each rank its byte string from the root, each of any length.
    ///
    /// The call is two operations, as dist_broadcast_bytes.
    ///
    /// @param group in: the group.
    /// @param data in, optional: on the root world size pointers, borrowed for the call. The bytes
    ///   at `data[i]` are for rank i; borrowed until the work completes; NULL only if their number
    ///   is 0. Not used on other ranks.
    /// @param lens_bytes in, optional: on the root world size lengths, in bytes; borrowed for the
    ///   call. Not used on other ranks.
    /// @param root in: the rank that has the strings.
    /// @param out out: a blob with one string; owned by the caller, released with
    ///   dist_blob_release; NULL until the blob is there and on failure. The variable is borrowed
    ///   until the work completes.
    /// @param options in, optional: as dist_broadcast_bytes.
    /// @param work out, optional: as dist_all_reduce.
    /// @agree the order of calls on the group, root and label.
    /// @blocks as dist_scatter.
    /// @return as dist_all_reduce; DIST_ERR_OUT_OF_MEMORY also if a rank has no memory for its
    ///   strings: the group fails.
    /// @threads any; threads that use one group keep the same order on all ranks.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
        let group = self::group(group)?;
        let root = index(root, "root")?;
        let strings = match group.rank() == root {
            true => Some(read_byte_strings(data, lens_bytes, group.size())?),
            false => None,
        };
        submit_bytes(&group, BytesCall::scatter(strings, root), Some(out), options, work)
    }
}

/// Reads one string per rank.
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
    /// It is a message of `len_bytes` elements of DIST_U8, as dist_send sends it. The receiver may
    /// call dist_recv_bytes, or dist_recv with DIST_U8.
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
    /// @threads any.
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
        let mut given = None;
        let options = send_options(options, &mut given)?;
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
    /// It takes the first message that it matches, sent by dist_send_bytes, or by dist_send with
    /// DIST_U8.
    ///
    /// @param group in: the group.
    /// @param out out: a blob with one string; owned by the caller, released with
    ///   dist_blob_release; NULL until the blob is there and on failure. The variable is borrowed
    ///   until the work completes.
    /// @param max_bytes in: the longest message that the call accepts, in bytes; 0 for any.
    /// @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
    /// @param tag in: 0 or more, or DIST_ANY_TAG.
    /// @param status out, optional: as dist_recv; its count is the length.
    /// @param options in, optional: as dist_recv.
    /// @param work out, optional: as dist_recv; dist_work_received_count is the length.
    /// @agree the sender and the receiver agree on the tag.
    /// @blocks as dist_recv.
    /// @return as dist_send; DIST_ERR_MISMATCH also if the message is longer than `max_bytes` or
    ///   has another dtype; DIST_ERR_OUT_OF_MEMORY also if there is no memory for the message.
    ///   After both the message stays for the next receive.
    /// @threads any.
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
        let mut given = None;
        let options = call_options(options, &mut given)?;
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
