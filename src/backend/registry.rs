//! The registry of back ends. It finds the native back end, the registered plug-ins and the back
//! ends for GPU memory by name. Outside of the folders of the back ends, only this file refers to a
//! specific back end.
//!
//! Names are compared without regard to case. A name cannot be registered twice and cannot be
//! removed, because a group may outlive the code that registered its back end. The registry is the
//! only process-wide state about back ends.

use super::context::{BootstrapExchange, GroupContext};
use super::device_factory::DeviceBackendFactory;
use super::host_factory::BackendFactory;
use super::interface::Backend;
use super::native;
use super::nccl::NcclFactory;
use super::solo::SingleRankBackend;
use super::staging::StagingFactory;
use super::ucc::{self, UccFactory};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::sync::{lock, unpoisoned};
use std::sync::{Arc, Mutex, RwLock};

/// The name of the default back end for host memory.
pub const DEFAULT_HOST_BACKEND: &str = "native";

/// The alias of the native back end: the name of c10d's back end for host memory.
pub(super) const NATIVE_ALIAS: &str = "gloo";

/// The name of the native back end, and its alias.
const BUILTIN_NAMES: [&str; 2] = [DEFAULT_HOST_BACKEND, NATIVE_ALIAS];

/// Names that are not allowed for plug-ins, because device maps use them.
const RESERVED: [&str; 5] = ["nccl", ucc::NAME, "cpu", "cuda", "default"];

/// The factory of the back end over UCC.
static UCC_FACTORY: UccFactory = UccFactory { create_native: create_native_backend };

/// The factory of the device back end that groups use by default.
pub(super) static PREFERRED_DEVICE_FACTORY: &dyn DeviceBackendFactory = &NcclFactory;

/// The factory of the device back end that transfers device memory through the host back end.
pub(super) static HOST_TRANSFER_FACTORY: &dyn DeviceBackendFactory = &StagingFactory;

/// The maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The maximum number of registered back ends. A registered back end is never removed, so the limit
/// bounds the memory.
const MAX_BACKENDS: usize = 256;

#[derive(Clone, Debug)]
struct RegisteredBackend {
    name: &'static str,
    factory: Arc<dyn BackendFactory>,
}

static REGISTERED: RwLock<Vec<RegisteredBackend>> = RwLock::new(Vec::new());

/// Registers a back end and returns its normalized name. `make` receives this name and returns the
/// factory.
///
/// # Errors
/// `InvalidArgument` for a name that is invalid, reserved or already registered; `OutOfMemory` if
/// the registry is full.
pub fn register(
    name: &str,
    make: impl FnOnce(&'static str) -> Arc<dyn BackendFactory>,
) -> Result<&'static str> {
    let name = normalized_name(name)?;
    let mut registered = unpoisoned(REGISTERED.write());
    if BUILTIN_NAMES.contains(&name.as_str())
        || registered.iter().any(|backend| backend.name == name)
    {
        let message = format!("the back end \"{name}\" already exists: choose another name");
        return Err(Error::invalid(message));
    }
    if registered.len() == MAX_BACKENDS {
        let message = format!("{MAX_BACKENDS} back ends are registered, which is the maximum");
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    // The name is leaked, because its entry is never removed.
    let name: &'static str = name.leak();
    registered.push(RegisteredBackend { name, factory: make(name) });
    Ok(name)
}

/// Validates a name and converts it to lower case.
fn normalized_name(name: &str) -> Result<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(fits) {
        let message = format!(
            "\"{}\" is not a valid name of a back end: use 1 to {MAX_NAME_BYTES} of A-Z, a-z, \
             0-9, \"_\" and \"-\"",
            name.chars().take(MAX_NAME_BYTES).collect::<String>()
        );
        return Err(Error::invalid(message));
    }
    let name = name.to_ascii_lowercase();
    if RESERVED.contains(&name.as_str()) {
        let message =
            format!("the name \"{name}\" is reserved by the library: choose another name");
        return Err(Error::invalid(message));
    }
    Ok(name)
}

/// Creates a back end for host memory.
pub(super) fn create_host_backend(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    if let Some(backend) = find_entry(name) {
        return backend.factory.create(context, exchange);
    }
    if is_ucc(name) {
        return UCC_FACTORY.create(context, exchange);
    }
    create_native_backend(context, exchange)
}

