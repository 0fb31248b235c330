//! Memory for buffers: allocation and registration.

use super::args::OutPtr;
use super::group::group;
use super::types::*;
use crate::api::group::memory;
use crate::base::error::Error;
use std::ffi::c_void;

dist_export! {
    /// Allocates memory for buffers that other ranks of the host can access without a copy.
    ///
    /// All calls accept this memory like all other memory, in any group and on any thread. The
    /// contents are undefined. An allocation of 2 MiB or more begins at a multiple of 2 MiB, and a
    /// smaller one at a multiple of 64 bytes. All of the memory is resident when the call returns,
    /// on the NUMA node of the calling thread. Small allocations share pieces of 2 MiB, which the
    /// library takes from the system and gives back.
    ///
    /// The following holds for host memory of the native back end. In a group on one host,
    /// dist_all_reduce, dist_all_gather, dist_reduce_scatter and dist_all_to_all access such
    /// buffers in place under these conditions:
    ///
    /// - The inputs of all ranks are such memory. For dist_all_reduce, the results are also such
    ///   memory.
    /// - The options of the call do not choose an algorithm.
    /// - The vector or block has at least 4 KiB, or at least 64 KiB if the host has fewer cores
    ///   than ranks.
    ///
    /// For this access, the other ranks map the whole segment of this process, if the system
    /// permits it.
    ///
    /// After a failed dist_all_reduce, a rank that was stopped may still change up to 16 KiB of the
    /// result. In this case, free this memory and allocate new memory; dist_mem_alloc does not hand
    /// out the affected memory again. A forked child shares the memory and must not use it.
    ///
    /// @param group in: the group; its back end chooses the kind of memory.
    /// @param bytes in: the size; 0 gives NULL.
    /// @param device in: DIST_DEVICE_HOST, or the number of the group's GPU on this rank. With NCCL
    ///   2.19 or later, NCCL allocates and registers GPU memory, which makes some of its operations
    ///   faster. Otherwise the memory is from cuMemAlloc.
    /// @param ptr out: the memory, owned by the caller, released with dist_mem_free, also after the
    ///   group's end; NULL on failure.
    /// @agree nothing. For GPU memory in a group with nccl.windows=1: the order of calls and
    ///   `bytes`.
    /// @blocks no. For GPU memory in a group with nccl.windows=1: until all ranks have called.
    /// @return DIST_OK; DIST_ERR_OUT_OF_MEMORY (the message has the requested and the available
    ///   size); DIST_ERR_UNSUPPORTED if the back end has no memory of this kind;
    ///   DIST_ERR_INVALID_ARGUMENT if `device` is less than DIST_DEVICE_HOST or `ptr` is NULL;
    ///   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED; DIST_ERR_SYSTEM; DIST_ERR_BACKEND if
    ///   the GPU or NCCL failed.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_mem_alloc(
        group: *const dist_group_t,
        bytes: usize,
        device: i32,
        ptr: *mut *mut c_void,
    ) -> dist_status_t {
        let out = OutPtr::handle(ptr, "ptr")?;
        if let Some(address) = memory::allocate(&*self::group(group)?, bytes, device)? {
            out.write(std::ptr::with_exposed_provenance_mut(address));
        }
        Ok(())
    }
}

dist_export! {
    /// Frees memory that dist_mem_alloc returned.
    ///
    /// No operation may still use the memory. The call also works after the group's release and
    /// after dist_finalize.
    ///
    /// @param ptr in, optional: the pointer that dist_mem_alloc returned; NULL does nothing.
    /// @agree nothing.
    /// @blocks no. For GPU memory: until the device has completed all work that was given to it.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `ptr` is not the start of allocated memory, or
    ///   if the memory was freed before.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_mem_free(ptr: *mut c_void) -> dist_status_t {
        if ptr.is_null() {
            return Ok(());
        }
        memory::free(ptr.addr())
    }
}

dist_export! {
    /// Announces memory that calls in a group will use often.
    ///
    /// A back end may prepare for such memory. In this version the library only records it. Calls
    /// accept all memory, registered or not. Several groups may register the same memory.
    ///
    /// @param group in: the group.
    /// @param ptr in: the start of the memory; borrowed until dist_mem_deregister or the group's
    ///   end.
    /// @param bytes in: the size, more than 0.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if `ptr` is NULL, if `bytes` is 0 or exceeds the
    ///   address space, or if the memory overlaps with registered memory of the group;
    ///   DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_mem_register(
        group: *mut dist_group_t,
        ptr: *mut c_void,
        bytes: usize,
    ) -> dist_status_t {
        let group = self::group(group)?;
        memory::register(&group, address(ptr)?, bytes)
    }
}

dist_export! {
    /// Ends a registration that dist_mem_register made.
    ///
    /// No operation may still use the memory.
    ///
    /// @param group in: the group of the registration.
    /// @param ptr in: the pointer of the registration.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if no registered memory of the group begins at
    ///   `ptr`; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_mem_deregister(group: *mut dist_group_t, ptr: *mut c_void) -> dist_status_t {
        let group = self::group(group)?;
        memory::deregister(&group, address(ptr)?)
    }
}

/// Returns the address in a pointer, which must not be NULL.
fn address(ptr: *mut c_void) -> crate::base::error::Result<usize> {
    if ptr.is_null() { Err(Error::invalid("argument ptr is NULL")) } else { Ok(ptr.addr()) }
}
