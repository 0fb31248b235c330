//! Which addresses are told: a table.

use super::*;
use crate::sys::netif::{Interface, interfaces};
use crate::transport::tcp::interface::{Choice, Family, Rules, choose};
use crate::transport::tcp::join::{open, parse_range};

fn interface(name: &str, address: &str) -> Interface {
    let loopback = name == "lo";
    let address: IpAddr = address.parse().unwrap();
    Interface { name: name.into(), address, scope: 0, up: name != "down0", loopback }
}

/// A host with everything.
fn host() -> Vec<Interface> {
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

fn list(text: &str) -> Rules {
    Rules { list: Some((text.to_owned(), "DIST_SOCKET_IFNAME")), ..Rules::default() }
}

/// The addresses for anyone, with the numbers of their interfaces.
fn anyone(choice: &Choice) -> Vec<(String, u8)> {
    choice.anyone.iter().map(|it| (it.address.ip().to_string(), it.rail)).collect()
}

#[test]
fn names_prefixes_addresses_and_exclusions() {
    let table: &[(&str, &[(&str, u8)])] = &[
        ("eth0", &[("10.0.0.5", 0), ("fd00::5", 0)]),
        // An exact name is not taken for the beginning of others; anything else is.
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
        let choice = choose(&host(), &list(text)).unwrap();
        let expected: Vec<_> = expected.iter().map(|&(ip, rail)| (ip.to_owned(), rail)).collect();
        assert_eq!(anyone(&choice), expected, "{text}");
        assert_eq!(choice.near, choice.anyone, "{text}");
        assert_eq!(choice.rails, expected.last().unwrap().1 + 1, "{text}");
        assert!(choice.why.contains(text), "{}", choice.why);
    }
}

#[test]
fn a_link_local_address_is_for_ranks_of_the_same_host() {
    let choice = choose(&host(), &list("fe80::5")).unwrap();
    assert!(choice.anyone.is_empty(), "{choice:?}");
    assert_eq!(choice.near.len(), 1, "{choice:?}");
}

#[test]
fn what_names_nothing_is_an_error_that_shows_what_there_is() {
    for text in ["ib0", "=eth", "down0", "10.0.0.6", "eth0,ib0", "^docker,eth", "^"] {
        match choose(&host(), &list(text)) {
            Ok(choice) => assert_eq!((text, choice.rails), ("^", 4)),
            Err(error) => {
                for word in ["DIST_SOCKET_IFNAME", text, "eth10 (10.0.2.5)", "docker0"] {
                    assert!(error.message().contains(word), "{error}");
                }
            }
        }
    }
    let only_v6 = Rules { family: Some(Family::V6), ..list("eth1") };
    assert!(choose(&host(), &only_v6).is_err());
    assert!(Family::parse("AF_UNIX", "DIST_SOCKET_FAMILY").is_err());
}

#[test]
fn without_a_word_it_is_the_way_to_the_store() {
    let to = |ip: &str| Rules { to_store: Some(ip.parse().unwrap()), ..Rules::default() };
    let choice = choose(&host(), &to("10.0.1.5")).unwrap();
    assert_eq!(anyone(&choice), [("10.0.1.5".to_owned(), 0)]);
    let choice = choose(&host(), &to("fd00::5")).unwrap();
    assert_eq!(anyone(&choice), [("fd00::5".to_owned(), 0), ("10.0.0.5".to_owned(), 0)]);
    assert!(choice.near == choice.anyone && choice.why.contains("store"), "{choice:?}");
    let v4 = Rules { family: Some(Family::V4), ..to("10.0.0.5") };
    assert_eq!(anyone(&choose(&host(), &v4).unwrap()), [("10.0.0.5".to_owned(), 0)]);
    // The way counts, also where only the other family is wanted.
    let both = [host(), vec![interface("eth1", "fd00::6")]].concat();
    let v6 = Rules { family: Some(Family::V6), ..to("10.0.1.5") };
    assert_eq!(anyone(&choose(&both, &v6).unwrap()), [("fd00::6".to_owned(), 0)]);
    assert_eq!(anyone(&choose(&host(), &v6).unwrap()), [("fd00::5".to_owned(), 0)]);
    // A job of one host needs no more than that.
    let local = Rules { is_local_job: true, ..to("127.0.0.1") };
    let choice = choose(&host(), &local).unwrap();
    assert!(choice.anyone.is_empty() && choice.near.len() == 2, "{choice:?}");
    // A host's own name may mean loopback there, and another address elsewhere.
    let world = Some("10.0.2.5".parse().unwrap());
    let choice = choose(&host(), &Rules { to_world: world, ..to("127.0.0.1") }).unwrap();
    assert_eq!(anyone(&choice), [("10.0.2.5".to_owned(), 0)]);
    assert!(choice.near.iter().any(|it| it.address.ip().is_loopback()));
    let choice = choose(&host()[..1], &Rules::default()).unwrap();
    assert!(choice.anyone.is_empty() && choice.why.contains("no other interface"), "{choice:?}");
    assert!(choose(&[], &Rules::default()).is_err());
}

#[test]
fn loopback_is_for_those_who_are_near() {
    let near = opening("127.0.0.1", 1).advert().clone();
    assert_eq!(Advert::decode(&near.encode()), Some(near.clone()));
    assert_eq!(near.offers_for(&near, 0, &name(3)).unwrap(), near.near);
    let far = Advert { space: "elsewhere".into(), ..near.clone() };
    let error = near.offers_for(&far, 0, &name(3)).unwrap_err();
    for word in ["rank 3", "127.0.0.1", "DIST_SOCKET_IFNAME"] {
        assert!(error.message().contains(word), "{error}");
    }
    assert_eq!(Advert::decode(&serde_json::json!({"near": [["x", 0]]})), None);
    // Lanes begin at different interfaces.
    let offer = |port, rail| Offer { address: ([127, 0, 0, 1], port).into(), rail };
    let two = Advert { near: vec![offer(1, 0), offer(2, 0), offer(3, 1)], rails: 2, ..near };
    let ports = |lane| -> Vec<u16> {
        let offers = two.offers_for(&two, lane, &name(0)).unwrap();
        offers.iter().map(|offer| offer.address.port()).collect()
    };
    assert_eq!((ports(0), ports(1), ports(2)), (vec![1, 2, 3], vec![3, 1, 2], vec![1, 2, 3]));
}

#[test]
fn ranges_of_ports() {
    assert_eq!(parse_range("20000-20010").unwrap(), 20000..=20010);
    assert_eq!(parse_range(" 7000 ").unwrap(), 7000..=7000);
    for bad in ["", "0", "9-8", "a-b", "1-70000"] {
        assert!(parse_range(bad).unwrap_err().message().contains("DIST_PORT_RANGE"));
    }
}

#[test]
fn this_host_has_a_way_to_itself() {
    let opening = open(Some(("127.0.0.1", 1))).unwrap();
    let advert = opening.advert();
    let own = interfaces().unwrap();
    assert!(!advert.near.is_empty(), "{advert:?}");
    assert!(advert.near.iter().all(|offer| {
        offer.address.port() != 0 && own.iter().any(|it| it.address == offer.address.ip())
    }));
}
