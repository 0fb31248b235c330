//! Version, errors, and the life of the process in the library.

use super::args::{copy_text, device, index, milliseconds, number, optional_str, reserved};
use super::group::{GROUPS, forget_world, group, remember_world};
use super::operator::{self, Custom};
use super::store::STORES;
use super::types::*;
use super::{blob, last_error, names, options, status};
use crate::api::callbacks::refuse_to_block;
use crate::api::recorder;
use crate::api::runtime::{self, InitOptions};
use crate::api::supports;
use crate::backend;
use crate::base::dtype::DataType;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// "0.1.0" as 100, from the package's own version.
pub(super) const VERSION: u32 = {
    const fn number(text: &str) -> u32 {
        let bytes = text.as_bytes();
        let mut value = 0;
        let mut i = 0;
        while i < bytes.len() {
            value = value * 10 + (bytes[i] - b'0') as u32;
            i += 1;
        }
        value
    }
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"))
};

const VERSION_STRING: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    };

dist_export! {
    #[anywhere(0)]
    /// The version of the library that is loaded: MAJOR * 10000 + MINOR * 100 + PATCH.
    ///
    /// Compare it with DIST_VERSION, the version of the header. Any thread. Since 0.1.
    pub fn dist_version() -> u32 {
        Ok(VERSION)
    }
}

dist_export! {
    #[anywhere(VERSION_STRING.as_ptr())]
    /// The version of the library that is loaded, as static text. Any thread. Since 0.1.
    pub fn dist_version_string() -> *const c_char {
        Ok(VERSION_STRING.as_ptr())
    }
}

dist_export! {
    #[anywhere(c"unknown status".as_ptr())]
    /// What a status means, as static text; any number may be asked for. Any thread. Since 0.1.
    pub fn dist_status_string(status: dist_status_t) -> *const c_char {
        Ok(status::text(status).as_ptr())
    }
}

dist_export! {
    #[anywhere(0)]
    /// Gives the size of one element of a type in bytes.
    ///
    /// @param dtype in: the element type; any number may be asked for.
    /// @agree nothing.
    /// @blocks no.
    /// @return the size; 0 for a number that names no type.
    /// @threads any.
    /// @since 0.1
    pub fn dist_dtype_size(dtype: dist_dtype_t) -> usize {
        Ok(DataType::from_number(dtype).map_or(0, DataType::size))
    }
}

dist_export! {
    #[anywhere(names::UNKNOWN_DTYPE.as_ptr())]
    /// Gives the name of an element type, such as "f32", as messages have it.
    ///
    /// @param dtype in: the element type; any number may be asked for.
    /// @agree nothing.
    /// @blocks no.
    /// @return the name, static; "unknown dtype" for a number that names no type.
    /// @threads any.
    /// @since 0.1
    pub fn dist_dtype_name(dtype: dist_dtype_t) -> *const c_char {
        Ok(names::dtype(dtype).as_ptr())
    }
}

dist_export! {
    #[anywhere(names::UNKNOWN_OP.as_ptr())]
    /// Gives the name of an operator, such as "sum".
    ///
    /// @param op in: the operator; any number may be asked for.
    /// @agree nothing.
    /// @blocks no.
    /// @return the name, static; "unknown op" for a number that names no operator.
    /// @threads any.
    /// @since 0.1
    pub fn dist_op_name(op: dist_op_t) -> *const c_char {
        Ok(names::op(op).as_ptr())
    }
}

dist_export! {
    #[anywhere(c"".as_ptr())]
    /// Gives the message of the calling thread's last failed call.
    ///
    /// @agree nothing.
    /// @blocks no.
    /// @return the message in UTF-8, "" if no call has failed; valid until the second next failing call of the thread.
    /// @threads any.
    /// @since 0.1
    pub fn dist_last_error() -> *const c_char {
        Ok(last_error::as_ptr())
    }
}

dist_export! {
    #[anywhere(0)]
    /// Copies the message of the calling thread's last failed call.
    ///
    /// `buf`: out, may be NULL if `cap` is 0. `cap`: its size in bytes; a longer message is cut and always
    /// terminated. Returns the bytes that the whole message needs, its terminator included. Any thread.
    /// Since 0.1.
    pub fn dist_last_error_copy(buf: *mut c_char, cap: usize) -> usize {
        copy_text(&last_error::get(), buf, cap)
    }
}

dist_export! {
    /// Makes the world group together with all other processes of the job.
    ///
    /// All ranks must agree on where they meet, on the world size and on the group's name. `options`: NULL
    /// for all defaults (env://, which understands distrun, torchrun, mpirun and srun); borrowed for the
    /// call. Blocks until all ranks have come, until connect_timeout_ms at the latest; a long wait is
    /// told in the log at level WARN. One thread at a time.
    ///
    /// Returns DIST_OK; DIST_ERR_ALREADY_INITIALIZED; DIST_ERR_INVALID_ARGUMENT for wrong options or
    /// environment (the message names the variable) or a rank that two processes have; DIST_ERR_NOT_FOUND
    /// for an unknown back end; DIST_ERR_TIMEOUT naming the ranks that did not come; DIST_ERR_CONNECTION
    /// where the store cannot be reached; DIST_ERR_MISMATCH where ranks run different versions or were told
    /// different world sizes; DIST_ERR_UNSUPPORTED where ranks are on several hosts (this version);
    /// DIST_ERR_PEER_FAILED, DIST_ERR_OUT_OF_MEMORY, DIST_ERR_SYSTEM. Since 0.1.
    pub fn dist_init(options: *const dist_init_options_t) -> dist_status_t {
        let options = options::read(options)?;
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
        reserved(options.reserved)?;
        runtime::init(InitOptions {
            backend: super::backend::named(options.backend)?,
            backend_options: optional_str(options.backend_options, "backend_options")?
                .unwrap_or_default()
                .to_owned(),
            device: device(options.fields, options.device)?,
            init_method: optional_str(options.init_method, "init_method")?.map(str::to_owned),
            store,
            rank,
            size,
            timeout_ms: milliseconds(options.timeout_ms, "timeout_ms")?,
            connect_timeout_ms: milliseconds(options.connect_timeout_ms, "connect_timeout_ms")?,
            group_name: optional_str(options.group_name, "group_name")?.map(str::to_owned),
        })?;
        remember_world(runtime::world()?)
    }
}

