//! Shared objects that are loaded at run time and stay loaded until the process ends.

use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A loaded shared object.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: a handle of the dynamic loader, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a shared object with its dependencies, and does not export its symbols to other
    /// objects. The object is never unloaded, because its threads and functions may outlive the
    /// caller.
    ///
    /// # Errors
    /// `NotFound` if the file does not exist, else `System` with the loader's error text.
    pub fn open(path: &str) -> Result<Self> {
        // The loader searches its path for a name without a slash.
        if path.contains('/') && !Path::new(path).exists() {
            let message = format!("the file {path} does not exist");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let name = CString::new(path)
            .map_err(|_| Error::invalid("the path of a library contains a zero byte"))?;
        // SAFETY: a NUL-terminated string; the caller is responsible for the code that the object
        // runs when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| {
            Error::new(ErrorKind::System, format!("cannot load {path}: {}", last_error()))
        })
    }

    /// Returns the shared object with this path if the process has already loaded it; see
    /// [`loaded_paths`].
    pub fn open_loaded(path: &Path) -> Option<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a NUL-terminated string; the call loads nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(Self)
    }

    /// Returns the address of a function or variable of the object; `None` if it has no symbol of
    /// this name.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a handle that stays open, and a NUL-terminated string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// Returns the path of the loaded object that contains this address.
pub fn file_of_address(address: NonNull<c_void>) -> Option<String> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the call accepts any address, and `found` has room for the answer.
    let is_known = unsafe { libc::dladdr(address.as_ptr(), &raw mut found) } != 0;
    if !is_known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not NULL, so the NUL-terminated name of an object, which is never unloaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(name.to_string_lossy().into_owned())
}

/// Declares a struct whose fields are functions of a library, each with its symbol name and its C
/// type. If a `required` function is missing, the table cannot be created. A missing `optional`
/// function is `None`, and only the features that need it are unavailable.
macro_rules! function_table {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident {
            required { $($required:ident = $required_name:literal: fn($($required_type:ty),* $(,)?) -> $required_result:ty;)* }
            optional { $($optional:ident = $optional_name:literal: fn($($optional_type:ty),* $(,)?) -> $optional_result:ty;)* }
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $table {
            $(pub(super) $required: unsafe extern "C" fn($($required_type),*) -> $required_result,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($optional_type),*) -> $optional_result>,)*
        }

        impl $table {
            /// The symbol names of all required functions.
            $visibility const REQUIRED: &'static [&'static std::ffi::CStr] = &[$($required_name),*];
            /// The symbol names of all optional functions.
            $visibility const OPTIONAL: &'static [&'static std::ffi::CStr] = &[$($optional_name),*];

            /// Looks up all functions. The error contains the names of the missing required
            /// functions.
            pub(super) fn find(
                library: &$crate::sys::library::Library,
            ) -> std::result::Result<Self, Vec<&'static std::ffi::CStr>> {
                let mut missing = Self::REQUIRED.to_vec();
                missing.retain(|name| library.symbol(name).is_none());
                let none = || missing.clone();
                Ok(Self {
                    $($required: {
                        let found = library.symbol($required_name).ok_or_else(none)?;
                        // SAFETY: the library's interface defines a function of this type under
                        // this name.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($required_type),*) -> $required_result,
                            >(found.as_ptr())
                        }
                    },)*
                    $($optional: library.symbol($optional_name).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($optional_type),*) -> $optional_result,
                            >(found.as_ptr())
                        }
                    }),)*
                })
            }
        }
    };
}
pub(crate) use function_table;

/// Returns the paths of all objects that this process has loaded.
pub fn loaded_paths() -> Vec<PathBuf> {
    unsafe extern "C" fn collect_path(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's object, which is valid during the call.
        let name = unsafe { (*object).dlpi_name };
        if !name.is_null() {
            // SAFETY: a NUL-terminated string of the loader, which is valid during the call.
            let name = unsafe { CStr::from_ptr(name) };
            let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
            // SAFETY: the vector that is passed below, which no other code uses during the call.
            unsafe { (*paths.cast::<Vec<PathBuf>>()).push(path) };
        }
        0
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    // SAFETY: a callback for the loader, with its argument, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect_path), (&raw mut paths).cast()) };
    paths
}

/// Returns the folder of the object that contains this code: libdist, or a program that links
/// libdist statically.
pub fn own_directory() -> Option<PathBuf> {
    let anchor: fn() -> Option<PathBuf> = own_directory;
    let file = PathBuf::from(file_of_address(NonNull::new(anchor as *mut c_void)?)?);
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_path_buf)
}

/// Returns the loader's text for the calling thread's last failure.
fn last_error() -> String {
    // SAFETY: the call takes no argument; the text belongs to this thread until its next call of
    // the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not NULL, so a NUL-terminated text that is valid until this thread's next call of the
    // loader.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_error_names_the_path() {
        let missing = Library::open("/nonexistent/lib.so").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.message().contains("/nonexistent/lib.so"));
        let no_library = Library::open("/dev/null").unwrap_err();
        assert_eq!(no_library.kind(), ErrorKind::System);
        assert!(no_library.message().contains("/dev/null"), "{no_library}");
        assert_eq!(Library::open("a\0b").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn loaded_library_is_listed_and_reopened() {
        let libc = loaded_paths().into_iter().find(|path| path.ends_with("libc.so.6")).unwrap();
        assert!(Library::open_loaded(&libc).unwrap().symbol(c"malloc").is_some());
        assert!(Library::open_loaded(Path::new("/nonexistent/lib.so")).is_none());
        assert!(own_directory().unwrap().is_dir());
    }

    #[test]
    fn symbols_are_found_by_name() {
        let libc = Library::open("libc.so.6").unwrap();
        assert!(libc.symbol(c"malloc").is_some() && libc.symbol(c"dist_nothing").is_none());
        let file = file_of_address(libc.symbol(c"dlopen").unwrap()).unwrap();
        assert!(file.contains("libc"), "{file}");
    }

    #[test]
    fn library_not_in_the_process_is_not_opened() {
        assert!(Library::open_loaded(Path::new("libc.so.6")).is_some());
        assert!(Library::open_loaded(Path::new("libdist-nothing.so")).is_none());
    }
}
