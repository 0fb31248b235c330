//! Probes, matched messages, and a combined send and receive.
//!
//! *Matching* assigns a message to a receive with the same source and tag. A probe finds a message
//! before its receive. A probe with the output `message` also takes the message out of matching (as
//! MPI's `Mprobe`):
//!
//! ```text
//! dist_probe(group, peer, tag, &status, NULL, &message)   status has the number of elements
//! dist_recv_message(message, buf, status.count, ...)      receives exactly this message
//! dist_message_release(message)                           instead: returns it to matching
//! ```

use super::args::{OutPtr, dst, index, src};
use super::group::group;
use super::handle::{HandleKind, HandleTable};
use super::point_to_point::{optional_source, optional_tag, run_blocking, tag_number};
use super::recv_status::RecvStatusOut;
use super::submit::{WorkOut, call_options, issue_with_handle, probe_options, send_options};
use super::types::*;
use crate::api::WorkProgress;
use crate::api::collective::call::buffer_bytes;
use crate::api::p2p::point_to_point::SendRecvSide;
use crate::api::p2p::probe::{MatchedMessage, ProbeRequest};
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::base::dtype::DataType;
use std::ffi::c_void;

static MESSAGES: HandleTable<MatchedMessage> = HandleTable::new(HandleKind::Message);

dist_export! {
    #[in_progress]
    /// Finds a message before it is received, and optionally takes it out of matching.
    ///
    /// The call finds the message that a receive with the same arguments would take.
    ///
    /// - If `message` is not NULL, the call takes the message out of matching: no other receive and
    ///   no other probe can find it. dist_recv_message receives it.
    /// - If `message` is NULL, the call only reports the message. Another thread may receive the
    ///   message before this thread does.
    ///
    /// As in MPI, a receive on another thread may take a message for which this call waits.
    /// Messages in the memory of a GPU are not found. A probe does not join a batch: it runs
    /// immediately.
    ///
    /// @param group in: the group.
    /// @param peer in: the sender, a rank of the group, or DIST_ANY_SOURCE.
    /// @param tag in: 0 or more, or DIST_ANY_TAG.
    /// @param status out, optional: source, tag, count and dtype of the message, written on
    ///   success.
    /// @param options in, optional: as in dist_recv. With timeout_ms DIST_NO_WAIT, the call does
    ///   not block.
    /// @param message out, optional: NULL to only report the message. Otherwise the call writes the
    ///   message, which the caller owns and passes to dist_recv_message or dist_message_release;
    ///   NULL if none was found.
    /// @agree nothing.
    /// @blocks Until there is a matching message, but at most until the deadline. A call with
    ///   DIST_NO_WAIT does not block.
    /// @return DIST_OK; DIST_IN_PROGRESS with DIST_NO_WAIT if there is no message;
    ///   DIST_ERR_INVALID_ARGUMENT if an argument is wrong or the call would block inside a
    ///   completion callback; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED;
    ///   DIST_ERR_UNSUPPORTED if the group's back end cannot probe (plug-ins cannot);
    ///   DIST_ERR_TIMEOUT; DIST_ERR_PEER_FAILED if the sender has left and none of its messages
    ///   remains; the group's error if the group has failed.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_probe(
        group: *mut dist_group_t,
        peer: i32,
        tag: i32,
        status: *mut dist_recv_status_t,
        options: *const dist_call_options_t,
        message: *mut *mut dist_message_t,
    ) -> dist_status_t {
        let out = OutPtr::optional_handle(message);
        let (options, waits) = probe_options(options)?;
        let group = self::group(group)?;
        let (from, tag) = (optional_source(peer, "peer")?, optional_tag(tag)?);
        let status = RecvStatusOut::new(status)?;
        let request = ProbeRequest { from, tag, is_matched_probe: out.is_some() };
        let Some(found) = group.probe(&request, waits, &options)? else {
            return Ok(WorkProgress::Pending);
        };
        status.write_envelope(&found.envelope)?;
        if let (Some(out), Some(message)) = (out, found.message) {
            out.write(MESSAGES.insert(message)?);
        }
        Ok(WorkProgress::Done)
    }
}

