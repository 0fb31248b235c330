//! The ports on which this process listens: any free port or, if `DIST_PORT_RANGE` is set, a free
//! port of that range.

use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use crate::sys::{host, socket};
use std::net::{SocketAddr, TcpListener};
use std::ops::RangeInclusive;

/// Reads the port range from the environment variable `DIST_PORT_RANGE`.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn port_range() -> Result<Option<RangeInclusive<u16>>> {
    config::read_text(config::PORT_RANGE)?.map(|text| parse_range(&text)).transpose()
}

/// Parses a port range `low-high`, or a single port.
pub(super) fn parse_range(text: &str) -> Result<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.trim().parse(), high.trim().parse()) {
        (Ok(low), Ok(high)) if 0 < low && low <= high => Ok(low..=high),
        _ => {
            let message = format!(
                "DIST_PORT_RANGE=\"{text}\" is neither a port nor a range such as 20000-20100"
            );
            Err(Error::invalid(message))
        }
    }
}

/// Listens at `address` on a free port of the range, or on any free port if there is no range.
pub(super) fn listen(
    mut address: SocketAddr,
    ports: Option<&RangeInclusive<u16>>,
) -> Result<TcpListener> {
    let listen_error = |address: SocketAddr, cause: std::io::Error| {
        Error::system(format_args!("listening on {}", address.ip()), cause)
    };
    let Some(ports) = ports else {
        address.set_port(0);
        return socket::listen(address).map_err(|cause| listen_error(address, cause));
    };
    // The processes of a host start their search at different ports of the range.
    let count = u32::from(ports.end() - ports.start()) + 1;
    let first = host::pid() % count;
    for attempt in 0..count {
        let offset = u16::try_from((first + attempt) % count).unwrap_or(0);
        address.set_port(ports.start() + offset);
        match socket::listen(address) {
            Err(cause) if cause.kind() == std::io::ErrorKind::AddrInUse => {}
            outcome => return outcome.map_err(|cause| listen_error(address, cause)),
        }
    }
    let message = format!(
        "all {count} ports of DIST_PORT_RANGE={}-{} are in use at {}: each process of a host needs one port for \
         each address; widen the range",
        ports.start(),
        ports.end(),
        address.ip()
    );
    Err(Error::new(ErrorKind::Connection, message))
}
