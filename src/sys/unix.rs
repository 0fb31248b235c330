//! Unix sockets in the abstract namespace, whose names leave no file. The functions also pass
//! descriptors to the peer, and check the user of the peer.
//!
//! Any user of the host can connect to an abstract name, and can take a name before the library
//! does. Both sides of a connection therefore call [`check_peer_user`] before they read or write.

use super::descriptor::above_standard_streams;
use super::{host, small_file};
use crate::base::error::{Error, ErrorKind, Result};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Room for the control message of one descriptor, with the alignment that the kernel requires.
#[repr(C, align(8))]
struct ControlMessageBuffer([u8; 64]);

/// Listens on an abstract name.
///
/// # Errors
/// `System`, for example if the name is in use.
pub fn listen(name: &str) -> Result<UnixListener> {
    let listen = || {
        let address = SocketAddr::from_abstract_name(name)?;
        let listener = above_standard_streams(UnixListener::bind_addr(&address))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|cause| Error::system(format_args!("listening on the socket @{name}"), cause))
}

/// Accepts a connection.
///
/// # Errors
/// The error of the system, including `WouldBlock`.
pub fn accept(listener: &UnixListener) -> std::io::Result<UnixStream> {
    above_standard_streams(listener.accept().map(|(stream, _)| stream))
}

/// Connects to an abstract name. Does not wait: the connect succeeds or fails at once.
///
/// # Errors
/// The error of the system; `WouldBlock` if the listener's queue is full.
pub fn connect(name: &str) -> std::io::Result<UnixStream> {
    let socket = above_standard_streams(Socket::new(Domain::UNIX, Type::STREAM, None))?;
    // A blocking connect would wait for room in the queue of a listener that may never accept.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(OwnedFd::from(socket).into())
}

/// Returns the process ID and user ID of the peer, as the kernel recorded them at connect time.
///
/// # Errors
/// `System`.
pub fn peer_credentials(stream: &UnixStream) -> Result<(u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
    // SAFETY: the option writes at most `len` bytes, the size of the structure.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        return Err(Error::system("SO_PEERCRED", std::io::Error::last_os_error()));
    }
    Ok((u32::try_from(credentials.pid).unwrap_or_default(), credentials.uid))
}

/// The user id of root.
const ROOT_USER: u32 = 0;

/// Checks that the process at the other end of a connection belongs to this user or to root. For
/// the connecting side, this is the process that listens.
///
/// # Errors
/// `Auth` with the other user; `System`.
pub fn check_peer_user(stream: &UnixStream) -> Result<()> {
    let (pid, user) = peer_credentials(stream)?;
    if user == host::uid() || user == ROOT_USER {
        return Ok(());
    }
    let message = format!(
        "process {pid} at the other end of a Unix socket belongs to user {user}, and this process \
         to user {}",
        host::uid()
    );
    Err(Error::new(ErrorKind::Auth, message))
}

/// Returns the abstract names that begin with `prefix` and on which a process listens, from the
/// kernel's list of Unix sockets. A process of any user may have such a name.
///
/// # Errors
/// The error of the system, for example if `/proc` is not mounted.
pub fn listening_names(prefix: &str) -> std::io::Result<Vec<String>> {
    let list = small_file::read_bytes("/proc/net/unix")?;
    Ok(parse_listening_names(&String::from_utf8_lossy(&list), prefix))
}

/// The bit in the flags of a Unix socket in `/proc/net/unix` that listens.
const LISTENING_FLAG: u32 = 0x1_0000;

/// Parses `/proc/net/unix`. Its columns are: address, references, protocol, flags, type, state,
/// inode, path. The path of an abstract name begins with `@`.
fn parse_listening_names(list: &str, prefix: &str) -> Vec<String> {
    let name = |line: &str| {
        let columns: Vec<&str> = line.splitn(8, ' ').collect();
        let flags = u32::from_str_radix(columns.get(3)?, 16).ok()?;
        // The kernel pads the inode to five places, so its column may begin with blanks.
        let (_, name) = line.split_once(" @")?;
        (flags & LISTENING_FLAG != 0 && name.starts_with(prefix)).then(|| name.to_owned())
    };
    list.lines().filter_map(name).collect()
}