/// Creates the native back end, or that of a group of one rank.
fn create_native_backend(
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    if context.size == 1 {
        // Options that are invalid for several ranks are also invalid for one rank.
        native::peer_info::check_options(context)?;
        let shown_rank = context.shown_ranks.map_or(0, |shown| shown[0]);
        return Ok(Arc::new(SingleRankBackend::with_shown_rank(shown_rank)));
    }
    Ok(Arc::new(native::bootstrap::create(context, exchange)?))
}

/// Returns the factory of the device back end with this name, as used in device maps.
pub(super) fn find_device_factory(name: &str) -> Option<&'static dyn DeviceBackendFactory> {
    Some(PREFERRED_DEVICE_FACTORY).filter(|factory| factory.name().eq_ignore_ascii_case(name))
}

fn is_ucc(name: &str) -> bool {
    ucc::NAME.eq_ignore_ascii_case(name)
}

fn find_entry(name: &str) -> Option<RegisteredBackend> {
    let registered = unpoisoned(REGISTERED.read());
    registered.iter().find(|backend| backend.name.eq_ignore_ascii_case(name)).cloned()
}

/// Returns the canonical name of the back end with this name or alias, or `None` for an unknown
/// name.
pub fn canonical_name(name: &str) -> Option<&'static str> {
    if BUILTIN_NAMES.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Some(BUILTIN_NAMES[0]);
    }
    if is_ucc(name) {
        return Some(ucc::NAME);
    }
    find_entry(name).map(|backend| backend.name)
}

/// Returns a copy of a name with static lifetime. Equal names share one copy, so the function leaks
/// one string for each distinct combination of back ends.
pub(super) fn intern_name(name: &str) -> &'static str {
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut names = lock(&NAMES);
    if let Some(interned) = names.iter().find(|known| **known == name) {
        return interned;
    }
    let name: &'static str = name.to_owned().leak();
    names.push(name);
    name
}

/// Returns true if this is the name of the native back end or its alias.
pub(super) fn is_native(name: &str) -> bool {
    canonical_name(name) == Some(DEFAULT_HOST_BACKEND)
}

/// Checks that a back end for host memory with this name exists.
///
/// # Errors
/// `NotFound` with the list of the known names; the error of the load of a library that the back
/// end needs.
pub(super) fn check_host_name(name: &str) -> Result<()> {
    if is_ucc(name) {
        return UCC_FACTORY.check();
    }
    if canonical_name(name).is_some() {
        return Ok(());
    }
    let registered = unpoisoned(REGISTERED.read());
    let names = BUILTIN_NAMES.into_iter().chain(registered.iter().map(|backend| backend.name));
    let message = format!(
        "there is no back end \"{name}\": the available back ends are {}, ucc, nccl, and maps such \
         as \"cpu:native,cuda:nccl\"",
        names.collect::<Vec<_>>().join(", ")
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct FailingFactory;

    impl BackendFactory for FailingFactory {
        fn create(
            &self,
            _: &GroupContext<'_>,
            _: &dyn BootstrapExchange,
        ) -> Result<Arc<dyn Backend>> {
            Err(Error::new(ErrorKind::Unsupported, "the factory always fails"))
        }
    }

    fn add(name: &str) -> Result<&'static str> {
        register(name, |_| Arc::new(FailingFactory))
    }

    #[test]
    fn names_are_unique_ignoring_case() {
        assert_eq!(canonical_name("Registry-Test"), None);
        assert_eq!(add("Registry-TEST").unwrap(), "registry-test");
        assert_eq!(canonical_name("REGISTRY-test"), Some("registry-test"));
        assert!(find_entry("registry-Test").is_some() && check_host_name("registry-Test").is_ok());
        for taken in ["registry-test", "REGISTRY-TEST", "native", "Gloo"] {
            let error = add(taken).unwrap_err();
            assert!(error.message().contains("already"), "{error}");
        }
        let unknown = check_host_name("unheard-of").unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        for name in ["native", "gloo", "registry-test"] {
            assert!(unknown.message().contains(name), "{unknown}");
        }
    }

    #[test]
    fn reserved_or_malformed_names_are_refused() {
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for name in ["", "a b", "cpu:native", "a,b", "cuda", "NCCL", "\u{e9}", long.as_str()] {
            assert_eq!(add(name).unwrap_err().kind(), ErrorKind::InvalidArgument, "{name}");
            assert_eq!(canonical_name(name), None);
        }
    }

    #[test]
    fn concurrent_registration_of_one_name_has_one_winner() {
        let taken: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| add("registry-race").is_ok())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|&&taken| taken).count(), 1);
    }
}
