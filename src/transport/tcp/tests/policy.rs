//! Table tests for the choice of addresses.

use super::*;
use crate::sys::netif::{NetworkInterface, interfaces};
use crate::transport::tcp::interface::{
    AddressFamily, InterfaceChoice, InterfaceRules, choose_interfaces,
};
use crate::transport::tcp::join::listen;
use crate::transport::tcp::port_range::parse_range;

fn interface(name: &str, address: &str) -> NetworkInterface {
    let loopback = name == "lo";
    let address: IpAddr = address.parse().unwrap();
    NetworkInterface {
        name: name.into(),
        address,
        scope: 0,
        is_up: name != "down0",
        is_loopback: loopback,
    }
}

/// Returns the interfaces of a host with every kind of interface.
fn host() -> Vec<NetworkInterface> {
    [
        ("lo", "127.0.0.1"),
        ("docker0", "172.17.0.1"),
        ("eth0", "10.0.0.5"),
        ("eth1", "10.0.1.5"),
        ("eth10", "10.0.2.5"),
        ("down0", "10.9.9.9"),
        ("lo", "::1"),
        ("eth0", "fd00::5"),
        ("eth0", "fe80::5"),
        ("eth1", "fe80::6"),
    ]
    .map(|(name, address)| interface(name, address))
    .to_vec()
}

fn rules_for_list(text: &str) -> InterfaceRules {
    InterfaceRules {
        list: Some((text.to_owned(), "DIST_SOCKET_IFNAME")),
        ..InterfaceRules::default()
    }
}

/// Returns the routable addresses with their rail indices.
fn routable(choice: &InterfaceChoice) -> Vec<(String, u8)> {
    choice.routable.iter().map(|it| (it.address.ip().to_string(), it.rail)).collect()
}

#[test]
fn names_prefixes_addresses_and_exclusions() {
    let table: &[(&str, &[(&str, u8)])] = &[
        ("eth0", &[("10.0.0.5", 0), ("fd00::5", 0)]),
        // An exact name does not match as a prefix; every other item does.
        ("eth1", &[("10.0.1.5", 0)]),
        ("eth", &[("10.0.0.5", 0), ("fd00::5", 0), ("10.0.1.5", 1), ("10.0.2.5", 2)]),
        ("=eth1", &[("10.0.1.5", 0)]),
        ("=eth1,eth0", &[("10.0.1.5", 0), ("10.0.0.5", 1), ("fd00::5", 1)]),
        ("eth1, eth0", &[("10.0.1.5", 0), ("10.0.0.5", 1), ("fd00::5", 1)]),
        ("eth0,eth0", &[("10.0.0.5", 0), ("fd00::5", 0)]),
        ("10.0.1.5", &[("10.0.1.5", 0)]),
        ("fd00::5", &[("fd00::5", 0)]),
        ("^docker,eth1", &[("10.0.0.5", 0), ("fd00::5", 0)]),
        ("^=eth1,=docker0", &[("10.0.0.5", 0), ("fd00::5", 0), ("10.0.2.5", 1)]),
    ];
    for (text, expected) in table {
        let choice = choose_interfaces(&host(), &rules_for_list(text)).unwrap();
        let expected: Vec<_> = expected.iter().map(|&(ip, rail)| (ip.to_owned(), rail)).collect();
        assert_eq!(routable(&choice), expected, "{text}");
        assert_eq!(choice.same_netns, choice.routable, "{text}");
        assert_eq!(choice.rails, expected.last().unwrap().1 + 1, "{text}");
        assert!(choice.reason.contains(text), "{}", choice.reason);
    }
}

#[test]
fn a_link_local_address_is_for_ranks_of_the_same_host() {
    let choice = choose_interfaces(&host(), &rules_for_list("fe80::5")).unwrap();
    assert!(choice.routable.is_empty(), "{choice:?}");
    assert_eq!(choice.same_netns.len(), 1, "{choice:?}");
}

#[test]
fn unknown_interface_error_lists_interfaces() {
    for text in ["ib0", "=eth", "down0", "10.0.0.6", "eth0,ib0", "^docker,eth", "^"] {
        match choose_interfaces(&host(), &rules_for_list(text)) {
            Ok(choice) => assert_eq!((text, choice.rails), ("^", 4)),
            Err(error) => {
                for word in ["DIST_SOCKET_IFNAME", text, "eth10 (10.0.2.5)", "docker0"] {
                    assert!(error.message().contains(word), "{error}");
                }
            }
        }
    }
    let only_v6 = InterfaceRules { family: Some(AddressFamily::V6), ..rules_for_list("eth1") };
    assert!(choose_interfaces(&host(), &only_v6).is_err());
    assert!(AddressFamily::parse("AF_UNIX", "DIST_SOCKET_FAMILY").is_err());
}

