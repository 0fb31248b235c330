//! The network interfaces in this process's network namespace, and their addresses.

use crate::base::error::{Error, Result};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// The name of the interface.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The interface index for an IPv6 link-local address; 0 for other addresses.
    pub scope: u32,
    /// The interface is up.
    pub is_up: bool,
    /// The interface is the loopback interface.
    pub is_loopback: bool,
}

/// Returns all addresses of all interfaces, in the kernel's order.
///
/// # Errors
/// `System`.
pub fn interfaces() -> Result<Vec<NetworkInterface>> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the call writes one pointer, to a list that `freeifaddrs` below frees.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(Error::system("getifaddrs", io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: an entry of the list is valid until the list is freed, and the last entry's
    // `ifa_next` is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        found.extend(read(entry));
        next = entry.ifa_next;
    }
    // SAFETY: the list is freed once, and no reference to it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Converts an entry; returns `None` if its address is neither IPv4 nor IPv6.
fn read(entry: &libc::ifaddrs) -> Option<NetworkInterface> {
    // SAFETY: the address is null or points to a structure that begins with its family.
    let family = i32::from(unsafe { entry.ifa_addr.as_ref() }?.sa_family);
    let (address, scope): (IpAddr, u32) = match family {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`; getifaddrs aligns it.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().as_ref() }?;
            (Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into(), 0)
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a `sockaddr_in6`; getifaddrs aligns it.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().as_ref() }?;
            (Ipv6Addr::from(address.sin6_addr.s6_addr).into(), address.sin6_scope_id)
        }
        _ => return None,
    };
    // SAFETY: the name is a C string of the same list.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    let has = |flag: libc::c_int| entry.ifa_flags & flag.cast_unsigned() != 0;
    Some(NetworkInterface {
        name: name.to_string_lossy().into_owned(),
        address,
        scope,
        is_up: has(libc::IFF_UP),
        is_loopback: has(libc::IFF_LOOPBACK),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_is_listed() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|it| it.address == IpAddr::from(Ipv4Addr::LOCALHOST));
        let loopback = loopback.unwrap();
        assert!(loopback.is_loopback && loopback.is_up && loopback.scope == 0, "{loopback:?}");
        assert_eq!(loopback.name, "lo");
    }
}
