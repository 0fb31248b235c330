//! Chooses the addresses that this rank publishes to its peers. The choice is a pure function of
//! the network interfaces, the user's settings, and the routes of this host.
//!
//! The result has two lists: *routable* addresses for ranks in any network namespace, and
//! *same_netns* addresses for ranks in the same network namespace. Loopback addresses appear only
//! in the second list. Each chosen interface is a *rail*; streams are spread over the rails.

use crate::base::error::{Error, Result};
use crate::sys::netif::NetworkInterface;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The user's settings and the system's routes.
#[derive(Clone, Debug, Default)]
pub(super) struct InterfaceRules {
    /// The user's list of interfaces, and the name of the environment variable that contains it.
    pub(super) list: Option<(String, &'static str)>,
    /// The only address family to use; `None` for both.
    pub(super) family: Option<AddressFamily>,
    /// The source address that this host uses for connections to the store.
    pub(super) store_source: Option<IpAddr>,
    /// Whether the user gave the store's address as `localhost` or as a loopback address. Such an
    /// address means the host itself, so all ranks are on one host.
    pub(super) is_local_job: bool,
    /// The source address that this host uses for connections by its default route.
    pub(super) default_source: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressFamily {
    V4,
    V6,
}

impl AddressFamily {
    fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Parses `AF_INET` or `AF_INET6`, the names of the C constants.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn parse(name: &str, variable: &str) -> Result<Self> {
        match name.trim() {
            "AF_INET" => Ok(Self::V4),
            "AF_INET6" => Ok(Self::V6),
            other => {
                let message = format!("{variable}=\"{other}\" is neither AF_INET nor AF_INET6");
                Err(Error::invalid(message))
            }
        }
    }
}

/// An address without a port, and its rail: the index of the chosen interface that has the
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    /// The port is 0.
    pub(super) address: SocketAddr,
    pub(super) rail: u8,
}

/// The chosen addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceChoice {
    pub(super) routable: Vec<InterfaceAddress>,
    pub(super) same_netns: Vec<InterfaceAddress>,
    /// The number of rails. Streams are spread over them round-robin.
    pub(super) rails: u8,
    /// The reason for the choice, as text.
    pub(super) reason: String,
}

/// The maximum number of rails.
pub(super) const MAX_RAILS: usize = 8;

/// Chooses the addresses by the user's list of interfaces or, if there is no list, by the routes.
///
/// # Errors
/// `InvalidArgument` if the list matches no usable interface; the message lists the interfaces.
pub(super) fn choose_interfaces(
    interfaces: &[NetworkInterface],
    rules: &InterfaceRules,
) -> Result<InterfaceChoice> {
    let usable: Vec<&NetworkInterface> = interfaces
        .iter()
        .filter(|it| {
            it.is_up && rules.family.is_none_or(|family| family == AddressFamily::of(it.address))
        })
        .collect();
    let choice = match &rules.list {
        Some((list, variable)) => choose_named(&usable, list, variable, rules)?,
        None => {
            let to_store =
                rules.store_source.and_then(|ip| same_interface_address(interfaces, &usable, ip));
            choose_by_route(&usable, &InterfaceRules { store_source: to_store, ..rules.clone() })
        }
    };
    if choice.same_netns.is_empty() {
        let message = format!(
            "no interface of this host has an address to listen on; its interfaces: {}",
            describe(interfaces)
        );
        return Err(Error::invalid(message));
    }
    Ok(choice)
}

