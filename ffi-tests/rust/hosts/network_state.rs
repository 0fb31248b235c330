//! The network state of an emulated host: its listening ports and the traffic of its interfaces.

use super::Hosts;
use std::collections::BTreeSet;

/// The state of a listening socket in the kernel's tables.
const LISTEN: &str = "0A";

impl Hosts {
    /// Returns the ports with a listener, over IPv4 or IPv6.
    pub(crate) fn listening_ports(&self, host: usize) -> BTreeSet<u16> {
        let table = self.hosts[host].read(&["/proc/net/tcp", "/proc/net/tcp6"]);
        let port = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, state) = (words.get(1)?, words.get(3)?);
            let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
            (*state == LISTEN).then_some(port)
        };
        table.lines().filter_map(port).collect()
    }

    /// Returns the number of bytes that a host has sent over an interface so far.
    pub(crate) fn bytes_sent(&self, host: usize, interface: &str) -> u64 {
        let table = self.hosts[host].read(&["/proc/net/dev"]);
        let counts = table.lines().find_map(|line| line.trim().strip_prefix(interface));
        // The first eight columns count received data.
        let sent = counts.and_then(|line| line.strip_prefix(':')?.split_whitespace().nth(8));
        sent.unwrap().parse().unwrap()
    }
}
