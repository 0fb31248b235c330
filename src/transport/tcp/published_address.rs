//! The published address of this rank (`DIST_ADVERTISE`): an address and ports by which ranks of
//! other networks reach this rank. Examples are the published ports of a container, and the ports
//! that a router forwards (NAT). This rank listens on its local address as always.

use super::advert::RailAddress;
use super::port_range;
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::sys::socket;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The limit for looking up the published host name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The value of `DIST_ADVERTISE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublishedAddress {
    /// A host name or an address literal.
    host: String,
    /// The published ports.
    ports: RangeInclusive<u16>,
    /// The local ports to which the published ports lead, in the same order.
    local_ports: RangeInclusive<u16>,
}

impl PublishedAddress {
    /// Reads the environment variables `DIST_ADVERTISE` and `DIST_PORT_RANGE`.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn from_environment() -> Result<Option<Self>> {
        let Some(text) = config::read_text(config::ADVERTISE)? else { return Ok(None) };
        Self::parse(&text, port_range::port_range()?).map(Some)
    }

    /// Parses `host:port` or `host:low-high`. `local_ports` is the local port range, if one is
    /// set; otherwise the local ports are the published ports.
    pub(super) fn parse(text: &str, local_ports: Option<RangeInclusive<u16>>) -> Result<Self> {
        let invalid = |problem: &str| {
            Err(Error::invalid(format!(
                "DIST_ADVERTISE=\"{text}\" {problem}: set host:port or host:low-high, for example \
                 203.0.113.7:20000-20015 or [2001:db8::7]:20000-20015"
            )))
        };
        let Some((host, ports)) = text.trim().rsplit_once(':') else {
            return invalid("has no ports");
        };
        let is_bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if host.is_empty() || is_bare_ipv6 {
            return invalid("has no host, or an IPv6 address without brackets");
        }
        let Ok(ports) = port_range::parse_range(ports) else {
            return invalid("has invalid ports");
        };
        let local_ports = local_ports.unwrap_or_else(|| ports.clone());
        if local_ports.len() != ports.len() {
            let message = format!(
                "DIST_ADVERTISE=\"{text}\" publishes {} ports, and DIST_PORT_RANGE={}-{} has {}: \
                 the n-th published port leads to the n-th local port, so both need the same number",
                ports.len(),
                local_ports.start(),
                local_ports.end(),
                local_ports.len()
            );
            return Err(Error::invalid(message));
        }
        Ok(Self { host: host.to_owned(), ports, local_ports })
    }

    /// Returns the ports on which this rank must listen.
    pub(super) fn local_ports(&self) -> &RangeInclusive<u16> {
        &self.local_ports
    }

    /// Returns the addresses to advertise instead of `local`, the local addresses that ranks of
    /// other networks would use. Each published address leads to the first local address.
    ///
    /// # Errors
    /// `InvalidArgument` if this process listens on another port, because an earlier group did not
    /// have the setting; `Connection` or `Timeout` if the host name does not resolve.
    pub(super) fn advertised(&self, local: &[RailAddress]) -> Result<Vec<RailAddress>> {
        let Some(first) = local.first() else {
            return Err(Error::invalid("DIST_ADVERTISE is set, but this host has no address"));
        };
        let port = first.address.port();
        if !self.local_ports.contains(&port) {
            let message = format!(
                "DIST_ADVERTISE is set, but this process already listens on port {port}, which the \
                 published ports do not lead to: set it before the first group"
            );
            return Err(Error::invalid(message));
        }
        let published = self.ports.start() + (port - self.local_ports.start());
        let deadline = Deadline::after(LOOKUP_TIMEOUT);
        let found: Vec<SocketAddr> =
            socket::resolve(&self.host, published, &deadline).context(|| "DIST_ADVERTISE")?;
        Ok(found.into_iter().map(|address| RailAddress { address, rail: first.rail }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(port: u16) -> RailAddress {
        RailAddress { address: SocketAddr::from(([172, 17, 0, 2], port)), rail: 0 }
    }

    #[test]
    fn published_ports_lead_to_local_ports() {
        let same = PublishedAddress::parse(" 203.0.113.7:20000-20003 ", None).unwrap();
        assert_eq!(same.local_ports(), &(20000..=20003));
        let found = same.advertised(&[local(20002)]).unwrap();
        assert_eq!(found[0].address, "203.0.113.7:20002".parse().unwrap());
        let mapped = PublishedAddress::parse("[2001:db8::7]:31000-31003", Some(20000..=20003));
        let found = mapped.unwrap().advertised(&[local(20003), local(20001)]).unwrap();
        assert_eq!(
            found,
            [RailAddress { address: "[2001:db8::7]:31003".parse().unwrap(), rail: 0 }]
        );
        let one = PublishedAddress::parse("203.0.113.7:9000", Some(7..=7)).unwrap();
        let found = one.advertised(&[local(7)]).unwrap();
        assert_eq!(found[0].address, "203.0.113.7:9000".parse().unwrap());
    }

    #[test]
    fn impossible_settings_are_refused() {
        for wrong in ["", "host", "host:", ":7", "2001:db8::7:7", "host:9-3", "host:0", "h:x"] {
            let error = PublishedAddress::parse(wrong, None).unwrap_err();
            assert!(error.message().contains("DIST_ADVERTISE"), "{error}");
        }
        let error = PublishedAddress::parse("h:7-9", Some(7..=8)).unwrap_err();
        assert!(error.message().contains("DIST_PORT_RANGE=7-8"), "{error}");
        let set_late = PublishedAddress::parse("127.0.0.1:7-9", None).unwrap();
        assert!(set_late.advertised(&[local(40000)]).is_err());
        assert!(set_late.advertised(&[]).is_err());
    }
}
