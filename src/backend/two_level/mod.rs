//! Two-level groups: one back end inside a host and another between hosts, as one group. The name
//! `inside=NAME,between=NAME` selects them ([`spec`]).
//!
//! A two-level group has a host back end over all ranks and *inner groups* over some of them
//! ([`inner_group`]): one of the ranks of this host, and one of ranks of different hosts. An
//! operation is composed of operations of the inner groups, its *steps* ([`steps`],
//! [`operations`]).
//!
//! | memory | file | inside the host | between hosts |
//! |---|---|---|---|
//! | host | [`host`] | a host back end | a host back end |
//! | device | [`device`] | a device back end | a host back end, through host memory |
//!
//! The host back end carries the messages and the bootstrap of the inner groups, detects dead
//! ranks, and owns the failure state. A failure of an inner group fails the two-level group and
//! the other inner group, and the reverse ([`super::linked_failures`]).
//!
//! Only some operations have steps. The ranks agree on the supported calls when the group is
//! created ([`support`]).

mod average;
mod copies;
mod device;
mod host;
mod inner_group;
mod member_exchange;
mod operations;
mod reductions;
mod scratch;
mod spec;
mod steps;
mod support;

pub(super) use device::create_device;
pub(super) use host::create_host;
pub(super) use inner_group::TwoLevelOptions;
pub(super) use spec::{TwoLevelSpec, split_slots};

use super::{OpKind, SupportQuery, registry};
use crate::base::error::{Error, ErrorKind, Result};

impl TwoLevelSpec {
    /// Returns true if the back end inside the host is a device back end.
    pub(super) fn is_for_devices(&self) -> bool {
        registry::find_device_factory(&self.inside).is_some()
    }

    /// Returns the name with the canonical names of the back ends.
    pub(super) fn canonical(&self) -> String {
        let of = |name: &str| registry::canonical_name(name).unwrap_or(name).to_owned();
        Self { inside: of(&self.inside), between: of(&self.between) }.to_string()
    }

    /// Returns the names of the host back ends, which may be unknown.
    pub(super) fn host_backends(&self) -> Vec<String> {
        let inside = Some(self.inside.clone()).filter(|_| !self.is_for_devices());
        inside.into_iter().chain([self.between.clone()]).collect()
    }

    /// Checks that this process has the back ends.
    ///
    /// # Errors
    /// `NotFound` for an unknown name; `Unsupported` for a device back end between hosts; the error
    /// of a library that cannot be loaded.
    pub(super) fn check(&self) -> Result<()> {
        if registry::find_device_factory(&self.between).is_some() {
            let message = format!(
                "{self}: {0} runs between hosts only if it also runs inside them: use the back end \
                 \"{0}\" for both, or \"between=native\"",
                self.between
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        registry::check_host_name(&self.between)?;
        match registry::find_device_factory(&self.inside) {
            Some(factory) => factory.check(),
            None => registry::check_host_name(&self.inside),
        }
    }

    /// Checks whether a group supports a call on host memory if its caller requested only this
    /// two-level device back end. Such a group supports only barriers and messages there.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(super) fn check_host_support(&self, query: &SupportQuery) -> Result<()> {
        if query.kind.is_none_or(|kind| kind == OpKind::Barrier) {
            return Ok(());
        }
        let message = format!(
            "{query} in host memory: the back end {self} supports GPU memory only; use \
             \"cpu:native,cuda:{self}\" for both"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
