//! Emulated hosts for tests: network namespaces, each with its own loopback interface and
//! addresses, on networks that the test creates and removes. Processes run on a host through a
//! [`TestHost`].
//!
//! Every network is a bridge in a further namespace, with a veth pair to each host. An emulated
//! link with delay and losses between two hosts runs through a program (see [`Relay`]). The tests
//! change nothing outside of these namespaces. The drop of the hosts kills their processes and
//! removes the namespaces, also if the test panics. If a test was killed, the next test that makes
//! hosts removes the leftovers.
//!
//! The hosts share memory, files, process ids and the boot id; only the network and the host name
//! differ. For this reason a place has its own identity.
#![allow(dead_code, reason = "each test program uses its own part")]

mod net_namespace;
mod network_state;
mod relay;

pub(crate) use relay::{LinkSettings, Relay};

use crate::harness::{TestHost, next_serial};
use crate::toolchain::{Compiler, skip};
use net_namespace::NetNamespace;
use std::cell::OnceCell;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// The single network of most tests.
pub(crate) const ONE_NETWORK: &[&str] = &["eth0"];

/// The device of a host at its end of an emulated link.
const LINK_DEVICE: &str = "line0";

/// The bridge of a host that is cut off from the others, and of the impostor of host 0.
const REJECT_BRIDGE: &str = "brreject";

/// The number of the first network for an emulated link; the numbers of the requested networks are
/// smaller.
const FIRST_LINK_NETWORK: usize = 100;

/// The advice for a user who may not create namespaces.
const REMEDY: &str =
    "run the tests as root, or in name spaces of your own (docs/testing.md, Hosts)";

/// A set of emulated hosts.
pub(crate) struct Hosts {
    serial: u32,
    hosts: Vec<NetNamespace>,
    /// The namespace with the bridges.
    bridge_namespace: NetNamespace,
    networks: Vec<String>,
    /// The relay program, after the first link has compiled it, and the number of links.
    relay_program: Option<PathBuf>,
    link_count: usize,
    /// The namespaces that answer in the place of two hosts, after the first [`Self::reject`].
    impostors: OnceCell<[NetNamespace; 2]>,
}

impl Hosts {
    /// Creates `count` hosts on networks with these names; the interfaces have the same names. The
    /// error says which capability the machine or the user lacks.
    pub(crate) fn try_new(count: usize, networks: &[&str]) -> Result<Self, String> {
        net_namespace::remove_leftovers();
        let serial = next_serial();
        let switch = NetNamespace::new(serial, "net").map_err(|why| format!("{why}; {REMEDY}"))?;
        for kind in ["bridge", "veth"] {
            let probe = format!("link add probe type {kind}\nlink del probe");
            let lacks = |why| format!("the kernel makes no interface of type {kind}: {why}");
            switch.try_ip(&probe).map_err(lacks)?;
        }
        let six = switch.try_ip("address add fd00::1/128 dev lo");
        six.map_err(|why| format!("the kernel has no IPv6, or it is disabled: {why}"))?;
        let hosts = (0..count).map(|host| NetNamespace::new(serial, &format!("h{host}")));
        let hosts: Vec<NetNamespace> = hosts.collect::<Result<_, _>>()?;
        let networks: Vec<String> = networks.iter().map(|&name| name.to_owned()).collect();
        let made = Self {
            serial,
            hosts,
            bridge_namespace: switch,
            networks,
            relay_program: None,
            link_count: 0,
            impostors: OnceCell::new(),
        };
        made.create_networks();
        Ok(made)
    }

    /// As [`Self::try_new`], for a test: if hosts are impossible, it prints the reason, and the
    /// test must return.
    pub(crate) fn try_new_or_skip(count: usize, networks: &[&str]) -> Option<Self> {
        Self::try_new(count, networks).map_err(|why| skip(&why)).ok()
    }

    /// Creates the networks.
    fn create_networks(&self) {
        let mut commands = String::new();
        for (network, interface) in self.networks.iter().enumerate() {
            // Without snooping, the bridge forwards every multicast to all hosts; IPv6 neighbour
            // discovery needs it.
            let bridge_options = "forward_delay 0 mcast_snooping 0";
            writeln!(commands, "link add br{network} type bridge {bridge_options}").unwrap();
            writeln!(commands, "link set br{network} up").unwrap();
            for (host, space) in self.hosts.iter().enumerate() {
                let (port, name) = (format!("h{host}n{network}"), space.name());
                let peer = format!("peer name {interface} netns {name}");
                writeln!(commands, "link add {port} type veth {peer}").unwrap();
                writeln!(commands, "link set {port} master br{network} up").unwrap();
            }
        }
        self.bridge_namespace.ip(&commands);
        for (host, space) in self.hosts.iter().enumerate() {
            for (network, interface) in self.networks.iter().enumerate() {
                space.ip(&interface_commands(interface, host, network));
            }
            self.networks.iter().for_each(|interface| space.until_ready(interface));
        }
    }

    /// Returns the names of the namespaces.
    pub(crate) fn names(&self) -> Vec<String> {
        let spaces = self.hosts.iter().chain([&self.bridge_namespace]);
        spaces.map(|space| space.name().to_owned()).collect()
    }

    /// Returns the place for processes on a host.
    pub(crate) fn host(&self, host: usize) -> TestHost {
        let name = format!("host-{host}");
        TestHost::in_namespace(&name, &ipv4(host, 0), self.hosts[host].command_prefix(&name))
    }

