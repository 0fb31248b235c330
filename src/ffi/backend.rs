//! Registers back ends of other libraries, called plug-ins: from a table of C functions, or from a
//! shared object.

use super::args::{optional_str, required_str};
use super::backend_call::{PluginCallSite, call_plugin_to_end};
use super::backend_communicator::{CPluginFunctions, missing_function};
use super::backend_host::HostServices;
use super::backend_mpi;
use super::backend_types::*;
use super::sized_struct;
use super::types::*;
use crate::backend::{self, plugin};
use crate::base::config;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::process::library::Library;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

dist_export! {
    /// Registers a back end of the caller under a name.
    ///
    /// Afterwards, a group can be made with this name as `backend`. A registration is permanent:
    /// the functions and `user` must stay usable until the process ends.
    ///
    /// @param name in: 1 to 64 characters: letters in upper or lower case, digits, "_" and "-". The
    ///   name must not be reserved or in use. Borrowed for the call.
    /// @param functions in: the functions, copied during the call. The required functions must be
    ///   set.
    /// @param user in, optional: passed to create.
    /// @agree All ranks of a group register the same back end.
    /// @blocks no.
    /// @return DIST_OK; DIST_ERR_INVALID_ARGUMENT if a required function is missing or the name is
    ///   wrong (the message says which); DIST_ERR_UNSUPPORTED if `functions` sets a field that this
    ///   version does not know; DIST_ERR_OUT_OF_MEMORY if too many back ends are registered;
    ///   DIST_ERR_NOT_INITIALIZED in a forked child.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_backend_register(
        name: *const c_char,
        functions: *const dist_backend_vtable_t,
        user: *mut c_void,
    ) -> dist_status_t {
        register_plugin(required_str(name, "name")?, functions, user).map(drop)
    }
}

dist_export! {
    /// Loads a back end from a shared object and registers the back end under its own name.
    ///
    /// The shared object exports a function of type dist_backend_plugin_fn under the name
    /// dist_backend_plugin_v2. The library never unloads the object.
    ///
    /// A program need not call dist_backend_load for the paths in the variable DIST_BACKEND_PLUGINS
    /// (separated by ":"). When a group requests an unknown back end for the first time, the
    /// library loads all of them.
    ///
    /// @param path in: the path of the file, or a name without "/" that the dynamic loader
    ///   searches; borrowed for the call.
    /// @agree All ranks of a group load the same back end.
    /// @blocks Until the object is loaded. The call does not wait for other ranks.
    /// @return DIST_OK; the errors of dist_backend_register; the error that the back end itself
    ///   returns. DIST_ERR_NOT_FOUND if the file does not exist. DIST_ERR_SYSTEM if the dynamic
    ///   loader refuses the file (the message has the reason). DIST_ERR_UNSUPPORTED if the object
    ///   is no back end, or was built for another version of the interface (the message has both
    ///   versions). DIST_ERR_INVALID_ARGUMENT also if the back end is already loaded.
    /// @threads Any thread may call this at any time.
    /// @since 0.1
    pub fn dist_backend_load(path: *const c_char) -> dist_status_t {
        load_plugin(required_str(path, "path")?).map(drop)
    }
}

fn register_plugin(
    name: &str,
    functions: *const dist_backend_vtable_t,
    user: *mut c_void,
) -> Result<&'static str> {
    if functions.is_null() {
        return Err(Error::invalid("argument functions is NULL"));
    }
    let table = sized_struct::read(functions)?;
    let required = [
        ("create", table.create.is_some()),
        ("destroy", table.destroy.is_some()),
        ("submit", table.submit.is_some()),
        ("release", table.release.is_some()),
    ];
    if let Some((name, _)) = required.iter().find(|(_, is_set)| !is_set) {
        return Err(missing_function(name));
    }
    if table.allocate.is_some() != table.free_memory.is_some() {
        return Err(Error::invalid(
            "a back end must have both allocate and free_memory, or neither",
        ));
    }
    if table.run.is_some() && table.test.is_none() && table.wait.is_none() {
        return Err(Error::invalid("a back end that has run also needs test or wait"));
    }
    plugin::register(name, |name| Arc::new(CPluginFunctions { name, table, user }))
}

/// The entry function, which a plug-in exports: `dist_backend_plugin_fn` without `Option`.
type PluginEntryFn = unsafe extern "C" fn(
    *const dist_backend_host_t,
    *mut dist_backend_plugin_t,
    *mut dist_backend_outcome_t,
) -> dist_status_t;

const ENTRY_SYMBOL: &CStr = c"dist_backend_plugin_v2";

