//! Messages between two ranks: `dist_send`, `dist_recv`, and helpers for other calls with messages.

use super::args::{dst, index, negative_argument, src};
use super::group::group;
use super::recv_status::RecvStatusOut;
use super::submit::{WorkOut, call_options, issue_with_handle, send_options};
use super::types::*;
use super::work::wait_until_done;
use crate::api::collective::call::buffer_bytes;
use crate::api::collective::prepared_call::PreparedCall;
use crate::api::p2p::point_to_point::ImmediateReceive;
use crate::api::p2p::probe::Delivery;
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use std::ffi::c_void;
use std::sync::Arc;

/// Converts a tag that must not be a wildcard.
#[inline]
pub(super) fn tag_number(tag: i32) -> Result<u32> {
    u32::try_from(tag).map_err(|_| negative_argument(tag, "tag"))
}

/// Converts the source of a receive; `None` for any rank.
#[inline]
pub(super) fn optional_source(peer: i32, name: &str) -> Result<Option<usize>> {
    if peer == DIST_ANY_SOURCE { Ok(None) } else { index(peer, name).map(Some) }
}

/// Converts the tag of a receive; `None` for any tag.
#[inline]
pub(super) fn optional_tag(tag: i32) -> Result<Option<u32>> {
    if tag == DIST_ANY_TAG { Ok(None) } else { tag_number(tag).map(Some) }
}

/// Issues a message, waits until it is done, and returns its delivery. For a message on a stream of
/// the library, waits for the device as well.
pub(super) fn run_blocking(call: PreparedCall) -> Result<Option<Delivery>> {
    let (work, is_on_own_stream) = (Arc::clone(call.work()), call.is_on_library_stream());
    work.set_awaited();
    call.issue()?;
    wait_until_done(&work)?;
    if is_on_own_stream {
        work.synchronize(&Deadline::never())?;
    }
    Ok(work.delivery())
}

dist_export! {
    /// Sends a message to one rank of a group.
    ///
    /// Messages from one rank with one tag are received in the order in which they were sent.
    /// Messages in host memory never wait for collectives. A send may complete before its receiver
    /// has called: it completes when the library has copied or delivered the message. With
    /// DIST_CALL_SYNCHRONOUS in the flags, it completes only after a receive has matched the
    /// message.
    ///
    /// NCCL transfers messages in GPU memory in one order, without tags. Over NCCL, the tag is 0,
    /// the receiver names the sender, and both ranks pass the same count.
    ///
    /// @param group in: the group.
    /// @param buf in: `count` elements; borrowed until the work completes; NULL only if `count` is
    ///   0.
    /// @param count in: the number of elements.
    /// @param dtype in: the type of the elements.
    /// @param peer in: the receiver, a rank of the group, this rank included.
    /// @param tag in: 0 or more.
    /// @param options in, optional: NULL for all defaults; borrowed for the call; `algorithm` must
    ///   be NULL.
    /// @param work out, optional: NULL to block. Otherwise the call writes the work, which the
    ///   caller owns and releases with dist_work_release; NULL on failure.
    /// @agree the sender and the receiver agree on the tag and the dtype.
    /// @blocks Until the send completes, but at most until the deadline. A call with a work or
    ///   inside a batch does not block.
    /// @return DIST_OK. If the call has had no effect: DIST_ERR_INVALID_ARGUMENT if an argument is
    ///   wrong or the call would block inside a completion callback; DIST_ERR_INVALID_HANDLE;
    ///   DIST_ERR_NOT_INITIALIZED; DIST_ERR_UNSUPPORTED if the group's back end has no messages, no
    ///   synchronous send, or no messages with this tag or peer in the memory of a GPU;
    ///   DIST_ERR_OUT_OF_MEMORY if 65536 messages of this rank in the group are outstanding or the
    ///   batch has 65536 calls; DIST_ERR_MISMATCH, once, if a receive has refused an earlier
    ///   message of this rank because of its dtype or length. A blocking call returns the following
    ///   errors; otherwise the work reports them: DIST_ERR_TIMEOUT; DIST_ERR_PEER_FAILED; the
    ///   group's error if the group has failed. DIST_ERR_TIMEOUT and DIST_ERR_PEER_FAILED fail the
    ///   group only if a part of the message was transferred.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_send(
        group: *mut dist_group_t,
        buf: *const c_void,
        count: usize,
        dtype: dist_dtype_t,
        peer: i32,
        tag: i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = send_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let bytes = src(buf, buffer_bytes(count, dtype, 1)?, "buf")?;
        let (peer, tag) = (index(peer, "peer")?, tag_number(tag)?);
        if !work.blocks() {
            return issue_with_handle(group.send(bytes, dtype, peer, tag, options.clone())?, work);
        }
        reject_blocking_in_callback("a blocking send")?;
        if group.try_send_now(bytes, dtype, peer, tag, options) {
            return Ok(());
        }
        run_blocking(group.send(bytes, dtype, peer, tag, options.clone())?).map(drop)
    }
}

dist_export! {
    /// Receives a message from one rank of a group.
    ///
    /// A message and a receive match if sender, tag and group match. A receive takes the first
    /// matching message in the order of the sends, and a message goes to the first matching receive
    /// in the order of the receives. If the message is shorter than the buffer, the rest of the
    /// buffer stays unchanged. For the memory of a GPU over NCCL, see dist_send.
    ///
    /// @param group in: the group.
    /// @param buf out: a buffer for `count` elements; borrowed until the work completes; NULL only
    ///   if `count` is 0.
    /// @param count in: the most elements that the call accepts.
    /// @param dtype in: the type of the elements, the same as the sender's.
    /// @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
    /// @param tag in: 0 or more, or DIST_ANY_TAG.
    /// @param status out, optional: source, tag, count and dtype of the message, written on
    ///   success. With a work and inside a batch, it must be NULL: use dist_work_source,
    ///   dist_work_tag and dist_work_received_count.
    /// @param options in, optional: as in dist_send, without DIST_CALL_SYNCHRONOUS.
    /// @param work out, optional: as in dist_send.
    /// @agree the sender and the receiver agree on the tag and the dtype.
    /// @blocks Until the message is in `buf`, but at most until the deadline. A call with a work or
    ///   inside a batch does not block.
    /// @return The results of dist_send, and DIST_ERR_MISMATCH if the message is longer than
    ///   `count` or has another dtype. In this case, the library writes nothing, and the next
    ///   receive may take the message. With the native back end, the next send or receive of the
    ///   sender returns DIST_ERR_MISMATCH, too.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_recv(
        group: *mut dist_group_t,
        buf: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        peer: i32,
        tag: i32,
        status: *mut dist_recv_status_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let into = dst(buf, buffer_bytes(count, dtype, 1)?, "buf")?;
        let (peer, tag) = (optional_source(peer, "peer")?, optional_tag(tag)?);
        let status = RecvStatusOut::new(status)?;
        if !work.blocks() {
            let call = group.receive(into, dtype, peer, tag, options.clone())?;
            status.refuse_without_blocking()?;
            return issue_with_handle(call, work);
        }
        reject_blocking_in_callback("a blocking receive")?;
        let delivery = match group.try_receive_now(into, dtype, peer, tag, options) {
            ImmediateReceive::Received(delivery) => Some(delivery),
            ImmediateReceive::NotReceived(issued_message) => run_blocking(group.receive(into, dtype, peer, tag, options.clone())?.with_issued_message(issued_message))?,
        };
        status.write(delivery, dtype)
    }
}
