//! Connects to a peer: tries the addresses of the peer one after another until, on one of them, a
//! connection is established and the handshake ([`hello`](super::hello)) succeeds. One pass over
//! all addresses is a *round*. All steps after the start run on the service thread, so no caller
//! blocks.

use super::address_connect::{AddressFailure, AddressFailureReason, CurrentConnect};
use super::connect_target::{AddressPair, PeerConnectTarget, address_pairs};
use super::hello::{ConnectionPurpose, Hello, HelloRefusal};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::sync::lock;
use crate::security::SecuritySetting;
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::sys::stream::SocketStream;
use crate::wait::service::{self, Alarm, AlarmHandler, DescriptorHandler, WatchAction};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The limit for all addresses of one round together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The limit for one address if there are further addresses to try.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// The limits for one round that replaces a broken connection. The path may lose the new
/// connection, too, and then a further one is needed.
const RESUME_TIMEOUTS: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_millis(2500));
/// The delay between two rounds.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The maximum number of rounds that are repeated because the peer accepted a connection and then
/// ended it.
const MAX_ENDED_ROUNDS: u32 = 3;

/// Receives the result of a connection attempt. Its functions are called on any thread and must not
/// block.
pub(super) trait PeerConnectHandler: Send + Sync + Debug {
    /// Called if the attempt succeeded: the connection is established, both sides have verified
    /// each other, and the peer has added the connection.
    fn on_connected(&self, hello: &Hello, stream: Arc<SocketStream>);

    /// Called if the attempt failed. An error of the kind `PeerFailed` means that the peer is gone:
    /// with the fault `Died` its process is proven dead, otherwise the peer has left the group.
    fn on_failed(&self, hello: &Hello, error: Error);
}

/// An attempt to connect to a peer.
#[derive(Debug)]
pub(super) struct PeerConnector {
    target: PeerConnectTarget,
    address_pairs: Vec<AddressPair>,
    handler: Weak<dyn PeerConnectHandler>,
    began: Instant,
    weak: Weak<Self>,
    progress: Mutex<PeerConnectProgress>,
}

#[derive(Debug, Default)]
struct PeerConnectProgress {
    alarm: Option<Alarm>,
    /// The index of the next address to try.
    next_address: usize,
    current: Option<CurrentConnect>,
    /// The time of the next round, if no address is being tried now.
    retry_at: Option<Instant>,
    /// The failure of each address in this round.
    failures: Vec<AddressFailure>,
    /// The number of rounds in which the peer ended an established connection.
    ended_rounds: u32,
    is_over: bool,
}

/// The result of an attempt.
type PeerConnectOutcome = Result<Arc<SocketStream>, Error>;

impl PeerConnector {
    /// Creates an attempt, which [`PeerConnector::start`] starts.
    pub(super) fn new(
        target: PeerConnectTarget,
        handler: Weak<dyn PeerConnectHandler>,
    ) -> Arc<Self> {
        let address_pairs = address_pairs(&target);
        let (progress, began) = (Mutex::default(), Instant::now());
        Arc::new_cyclic(|me| {
            let weak = me.clone();
            Self { target, address_pairs, handler, began, weak, progress }
        })
    }

    /// Starts the attempt.
    pub(super) fn start(self: &Arc<Self>) {
        self.update(|connector, progress| match service::alarm(self.clone()) {
            Ok(alarm) => {
                progress.alarm = Some(alarm);
                connector.try_next_address(progress)
            }
            Err(error) => Some(Err(error)),
        });
    }

    /// Cancels the attempt without calling the handler.
    pub(super) fn cancel(&self) {
        let mut progress = lock(&self.progress);
        progress.is_over = true;
        let taken = (progress.alarm.take(), progress.current.take());
        drop(progress);
        // If the confirmation was sent, the peer may have added the connection, so end the
        // connection in order.
        taken
            .1
            .iter()
            .filter(|current| current.is_confirmed())
            .for_each(|it| it.stream.close_gracefully());
        drop(taken);
    }

