//! The functions of libdist that dist-bench calls, through the C interface.
//!
//! The program dist-bench contains the library. In the bundle of the Python package (the feature
//! `shared-library`), dist-bench loads the `libdist.so.0` of the package. So the package contains
//! the library once, and dist-bench measures what the user's programs call.
#![allow(unsafe_code, reason = "functions of the C interface")]
#![allow(clippy::too_many_arguments, reason = "the functions of the C interface have them")]

use dist::ffi::train_types::{
    dist_param_t, dist_reducer_options_t, dist_reducer_stats_t, dist_reducer_t,
};
use dist::ffi::types::{
    dist_call_options_t, dist_dtype_t, dist_group_t, dist_init_options_t, dist_op_t,
    dist_recv_status_t, dist_status_t, dist_work_t,
};
use std::ffi::{c_char, c_void};

/// Makes the functions callable as `libdist::NAME`.
#[cfg(not(feature = "shared-library"))]
macro_rules! functions {
    ($($module:ident::$name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        $(pub(crate) use dist::ffi::$module::$name;)+

        // The bundle relies on these types.
        $(const _: unsafe extern "C" fn($($type),*) -> $result = $name;)+

        /// Loads the library.
        ///
        /// # Errors
        /// None: the program contains the library.
        #[allow(clippy::unnecessary_wraps, reason = "the bundle loads a file")]
        pub(crate) fn load() -> Result<(), String> {
            Ok(())
        }
    };
}

/// As above, with the functions of a shared library.
#[cfg(feature = "shared-library")]
macro_rules! functions {
    ($($module:ident::$name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        /// The addresses of the functions.
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) -> $result,)+
        }

        static FUNCTIONS: std::sync::OnceLock<Functions> = std::sync::OnceLock::new();

        fn find_all(library: dist::sys::library::Library) -> Result<Functions, String> {
            Ok(Functions {
                $($name: {
                    let address = find(library, concat!(stringify!($name), "\0"))?;
                    // SAFETY: the library has the version of this program. The program dist-bench
                    // of this version compiles only if the function has this type.
                    unsafe {
                        std::mem::transmute::<
                            std::ptr::NonNull<c_void>,
                            unsafe extern "C" fn($($type),*) -> $result,
                        >(address)
                    }
                },)+
            })
        }

        $(
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let functions = FUNCTIONS.get().expect("main has loaded the library");
                // SAFETY: the caller keeps the conditions of the function.
                unsafe { (functions.$name)($($argument),*) }
            }
        )+
    };
}

