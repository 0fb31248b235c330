//! Version, errors, `dist_init` and `dist_finalize`, and queries about back ends and groups.

use super::args::{
    check_reserved, copy_text, index, milliseconds, optional_device, optional_str, to_i32,
};
use super::group::{GROUPS, clear_world, group, set_world};
use super::operator::{self, CustomOperator};
use super::store::STORES;
use super::types::*;
use super::{blob, last_error, names, sized_struct, status};
use crate::api::InitOptions;
use crate::api::group::capabilities;
use crate::api::observe::recorder;
use crate::api::runtime;
use crate::api::work::callbacks::reject_blocking_in_callback;
use crate::backend;
use crate::base::dtype::DataType;
use std::ffi::c_char;
use std::sync::Arc;

dist_export! {
    #[anywhere(0)]
    /// Returns the version of the loaded library as MAJOR * 10000 + MINOR * 100 + PATCH.
    ///
    /// DIST_VERSION is the version of the header; compare both to find a mismatch.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the version.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_version() -> u32 {
        Ok(names::VERSION)
    }
}

dist_export! {
    #[anywhere(names::VERSION_STRING.as_ptr())]
    /// Returns the version of the loaded library as text, such as "0.1.0".
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the version, static.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_version_string() -> *const c_char {
        Ok(names::VERSION_STRING.as_ptr())
    }
}

dist_export! {
    #[anywhere(c"unknown status".as_ptr())]
    /// Describes a status in a few words, such as "timed out".
    ///
    /// @param status in: the status; any number is allowed.
    /// @agree nothing.
    /// @blocks no.
    /// @return the text, static; "unknown status" for a number that is no status.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_status_string(status: dist_status_t) -> *const c_char {
        Ok(status::status_text(status).as_ptr())
    }
}

dist_export! {
    #[anywhere(0)]
    /// Returns the size of one element of a type in bytes.
    ///
    /// @param dtype in: the element type; any number is allowed.
    /// @agree nothing.
    /// @blocks no.
    /// @return the size; 0 for a number that is no built-in element type, and for DIST_OPAQUE.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_dtype_size(dtype: dist_dtype_t) -> usize {
        Ok(DataType::from_number(dtype).map_or(0, DataType::size))
    }
}

dist_export! {
    #[anywhere(names::UNKNOWN_DTYPE.as_ptr())]
    /// Returns the name of an element type, such as "f32", as error messages show it.
    ///
    /// @param dtype in: the element type; any number is allowed.
    /// @agree nothing.
    /// @blocks no.
    /// @return the name, static; "unknown dtype" for a number that is no built-in element type.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_dtype_name(dtype: dist_dtype_t) -> *const c_char {
        Ok(names::dtype(dtype).as_ptr())
    }
}

dist_export! {
    #[anywhere(names::UNKNOWN_OP.as_ptr())]
    /// Returns the name of a built-in operator, such as "sum".
    ///
    /// @param op in: the operator; any number is allowed.
    /// @agree nothing.
    /// @blocks no.
    /// @return the name, static; "unknown op" for a number that is no built-in operator.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_op_name(op: dist_op_t) -> *const c_char {
        Ok(names::op(op).as_ptr())
    }
}

dist_export! {
    #[anywhere(c"".as_ptr())]
    /// Returns the message of the calling thread's last failed call.
    ///
    /// Later calls that succeed do not change the message.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the message in UTF-8, or "" if no call of the thread has failed. The pointer is
    ///   valid until the second next failing call of the thread.
    /// @threads Any thread may call this at any time. Each thread has its own message.
    /// @since 0.1
    pub fn dist_last_error() -> *const c_char {
        Ok(last_error::as_ptr())
    }
}

dist_export! {
    #[anywhere(0)]
    /// Copies the message of the calling thread's last failed call.
    ///
    /// @param buf out, optional: receives the message, always with its terminator; NULL only if
    ///   `cap` is 0. A message that is too long is cut between two characters.
    /// @param cap in: the size of `buf` in bytes.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of bytes of the whole message with its terminator; 0 if `buf` is NULL and
    ///   `cap` is not 0.
    /// @threads Any thread may call this at any time. Each thread has its own message.
    /// @since 0.1
    pub fn dist_last_error_copy(buf: *mut c_char, cap: usize) -> usize {
        copy_text(&last_error::get(), buf, cap)
    }
}