    /// Returns an attempt to connect to the same rank with another purpose.
    pub(super) fn again(
        &self,
        purpose: ConnectionPurpose,
        retry_until: Deadline,
        handler: Weak<dyn PeerConnectHandler>,
    ) -> Arc<Self> {
        let hello = Hello { purpose, ..self.target.hello };
        let retry_until = Some(retry_until);
        Self::new(PeerConnectTarget { hello, retry_until, ..self.target.clone() }, handler)
    }

    /// Returns true if the last round has found that the peer's process is gone: no process listens
    /// at any address, or another program, or the death is proven. The other program may be the
    /// death witness of the process, whose certificate only some groups know.
    pub(super) fn has_found_no_process(&self) -> bool {
        let failures = &lock(&self.progress).failures;
        let is_gone = |failure: &AddressFailure| {
            failure.is_absence() || failure.refusal() == Some(HelloRefusal::UnknownProtocol)
        };
        failures.iter().any(AddressFailure::is_death)
            || !failures.is_empty() && failures.iter().all(is_gone)
    }

    /// Returns true if the peer's process has no such link to replace.
    pub(super) fn has_found_no_link(&self) -> bool {
        let failures = &lock(&self.progress).failures;
        failures.iter().any(|it| it.refusal() == Some(HelloRefusal::NoSuchLink))
    }

    /// Describes why the addresses have failed so far. Returns `None` after the attempt has ended.
    pub(super) fn describe(&self) -> Option<String> {
        let progress = lock(&self.progress);
        (!progress.is_over).then(|| describe(&progress.failures))
    }

    /// Performs a step of the attempt under the lock. If the step ends the attempt, calls the
    /// handler, after releasing the lock.
    fn update(
        &self,
        step: impl FnOnce(&Self, &mut PeerConnectProgress) -> Option<PeerConnectOutcome>,
    ) {
        let mut progress = lock(&self.progress);
        if progress.is_over {
            return;
        }
        let Some(outcome) = step(self, &mut progress) else {
            let due = match &progress.current {
                Some(current) => Some(current.due),
                None => progress.retry_at,
            };
            if let Some(alarm) = &progress.alarm {
                alarm.set(due);
            }
            return;
        };
        progress.is_over = true;
        let taken = (progress.alarm.take(), progress.current.take());
        drop(progress);
        // End the watch before calling the handler, which may watch the same descriptor.
        drop(taken);
        let Some(handler) = self.handler.upgrade() else { return };
        match outcome {
            Ok(stream) => handler.on_connected(&self.target.hello, stream),
            Err(error) => handler.on_failed(&self.target.hello, error),
        }
    }

    /// Starts to connect to the next address. If the call fails immediately, tries the address
    /// after it. After the last address, schedules the next round or ends the attempt.
    fn try_next_address(&self, progress: &mut PeerConnectProgress) -> Option<PeerConnectOutcome> {
        progress.current = None;
        progress.retry_at = None;
        while let Some(&attempted) = self.address_pairs.get(progress.next_address) {
            progress.next_address += 1;
            match self.begin_connect(attempted) {
                Ok(current) => {
                    progress.current = Some(current);
                    return None;
                }
                Err(reason) => self.record_failure(
                    progress,
                    attempted.0,
                    AddressFailureReason::ConnectError(reason),
                ),
            }
        }
        // If every address refused because it belongs to another process or protocol, a retry is
        // useless. If only some did, another address may still belong to the peer.
        let finds_process = match self.target.hello.purpose {
            ConnectionPurpose::Resume(_) | ConnectionPurpose::Probe(_) => {
                !progress.failures.iter().all(AddressFailure::is_absence)
            }
            _ => true,
        };
        let may_retry =
            finds_process && !all_refused_with(&progress.failures, HelloRefusal::is_final);
        let retry_deadline =
            self.target.retry_until.as_ref().filter(|until| may_retry && !until.has_passed());
        // If the peer ended an established connection, try another round, which shows whether the
        // peer has died.
        let ended = progress
            .failures
            .iter()
            .any(|cause| matches!(cause.reason, AddressFailureReason::EndedByPeer(_)));
        progress.ended_rounds += u32::from(ended);
        // An overloaded peer lives, and accepts the connection once it has time. An earlier
        // connection may end soon.
        let is_passing = |refusal: HelloRefusal| {
            matches!(refusal, HelloRefusal::Overloaded | HelloRefusal::Duplicate)
        };
        let is_passing = progress.failures.iter().any(|it| it.refusal().is_some_and(is_passing));
        let may_wait = is_passing && self.began.elapsed() < CONNECT_TIMEOUT;
        if retry_deadline.is_some()
            || may_wait
            || (ended && progress.ended_rounds <= MAX_ENDED_ROUNDS)
        {
            progress.next_address = 0;
            progress.retry_at = Some(Instant::now() + RETRY_AFTER);
            return None;
        }
        Some(Err(self.unreachable_error(progress)))
    }

