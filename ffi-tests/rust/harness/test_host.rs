//! Emulated hosts for the processes of a job. They differ in their names only, or also in their
//! network namespaces.

/// An emulated host.
#[derive(Clone, Debug)]
pub(crate) struct TestHost {
    identity: String,
    address: String,
    command_prefix: Vec<String>,
}

impl TestHost {
    /// This machine under another name. Its processes treat each other as ranks of one host, and
    /// all other processes as ranks of other hosts.
    pub(crate) fn on_this_network(identity: &str) -> Self {
        let address = "127.0.0.1".to_owned();
        Self { identity: identity.to_owned(), address, command_prefix: Vec::new() }
    }

    /// A network namespace that `command_prefix` enters, with its own address.
    pub(crate) fn in_namespace(identity: &str, address: &str, prefix: Vec<String>) -> Self {
        Self { identity: identity.to_owned(), address: address.to_owned(), command_prefix: prefix }
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
    pub(crate) fn command_prefix(&self) -> &[String] {
        &self.command_prefix
    }
}
