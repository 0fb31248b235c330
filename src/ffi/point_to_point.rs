//! Messages between two ranks.

use super::args::{Out, dst, index, negative, number, src};
use super::group::group;
use super::submit::{WorkOut, call_options, hand_out};
use super::types::*;
use super::work::wait_to_the_end;
use crate::api::call::buffer_bytes;
use crate::api::callbacks::refuse_to_block;
use crate::api::issue::Prepared;
use crate::api::point_to_point::AtOnce;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use std::ffi::c_void;
use std::sync::Arc;

/// A tag that is no wild card.
#[inline]
pub(super) fn tag_number(tag: i32) -> Result<u32> {
    u32::try_from(tag).map_err(|_| negative(tag, "tag"))
}

/// Whom a receive is from; `None` for any.
#[inline]
pub(super) fn from_rank(peer: i32) -> Result<Option<usize>> {
    if peer == DIST_ANY_SOURCE { Ok(None) } else { index(peer, "peer").map(Some) }
}

/// Under which tag a receive is; `None` for any.
#[inline]
pub(super) fn from_tag(tag: i32) -> Result<Option<u32>> {
    if tag == DIST_ANY_TAG { Ok(None) } else { tag_number(tag).map(Some) }
}

/// Issues a message and waits until it is done; where from, if it came.
pub(super) fn run(call: Prepared) -> Result<Option<usize>> {
    let (work, is_alone) = (Arc::clone(call.work()), call.is_on_own_stream());
    work.will_be_awaited();
    call.issue()?;
    wait_to_the_end(&work)?;
    if is_alone {
        work.synchronize(&Deadline::never())?;
    }
    Ok(work.source())
}

dist_export! {
    /// Sends a message to one rank of a group.
    ///
    /// The receiver names this rank (or any), the tag (or any) and the same dtype. `group`: required. `buf`:
    /// in, `count` elements, borrowed until the operation is done; NULL only where count is 0. `peer`: a rank of the
    /// group; this rank itself is possible. `tag`: 0 or more. `options`: NULL for defaults; borrowed for the call;
    /// algorithm must be NULL. `work`: NULL, or out, as in dist_all_reduce. Messages from one rank under one tag are
    /// received in the order of their sending, and never wait behind collectives. With `work` NULL it blocks until the
    /// message has been taken over or delivered, until the deadline at the latest: whether the receiver has asked for
    /// it by then is not said. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT, DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED,
    /// DIST_ERR_UNSUPPORTED (the group's back end has no messages), DIST_ERR_OUT_OF_MEMORY (too many are outstanding)
    /// with nothing done. Without a work, and else from it: DIST_ERR_TIMEOUT, DIST_ERR_PEER_FAILED, which fail
    /// nothing else unless a part had been transferred, and the group's failure. Since 0.1.
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
        let options = call_options(options)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let bytes = src(buf, buffer_bytes(count, dtype, 1)?, "buf")?;
        let (peer, tag) = (index(peer, "peer")?, tag_number(tag)?);
        if !work.blocks() {
            return hand_out(group.send(bytes, dtype, peer, tag, options.into_owned())?, work);
        }
        refuse_to_block("a blocking send")?;
        if group.send_at_once(bytes, dtype, peer, tag, &options) {
            return Ok(());
        }
        run(group.send(bytes, dtype, peer, tag, options.into_owned())?).map(drop)
    }
}

dist_export! {
    /// Receives a message from one rank of a group.
    ///
    /// The sender names this rank, the tag and the same dtype. `group`: required. `buf`: out, room for `count`
    /// elements, borrowed until the operation is done; NULL only where count is 0; a shorter message leaves the rest
    /// as it is (dist_work_received_count). `peer`: a rank of the group, or DIST_ANY_SOURCE. `tag`: 0 or more, or
    /// DIST_ANY_TAG. `source`: out, may be NULL; the rank that sent it. Only for a call that blocks: with a work or
    /// inside a batch it must be NULL, and dist_work_source tells. `options`: NULL for defaults; borrowed for the
    /// call; algorithm must be NULL. `work`: NULL, or out, as in dist_all_reduce. A receive takes the first message
    /// that it matches, a message the first receive, in the order of their calls. With `work` NULL it blocks until the
    /// message is here, until the deadline at the latest. Any thread.
    ///
    /// Returns as dist_send; and DIST_ERR_MISMATCH for a message that is longer than `count` or of another dtype: then
    /// nothing was written, and the message stays for the next receive. Since 0.1.
    pub fn dist_recv(
        group: *mut dist_group_t,
        buf: *mut c_void,
        count: usize,
        dtype: dist_dtype_t,
        peer: i32,
        tag: i32,
        source: *mut i32,
        options: *const dist_call_options_t,
        work: *mut *mut dist_work_t,
    ) -> dist_status_t {
        let work = WorkOut::new(work);
        let options = call_options(options)?;
        let group = self::group(group)?;
        let dtype = DataType::from_number(dtype)?;
        let into = dst(buf, buffer_bytes(count, dtype, 1)?, "buf")?;
        let (peer, tag) = (from_rank(peer)?, from_tag(tag)?);
        let source = Out::optional(source);
        if !work.blocks() {
            let call = group.receive(into, dtype, peer, tag, options.into_owned())?;
            if source.is_some() {
                let message = "source is for calls that block: pass NULL, and ask dist_work_source";
                return Err(Error::invalid(message));
            }
            return hand_out(call, work);
        }
        refuse_to_block("a blocking receive")?;
        let from = match group.receive_at_once(into, dtype, peer, tag, &options) {
            AtOnce::From(rank) => Some(rank),
            AtOnce::Not(noted) => run(group.receive(into, dtype, peer, tag, options.into_owned())?.with_note(noted))?,
        };
        if let (Some(out), Some(from)) = (source, from) {
            out.write(number(from)?);
        }
        Ok(())
    }
}
