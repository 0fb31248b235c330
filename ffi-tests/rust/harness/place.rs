//! Emulated hosts for the processes of a job. They differ in their names only, or also in their
//! network namespaces.

/// An emulated host.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    identity: String,
    address: String,
    prefix: Vec<String>,
}

impl Place {
    /// This machine under another name. Its processes treat each other as ranks of one host, and
    /// all other processes as ranks of other hosts.
    pub(crate) fn named(identity: &str) -> Self {
        let address = "127.0.0.1".to_owned();
        Self { identity: identity.to_owned(), address, prefix: Vec::new() }
    }

    /// A network namespace that `prefix` enters, with its own address.
    pub(crate) fn in_space(identity: &str, address: &str, prefix: Vec<String>) -> Self {
        Self { identity: identity.to_owned(), address: address.to_owned(), prefix }
    }

    /// The value of `DIST_HOST_ID` for its processes, since all namespaces of one machine have the
    /// same boot id.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// The address at which other hosts reach this host.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The command prefix that runs a program on this host; empty for the network of the test
    /// itself.
    pub(crate) fn prefix(&self) -> &[String] {
        &self.prefix
    }
}
