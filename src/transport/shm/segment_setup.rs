//! The setup of the shared-memory segment between the processes of one host. The *presence mark* of
//! a rank is its nonce (the random number that it published before) in its presence record in the
//! segment.
//!
//! 1. Every rank listens on an abstract Unix socket with a random name, and has published this
//!    name.
//! 2. Each rank connects to all lower ranks and sends its hello, which identifies it. These
//!    connections later become the liveness sockets.
//! 3. The lowest rank (the creator) creates the segment, writes its presence mark in it, and sends
//!    the descriptor to all members.
//! 4. Each member maps the segment, checks the creator's mark, writes its own mark, and sends a
//!    confirmation.
//! 5. The creator checks the mark of each member.
//!
//! A segment counts as shared between the creator and a member only if each of the two has read the
//! mark of the other.

use super::{ShmDomain, liveness_socket};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorContext, ErrorKind, RankFault, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::sys::shm::Segment;
use crate::sys::{host, unix};
use crate::transport::region::{Region, RegionGeometry};
use crate::transport::{HeartbeatConfig, PeerName};
use crate::wait::{WaitPolicy, io};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

/// The prefix of all socket names.
const SOCKET_NAME_PREFIX: &str = "libdist-";

const MAGIC: [u8; 8] = *b"libdist1";
const HELLO_BYTES: usize = 8 + 16 + 16 + 4;
const SEGMENT: u8 = b'S';
const MAPPED: u8 = b'M';

/// The time within which a new connection must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two checks whether the setup was cancelled.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The data that one rank of the host has published.
#[derive(Clone, Debug)]
pub struct ShmMember {
    /// The name of the rank's listening socket.
    pub socket: String,
    /// The nonce of the rank.
    pub nonce: Nonce,
}

/// The listening socket of this rank, to which the other ranks of the host connect.
#[derive(Debug)]
pub struct ShmListener {
    listener: UnixListener,
    name: String,
}

/// The parameters of a join.
#[derive(Debug)]
pub struct ShmJoinConfig<'a> {
    /// The id of the group.
    pub group: GroupId,
    /// The display names of the ranks of the host, in rank order.
    pub peers: &'a Arc<[PeerName]>,
    /// The sockets and nonces of the same ranks, in the same order.
    pub members: &'a [ShmMember],
    /// The index of this rank in both lists.
    pub me: Rank,
    /// The deadline of the setup.
    pub deadline: &'a Deadline,
    /// The heartbeat configuration of the ranks.
    pub vitals: HeartbeatConfig,
}

impl ShmListener {
    /// Listens on a socket with a new random name.
    ///
    /// # Errors
    /// `System`.
    pub fn listen() -> Result<Self> {
        let name = Self::socket_name(host::random_nonce()?);
        Ok(Self { listener: unix::listen(&name)?, name })
    }

    /// Returns the socket name that contains this nonce.
    pub fn socket_name(nonce: Nonce) -> String {
        format!("{SOCKET_NAME_PREFIX}{nonce}")
    }

    /// Returns the nonce that a socket name contains.
    pub fn nonce_in_name(name: &str) -> Option<Nonce> {
        Nonce::parse(name.strip_prefix(SOCKET_NAME_PREFIX)?)
    }

    /// Returns the name of the socket, which this rank publishes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the listening socket, for ranks that connect to this rank later.
    pub fn into_listener(self) -> UnixListener {
        self.listener
    }

