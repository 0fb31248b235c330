//! Hosts for tests: network name spaces, each with a loopback interface and addresses of its own,
//! on networks that the test makes and removes. Processes get to a host by a [`Place`].
//!
//! Every network is a bridge in a further name space, with a pair of virtual interfaces to each
//! host; a line with delay and losses between two hosts goes through a program (see [`Relay`]).
//! Nothing outside these name spaces is changed. Dropping the hosts kills what runs on them and
//! removes them, also when the test panics; what a killed test leaves behind, the next test to make
//! hosts removes.
//!
//! Hosts share everything but the network and the name: memory, files, process ids, the boot id.
//! That is why a place has an identity of its own.
#![allow(dead_code, reason = "each test program uses its own part")]

mod look;
mod relay;
mod space;

pub(crate) use relay::{Line, Relay};

use crate::harness::{Place, serial};
use crate::toolchain::{Compiler, skip};
use space::Space;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// What most tests need: one network.
pub(crate) const ETHERNET: &[&str] = &["eth0"];

/// The device of a host at its end of a line.
const LINE_DEVICE: &str = "line0";

/// The networks that lines are, by number: behind those that the test has asked for.
const FIRST_LINE: usize = 100;

/// What a user may do who cannot make name spaces.
const REMEDY: &str =
    "run the tests as root, or in name spaces of your own (docs/testing.md, Hosts)";

/// Several hosts.
pub(crate) struct Hosts {
    serial: u32,
    hosts: Vec<Space>,
    /// Where the bridges are.
    switch: Space,
    networks: Vec<String>,
    /// The program of the lines, once there is one, and how many have been made.
    relay: Option<PathBuf>,
    lines: usize,
}

impl Hosts {
    /// As many hosts as that on networks with these names, which their interfaces have as well. An
    /// error says what this machine or this user lacks.
    pub(crate) fn try_new(count: usize, networks: &[&str]) -> Result<Self, String> {
        space::remove_leftovers();
        let serial = serial();
        let switch = Space::new(serial, "net").map_err(|why| format!("{why}; {REMEDY}"))?;
        for kind in ["bridge", "veth"] {
            let probe = format!("link add probe type {kind}\nlink del probe");
            let lacks = |why| format!("the kernel makes no interface of type {kind}: {why}");
            switch.try_ip(&probe).map_err(lacks)?;
        }
        let six = switch.try_ip("address add fd00::1/128 dev lo");
        six.map_err(|why| format!("the kernel has no IPv6, or it is disabled: {why}"))?;
        let hosts = (0..count).map(|host| Space::new(serial, &format!("h{host}")));
        let hosts: Vec<Space> = hosts.collect::<Result<_, _>>()?;
        let networks: Vec<String> = networks.iter().map(|&name| name.to_owned()).collect();
        let made = Self { serial, hosts, switch, networks, relay: None, lines: 0 };
        made.connect();
        Ok(made)
    }

    /// The same for a test: where there can be no hosts, it says why, and the test is to return.
    pub(crate) fn find(count: usize, networks: &[&str]) -> Option<Self> {
        Self::try_new(count, networks).map_err(|why| skip(&why)).ok()
    }

    /// Lays the networks.
    fn connect(&self) {
        let mut commands = String::new();
        for (network, interface) in self.networks.iter().enumerate() {
            // Without snooping, every host hears every multicast; the neighbours of IPv6 need some.
            let quiet = "forward_delay 0 mcast_snooping 0";
            writeln!(commands, "link add br{network} type bridge {quiet}").unwrap();
            writeln!(commands, "link set br{network} up").unwrap();
            for (host, space) in self.hosts.iter().enumerate() {
                let (port, name) = (format!("h{host}n{network}"), space.name());
                let peer = format!("peer name {interface} netns {name}");
                writeln!(commands, "link add {port} type veth {peer}").unwrap();
                writeln!(commands, "link set {port} master br{network} up").unwrap();
            }
        }
        self.switch.ip(&commands);
        for (host, space) in self.hosts.iter().enumerate() {
            for (network, interface) in self.networks.iter().enumerate() {
                space.ip(&take_up(interface, host, network));
            }
            self.networks.iter().for_each(|interface| space.until_ready(interface));
        }
    }

