//! Where the processes of a job run: on hosts that differ in name, or in their networks as well.

/// A host, as far as the processes on it can tell.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    identity: String,
    address: String,
    prefix: Vec<String>,
}

impl Place {
    /// This machine under another name: its processes take each other for those of one host, and
    /// all others for those of other hosts.
    pub(crate) fn named(identity: &str) -> Self {
        let address = "127.0.0.1".to_owned();
        Self { identity: identity.to_owned(), address, prefix: Vec::new() }
    }

    /// A network name space that `prefix` leads to, in which this address is its own.
    pub(crate) fn in_space(identity: &str, address: &str, prefix: Vec<String>) -> Self {
        Self { identity: identity.to_owned(), address: address.to_owned(), prefix }
    }

    /// What its processes have in `DIST_HOST_ID`, since the name spaces of one machine have the
    /// same boot id.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Where others reach it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// What a command line begins with to run there; empty where it is this network.
    pub(crate) fn prefix(&self) -> &[String] {
        &self.prefix
    }
}
