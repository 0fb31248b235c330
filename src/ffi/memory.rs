//! Memory for buffers.

use super::args::Out;
use super::group::group;
use super::types::*;
use crate::api::memory;
use crate::base::error::Error;
use std::ffi::c_void;

dist_export! {
    /// Allocates memory for buffers: in one shared segment of this process, which other processes of the host can be given.
    ///
    /// Any call accepts it, in any group and from any thread, as it accepts any other memory; no rank has to agree on it. Where all
    /// ranks are on one host, and what all of them give to an all_reduce, all_gather, reduce_scatter or all_to_all lies in such
    /// memory (for an all_reduce also the results), it is read (and written) where it lies, without a copy: from 4 KiB a vector
    /// or block on, or 64 KiB where the host has fewer cores than ranks. For that the other ranks map the whole segment, if the
    /// system lets them look into this process. When an all_reduce has failed, a rank that was stopped in the middle of it may
    /// still change up to 16 KiB of the result: free it and allocate another one; where that is so it is not handed out again.
    ///
    /// It begins at a multiple of 64 bytes, or of 2 MiB if it is that large; what it holds is arbitrary. All of it is there when the call returns, on the caller's node of memory; the process gets memory from the system, and gives it
    /// back, in pieces of 2 MiB that small allocations share.
    ///
    /// `group`: required; its back end says which memory it is. `bytes`: 0 gives NULL. `device`: DIST_DEVICE_HOST; or
    /// the group's GPU on this rank, for memory of it that NCCL has allocated and, from 2.19 on, registered with the group,
    /// which makes some of its operations faster; without NCCL it is cuMemAlloc's. Freeing that waits for what the device was given.
    /// `ptr`: out, required; NULL on failure; freed with dist_mem_free, or by the end of the process: the end of the group does
    /// not free it. Does not wait for others, but for a GPU's memory in a group with the back-end option nccl.windows=1, where all
    /// ranks call it together, with the same length. Any thread. A child forked by the caller shares the memory, and must leave it
    /// alone.
    ///
    /// Returns DIST_OK; DIST_ERR_OUT_OF_MEMORY with what was asked for and what there is; DIST_ERR_UNSUPPORTED for memory of
    /// a device that the back end does not serve; DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT,
    /// DIST_ERR_NOT_INITIALIZED, DIST_ERR_SYSTEM. Since 0.1.
    pub fn dist_mem_alloc(
        group: *const dist_group_t,
        bytes: usize,
        device: i32,
        ptr: *mut *mut c_void,
    ) -> dist_status_t {
        let out = Out::handle(ptr, "ptr")?;
        if let Some(address) = memory::allocate(&*self::group(group)?, bytes, device)? {
            out.write(std::ptr::with_exposed_provenance_mut(address));
        }
        Ok(())
    }
}

dist_export! {
    /// Frees memory of dist_mem_alloc.
    ///
    /// `ptr`: what dist_mem_alloc wrote; NULL does nothing. No operation may be using it any more. Also after the group's
    /// release and after dist_finalize. Does not wait for others. Any thread.
    ///
    /// Returns DIST_OK, or DIST_ERR_INVALID_ARGUMENT for any other pointer, one that was freed before included. Since 0.1.
    pub fn dist_mem_free(ptr: *mut c_void) -> dist_status_t {
        if ptr.is_null() {
            return Ok(());
        }
        memory::free(ptr.addr())
    }
}

dist_export! {
    /// Tells a group of memory that its calls will use again and again.
    ///
    /// A back end may prepare for that; the native one, of this version, only remembers it. Calls accept all memory, registered
    /// or not. No rank has to agree on it.
    ///
    /// `group`: required. `ptr`: required; borrowed until dist_mem_deregister or the end of the group. `bytes`: its
    /// size, more than 0. The same memory may be registered with several groups. Does not wait for others. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT where the bytes overlap with some that are registered with the group already,
    /// and for wrong arguments; DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED. Since 0.1.
    pub fn dist_mem_register(
        group: *mut dist_group_t,
        ptr: *mut c_void,
        bytes: usize,
    ) -> dist_status_t {
        memory::register(&self::group(group)?, address(ptr)?, bytes)
    }
}

dist_export! {
    /// Takes back what dist_mem_register told.
    ///
    /// `group`: as it was then. `ptr`: required; the pointer of then. No operation may be using the memory any more. Does
    /// not wait for others. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_INVALID_ARGUMENT where no memory that begins there is registered with the group;
    /// DIST_ERR_INVALID_HANDLE, DIST_ERR_NOT_INITIALIZED. Since 0.1.
    pub fn dist_mem_deregister(group: *mut dist_group_t, ptr: *mut c_void) -> dist_status_t {
        memory::deregister(&self::group(group)?, address(ptr)?)
    }
}

/// The address in a pointer that must be one.
fn address(ptr: *mut c_void) -> crate::base::error::Result<usize> {
    if ptr.is_null() { Err(Error::invalid("argument ptr is NULL")) } else { Ok(ptr.addr()) }
}
