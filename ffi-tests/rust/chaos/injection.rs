//! The faults that the driver injects into processes: signals, sockets that are shut down through a
//! copied descriptor, garbage data, and network partitions.
#![allow(unsafe_code, reason = "signals and other processes' descriptors have no safe interface")]

use crate::generator::Random;
use crate::harness::leftovers;
use crate::hosts::Hosts;
use crate::scenario::{Injection, Scenario};
use crate::scenario_processes::ScenarioProcesses;
use crate::worker::now_us;
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// The timeout for connections and writes that a rank does not have to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

/// An injected fault: its time, and the connections that remain open.
#[derive(Debug, Default)]
pub(crate) struct InjectionRecord {
    /// The time of the injection, on the clock of the reports.
    pub(crate) at_us: u64,
    /// Connections that send nothing more; the drop of this value closes them.
    idle_connections: Vec<OwnedFd>,
}

/// Injects the scenario's fault.
pub(crate) fn inject(
    scenario: &Scenario,
    processes: &ScenarioProcesses,
    hosts: Option<&Hosts>,
) -> InjectionRecord {
    let pid = |rank: usize| processes.process(Some(rank)).pid;
    let mut done = InjectionRecord { at_us: now_us(), idle_connections: Vec::new() };
    match scenario.injection {
        Injection::Kill { .. }
        | Injection::KillAtCreation
        | Injection::KillParent
        | Injection::KillThenExit { .. } => {
            for rank in (0..scenario.size).filter(|&rank| scenario.is_killed(rank)) {
                signal(pid(rank), libc::SIGKILL);
            }
            done.at_us = now_us();
        }
        Injection::Stop => {
            signal(pid(scenario.victim), libc::SIGSTOP);
            done.at_us = now_us();
        }
        Injection::Pause { ms } => {
            signal(pid(scenario.victim), libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(ms));
            signal(pid(scenario.victim), libc::SIGCONT);
        }
        Injection::Close { which } => close_socket(pid(scenario.victim), which),
        Injection::Partition => hosts.iter().for_each(|hosts| hosts.disconnect(1)),
        Injection::Reject => hosts.iter().for_each(|hosts| hosts.reject(1)),
        Injection::BadFrames { seed } => done.idle_connections = send_garbage(processes, seed),
        Injection::StoreDeath => signal(processes.process(None).pid, libc::SIGKILL),
        // The rank itself or the relay injects these faults, or they exist from the start.
        Injection::Delay { .. }
        | Injection::MemoryLimit { .. }
        | Injection::FullDisk { .. }
        | Injection::Exit { .. }
        | Injection::LinkFaults
        | Injection::Leave => {}
    }
    done
}

/// Sends a signal to a child process that this process has not yet waited for.
pub(crate) fn signal(pid: u32, number: i32) {
    // SAFETY: the call takes only numbers.
    unsafe { libc::kill(pid.cast_signed(), number) };
}

/// Shuts down one of the connected sockets of a process.
fn close_socket(pid: u32, which: u64) {
    let folder = format!("/proc/{pid}/fd");
    let mut sockets: Vec<i32> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            std::fs::read_link(entry.path())
                .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    sockets.sort_unstable();
    if sockets.is_empty() {
        return;
    }
    let index = usize::try_from(which % sockets.len() as u64).unwrap_or(0);
    if let Some(socket) = descriptor_of(pid, sockets[index]) {
        // SAFETY: the descriptor is open as long as `socket` exists.
        unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Returns a duplicate of another process's descriptor.
fn descriptor_of(pid: u32, fd: i32) -> Option<OwnedFd> {
    // SAFETY: the call takes only numbers.
    let process = owned_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the call takes only numbers; the pidfd is open.
    owned_fd(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}

fn owned_fd(returned: i64) -> Option<OwnedFd> {
    let fd = i32::try_from(returned).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: the system call that returned this descriptor created it for this process, and no
    // other value owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects to each listening socket of the processes and sends random bytes. Returns the
/// connections that stay open.
fn send_garbage(processes: &ScenarioProcesses, seed: u64) -> Vec<OwnedFd> {
    let mut random = Random::new(seed);
    let pids: Vec<u32> = processes.processes.iter().map(|member| member.pid).collect();
    let sockets = leftovers::sockets_of(&pids);
    let mut silent = Vec::new();
    for port in leftovers::listening_ports(&sockets)
        .into_iter()
        .chain([processes.port])
        .collect::<BTreeSet<_>>()
    {
        let address = ([127, 0, 0, 1], port).into();
        if let Ok(stream) = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            drop(stream.set_write_timeout(Some(CONNECT_TIMEOUT)));
            silent.extend(write_garbage(stream, &mut random));
        }
    }
    for name in leftovers::abstract_socket_names(&sockets) {
        let Ok(address) = SocketAddr::from_abstract_name(name) else { continue };
        if let Ok(stream) = UnixStream::connect_addr(&address) {
            drop(stream.set_write_timeout(Some(CONNECT_TIMEOUT)));
            silent.extend(write_garbage(stream, &mut random));
        }
    }
    silent
}

/// Sends 0 to 4096 random bytes. Returns one in three streams so that it stays open.
fn write_garbage<S: std::io::Write + Into<OwnedFd>>(
    mut stream: S,
    random: &mut Random,
) -> Option<OwnedFd> {
    let length = random.one_of(&[0, 1, 7, 64, 4096]);
    let bytes: Vec<u8> = (0..length).map(|_| random.next().to_le_bytes()[0]).collect();
    // If the rank closes the connection during the write, the error is expected.
    drop(stream.write_all(&bytes));
    random.one_in(3).then(|| stream.into())
}
