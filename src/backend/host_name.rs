//! The names of back ends for host memory: the name of a single back end ([`super::registry`]), or
//! the name of a two-level group ([`super::two_level`]).

use super::context::{BootstrapExchange, GroupContext};
use super::interface::Backend;
use super::registry::{self, NATIVE_ALIAS};
use super::two_level::{TwoLevelSpec, create_host};
use crate::base::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Creates a back end for host memory. All ranks must call this function, because it waits for all
/// ranks.
pub(super) fn create(
    name: &str,
    context: &GroupContext<'_>,
    exchange: &dyn BootstrapExchange,
) -> Result<Arc<dyn Backend>> {
    match TwoLevelSpec::parse(name)? {
        Some(spec) => create_host(&spec, context, exchange),
        None => registry::create_host_backend(name, context, exchange),
    }
}

/// Returns the canonical form of a name or an alias, or `None` for an unknown name.
pub(super) fn canonical(name: &str) -> Option<&'static str> {
    registry::canonical_name(name).or_else(|| {
        let spec = TwoLevelSpec::parse(name).ok()??;
        let is_known = spec.check().is_ok() && !spec.is_for_devices();
        is_known.then(|| registry::intern_name(&spec.canonical()))
    })
}

/// Checks that a back end for host memory with this name exists.
///
/// # Errors
/// `NotFound` with the list of the known names; `Unsupported` for a two-level group that serves
/// device memory only.
pub(super) fn check(name: &str) -> Result<()> {
    match TwoLevelSpec::parse(name)? {
        Some(spec) if spec.is_for_devices() => {
            let message = format!("{name}: {} supports GPU memory only", spec.inside);
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        Some(spec) => spec.check(),
        None => registry::check_host_name(name),
    }
}

/// Returns a name as its user knows it: in lower case, and with its alias.
pub(super) fn shown(name: &str) -> String {
    if name.eq_ignore_ascii_case(NATIVE_ALIAS) {
        return NATIVE_ALIAS.to_owned();
    }
    match TwoLevelSpec::parse(name) {
        Ok(Some(spec)) => spec.to_string(),
        _ => registry::canonical_name(name).unwrap_or(name).to_owned(),
    }
}

/// Returns the names of the single back ends that a name consists of. They may be unknown.
pub(super) fn parts(name: &str) -> Vec<String> {
    match TwoLevelSpec::parse(name) {
        Ok(Some(spec)) => spec.host_backends(),
        _ => vec![name.to_owned()],
    }
}