    /// Connects to the other members and shares a segment with them. This call polls `cancelled`
    /// periodically; if it returns an error, the wait ends.
    ///
    /// # Errors
    /// The error of `cancelled`; `Connection` or `Timeout` with the name of the member that could
    /// not be reached; `OutOfMemory`, `System`.
    pub fn join(
        &self,
        config: &ShmJoinConfig<'_>,
        geometry: RegionGeometry,
        wait_policy: WaitPolicy,
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<ShmDomain> {
        let mut streams = config.connect_to_lower()?;
        streams.extend(config.accept_higher(&self.listener, cancelled)?);
        let len = geometry.bytes()?;
        let segment = match config.me {
            0 => Segment::create_sparse(len, geometry.initial_bytes()?)?,
            _ => config.receive_segment(&streams, len)?,
        };
        let descriptor = segment.as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(|e| Error::system("duplicating a descriptor", e))?;
        let region = Region::new(geometry, Box::new(segment))?;
        if config.me == 0 {
            config.send_segment(&region, &descriptor, &streams)?;
        } else {
            config.confirm_mapping(&region, &streams)?;
        }
        ShmDomain::new(region, config, wait_policy, streams)
    }
}

impl ShmJoinConfig<'_> {
    fn name(&self, rank: Rank) -> &PeerName {
        &self.peers[rank]
    }