functions! {
    collective::dist_all_gather(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, options: *const dist_call_options_t, work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective::dist_all_reduce(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, op: dist_op_t, options: *const dist_call_options_t,
        work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective::dist_barrier(
        group: *mut dist_group_t, options: *const dist_call_options_t, work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective::dist_broadcast(
        group: *mut dist_group_t, buf: *mut c_void, count: usize, dtype: dist_dtype_t, root: i32,
        options: *const dist_call_options_t, work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective::dist_reduce(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, op: dist_op_t, root: i32, options: *const dist_call_options_t,
        work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective::dist_reduce_scatter(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, op: dist_op_t, options: *const dist_call_options_t,
        work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective_blocks::dist_all_to_all(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, options: *const dist_call_options_t, work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective_blocks::dist_gather(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, root: i32, options: *const dist_call_options_t,
        work: *mut *mut dist_work_t
    ) -> dist_status_t;
    collective_blocks::dist_scatter(
        group: *mut dist_group_t, send: *const c_void, recv: *mut c_void, count: usize,
        dtype: dist_dtype_t, root: i32, options: *const dist_call_options_t,
        work: *mut *mut dist_work_t
    ) -> dist_status_t;
    group::dist_world() -> *mut dist_group_t;
    memory::dist_mem_alloc(
        group: *const dist_group_t, bytes: usize, device: i32, ptr: *mut *mut c_void
    ) -> dist_status_t;
    memory::dist_mem_free(ptr: *mut c_void) -> dist_status_t;
    point_to_point::dist_recv(
        group: *mut dist_group_t, buf: *mut c_void, count: usize, dtype: dist_dtype_t, peer: i32,
        tag: i32, status: *mut dist_recv_status_t, options: *const dist_call_options_t,
        work: *mut *mut dist_work_t
    ) -> dist_status_t;
    point_to_point::dist_send(
        group: *mut dist_group_t, buf: *const c_void, count: usize, dtype: dist_dtype_t, peer: i32,
        tag: i32, options: *const dist_call_options_t, work: *mut *mut dist_work_t
    ) -> dist_status_t;
    reducer::dist_reducer_create(
        group: *mut dist_group_t, params: *const dist_param_t, n_params: usize,
        options: *const dist_reducer_options_t, out: *mut *mut dist_reducer_t
    ) -> dist_status_t;
    reducer::dist_reducer_grad(
        reducer: *mut dist_reducer_t, param: usize, grad: *mut *mut c_void, count: *mut usize
    ) -> dist_status_t;
    reducer::dist_reducer_release(reducer: *mut dist_reducer_t) -> dist_status_t;
    reducer::dist_reducer_result(
        reducer: *mut dist_reducer_t, param: usize, grad: *mut *mut c_void, count: *mut usize
    ) -> dist_status_t;
    reducer::dist_reducer_stats(
        reducer: *const dist_reducer_t, out: *mut dist_reducer_stats_t
    ) -> dist_status_t;
    reducer_step::dist_reducer_begin(
        reducer: *mut dist_reducer_t, weight: f64, flags: u64
    ) -> dist_status_t;
    reducer_step::dist_reducer_end(
        reducer: *mut dist_reducer_t, vote: u64, all_votes: *mut u64, work: *mut *mut dist_work_t
    ) -> dist_status_t;
    reducer_step::dist_reducer_ready(reducer: *mut dist_reducer_t, param: usize) -> dist_status_t;
    runtime::dist_finalize() -> dist_status_t;
    runtime::dist_init(options: *const dist_init_options_t) -> dist_status_t;
    runtime::dist_last_error() -> *const c_char;
    work::dist_work_release(work: *mut dist_work_t) -> dist_status_t;
    work::dist_work_synchronize(work: *mut dist_work_t, timeout_ms: i64) -> dist_status_t;
}

/// Loads the library of the package, whose programs are in `bin` and whose library is in `lib`.
///
/// # Errors
/// A description, if the library cannot be loaded or has another version.
#[cfg(feature = "shared-library")]
pub(crate) fn load() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|cause| format!("its own path: {cause}"))?;
    let folders = program.parent().and_then(std::path::Path::parent);
    let path = folders.ok_or("its folder is unknown")?.join("lib/libdist.so.0");
    let library = dist::sys::library::Library::open(&path.to_string_lossy())
        .map_err(|error| error.to_string())?;
    let address = find(library, "dist_version_string\0")?;
    // SAFETY: the function has this type in every version.
    let version = unsafe {
        std::mem::transmute::<std::ptr::NonNull<c_void>, unsafe extern "C" fn() -> *const c_char>(
            address,
        )
    };
    // SAFETY: no conditions.
    let text = unsafe { version() };
    // SAFETY: a text of the library, which stays loaded.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy();
    if text != env!("CARGO_PKG_VERSION") {
        return Err(format!(
            "{} has version {text}, and dist-bench has version {}",
            path.display(),
            env!("CARGO_PKG_VERSION")
        ));
    }
    let functions = find_all(library)?;
    FUNCTIONS.get_or_init(|| functions);
    Ok(())
}

#[cfg(feature = "shared-library")]
fn find(
    library: dist::sys::library::Library,
    name: &str,
) -> Result<std::ptr::NonNull<c_void>, String> {
    let name =
        std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).map_err(|error| error.to_string())?;
    library.symbol(name).ok_or_else(|| format!("the library lacks {}", name.to_string_lossy()))
}