/// Sends bytes and, if `fd` is given, a descriptor. Returns the number of sent bytes.
///
/// # Errors
/// The error of the system, including `WouldBlock`.
pub fn send(
    stream: &UnixStream,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> std::io::Result<usize> {
    match fd {
        Some(fd) => send_with(stream, bytes, &[fd.as_raw_fd()]),
        None => send_with(stream, bytes, &[]),
    }
}

fn send_with(stream: &UnixStream, bytes: &[u8], fds: &[RawFd]) -> std::io::Result<usize> {
    let mut space = ControlMessageBuffer([0; 64]);
    let parts = [IoSlice::new(bytes)];
    let mut message = empty_message();
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        attach_descriptors(&mut message, &mut space, fds);
    }
    // SAFETY: the message points to `parts` and `space`, which outlive the call.
    let sent = unsafe {
        libc::sendmsg(
            stream.as_raw_fd(),
            &raw const message,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| std::io::Error::last_os_error())
}

/// Receives bytes and at most one descriptor. Zero bytes mean that the peer has closed the
/// connection.
///
/// # Errors
/// The error of the system, including `WouldBlock`.
pub fn receive(stream: &UnixStream, bytes: &mut [u8]) -> std::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = ControlMessageBuffer([0; 64]);
    let mut parts = [IoSliceMut::new(bytes)];
    let mut message = empty_message();
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut space).cast();
    // Room for exactly one descriptor: the kernel closes the descriptors for which there is no
    // room.
    message.msg_controllen = control_len(size_of::<libc::c_int>());
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the message points to `parts` and `space`, which outlive the call.
    let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| std::io::Error::last_os_error())?;
    let descriptor = take_descriptor(&message);
    Ok((got, descriptor.map(|fd| above_standard_streams(Ok(fd))).transpose()?))
}

/// Returns both ends of a connected pair, for example to wake a thread that polls.
///
/// # Errors
/// `System`.
pub fn pair() -> Result<(UnixStream, UnixStream)> {
    let made = UnixStream::pair().and_then(|(a, b)| {
        // Moving the first end might free a low number, but no new descriptor takes it here.
        let (a, b) = (above_standard_streams(Ok(a))?, above_standard_streams(Ok(b))?);
        a.set_nonblocking(true)?;
        b.set_nonblocking(true)?;
        Ok((a, b))
    });
    made.map_err(|cause| Error::system("socketpair", cause))
}