dist_export! {
    /// Creates the world group together with all other processes of the job.
    ///
    /// The default init method is env://, which reads the environment variables of distrun,
    /// torchrun, mpirun and srun. If a wait takes longer than DIST_SLOW_WARNING_MS (30 seconds if
    /// unset), the log reports it at level WARN.
    ///
    /// @param options in, optional: NULL for all defaults; borrowed for the call. The default of
    ///   `connect_timeout_ms` is DIST_CONNECT_TIMEOUT_MS, or 5 minutes; DIST_NO_WAIT is refused.
    /// @agree the store or init method, the world size, the group name and the back end.
    /// @blocks Until all ranks have joined, but at most until `connect_timeout_ms`.
    /// @return DIST_OK; DIST_ERR_ALREADY_INITIALIZED if there is a world; DIST_ERR_INVALID_ARGUMENT
    ///   if an option or environment variable is wrong (the message names it), if two processes
    ///   have the same rank, or inside a completion callback; DIST_ERR_INVALID_HANDLE if
    ///   `options.store` is no store; DIST_ERR_NOT_FOUND if no back end has this name;
    ///   DIST_ERR_UNSUPPORTED if the back end cannot run here or the options set a field that this
    ///   version does not know; DIST_ERR_TIMEOUT if ranks did not join (the message names them);
    ///   DIST_ERR_CONNECTION if the store cannot be reached; DIST_ERR_AUTH if the store refuses the
    ///   secret, if ranks have different secrets or settings of DIST_SECURITY, or if the setting
    ///   needs a secret or an encrypted store that the job does not have; DIST_ERR_MISMATCH if
    ///   ranks run different versions or have different world sizes or options;
    ///   DIST_ERR_PEER_FAILED if another rank failed to join; DIST_ERR_OUT_OF_MEMORY;
    ///   DIST_ERR_SYSTEM; DIST_ERR_BACKEND if the back end failed.
    /// @threads Any thread may call this at any time. Calls of dist_init and dist_finalize run one
    ///   after the other.
    /// @since 0.1
    pub fn dist_init(options: *const dist_init_options_t) -> dist_status_t {
        let options = sized_struct::read(options)?;
        let rank = if options.fields & DIST_FIELD_RANK != 0 {
            Some(index(options.rank, "rank")?)
        } else {
            None
        };
        let size = match options.world_size {
            0 => None,
            size => Some(index(size, "world_size")?),
        };
        let store = if options.store.is_null() {
            None
        } else {
            Some(Arc::clone(STORES.get(options.store)?.store()))
        };
        check_reserved(options.reserved)?;
        runtime::init(InitOptions {
            backend: super::backend::optional_backend_name(options.backend)?,
            backend_options: optional_str(options.backend_options, "backend_options")?
                .unwrap_or_default()
                .to_owned(),
            device: optional_device(options.fields, options.device)?,
            init_method: optional_str(options.init_method, "init_method")?.map(str::to_owned),
            store,
            rank,
            size,
            timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
            connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
            group_name: optional_str(options.group_name, "group_name")?.map(str::to_owned),
        })?;
        set_world(runtime::world()?)
    }
}