    fn unreachable_error(&self, progress: &PeerConnectProgress) -> Error {
        let name = &self.target.name;
        let error = if progress.failures.iter().any(AddressFailure::is_death) {
            let message = format!("{name} died, as its host reports");
            Error::new(ErrorKind::PeerFailed, message).with_fault(RankFault::Died)
        } else if self.has_left(&progress.failures) {
            Error::new(ErrorKind::PeerFailed, format!("{name} has left the group"))
        } else {
            // All ranks of the group receive this message, so it names the rank that could not
            // connect.
            let (from, mut reason) = (self.target.own_shown_rank, describe(&progress.failures));
            if all_refused_with(&progress.failures, HelloRefusal::concerns_setting) {
                reason = format!("{reason}, which is {}", self.target.hello.security);
            }
            let message = format!("rank {from} cannot reach {name} over TCP: {reason}");
            let kind = match all_refused_with(&progress.failures, HelloRefusal::concerns_security) {
                true => ErrorKind::Auth,
                false => ErrorKind::Connection,
            };
            Error::new(kind, message)
        };
        error.with_culprit(name.rank)
    }

    /// Returns true if the peer's process lives and does not have the rank. Before a failure of the
    /// group, all addresses must say so. After a failure, some addresses may refuse connections. A
    /// refusal has no proof, so a third party could forge it: with a secret it does not count after
    /// a failure.
    fn has_left(&self, failures: &[AddressFailure]) -> bool {
        let has_no_such_rank = |refusal| refusal == HelloRefusal::NoSuchRank;
        let hello = &self.target.hello;
        if hello.purpose != ConnectionPurpose::Reconnect {
            return all_refused_with(failures, has_no_such_rank);
        }
        hello.security == SecuritySetting::None
            && failures.iter().all(AddressFailure::is_absence)
            && failures.iter().any(|cause| cause.refusal().is_some_and(has_no_such_rank))
    }

    fn begin_connect(&self, (address, source): AddressPair) -> Result<CurrentConnect, String> {
        let stream = socket::begin_connect(address, source).map_err(|cause| match source {
            Some(source) => format!("{cause} (from {})", source.ip()),
            None => cause.to_string(),
        })?;
        let stream = Arc::new(SocketStream::from_nonblocking_tcp(stream));
        let handler =
            ConnectEventHandler { connector: self.weak.clone(), stream: Arc::clone(&stream) };
        let watch = service::watch(Arc::new(handler)).map_err(|error| error.to_string())?;
        watch.set_interest(Interest::WRITE);
        let has_more_addresses =
            self.address_pairs.last().is_some_and(|last| *last != (address, source));
        let count = u32::try_from(self.address_pairs.len()).unwrap_or(u32::MAX).max(1);
        let limit = match (self.target.hello.purpose, &self.target.retry_until) {
            (ConnectionPurpose::Resume(_) | ConnectionPurpose::Probe(_), Some(until)) => {
                let (low, high) = RESUME_TIMEOUTS;
                until.remaining().clamp(low, high)
            }
            _ => CONNECT_TIMEOUT,
        };
        let share = limit / count;
        let timeout = if has_more_addresses { share.min(ADDRESS_TIMEOUT) } else { limit };
        Ok(CurrentConnect::new(address, stream, watch, timeout))
    }