dist_export! {
    /// Leaves the world group. Handles of it are invalid afterwards, and dist_init may be called again.
    ///
    /// Call it on every rank once it has no more collectives to call. Works of the world that are pending get 5 seconds
    /// to end, and then end with DIST_ERR_ABORTED; they can be asked until they are released. Their completion callbacks
    /// are called while the world is still there. Blocks until then, and on
    /// the rank that hosts the store, which leaves last, until the others have left: 6 seconds at most in all, and about
    /// one where the group has failed. One thread at a time; blocking calls under way on other threads end as they would.
    ///
    /// Returns DIST_OK, DIST_ERR_NOT_INITIALIZED, or DIST_ERR_INVALID_ARGUMENT inside a completion callback. Since 0.1.
    pub fn dist_finalize() -> dist_status_t {
        refuse_to_block("dist_finalize")?;
        runtime::finalize(forget_world)
    }
}

dist_export! {
    #[on_error(0)]
    /// 1 between dist_init and dist_finalize, else 0. Any thread. Since 0.1.
    pub fn dist_is_initialized() -> i32 {
        Ok(i32::from(runtime::is_initialized()))
    }
}

dist_export! {
    #[on_error(0)]
    /// 1 if torchrun or distrun has started this process (TORCHELASTIC_RUN_ID is set), else 0. Any thread.
    /// Since 0.1.
    pub fn dist_is_elastic_launched() -> i32 {
        Ok(i32::from(runtime::is_elastic_launched()?))
    }
}

dist_export! {
    #[on_error(0)]
    /// 1 if there is a back end of this name, in any case, else 0: the native one, one that was registered or loaded, or
    /// one of DIST_BACKEND_PLUGINS, which this loads. For "nccl", and maps with it, whether NCCL can be loaded, which this does.
    ///
    /// `name`: required, borrowed for the call. Any thread. Since 0.1.
    pub fn dist_backend_is_available(name: *const c_char) -> i32 {
        let name = super::args::required_str(name, "name")?;
        super::backend::look_for(name)?;
        Ok(i32::from(backend::is_available(name)))
    }
}

dist_export! {
    /// Whether a group does a kind of call, without making one.
    ///
    /// `group`: required. `kind`: a DIST_KIND_ constant. `dtype`: the element type; not looked at for
    /// DIST_KIND_BARRIER. `op`: the operator; looked at only where the call has one. `device`: DIST_DEVICE_HOST, or the
    /// number of the GPU whose memory has the buffers. Ranks need not agree on the call; all get the same answer. Does
    /// not block. Any thread.
    ///
    /// Returns DIST_OK; DIST_ERR_UNSUPPORTED, with type, operator and back end in the message;
    /// DIST_ERR_INVALID_ARGUMENT for a number that names nothing; DIST_ERR_INVALID_HANDLE,
    /// DIST_ERR_NOT_INITIALIZED. Since 0.1.
    pub fn dist_backend_supports(
        group: *const dist_group_t,
        kind: i32,
        dtype: dist_dtype_t,
        op: dist_op_t,
        device: i32,
    ) -> dist_status_t {
        let group = self::group(group)?;
        if operator::is_custom(dtype, op) && supports::reduces(kind) {
            Custom::find(dtype, op)?;
            return group.supports_operator(kind, device);
        }
        group.supports(kind, dtype, op, device)
    }
}

dist_export! {
    /// What the flight recorder knows: the last 2000 operations of the process, messages included, and the groups that
    /// they belong to with their members and failures, as JSON. dist-doctor reads such texts from files.
    ///
    /// `group`: only the operations of this group; NULL for all. `json`: out, required; a blob of one text,
    /// owned by the caller. Does not block. Any thread.
    ///
    /// Returns DIST_OK, DIST_ERR_INVALID_HANDLE, DIST_ERR_INVALID_ARGUMENT. Since 0.1.
    pub fn dist_flight_recorder_dump(
        group: *const dist_group_t,
        json: *mut *mut dist_blob_t,
    ) -> dist_status_t {
        let out = super::args::Out::handle(json, "json")?;
        let dump = if group.is_null() {
            recorder::dump(None, recorder::Why::Asked)
        } else {
            GROUPS.get(group)?.flight_record()
        };
        blob::give(&out, vec![dump.to_string().into_bytes()])
    }
}

dist_export! {
    #[on_error(-1)]
    /// This process's rank in a group.
    ///
    /// `group`: required. Returns -1 for an invalid handle or before dist_init. Any thread.
    /// Since 0.1.
    pub fn dist_get_rank(group: *const dist_group_t) -> i32 {
        number(self::group(group)?.rank())
    }
}

dist_export! {
    #[on_error(-1)]
    /// The number of ranks of a group.
    ///
    /// `group`: required. Returns -1 for an invalid handle or before dist_init. Any thread.
    /// Since 0.1.
    pub fn dist_get_world_size(group: *const dist_group_t) -> i32 {
        number(self::group(group)?.size())
    }
}