dist_export! {
    /// Leaves the world group and ends its handle; dist_init may be called again afterwards.
    ///
    /// Each rank calls dist_finalize when it has no more collectives to call. Pending works of the
    /// world get 5 seconds to complete. Works that are still pending then end with
    /// DIST_ERR_ABORTED. The handles of works stay valid until dist_work_release. Completion
    /// callbacks run before the world ends. Blocking calls of other threads continue to their own
    /// end.
    ///
    /// The ranks compare the collectives that each of them has called in the world and in the
    /// groups made from it, released or not. They compare the number and order of the calls. Of
    /// each call they compare the kind, element type, operator, root, label, and the counts that
    /// must agree. If they differ, every rank of the group returns DIST_ERR_MISMATCH, and the
    /// message names the first difference. A rank whose calls have already returned the failure of
    /// this group does not return it again. In a group that has failed, the ranks compare only the
    /// calls that both have made. If some ranks do not come within 5 seconds, the others leave
    /// without them, and the log reports this at level WARN. The process keeps the calls of its
    /// last 1024 groups.
    ///
    /// The rank that hosts the store leaves last: it waits until the other ranks have left. After
    /// DIST_ERR_MISMATCH the rank has left, too.
    ///
    /// A process that returns from main or calls exit without dist_finalize leaves the world, and
    /// the groups that it has not released, at its end. It then waits for no other rank. A process
    /// that calls _exit, or that a signal ends, has died.
    ///
    /// @agree nothing; every rank calls dist_finalize once.
    /// @blocks Until works and callbacks have ended and all ranks have compared their calls. On the
    ///   rank that hosts the store, also until the other ranks have left. The call takes at most 6
    ///   seconds, or about 1 second if the group has failed.
    /// @return DIST_OK; DIST_ERR_NOT_INITIALIZED if there is no world; DIST_ERR_INVALID_ARGUMENT
    ///   inside a completion callback; DIST_ERR_MISMATCH if ranks made different calls.
    /// @threads Any thread may call this at any time. Calls of dist_init and dist_finalize run one
    ///   after the other.
    /// @since 0.1
    pub fn dist_finalize() -> dist_status_t {
        reject_blocking_in_callback("dist_finalize")?;
        runtime::finalize(clear_world)
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns whether the world group exists.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return 1 between dist_init and dist_finalize, otherwise 0.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_is_initialized() -> i32 {
        Ok(i32::from(runtime::is_initialized()))
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns whether torchrun or distrun started this process.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return 1 if the environment variable TORCHELASTIC_RUN_ID is set and not empty, otherwise 0.
    /// @threads Any thread may call this, but not while another thread changes the environment.
    /// @since 0.1
    pub fn dist_is_elastic_launched() -> i32 {
        Ok(i32::from(runtime::is_elastic_launched()?))
    }
}

dist_export! {
    #[on_error(0)]
    /// Returns whether a back end of this name can be used, and loads the back end if necessary.
    ///
    /// The available back ends are the native one ("native" or "gloo"), back ends that were
    /// registered or loaded, and the back ends of the plug-ins in DIST_BACKEND_PLUGINS. The first
    /// call with an unknown name in the process loads these plug-ins. For "nccl", and for maps such
    /// as "cpu:native,cuda:nccl", the call loads the NCCL library. For "mpi", it loads the plug-in
    /// for MPI.
    ///
    /// @param name in: the name, in upper or lower case; borrowed for the call.
    /// @agree nothing.
    /// @blocks no; loading a shared object may take a moment.
    /// @return 1 if the back end is available, otherwise 0. If a plug-in cannot be loaded,
    ///   dist_last_error returns the reason.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_backend_is_available(name: *const c_char) -> i32 {
        let name = super::args::required_str(name, "name")?;
        super::backend::load_if_unknown(name)?;
        Ok(i32::from(backend::is_available(name)))
    }
}

dist_export! {
    /// Checks whether a group supports a kind of call, without making such a call.
    ///
    /// All ranks get the same answer.
    ///
    /// @param group in: the group.
    /// @param kind in: a DIST_KIND_ constant.
    /// @param dtype in: the element type; ignored for DIST_KIND_BARRIER.
    /// @param op in: the operator, built-in or from dist_op_create; ignored unless `kind` reduces.
    /// @param device in: DIST_DEVICE_HOST, or the number of the GPU whose memory has the buffers.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK if the group supports the call; DIST_ERR_UNSUPPORTED if not (the message
    ///   names type, operator and back end); DIST_ERR_INVALID_ARGUMENT if a number is no constant
    ///   of its family; DIST_ERR_INVALID_HANDLE; DIST_ERR_NOT_INITIALIZED.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_backend_supports(
        group: *const dist_group_t,
        kind: i32,
        dtype: dist_dtype_t,
        op: dist_op_t,
        device: i32,
    ) -> dist_status_t {
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) && capabilities::is_reduction(kind) {
            CustomOperator::find(dtype, op)?;
            return group.supports_operator(kind, device);
        }
        group.supports(kind, dtype, op, device)
    }
}

dist_export! {
    /// Returns the flight recorder's records of operations and groups as JSON.
    ///
    /// The flight recorder keeps the last 2000 operations of the process, with messages and
    /// monitored barriers, and the groups of these operations with their members and failures. Each
    /// call is one record, with the sizes of its inputs and outputs. For calls on GPU memory over
    /// NCCL, the record can have the time of the GPU (docs/debugging.md). dist-doctor reads this
    /// JSON from files. The call also works before dist_init and after dist_finalize.
    ///
    /// @param group in, optional: only operations of this group; NULL for all groups.
    /// @param json out: a blob of one text, owned by the caller, released with dist_blob_release;
    ///   NULL on failure.
    /// @agree nothing.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_HANDLE; DIST_ERR_INVALID_ARGUMENT if `json` is NULL;
    ///   DIST_ERR_OUT_OF_MEMORY.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_flight_recorder_dump(
        group: *const dist_group_t,
        json: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = super::args::OutPtr::handle(json, "json")?;
        let dump = if group.is_null() {
            recorder::dump(None, recorder::DumpReason::Request)
        } else {
            GROUPS.get(group)?.flight_record()
        };
        blob::write_blob(&out, vec![dump.to_string().into_bytes()])
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns this process's rank in a group.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the rank; -1 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_get_rank(group: *const dist_group_t) -> i32 {
        to_i32(self::group(group)?.rank())
    }
}

dist_export! {
    #[on_error(-1)]
    /// Returns the number of ranks of a group.
    ///
    /// @param group in: the group.
    /// @agree nothing.
    /// @blocks no.
    /// @return the number of ranks; -1 for NULL or an invalid handle.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_get_world_size(group: *const dist_group_t) -> i32 {
        to_i32(self::group(group)?.size())
    }
}