/// Chooses the interfaces that the user listed, or, if the list begins with `^`, all interfaces
/// except those.
fn choose_named(
    usable: &[&NetworkInterface],
    list: &str,
    variable: &str,
    rules: &InterfaceRules,
) -> Result<InterfaceChoice> {
    let invalid_list = |problem: String| {
        let available = describe(usable.iter().copied());
        Error::invalid(format!("{variable}=\"{list}\" {problem}; usable interfaces: {available}"))
    };
    let (excludes, items) = match list.trim().strip_prefix('^') {
        Some(items) => (true, items),
        None => (false, list.trim()),
    };
    let all_exact = items.starts_with('=');
    let items: Vec<&str> = items.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
    let matches = |item: &str, it: &NetworkInterface| match item.strip_prefix('=') {
        Some(name) => it.name == name,
        None if all_exact => it.name == item,
        None => it.name.starts_with(item),
    };
    let mut rails: Vec<Vec<&NetworkInterface>> = Vec::new();
    if excludes {
        let is_kept = |it: &&&NetworkInterface| {
            !it.is_loopback && !items.iter().any(|item| matches(item, it))
        };
        rails.extend(group_by_name(
            usable.iter().filter(is_kept).copied().filter(is_not_link_local),
        ));
    }
    for item in items.iter().filter(|_| !excludes) {
        let of_item: Vec<&NetworkInterface> = match item.parse::<IpAddr>() {
            Ok(address) => usable.iter().copied().filter(|it| it.address == address).collect(),
            Err(_) => {
                let exact = usable.iter().any(|it| it.name == *item);
                let matches = |it: &&&NetworkInterface| {
                    if exact { it.name == *item } else { matches(item, it) }
                };
                usable.iter().filter(matches).copied().filter(is_not_link_local).collect()
            }
        };
        if of_item.is_empty() {
            return Err(invalid_list(format!("names no interface that is up (\"{item}\")")));
        }
        // An interface is one rail, even if several items match it.
        let known =
            |it: &&NetworkInterface| rails.iter().flatten().any(|known| known.name == it.name);
        let of_item: Vec<&NetworkInterface> = of_item.into_iter().filter(|it| !known(it)).collect();
        rails.extend(group_by_name(of_item.into_iter()));
    }
    rails.truncate(MAX_RAILS);
    if rails.is_empty() {
        return Err(invalid_list("leaves no interface that is up".to_owned()));
    }
    let first = rules.store_source.map_or(AddressFamily::V4, AddressFamily::of);
    for rail in &mut rails {
        rail.sort_by_key(|it| AddressFamily::of(it.address) != first);
    }
    let same_netns = number_rails(&rails);
    let routable = routable_only(&same_netns);
    let names: Vec<&str> =
        rails.iter().filter_map(|rail| Some(rail.first()?.name.as_str())).collect();
    let reason = format!("{variable}=\"{list}\" means {}", names.join(", "));
    let rails = u8::try_from(rails.len()).unwrap_or(u8::MAX);
    Ok(InterfaceChoice { routable, same_netns, rails, reason })
}

/// Returns `ip` if it is among the usable addresses. Otherwise returns a usable address of the
/// interface that has `ip`.
fn same_interface_address(
    all: &[NetworkInterface],
    usable: &[&NetworkInterface],
    ip: IpAddr,
) -> Option<IpAddr> {
    let of_ip = all.iter().find(|it| it.address == ip.to_canonical())?;
    let same = || usable.iter().filter(|it| it.name == of_ip.name);
    let found = same()
        .find(|it| it.address == of_ip.address)
        .or_else(|| same().find(|it| is_not_link_local(it)));
    found.map(|it| it.address)
}