    fn hello(&self) -> [u8; HELLO_BYTES] {
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..24].copy_from_slice(&self.group.0);
        hello[24..40].copy_from_slice(&self.members[self.me].nonce.0);
        hello[40..].copy_from_slice(&u32::try_from(self.me).unwrap_or(u32::MAX).to_le_bytes());
        hello
    }

    /// Connects to every lower rank.
    fn connect_to_lower(&self) -> Result<Vec<(Rank, UnixStream)>> {
        let send_hello = |rank: Rank| {
            let stream = self.connect(rank)?;
            let sent = io::write_all(&stream, &self.hello(), None, self.deadline);
            sent.map_err(|error| self.connection_error(rank, &stream, "sending the hello", error))?;
            Ok((rank, stream))
        };
        (0..self.me).map(send_hello).collect()
    }

    fn connect(&self, rank: Rank) -> Result<UnixStream> {
        let socket = &self.members[rank].socket;
        loop {
            let cause = match unix::connect(socket) {
                Ok(stream) => return Ok(stream),
                Err(cause) => cause,
            };
            // `WouldBlock` means that the listen queue of the peer is full. The peer empties the
            // queue when it accepts connections, so try again. Other errors are final.
            if cause.kind() != Io::WouldBlock || self.deadline.has_passed() {
                let name = self.name(rank);
                let what = format!("cannot reach {name} over its Unix socket");
                return Err(Error::connection(what, cause).with_culprit(name.rank));
            }
            std::thread::yield_now();
        }
    }

    /// Accepts a connection from every higher rank. Drops connections from any other process.
    /// Returns the connections with the ranks.
    fn accept_higher(
        &self,
        listener: &UnixListener,
        cancelled: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<(Rank, UnixStream)>> {
        let mut streams: Vec<(Rank, UnixStream)> = Vec::new();
        while streams.len() + self.me + 1 < self.members.len() {
            let missing = || {
                let is_missing = |r: &Rank| !streams.iter().any(|(rank, _)| rank == r);
                let names = (self.me + 1..self.members.len()).filter(is_missing);
                let names: Vec<_> = names.map(|rank| self.name(rank).to_string()).collect();
                format!("waiting on this host for {}", names.join(", "))
            };
            let stream = match io::accept(listener, &self.deadline.capped(CANCEL_CHECK_INTERVAL)) {
                Err(error) if error.kind() == ErrorKind::Timeout && !self.deadline.has_passed() => {
                    cancelled().map_or(Ok(()), Err)?;
                    continue;
                }
                outcome => outcome.context(missing)?,
            };
            match self.read_hello(&stream) {
                Ok(rank) if !streams.iter().any(|&(known, _)| known == rank) => {
                    streams.push((rank, stream));
                }
                Ok(rank) => {
                    crate::log!(LogLevel::Warn, "dropped a second connection of rank {rank}")
                }
                Err(error) => {
                    crate::log!(LogLevel::Warn, "dropped an unexpected connection: {error}")
                }
            }
        }
        Ok(streams)
    }

    /// Reads the hello of a connection and returns the rank that sent it.
    fn read_hello(&self, stream: &UnixStream) -> Result<Rank> {
        let (_, uid) = unix::peer_credentials(stream)?;
        if uid != host::uid() && uid != 0 {
            let message = format!(
                "the connecting process belongs to user {uid}, and this process to user {}",
                host::uid()
            );
            return Err(Error::new(ErrorKind::Auth, message));
        }
        let mut hello = [0; HELLO_BYTES];
        io::read_exact(stream, &mut hello, &self.deadline.capped(HELLO_TIMEOUT))?;
        let rank = u32::from_le_bytes([hello[40], hello[41], hello[42], hello[43]]);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        let expected = rank > self.me
            && rank < self.members.len()
            && hello[..8] == MAGIC
            && hello[8..24] == self.group.0
            && hello[24..40] == self.members[rank].nonce.0;
        if expected {
            Ok(rank)
        } else {
            Err(Error::new(ErrorKind::Auth, "the hello does not identify a rank of this group"))
        }
    }

    /// The creator's part of the setup: writes its mark, sends the descriptor of the segment to all
    /// members, and then checks their marks.
    fn send_segment(
        &self,
        region: &Region,
        segment: &OwnedFd,
        streams: &[(Rank, UnixStream)],
    ) -> Result<()> {
        region.presence(0).write_nonce(presence_mark(&self.members[0]));
        for (rank, stream) in streams {
            io::write_all(stream, &[SEGMENT], Some(segment.as_fd()), self.deadline).map_err(
                |error| self.connection_error(*rank, stream, "sending the segment to it", error),
            )?;
        }
        for (rank, stream) in streams {
            let mut answer = [0];
            io::read_exact(stream, &mut answer, self.deadline).map_err(|error| {
                self.connection_error(*rank, stream, "waiting for it to map the segment", error)
            })?;
            self.check_presence_mark(region, *rank)?;
        }
        Ok(())
    }

    /// The first half of a member's part of the setup: receives the segment from the creator.
    fn receive_segment(&self, streams: &[(Rank, UnixStream)], len: usize) -> Result<Segment> {
        let stream = creator_stream(streams)?;
        let what = "waiting for its segment";
        let descriptor = io::read_descriptor(stream, SEGMENT, self.deadline)
            .map_err(|error| self.connection_error(0, stream, what, error))?;
        Segment::open(descriptor, len).context(|| format!("the segment of {}", self.name(0)))
    }

    /// The second half of a member's part of the setup: checks the creator's mark, writes the mark
    /// of this member, and sends the confirmation.
    fn confirm_mapping(&self, region: &Region, streams: &[(Rank, UnixStream)]) -> Result<()> {
        self.check_presence_mark(region, 0)?;
        region.presence(self.me).write_nonce(presence_mark(&self.members[self.me]));
        let stream = creator_stream(streams)?;
        io::write_all(stream, &[MAPPED], None, self.deadline)
            .map_err(|error| self.connection_error(0, stream, "confirming the mapping", error))
    }

    /// Returns the error for a connection to a member that ended during `step`. The error says that
    /// the member died, if the kernel reports the exit of its process. Otherwise it is `error` with
    /// the name of the member.
    fn connection_error(&self, rank: Rank, stream: &UnixStream, step: &str, error: Error) -> Error {
        let name = self.name(rank);
        let has_closed = error.kind() == ErrorKind::Connection;
        if has_closed && liveness_socket::ended_with_process(stream, name.pid) {
            let message =
                format!("{name} died while the ranks of its host set up their shared memory");
            let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
            return error.with_fault(RankFault::Died);
        }
        error.context(format_args!("{name}: {step}")).with_culprit(name.rank)
    }

    fn check_presence_mark(&self, region: &Region, rank: Rank) -> Result<()> {
        if region.presence(rank).read_nonce() == presence_mark(&self.members[rank]) {
            return Ok(());
        }
        let message = format!("the segment does not have the presence mark of {}", self.name(rank));
        Err(Error::new(ErrorKind::Connection, message).with_culprit(self.name(rank).rank))
    }
}

fn creator_stream(streams: &[(Rank, UnixStream)]) -> Result<&UnixStream> {
    let stream = streams.iter().find(|(rank, _)| *rank == 0).map(|(_, stream)| stream);
    stream.ok_or_else(|| Error::internal("no connection to the creator of the segment"))
}

