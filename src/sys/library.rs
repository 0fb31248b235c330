//! Shared objects that are loaded at run time, and stay until the process ends.

use crate::base::error::{Error, ErrorKind, Result};
use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A shared object.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: a handle of the loader's, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads one, with all that it needs, and keeps its names from everybody else. It is never
    /// unloaded: threads and functions of it may outlive whoever loaded it.
    ///
    /// # Errors
    /// `NotFound` where there is no such file, else `System` with what the loader says.
    pub fn open(path: &str) -> Result<Self> {
        // Without a slash it is a name that the loader looks for.
        if path.contains('/') && !Path::new(path).exists() {
            let message = format!("there is no file {path}");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let name = CString::new(path)
            .map_err(|_| Error::invalid("a path of a library contains a zero byte"))?;
        // SAFETY: a terminated string; what the object runs when it is loaded is whoever's asked
        // for it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| {
            Error::new(ErrorKind::System, format!("{path} cannot be loaded: {}", last_error()))
        })
    }

    /// One that this process has already, by the name that [`loaded`] gives; `None` where it has
    /// none of that name.
    pub fn open_loaded(path: &Path) -> Option<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a terminated string; nothing is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        NonNull::new(handle).map(Self)
    }

    /// The address of a function or of data in it; `None` where it has none of this name.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a handle that stays open, and a terminated string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// The file that something with this address was loaded from, for messages.
pub fn file_of_address(address: NonNull<c_void>) -> Option<String> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about, and there is room for the answer.
    let is_known = unsafe { libc::dladdr(address.as_ptr(), &raw mut found) } != 0;
    if !is_known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not NULL, so the terminated name of an object, which is never unloaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(name.to_string_lossy().into_owned())
}

/// Declares a table of a library's functions, each with its name there and its C type. Without one
/// of the `required` ones there is no table; one of the `optional` ones that is missing is `None`,
/// and only what needs it cannot be done.
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
            /// The names of all functions that there must be.
            $visibility const REQUIRED: &'static [&'static std::ffi::CStr] = &[$($required_name),*];
            /// The names of those that there may be.
            $visibility const OPTIONAL: &'static [&'static std::ffi::CStr] = &[$($optional_name),*];

            /// Looks all of them up; the names of those that are missing and must not be.
            pub(super) fn find(
                library: &$crate::sys::library::Library,
            ) -> std::result::Result<Self, Vec<&'static std::ffi::CStr>> {
                let mut missing = Self::REQUIRED.to_vec();
                missing.retain(|name| library.symbol(name).is_none());
                let none = || missing.clone();
                Ok(Self {
                    $($required: {
                        let found = library.symbol($required_name).ok_or_else(none)?;
                        // SAFETY: the library's own interface says that it exports a function of
                        // this type under this name.
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

/// The paths of all objects that this process has loaded.
pub fn loaded_paths() -> Vec<PathBuf> {
    unsafe extern "C" fn collect_path(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's, for the time of the call.
        let name = unsafe { (*object).dlpi_name };
        if !name.is_null() {
            // SAFETY: a terminated string of the loader's, for the time of the call.
            let name = unsafe { CStr::from_ptr(name) };
            let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
            // SAFETY: what is given below, which nobody else uses meanwhile.
            unsafe { (*paths.cast::<Vec<PathBuf>>()).push(path) };
        }
        0
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    // SAFETY: a function for the loader, with what it wants, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect_path), (&raw mut paths).cast()) };
    paths
}

/// The folder of the object that this code is in: of the library, or of a program that has it
/// inside.
pub fn own_directory() -> Option<PathBuf> {
    let here: fn() -> Option<PathBuf> = own_directory;
    let file = PathBuf::from(file_of_address(NonNull::new(here as *mut c_void)?)?);
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_path_buf)
}

/// What the loader says of the calling thread's last failure.
fn last_error() -> String {
    // SAFETY: takes nothing; the text is this thread's until its next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: not NULL, so a terminated text that stays until this thread's next call of the
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