/// The entry functions of plug-ins for other versions of the interface, with these versions. They
/// are only used for the error message.
const OTHER_ENTRY_SYMBOLS: [(&CStr, u32); 4] = [
    (c"dist_backend_plugin_v1", 1),
    (c"dist_backend_plugin_v3", 3),
    (c"dist_backend_plugin_v4", 4),
    (c"dist_backend_plugin_v5", 5),
];

/// Loads a plug-in and returns the name of its back end.
pub(super) fn load_plugin(path: &str) -> Result<&'static str> {
    let library = Library::open(path)?;
    let Some(entry) = library.symbol(ENTRY_SYMBOL) else {
        let other = OTHER_ENTRY_SYMBOLS.iter().find(|(name, _)| library.symbol(name).is_some());
        return Err(
            other.map_or_else(|| no_plugin(path), |(_, version)| other_version(path, *version))
        );
    };
    // SAFETY: the interface defines that the symbol with this name is a function of this type.
    let entry = unsafe { std::mem::transmute::<*mut c_void, PluginEntryFn>(entry.as_ptr()) };
    let mut plugin_info = dist_backend_plugin_t {
        struct_size: size_of::<dist_backend_plugin_t>(),
        version: 0,
        reserved: 0,
        name: ptr::null(),
        functions: ptr::null(),
        user: ptr::null_mut(),
    };
    let call_site = PluginCallSite { plugin: path, function: "dist_backend_plugin_v2", size: 0 };
    call_plugin_to_end(call_site, |outcome| {
        // SAFETY: the plug-in's function, with structs that outlive the call.
        unsafe { entry(loading_services().table(), &raw mut plugin_info, outcome) }
    })?;
    if plugin_info.version != DIST_BACKEND_VERSION {
        return Err(other_version(path, plugin_info.version));
    }
    let name = required_str(plugin_info.name, "name").context(|| path)?;
    register_plugin(name, plugin_info.functions, plugin_info.user).context(|| path)
}

/// Returns the host services that a plug-in gets when it is loaded. They belong to no group, and
/// stay valid after the load.
fn loading_services() -> &'static Arc<HostServices> {
    static SERVICES: OnceLock<Arc<HostServices>> = OnceLock::new();
    SERVICES.get_or_init(|| HostServices::new("(being loaded)", 0, None, Arc::default()))
}

fn no_plugin(path: &str) -> Error {
    let message = format!(
        "{path} is not a back end for this library: it does not export dist_backend_plugin_v2"
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn other_version(path: &str, version: u32) -> Error {
    let message = format!(
        "{path} was built for version {version} of the back-end interface, and this library has version \
         {DIST_BACKEND_VERSION}: build it with the header of this library"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Reads the name of the back end that a caller requests. If the name is unknown, loads the
/// plug-ins that the environment lists.
pub(super) fn optional_backend_name(name: *const c_char) -> Result<Option<String>> {
    let name = optional_str(name, "backend")?;
    name.map(|name| load_if_unknown(name).map(|()| name.to_owned())).transpose()
}

/// Loads the plug-ins that the environment lists if no back end has this name. For the name "mpi",
/// also searches the plug-in of an MPI family ([`backend_mpi`]).
///
/// # Errors
/// The error of the plug-in that could not be loaded.
pub(super) fn load_if_unknown(name: &str) -> Result<()> {
    static CONFIGURED: OnceLock<Result<()>> = OnceLock::new();
    if backend::is_available(name) {
        return Ok(());
    }
    let configured = CONFIGURED.get_or_init(load_configured_plugins).clone();
    if backend::is_available(name) {
        return Ok(());
    }
    // `name` may combine several back ends.
    let is_mpi = |name: &String| name.eq_ignore_ascii_case(backend_mpi::BACKEND_NAME);
    if !backend::host_backend_names(name).iter().any(is_mpi) {
        return configured;
    }
    backend_mpi::find_plugin(&|path| load_plugin(path).map(drop)).map_err(
        |error| match configured {
            Err(other) => Error::new(error.kind(), format!("{error}; {other}")).with_source(error),
            Ok(()) => error,
        },
    )
}

fn load_configured_plugins() -> Result<()> {
    let Some(list) = config::read_text(config::BACKEND_PLUGINS)? else { return Ok(()) };
    let paths = list.split(':').filter(|path| !path.is_empty());
    // Load all plug-ins even if some of them fail, and report the first failure.
    let outcomes: Vec<Result<&str>> = paths.map(load_plugin).collect();
    let outcome = outcomes.into_iter().find(Result::is_err).unwrap_or(Ok("")).map(drop);
    outcome.context(|| config::BACKEND_PLUGINS.name)
}