    /// The names of the name spaces.
    pub(crate) fn names(&self) -> Vec<String> {
        let spaces = self.hosts.iter().chain([&self.switch]);
        spaces.map(|space| space.name().to_owned()).collect()
    }

    /// Where processes are on a host.
    pub(crate) fn place(&self, host: usize) -> Place {
        let name = format!("host-{host}");
        Place::in_space(&name, &ipv4(host, 0), self.hosts[host].prefix(&name))
    }

    /// A host's address in a network.
    pub(crate) fn ipv4(&self, host: usize, network: usize) -> String {
        assert!(host < self.hosts.len() && network < self.networks.len());
        ipv4(host, network)
    }

    /// A host's other address in a network.
    pub(crate) fn ipv6(&self, host: usize, network: usize) -> String {
        assert!(host < self.hosts.len() && network < self.networks.len());
        ipv6(host, network)
    }

    /// Runs commands of `ip` on a host, one per line, such as those that cut it off.
    pub(crate) fn ip(&self, host: usize, commands: &str) -> String {
        self.hosts[host].ip(commands)
    }

    /// Cuts a host off from the first network, as a switch does that has died: its interface stays
    /// up, and what it sends is lost.
    pub(crate) fn cut(&self, host: usize) {
        self.switch.ip(&format!("link set h{host}n0 nomaster"));
    }

    /// Connects it again.
    pub(crate) fn heal(&self, host: usize) {
        self.switch.ip(&format!("link set h{host}n0 master br0"));
    }

    /// Lets all that two hosts send each other go through a line, whatever address they use. A host
    /// has at most one line. None where there is no C compiler or no TUN device, which is then
    /// said.
    pub(crate) fn line(&mut self, pair: [usize; 2], line: &Line) -> Option<Relay> {
        let compiler = Compiler::find()?;
        let probe = "tuntap add dev probe mode tun\ntuntap del dev probe mode tun";
        if let Err(why) = self.switch.try_ip(probe) {
            skip(&format!("no TUN device can be made (modprobe tun; /dev/net/tun): {why}"));
            return None;
        }
        let name = format!("relay-{}-{}", std::process::id(), self.serial);
        let program = self.relay.get_or_insert_with(|| Relay::compile(&compiler, &name)).clone();
        let network = FIRST_LINE + self.lines;
        self.lines += 1;
        let spaces = pair.map(|host| &self.hosts[host]);
        for (space, host) in spaces.iter().zip(pair) {
            space.ip(&format!("tuntap add dev {LINE_DEVICE} mode tun"));
            space.ip(&take_up(LINE_DEVICE, host, network));
        }
        let relay = Relay::start(&program, line, spaces, LINE_DEVICE);
        for (space, peer) in [(spaces[0], pair[1]), (spaces[1], pair[0])] {
            let mut routes = String::new();
            for network in 0..self.networks.len() {
                let (four, six) = (ipv4(peer, network), ipv6(peer, network));
                writeln!(routes, "route add {four}/32 dev {LINE_DEVICE}").unwrap();
                writeln!(routes, "route add {six}/128 dev {LINE_DEVICE}").unwrap();
            }
            space.ip(&routes);
        }
        Some(relay)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(program) = &self.relay {
            drop(fs::remove_file(program));
        }
    }
}

/// True where there is a name space of this name.
pub(crate) fn exists(name: &str) -> bool {
    space::exists(name)
}

/// The commands that give a host's interface its addresses in a network.
fn take_up(interface: &str, host: usize, network: usize) -> String {
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