dist_export! {
    /// Receives a message that dist_probe took out of matching.
    ///
    /// The call consumes the handle, even if the operation fails. The handle stays valid only if
    /// the call has had no effect: after a wrong argument, DIST_ERR_MISMATCH, DIST_ERR_UNSUPPORTED
    /// or DIST_ERR_OUT_OF_MEMORY. If the deadline passes before any part of the message was
    /// transferred, the message returns to matching.
    ///
    /// A byte string (dist_send_bytes) is received as DIST_U8. The status of the probe has its
    /// length.
    ///
    /// @param message in: the message.
    /// @param buf out: a buffer for `count` elements in host memory; borrowed until the work
    ///   completes; NULL only if `count` is 0.
    /// @param count in: the most elements that the call accepts.
    /// @param dtype in: the type of the elements, the same as the sender's.
    /// @param status out, optional: as in dist_recv.
    /// @param options in, optional: as in dist_recv.
    /// @param work out, optional: as in dist_recv.
    /// @agree the sender and the receiver agree on the dtype.
    /// @blocks Until the message is in `buf`, but at most until the deadline. A call with a work or
    ///   inside a batch does not block.
    /// @return The results of dist_recv, and these errors: DIST_ERR_MISMATCH if the message is
    ///   longer than `count` or has another dtype; the library then writes nothing.
    ///   DIST_ERR_INVALID_HANDLE if the group of the message was released or another call receives
    ///   the message. DIST_ERR_ABORTED if the sender withdrew the message because its deadline
    ///   passed. DIST_ERR_PEER_FAILED if the sender left before the message was transferred.
    /// @threads Any thread may call this at any time. If several calls receive the same message,
    ///   only one succeeds.
    /// @since 0.1
    pub fn dist_recv_message(
        message: *mut dist_message_t,
        buf: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        status: *mut dist_recv_status_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = call_options(options, &mut options_slot)?;
        let matched = MESSAGES.get(message)?;
        let dtype = DataType::from_number(dtype)?;
        let into = dst(buf, buffer_bytes(count, dtype, 1)?, "buf")?;
        let status = RecvStatusOut::new(status)?;
        let blocks = work.blocks();
        if blocks {
            reject_blocking_in_callback("a blocking receive")?;
        } else {
            status.refuse_without_blocking()?;
        }
        let call = matched.receive(into, dtype, options.clone()).inspect_err(|_| {
            if !matched.has_group() {
                drop(MESSAGES.remove(message));
            }
        })?;
        let outcome = if blocks { run_blocking(call) } else { issue_with_handle(call, work).map(|()| None) };
        if outcome.is_ok() || !matched.release_claim() {
            // Another thread may have released the handle already.
            drop(MESSAGES.remove(message));
        }
        status.write(outcome?, dtype)
    }
}

dist_export! {
    /// Returns a message to matching, to its old position in the order of messages.
    ///
    /// dist_probe took the message out of matching. The next receive or probe that matches the
    /// message can find it again.
    ///
    /// @param message in, optional: the message; the handle is consumed. NULL does nothing.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK, also if the group was released or has failed; DIST_ERR_INVALID_HANDLE if
    ///   the message was received or released.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_message_release(message: *mut dist_message_t) -> dist_status_t {
        MESSAGES.release_handle(message, |it| it.release())
    }
}

dist_export! {
    /// Sends one message and receives another at the same time.
    ///
    /// Both directions progress concurrently, so a ring of ranks that all call this function does
    /// not deadlock, whatever the size. The messages match other calls like the messages of
    /// dist_send and dist_recv. Both buffers are in host memory.
    ///
    /// The two buffers may overlap or be equal: the received message does not overwrite elements
    /// that are not sent yet. In this case, the library needs memory of the size of the received
    /// message.
    ///
    /// With a work, dist_work_source, dist_work_tag and dist_work_received_count describe the
    /// receive.
    ///
    /// @param group in: the group.
    /// @param send in: `send_count` elements; borrowed until the work completes; NULL only if
    ///   `send_count` is 0.
    /// @param send_count in: the number of elements to send.
    /// @param dest in: the receiver, a rank of the group, this rank included.
    /// @param send_tag in: 0 or more.
    /// @param recv out: a buffer for `recv_count` elements; borrowed until the work completes; NULL
    ///   only if `recv_count` is 0.
    /// @param recv_count in: the most elements that the call accepts.
    /// @param source in: the sender, a rank of the group, or DIST_ANY_SOURCE.
    /// @param recv_tag in: 0 or more, or DIST_ANY_TAG.
    /// @param dtype in: the type of the elements of both messages.
    /// @param status out, optional: the status of the received message, as in dist_recv.
    /// @param options in, optional: as in dist_send; DIST_CALL_SYNCHRONOUS applies to the send.
    /// @param work out, optional: as in dist_send. The work completes when both messages are done.
    /// @agree each sender and its receiver agree on the tag and the dtype.
    /// @blocks Until both messages are done, but at most until the deadline. A call with a work or
    ///   inside a batch does not block.
    /// @return The results of dist_send and dist_recv. The outcome is known when both messages have
    ///   ended. If both messages have failed, it is the error of the receive.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_sendrecv(
        group: *mut dist_group_t,
        send: *const c_void,
        send_count: usize,
        dest: i32,
        send_tag: i32,
        recv: *mut c_void,
        recv_count: usize,
        source: i32,
        recv_tag: i32,
        dtype: dist_dtype_t,
        status: *mut dist_recv_status_t,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let mut options_slot = None;
        let options = send_options(options, &mut options_slot)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let outgoing = SendRecvSide {
            bytes: src(send, buffer_bytes(send_count, dtype, 1)?, "send")?,
            peer: index(dest, "dest")?,
            tag: tag_number(send_tag)?,
        };
        let incoming = SendRecvSide {
            bytes: dst(recv, buffer_bytes(recv_count, dtype, 1)?, "recv")?,
            peer: optional_source(source, "source")?,
            tag: optional_tag(recv_tag)?,
        };
        let status = RecvStatusOut::new(status)?;
        if work.blocks() {
            reject_blocking_in_callback("a blocking send and receive")?;
        } else {
            status.refuse_without_blocking()?;
        }
        let call = group.sendrecv(outgoing, incoming, dtype, options.clone())?;
        if !work.blocks() {
            return issue_with_handle(call, work);
        }
        status.write(run_blocking(call)?, dtype)
    }
}