/// Chooses the interface of the route to the store, or of the default route.
fn choose_by_route(usable: &[&NetworkInterface], rules: &InterfaceRules) -> InterfaceChoice {
    let has = |ip: &IpAddr| usable.iter().any(|it| it.address == ip.to_canonical());
    let to_store = rules.store_source.filter(has);
    let is_routable = |ip: &IpAddr| !ip.is_loopback() && has(ip);
    let first_up =
        || usable.iter().find(|it| !it.is_loopback && is_not_link_local(it)).map(|it| it.address);
    let (source, mut reason) = match to_store {
        Some(ip) if is_routable(&ip) => (Some(ip), "it has the route to the store"),
        Some(_) if rules.is_local_job => (None, "the store is on the loopback interface"),
        _ => match rules.default_source.filter(is_routable) {
            Some(ip) => (Some(ip), "it has the default route of this host"),
            None => (first_up(), "it is the first one that is up"),
        },
    };
    if source.is_none() && !rules.is_local_job {
        reason = "this host has no other interface that is up";
    }
    let source = source.map(|ip| ip.to_canonical());
    let chosen = source.and_then(|ip| usable.iter().find(|it| it.address == ip)).copied();
    let mut rail: Vec<&NetworkInterface> = chosen.into_iter().collect();
    if let Some(chosen) = chosen {
        let other = |it: &&&NetworkInterface| {
            it.name == chosen.name
                && AddressFamily::of(it.address) != AddressFamily::of(chosen.address)
                && is_not_link_local(it)
        };
        rail.extend(usable.iter().find(other).copied());
    }
    let routable = routable_only(&number_rails(std::slice::from_ref(&rail)));
    let loopback: Vec<&NetworkInterface> =
        usable.iter().copied().filter(|it| it.is_loopback).collect();
    // Ranks that reach the store through loopback are all in the network namespace of the store, so
    // they can connect to each other through loopback.
    let is_near = to_store.is_none_or(|ip| ip.is_loopback()) || routable.is_empty();
    let near_rail = if is_near { [loopback, rail].concat() } else { rail };
    let same_netns = number_rails(std::slice::from_ref(&near_rail));
    let name = chosen.map_or("loopback only", |it| it.name.as_str());
    InterfaceChoice { routable, same_netns, rails: 1, reason: format!("{name}: {reason}") }
}

/// Returns false for a link-local address.
fn is_not_link_local(it: &&NetworkInterface) -> bool {
    match it.address {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Returns the addresses at which other hosts can connect. IPv6 link-local addresses are left out:
/// to connect to one, a process needs the index of its own interface. The published index is
/// correct only for processes in the same network namespace.
fn routable_only(list: &[InterfaceAddress]) -> Vec<InterfaceAddress> {
    let is_outward = |it: &&InterfaceAddress| match it.address.ip() {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    list.iter().filter(is_outward).copied().collect()
}

/// Groups addresses by interface. The groups are in the order in which the interfaces first
/// appear.
fn group_by_name<'a>(
    list: impl Iterator<Item = &'a NetworkInterface>,
) -> Vec<Vec<&'a NetworkInterface>> {
    let mut groups: Vec<Vec<&NetworkInterface>> = Vec::new();
    for it in list {
        match groups.iter_mut().find(|group| group.iter().any(|other| other.name == it.name)) {
            Some(group) => group.push(it),
            None => groups.push(vec![it]),
        }
    }
    groups
}

fn number_rails(rails: &[Vec<&NetworkInterface>]) -> Vec<InterfaceAddress> {
    let of_rail = |(rail, list): (u8, &Vec<&NetworkInterface>)| {
        list.iter()
            .map(|it| InterfaceAddress { address: socket_address(it), rail })
            .collect::<Vec<_>>()
    };
    (0..).zip(rails).flat_map(of_rail).collect()
}

fn socket_address(it: &NetworkInterface) -> SocketAddr {
    match it.address {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, it.scope).into(),
    }
}

/// Describes the interfaces for an error message.
fn describe<'a>(interfaces: impl IntoIterator<Item = &'a NetworkInterface>) -> String {
    let groups = group_by_name(interfaces.into_iter());
    let describe = |group: &Vec<&NetworkInterface>| {
        let addresses: Vec<_> = group.iter().map(|it| it.address.to_string()).collect();
        let down = if group.iter().all(|it| it.is_up) { "" } else { ", down" };
        let name = group.first().map_or("", |it| it.name.as_str());
        format!("{name} ({}{down})", addresses.join(", "))
    };
    groups.iter().map(describe).collect::<Vec<_>>().join(", ")
}
