//! `dist_export!`: the only way to define an exported function.
//!
//! The body of an exported function is ordinary Rust that returns a `Result`. The macro adds:
//!
//! - the attributes of an export;
//! - a check that the process is not a forked child, which must not use the library;
//! - a panic boundary: a panic becomes an error;
//! - the conversion of an error. The message becomes the thread's last message, and the function
//!   returns a status.
//!
//! An attribute before the function changes this:
//!
//! - `on_error(value)`: the function returns a value instead of a status. If the body fails, it
//!   returns `value`.
//! - `in_progress`: the body may also return DIST_IN_PROGRESS.
//! - `wait_slice`: as `in_progress`, and the call may continue the sliced wait of the thread.
//! - `anywhere(value)`: as `on_error`, and the function also works in a forked child. It is for
//!   functions that only read constants or the thread's own message. So the child can read why the
//!   library refuses its calls.

use super::last_error;
use super::status::status_of;
use super::types::{DIST_IN_PROGRESS, DIST_OK, dist_status_t};
use crate::api::WorkProgress;
use crate::base::error::{Error, ErrorKind, Result};
use crate::process::this_process;
use crate::process::thread::{self, THREAD_FLAGS};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Defines one exported function. `headers/src/items.rs` reads the invocations of this macro for
/// the header and for the list of exports, so each invocation has exactly one function.
macro_rules! dist_export {
    (
        #[anywhere($fallback:expr)]
        $(#[$meta:meta])*
        pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block
    ) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            $crate::ffi::guard::value_anywhere(stringify!($name), $fallback, || $body)
        }
    };
    (
        #[on_error($fallback:expr)]
        $(#[$meta:meta])*
        pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block
    ) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            $crate::ffi::guard::value(stringify!($name), $fallback, || $body)
        }
    };
    (
        #[in_progress]
        $(#[$meta:meta])*
        pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> dist_status_t $body:block
    ) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($arg: $type),*
        ) -> $crate::ffi::types::dist_status_t {
            $crate::ffi::guard::progress(stringify!($name), || $body)
        }
    };
    (
        #[wait_slice]
        $(#[$meta:meta])*
        pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> dist_status_t $body:block
    ) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($arg: $type),*
        ) -> $crate::ffi::types::dist_status_t {
            $crate::process::thread::THREAD_FLAGS
                .with($crate::process::thread::ThreadFlags::continue_sliced_wait);
            $crate::ffi::guard::progress(stringify!($name), || $body)
        }
    };
    (
        $(#[$meta:meta])*
        pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> dist_status_t $body:block
    ) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($arg: $type),*
        ) -> $crate::ffi::types::dist_status_t {
            $crate::ffi::guard::status(stringify!($name), || $body)
        }
    };
}

/// Runs a body and returns its status.
pub(super) fn status(name: &str, body: impl FnOnce() -> Result<()>) -> dist_status_t {
    match run(name, body) {
        Ok(()) => DIST_OK,
        Err(error) => failed(&error, status_of(error.kind())),
    }
}

/// Runs a body that may report that an operation is in progress.
pub(super) fn progress(name: &str, body: impl FnOnce() -> Result<WorkProgress>) -> dist_status_t {
    let mut found = WorkProgress::Done;
    let status = status(name, || body().map(|progress| found = progress));
    match (status, found) {
        (DIST_OK, WorkProgress::Pending) => DIST_IN_PROGRESS,
        _ => status,
    }
}

/// Runs a body that returns a value, and returns `fallback` if the body fails.
pub(super) fn value<T>(name: &str, fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    run(name, body).unwrap_or_else(|error| failed(&error, fallback))
}

/// As `value`, but also runs the body in a forked child.
pub(super) fn value_anywhere<T>(name: &str, fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    catch_panics(name, body).unwrap_or_else(|error| failed(&error, fallback))
}

/// Sets the last message of the thread, and returns `fallback`.
#[cold]
#[inline(never)]
fn failed<T>(error: &Error, fallback: T) -> T {
    last_error::set(error.message());
    fallback
}

/// Runs a body, unless this process is a forked child.
fn run<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    if this_process::is_forked_child() {
        return Err(forked_child_error(name));
    }
    catch_panics(name, body)
}

#[cold]
#[inline(never)]
fn forked_child_error(name: &str) -> Error {
    let message = format!(
        "{name}: this process was forked from a process that uses libdist; a forked child cannot \
         use it (call exec, or fork before the first use)"
    );
    Error::new(ErrorKind::NotInitialized, message)
}

/// Runs a body, and converts a panic to an error.
fn catch_panics<T>(name: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    silence_panics();
    let outcome = THREAD_FLAGS.with(|flags| {
        flags.record_call();
        let was_in_call = flags.in_call.replace(true);
        let outcome = catch_unwind(AssertUnwindSafe(body));
        flags.in_call.set(was_in_call);
        outcome
    });
    match outcome {
        Ok(outcome) => outcome.map_err(|error| error.context(name)),
        Err(payload) => Err(panic_error(name, payload)),
    }
}

/// Returns the error of a panic with this payload.
#[cold]
#[inline(never)]
fn panic_error(name: &str, payload: Box<dyn Any + Send>) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Error::internal(format!("{name}: a defect in libdist, please report it: {text}"))
}

/// Suppresses the output of panics inside the library, because they become `DIST_ERR_INTERNAL`. If
/// the library is linked into a Rust program, the panics of the program are still reported.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !THREAD_FLAGS.with(|flags| flags.in_call.get()) && !thread::is_library_thread() {
                previous_hook(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::types::{DIST_ERR_INTERNAL, DIST_ERR_TIMEOUT};

    dist_export! {
        /// Panics.
        pub fn dist_test_panic() -> dist_status_t {
            panic!("forced")
        }
    }

    dist_export! {
        /// Fails.
        pub fn dist_test_failure() -> dist_status_t {
            Err(Error::new(ErrorKind::Timeout, "too late"))
        }
    }

    dist_export! {
        #[on_error(-7)]
        /// Panics as well.
        pub fn dist_test_value() -> i32 {
            Err(Error::internal("none"))
        }
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        // SAFETY: the function takes no arguments.
        assert_eq!(unsafe { dist_test_panic() }, DIST_ERR_INTERNAL);
        let message = last_error::get();
        assert!(message.contains("dist_test_panic") && message.contains("forced"), "{message}");
    }

    #[test]
    fn an_error_leaves_its_message() {
        // SAFETY: the function takes no arguments.
        assert_eq!(unsafe { dist_test_failure() }, DIST_ERR_TIMEOUT);
        assert_eq!(last_error::get(), "dist_test_failure: too late");
        // SAFETY: the function takes no arguments.
        assert_eq!(unsafe { dist_test_value() }, -7);
    }
}