/// Returns the presence mark of a member: its nonce as two words.
fn presence_mark(member: &ShmMember) -> [u64; 2] {
    let word = |from: usize| {
        let bytes = &member.nonce.0[from..from + 8];
        bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    [word(0), word(8)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ReusePolicy;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::process::{Child, Command, Stdio};

    const CHILD_TEST: &str =
        "transport::shm::segment_setup::tests::child_member_that_does_not_answer";
    const SOCKET: &str = "DIST_TEST_SOCKET";
    const HELLO: &str = "DIST_TEST_HELLO";
    const HELLO_SENT: u8 = 1;

    /// The second of two members, in its own process. It sends its hello, closes the connection if
    /// the test lets it continue, and never maps the segment.
    #[test]
    #[ignore = "the body of another process"]
    fn child_member_that_does_not_answer() {
        let hello: Vec<u8> =
            std::env::var(HELLO).unwrap().split(' ').map(|it| it.parse().unwrap()).collect();
        let mut stream = unix::connect(&std::env::var(SOCKET).unwrap()).unwrap();
        stream.set_nonblocking(false).unwrap();
        // The child waits twice for the test: before it sends its hello, and before it closes the
        // connection. The third wait never ends.
        let wait = || std::io::stdin().read_exact(&mut [0]).unwrap();
        wait();
        stream.write_all(&hello).unwrap();
        std::io::stdout().write_all(&[HELLO_SENT]).unwrap();
        std::io::stdout().flush().unwrap();
        wait();
        drop(stream);
        wait();
    }

    /// Returns the error of the first of two members. `act` controls the second member, a child
    /// process that waits for a byte before each of its actions.
    fn error_of_first_member(act: impl FnOnce(&mut Child) + Send) -> Error {
        let meeting = ShmListener::listen().unwrap();
        let group = host::random_nonce().unwrap();
        let members = [0, 1].map(|number| ShmMember {
            socket: meeting.name().to_owned(),
            nonce: Nonce([number; 16]),
        });
        let peers = |pid: u32| -> Arc<[PeerName]> {
            [0, 1].map(|rank| PeerName::new(rank, pid, "here".into())).into()
        };
        let deadline = Deadline::after_ms(30_000);
        let config = |peers, me| ShmJoinConfig {
            group,
            peers,
            members: &members,
            me,
            deadline: &deadline,
            vitals: HeartbeatConfig::default(),
        };
        let no_peers = peers(0);
        let hello = config(&no_peers, 1).hello().map(|byte| byte.to_string()).join(" ");
        let mut other = Command::new(std::env::current_exe().unwrap())
            .args([CHILD_TEST, "--exact", "--ignored"])
            .envs([(SOCKET, meeting.name()), (HELLO, &hello)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let peers = peers(other.id());
        let (meeting, config) = (&meeting, &config(&peers, 0));
        let geometry =
            RegionGeometry { ranks: 2, slot_bytes: 4096, reuse_policy: ReusePolicy::WhileCached };
        let error = std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                meeting.join(config, geometry, WaitPolicy::SLEEP_SOON, &|| None).map(drop)
            });
            act(&mut other);
            first.join().unwrap().unwrap_err()
        });
        drop(other.kill());
        other.wait().unwrap();
        assert_eq!(error.culprit(), Some(1), "{error}");
        error
    }

    fn let_child_continue(other: &mut Child) {
        other.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    }

    #[test]
    fn peer_death_during_segment_setup_is_reported() {
        let error = error_of_first_member(|other| {
            let_child_continue(other);
            let sent = BufReader::new(other.stdout.take().unwrap()).skip_until(HELLO_SENT);
            assert_ne!(sent.unwrap(), 0);
            other.kill().unwrap();
        });
        assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
        assert!(error.to_string().contains("died"), "{error}");
    }

    #[test]
    fn closed_connection_during_setup_is_not_a_death() {
        let error = error_of_first_member(|other| {
            let_child_continue(other);
            let_child_continue(other);
        });
        assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
        assert!(!error.to_string().contains("died"), "{error}");
    }
}