#[test]
fn default_interface_is_the_route_to_the_store() {
    let to = |ip: &str| InterfaceRules {
        store_source: Some(ip.parse().unwrap()),
        ..InterfaceRules::default()
    };
    let choice = choose_interfaces(&host(), &to("10.0.1.5")).unwrap();
    assert_eq!(routable(&choice), [("10.0.1.5".to_owned(), 0)]);
    let choice = choose_interfaces(&host(), &to("fd00::5")).unwrap();
    assert_eq!(routable(&choice), [("fd00::5".to_owned(), 0), ("10.0.0.5".to_owned(), 0)]);
    assert!(choice.same_netns == choice.routable && choice.reason.contains("store"), "{choice:?}");
    let v4 = InterfaceRules { family: Some(AddressFamily::V4), ..to("10.0.0.5") };
    assert_eq!(routable(&choose_interfaces(&host(), &v4).unwrap()), [("10.0.0.5".to_owned(), 0)]);
    // The interface of the route is chosen even if only the other address family is wanted.
    let both = [host(), vec![interface("eth1", "fd00::6")]].concat();
    let v6 = InterfaceRules { family: Some(AddressFamily::V6), ..to("10.0.1.5") };
    assert_eq!(routable(&choose_interfaces(&both, &v6).unwrap()), [("fd00::6".to_owned(), 0)]);
    assert_eq!(routable(&choose_interfaces(&host(), &v6).unwrap()), [("fd00::5".to_owned(), 0)]);
    // A job on one host needs only loopback.
    let local = InterfaceRules { is_local_job: true, ..to("127.0.0.1") };
    let choice = choose_interfaces(&host(), &local).unwrap();
    assert!(choice.routable.is_empty() && choice.same_netns.len() == 2, "{choice:?}");
    // The host's own name may resolve to loopback on this host, and to another address on other
    // hosts.
    let world = Some("10.0.2.5".parse().unwrap());
    let choice =
        choose_interfaces(&host(), &InterfaceRules { default_source: world, ..to("127.0.0.1") })
            .unwrap();
    assert_eq!(routable(&choice), [("10.0.2.5".to_owned(), 0)]);
    assert!(choice.same_netns.iter().any(|it| it.address.ip().is_loopback()));
    let choice = choose_interfaces(&host()[..1], &InterfaceRules::default()).unwrap();
    assert!(
        choice.routable.is_empty() && choice.reason.contains("no other interface"),
        "{choice:?}"
    );
    assert!(choose_interfaces(&[], &InterfaceRules::default()).is_err());
}

#[test]
fn loopback_address_is_for_the_same_namespace() {
    let advert = listen_on_loopback("127.0.0.1", 1).advert().clone();
    assert_eq!(AddressAdvert::decode(&advert.encode()), Some(advert.clone()));
    assert_eq!(advert.addresses_for(&advert, 0, &name(3)).unwrap(), advert.same_netns);
    let far = AddressAdvert { network_namespace: "elsewhere".into(), ..advert.clone() };
    let error = advert.addresses_for(&far, 0, &name(3)).unwrap_err();
    for word in ["rank 3", "127.0.0.1", "DIST_SOCKET_IFNAME"] {
        assert!(error.message().contains(word), "{error}");
    }
    assert_eq!(AddressAdvert::decode(&serde_json::json!({"near": [["x", 0]]})), None);
    // Collective streams with different numbers start at different interfaces.
    let rail_address = |port, rail| RailAddress { address: ([127, 0, 0, 1], port).into(), rail };
    let two = AddressAdvert {
        same_netns: vec![rail_address(1, 0), rail_address(2, 0), rail_address(3, 1)],
        rails: 2,
        ..advert
    };
    let ports = |lane| -> Vec<u16> {
        let addresses = two.addresses_for(&two, lane, &name(0)).unwrap();
        addresses.iter().map(|rail_address| rail_address.address.port()).collect()
    };
    assert_eq!((ports(0), ports(1), ports(2)), (vec![1, 2, 3], vec![3, 1, 2], vec![1, 2, 3]));
}

#[test]
fn port_ranges_are_parsed() {
    assert_eq!(parse_range("20000-20010").unwrap(), 20000..=20010);
    assert_eq!(parse_range(" 7000 ").unwrap(), 7000..=7000);
    for bad in ["", "0", "9-8", "a-b", "1-70000"] {
        assert!(parse_range(bad).unwrap_err().message().contains("DIST_PORT_RANGE"));
    }
}

#[test]
fn own_listen_addresses_exist() {
    let opening = listen(Some(("127.0.0.1", 1))).unwrap();
    let advert = opening.advert();
    let own = interfaces().unwrap();
    assert!(!advert.same_netns.is_empty(), "{advert:?}");
    assert!(advert.same_netns.iter().all(|rail_address| {
        rail_address.address.port() != 0
            && own.iter().any(|it| it.address == rail_address.address.ip())
    }));
}