    /// Returns a host's IPv4 address in a network.
    pub(crate) fn ipv4(&self, host: usize, network: usize) -> String {
        assert!(host < self.hosts.len() && network < self.networks.len());
        ipv4(host, network)
    }

    /// Returns a host's IPv6 address in a network.
    pub(crate) fn ipv6(&self, host: usize, network: usize) -> String {
        assert!(host < self.hosts.len() && network < self.networks.len());
        ipv6(host, network)
    }

    /// Runs `ip` commands on a host, one per line, for example to cut it off.
    pub(crate) fn ip(&self, host: usize, commands: &str) -> String {
        self.hosts[host].ip(commands)
    }

    /// Cuts a host off from the first network like a dead switch: the host's interface stays up,
    /// but its packets are lost.
    pub(crate) fn disconnect(&self, host: usize) {
        self.bridge_namespace.ip(&format!("link set h{host}n0 nomaster"));
    }

    /// Cuts a host off from host 0, the only other host, like a firewall that rejects: each packet
    /// between the hosts is answered by a reset. For this, a namespace without any listening socket
    /// takes the place of each host in the network of the other.
    pub(crate) fn reject(&self, host: usize) {
        let impostors = self.impostors.get_or_init(|| self.create_impostors(host));
        self.bridge_namespace.ip(&format!(
            "link set h{host}n0 master {REJECT_BRIDGE}\n\
             link set i0 master {REJECT_BRIDGE} up\n\
             link set i1 master br0 up"
        ));
        impostors.iter().for_each(|space| space.until_ready("eth0"));
        self.forget_neighbours();
    }

    /// Creates the impostors of host 0 and of another host, which are not connected yet.
    fn create_impostors(&self, other: usize) -> [NetNamespace; 2] {
        self.bridge_namespace.ip(&format!(
            "link add {REJECT_BRIDGE} type bridge forward_delay 0 mcast_snooping 0\n\
             link set {REJECT_BRIDGE} up"
        ));
        [(0, 0), (1, other)].map(|(number, host)| {
            let space = NetNamespace::new(self.serial, &format!("i{number}")).unwrap();
            let peer = format!("peer name eth0 netns {}", space.name());
            self.bridge_namespace.ip(&format!("link add i{number} type veth {peer}"));
            space.ip(&interface_commands("eth0", host, 0));
            space
        })
    }

    /// Lets each host look for the others again.
    fn forget_neighbours(&self) {
        self.hosts.iter().for_each(|space| drop(space.ip("neigh flush dev eth0")));
    }

    /// Connects the host to the first network again.
    pub(crate) fn reconnect(&self, host: usize) {
        let mut commands = format!("link set h{host}n0 master br0\n");
        if self.impostors.get().is_some() {
            commands += "link set i0 nomaster\nlink set i1 nomaster\n";
        }
        self.bridge_namespace.ip(&commands);
        self.forget_neighbours();
    }

    /// Routes all traffic between two hosts through an emulated link, for every address. A host has
    /// at most one link. If the C compiler or the TUN device is missing, it prints the reason and
    /// returns `None`.
    pub(crate) fn add_link(&mut self, pair: [usize; 2], line: &LinkSettings) -> Option<Relay> {
        let compiler = Compiler::find()?;
        let probe = "tuntap add dev probe mode tun\ntuntap del dev probe mode tun";
        if let Err(why) = self.bridge_namespace.try_ip(probe) {
            skip(&format!("no TUN device can be made (modprobe tun; /dev/net/tun): {why}"));
            return None;
        }
        let name = format!("relay-{}-{}", std::process::id(), self.serial);
        let program =
            self.relay_program.get_or_insert_with(|| Relay::compile(&compiler, &name)).clone();
        let network = FIRST_LINK_NETWORK + self.link_count;
        self.link_count += 1;
        let spaces = pair.map(|host| &self.hosts[host]);
        for (space, host) in spaces.iter().zip(pair) {
            space.ip(&format!("tuntap add dev {LINK_DEVICE} mode tun"));
            space.ip(&interface_commands(LINK_DEVICE, host, network));
        }
        let relay = Relay::start(&program, line, spaces, LINK_DEVICE);
        for (space, peer) in [(spaces[0], pair[1]), (spaces[1], pair[0])] {
            let mut routes = String::new();
            for network in 0..self.networks.len() {
                let (four, six) = (ipv4(peer, network), ipv6(peer, network));
                writeln!(routes, "route add {four}/32 dev {LINK_DEVICE}").unwrap();
                writeln!(routes, "route add {six}/128 dev {LINK_DEVICE}").unwrap();
            }
            space.ip(&routes);
        }
        Some(relay)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(program) = &self.relay_program {
            drop(fs::remove_file(program));
        }
    }
}

/// Returns true if a namespace with this name exists.
pub(crate) fn namespace_exists(name: &str) -> bool {
    net_namespace::namespace_exists(name)
}

/// Returns the commands that give a host's interface its addresses in a network.
fn interface_commands(interface: &str, host: usize, network: usize) -> String {
    let (four, six) = (ipv4(host, network), ipv6(host, network));
    format!(
        "address add {four}/24 dev {interface}\n\
         address add {six}/64 dev {interface} nodad\n\
         link set {interface} up"
    )
}

fn ipv4(host: usize, network: usize) -> String {
    format!("10.77.{network}.{}", host + 1)
}

fn ipv6(host: usize, network: usize) -> String {
    format!("fd00:0:0:{network:x}::{:x}", host + 1)
}