    /// Continues the attempt on the current address.
    fn advance_connect(
        &self,
        progress: &mut PeerConnectProgress,
        of: &Arc<SocketStream>,
    ) -> Option<PeerConnectOutcome> {
        let current = progress.current.as_mut().filter(|it| Arc::ptr_eq(&it.stream, of))?;
        match current.advance_handshake(&self.target) {
            Ok(false) => None,
            Ok(true) => Some(Ok(Arc::clone(of))),
            Err(reason) => self.fail_current_address(progress, reason),
        }
    }

    /// Records the failure of the current address, and tries the next address.
    fn fail_current_address(
        &self,
        progress: &mut PeerConnectProgress,
        reason: AddressFailureReason,
    ) -> Option<PeerConnectOutcome> {
        let is_death = matches!(reason, AddressFailureReason::Died);
        if let Some(address) = progress.current.as_ref().map(|current| current.address) {
            self.record_failure(progress, address, reason);
        }
        if is_death {
            return Some(Err(self.unreachable_error(progress)));
        }
        self.try_next_address(progress)
    }

    /// Records a failure. Keeps only the failures of the current round.
    fn record_failure(
        &self,
        progress: &mut PeerConnectProgress,
        address: SocketAddr,
        reason: AddressFailureReason,
    ) {
        if progress.failures.len() >= self.address_pairs.len() {
            progress.failures.clear();
        }
        progress.failures.push(AddressFailure { address, reason });
    }
}

/// Returns true if there is at least one failure, and every failure is a refusal of this sort.
fn all_refused_with(causes: &[AddressFailure], is_sort: impl Fn(HelloRefusal) -> bool) -> bool {
    let has_refused = |cause: &AddressFailure| cause.refusal().is_some_and(&is_sort);
    !causes.is_empty() && causes.iter().all(has_refused)
}

fn describe(causes: &[AddressFailure]) -> String {
    if causes.is_empty() {
        return "it did not answer".to_owned();
    }
    let one =
        |AddressFailure { address, reason, .. }: &AddressFailure| format!("{address}: {reason}");
    causes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns the reason of a failure for an address that did not answer. The text about the failure
/// begins with the address.
fn no_answer_text(source: Option<SocketAddr>) -> String {
    let from = source.map_or_else(String::new, |source| format!(" to {}", source.ip()));
    format!(
        "no answer{from} in time: the host is down, or a firewall drops the packets (DIST_PORT_RANGE \
         limits the ports that it must let through), or DIST_SOCKET_IFNAME or DIST_ADVERTISE must \
         select another address"
    )
}

impl AlarmHandler for PeerConnector {
    fn on_alarm(&self) {
        self.update(|connector, progress| {
            let now = Instant::now();
            match &progress.current {
                Some(current) if current.due > now => None,
                Some(current) if current.is_confirmed() => {
                    let reason = "it did not accept the connection in time".to_owned();
                    let reason = AddressFailureReason::EndedByPeer(reason);
                    connector.fail_current_address(progress, reason)
                }
                Some(current) => {
                    let source = socket::local_address(current.stream.as_ref());
                    let reason = AddressFailureReason::ConnectError(no_answer_text(source));
                    connector.fail_current_address(progress, reason)
                }
                None => connector.try_next_address(progress),
            }
        });
    }
}

/// Handles the events of the connection to one address, on the service thread.
#[derive(Debug)]
struct ConnectEventHandler {
    connector: Weak<PeerConnector>,
    stream: Arc<SocketStream>,
}

impl ConnectEventHandler {
    fn continue_connect(&self) -> WatchAction {
        let Some(connector) = self.connector.upgrade() else { return WatchAction::Done };
        connector.update(|connector, progress| connector.advance_connect(progress, &self.stream));
        WatchAction::Keep
    }
}

impl DescriptorHandler for ConnectEventHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        self.continue_connect()
    }

    fn on_writable(&self) -> WatchAction {
        self.continue_connect()
    }
}