fn empty_message() -> libc::msghdr {
    // SAFETY: all fields are integers and pointers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Returns the length of a control message with `bytes` bytes of data.
fn control_len(bytes: usize) -> usize {
    // SAFETY: CMSG_LEN only computes.
    let len = unsafe { libc::CMSG_LEN(libc::c_uint::try_from(bytes).unwrap_or_default()) };
    usize::try_from(len).unwrap_or_default()
}

/// Attaches descriptors to a message; the buffer has room for a dozen.
fn attach_descriptors(message: &mut libc::msghdr, space: &mut ControlMessageBuffer, fds: &[RawFd]) {
    let size = libc::c_uint::try_from(size_of_val(fds)).unwrap_or_default();
    message.msg_control = std::ptr::from_mut(space).cast();
    // SAFETY: CMSG_SPACE only computes.
    message.msg_controllen = usize::try_from(unsafe { libc::CMSG_SPACE(size) }).unwrap_or_default();
    // SAFETY: msg_control and msg_controllen describe `space`, which has room for one header.
    let header = unsafe { libc::CMSG_FIRSTHDR(std::ptr::from_ref(message)) };
    let len = control_len(size_of_val(fds));
    let filled =
        libc::cmsghdr { cmsg_len: len, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    // SAFETY: the header is inside `space`, and aligned because `space` is aligned.
    unsafe { header.write(filled) };
    // SAFETY: the data follows the header inside `space`.
    let data = unsafe { libc::CMSG_DATA(header) };
    for (place, &fd) in fds.iter().enumerate() {
        let target = data.cast::<libc::c_int>().wrapping_add(place);
        // SAFETY: `space` has room for each descriptor; the write assumes no alignment.
        unsafe { target.write_unaligned(fd) };
    }
}

fn take_descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel filled in the control data that `message` describes.
    let header = unsafe { libc::CMSG_FIRSTHDR(std::ptr::from_ref(message)) };
    if header.is_null() {
        return None;
    }
    // SAFETY: CMSG_FIRSTHDR returned a complete header inside the control data.
    let filled = unsafe { header.read() };
    if filled.cmsg_level != libc::SOL_SOCKET || filled.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: a SCM_RIGHTS message carries at least one descriptor after its header.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: as above; the read assumes no alignment. The buffer never has room for more than one
    // descriptor.
    let fd = unsafe { data.cast::<libc::c_int>().read_unaligned() };
    // SAFETY: the kernel installed the descriptor for this process, and it has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a function on a thread that belongs to another user than this process, as an attacker on
/// the same host. Returns `None` unless this process belongs to root.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub fn run_as_other_user<T: Send>(action: impl FnOnce() -> T + Send) -> Option<T> {
    /// A user without rights.
    const OTHER_USER: libc::c_long = 65_534;
    if host::uid() != ROOT_USER {
        return None;
    }
    let change_user = || {
        // SAFETY: the raw system call changes the user of the calling thread only.
        unsafe { libc::syscall(libc::SYS_setresuid, OTHER_USER, OTHER_USER, OTHER_USER) }
    };
    let run = || {
        assert_eq!(change_user(), 0);
        action()
    };
    std::thread::scope(|scope| Some(scope.spawn(run).join().unwrap()))
}

/// Shortens the queue of a listener to one connection. The listener then belongs to the user of the
/// calling thread.
#[cfg(test)]
pub fn shorten_queue(listener: &UnixListener) -> std::io::Result<()> {
    socket2::SockRef::from(listener).listen(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsFd;

    #[test]
    fn passed_descriptor_and_peer_credentials_arrive() {
        let (a, b) = pair().unwrap();
        let file = File::open("/proc/self/comm").unwrap();
        assert_eq!(send(&a, b"hi", Some(file.as_fd())).unwrap(), 2);
        let mut bytes = [0; 8];
        let (got, fd) = receive(&b, &mut bytes).unwrap();
        assert_eq!(&bytes[..got], b"hi");
        let mut text = String::new();
        File::from(fd.unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        assert_eq!(peer_credentials(&a).unwrap(), (host::pid(), host::uid()));
    }

    #[test]
    fn peers_of_another_user_are_refused_by_both_sides() {
        let name = format!("libdist-test-{}", host::random_nonce().unwrap());
        let listener = listen(&name).unwrap();
        let own = connect(&name).unwrap();
        check_peer_user(&own).unwrap();
        check_peer_user(&accept(&listener).unwrap()).unwrap();
        let other_name = format!("{name}-other");
        let others = || (connect(&name).unwrap(), listen(&other_name).unwrap());
        let Some((_client, _other_listener)) = run_as_other_user(others) else { return };
        for stream in [accept(&listener).unwrap(), connect(&other_name).unwrap()] {
            let error = check_peer_user(&stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Auth);
            assert!(error.message().contains("user 65534"), "{error}");
        }
        // A process of another user accepts root.
        let root = run_as_other_user(|| check_peer_user(&connect(&name).unwrap()));
        root.unwrap().unwrap();
    }

    #[test]
    fn only_listening_names_with_the_prefix_are_listed() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 19263 @libdist-job-1\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 19264 @libdist-job-2\n\
            0000000000000000: 00000002 00000000 00010000 0001 01   263 @libdist-job-3 x\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 19265 /run/libdist-job-4\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 19266 @other\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 19267\n";
        let expected = ["libdist-job-1", "libdist-job-3 x"];
        assert_eq!(parse_listening_names(list, "libdist-job-"), expected);
        let name = format!("libdist-test-{}", host::random_nonce().unwrap());
        let _listener = listen(&name).unwrap();
        assert_eq!(listening_names(&name).unwrap(), [name]);
    }

    #[test]
    fn only_one_descriptor_is_received() {
        let (a, b) = pair().unwrap();
        let (sent, kept) = pair().unwrap();
        assert_eq!(send_with(&a, b"x", &[sent.as_raw_fd(); 2]).unwrap(), 1);
        drop(sent);
        let (_, fd) = receive(&b, &mut [0]).unwrap();
        let mut bytes = [0];
        let open = receive(&kept, &mut bytes).unwrap_err();
        assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
        // The kernel closed the second descriptor; after the first is closed, all copies are
        // closed.
        drop(fd.unwrap());
        assert_eq!(receive(&kept, &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn closed_peer_reads_zero_and_no_data_is_would_block() {
        let (a, b) = pair().unwrap();
        let mut bytes = [0; 8];
        let nothing = receive(&b, &mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(receive(&b, &mut bytes).unwrap().0, 0);
    }
}
