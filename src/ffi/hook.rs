//! Gradient hooks of callers: C functions with which a reducer reduces its buckets, and the C form
//! of a bucket (the gradients that are reduced together).

use super::group::{GROUPS, insert_group};
use super::status;
use super::train_types::*;
use super::types::*;
use crate::api::Group;
use crate::api::reducer::{BucketView, HookCall, HookFunction};
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

type CHookFunction = unsafe extern "C" fn(
    group: *mut dist_group_t,
    bucket: *const dist_bucket_t,
    bytes_sent: *mut u64,
    user: *mut c_void,
) -> dist_status_t;

/// A hook function of the caller, and its argument.
struct CHook {
    function: CHookFunction,
    user: *mut c_void,
    /// The handle of the group in which the function communicates; `None` before the first call.
    group: Mutex<Option<HookGroupHandle>>,
}

// SAFETY: the caller promises that the function may be called on another thread with that pointer.
unsafe impl Send for CHook {}
// SAFETY: as above, and the library calls the function for one bucket after the other.
unsafe impl Sync for CHook {}

/// A handle of a group. Dropping this value releases the handle.
struct HookGroupHandle {
    group: Arc<Group>,
    handle: *mut dist_group_t,
}

impl HookGroupHandle {
    fn new(group: &Arc<Group>) -> Result<Self> {
        let group = Arc::clone(group);
        let handle = insert_group(Arc::clone(&group))?;
        Ok(Self { group, handle })
    }
}

impl Drop for HookGroupHandle {
    fn drop(&mut self) {
        // An error is ignored, because the caller may already have released the handle.
        drop(GROUPS.remove(self.handle));
    }
}

impl CHook {
    fn call(&self, call: &mut HookCall<'_>) -> Result<()> {
        let handle = self.group_handle(call.group)?;
        let mut bytes_sent = call.bytes_sent;
        let status = with_bucket(&call.bucket, |bucket| {
            // SAFETY: the caller's function, with the caller's pointer, and a bucket and a number
            // that outlive the call.
            unsafe { (self.function)(handle, bucket, &raw mut bytes_sent, self.user) }
        });
        call.bytes_sent = bytes_sent;
        if status == DIST_OK {
            return Ok(());
        }
        let text = status::status_text(status).to_string_lossy();
        let message = format!("the hook function returned {status} ({text})");
        Err(Error::new(status::kind_of(status), message))
    }

    /// Returns the handle of a group. The handle of the last call is reused if the group is the
    /// same.
    fn group_handle(&self, group: &Arc<Group>) -> Result<*mut dist_group_t> {
        let mut current = lock(&self.group);
        if let Some(handle_entry) =
            current.as_ref().filter(|handle_entry| Arc::ptr_eq(&handle_entry.group, group))
        {
            return Ok(handle_entry.handle);
        }
        let created = HookGroupHandle::new(group)?;
        let handle = created.handle;
        *current = Some(created);
        Ok(handle)
    }
}

/// Converts a caller's function to a hook of the library.
pub(super) fn hook_function(
    name: &str,
    settings: &str,
    function: CHookFunction,
    user: *mut c_void,
) -> HookFunction {
    let hook = CHook { function, user, group: Mutex::new(None) };
    HookFunction {
        name: name.to_owned(),
        settings: settings.to_owned(),
        function: Arc::new(move |call: &mut HookCall<'_>| hook.call(call)),
    }
}

/// Calls a function with the C form of a bucket, which is valid only during the call.
pub(super) fn with_bucket<T>(
    view: &BucketView<'_>,
    call: impl FnOnce(*const dist_bucket_t) -> T,
) -> T {
    let element = view.dtype.size();
    let offsets: Vec<usize> = view.offsets.iter().map(|offset| offset / element).collect();
    let has_data = !view.data.is_empty();
    let bucket = dist_bucket_t {
        struct_size: size_of::<dist_bucket_t>(),
        index: view.index,
        n_buckets: view.n_buckets,
        data: if has_data { view.data.as_mut_ptr().cast() } else { std::ptr::null_mut() },
        count: view.data.len() / element,
        dtype: view.dtype.number(),
        reserved: 0,
        params: view.params.as_ptr(),
        offsets: if has_data { offsets.as_ptr() } else { std::ptr::null() },
        n_params: view.params.len(),
        step: view.step,
    };
    call(&raw const bucket)
}
