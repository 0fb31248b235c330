//! [`SuspendedLink`]: an incoming link whose connection broke, until it is replaced.

use super::hello::Hello;
use super::link_events::LinkEvent;
use super::link_owner::LinkOwner;
use super::link_user::{LinkKey, SuspensionEnd};
use super::peer_connect::{PeerConnectHandler, PeerConnector};
use crate::base::error::{Error, Result};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::wait::service::{self, Alarm, AlarmHandler};
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// An incoming link whose connection broke.
#[derive(Debug)]
pub(super) struct SuspendedLink {
    owner: Weak<dyn LinkOwner>,
    key: LinkKey,
    number: u64,
    /// The reason of the break, until the link is given up.
    pub(super) cause: Mutex<Option<io::Error>>,
    pub(super) since: Instant,
    probe: Mutex<Option<Arc<PeerConnector>>>,
    alarm: Mutex<Option<Alarm>>,
}

impl SuspendedLink {
    pub(super) fn new(
        owner: Weak<dyn LinkOwner>,
        key: LinkKey,
        number: u64,
        cause: io::Error,
    ) -> Arc<Self> {
        Arc::new(Self {
            owner,
            key,
            number,
            cause: Mutex::new(Some(cause)),
            since: Instant::now(),
            probe: Mutex::default(),
            alarm: Mutex::default(),
        })
    }

    /// Starts to wait for the new connection, for at most this time.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn start(self: &Arc<Self>, limit: Duration) -> Result<()> {
        let alarm = service::alarm(Arc::clone(self) as Arc<dyn AlarmHandler>)?;
        alarm.set(Some(self.since + limit));
        *lock(&self.alarm) = Some(alarm);
        Ok(())
    }

    /// Starts the probe of the other process.
    pub(super) fn start_probe(&self, probe: Arc<PeerConnector>) {
        *lock(&self.probe) = Some(Arc::clone(&probe));
        probe.start();
    }

    /// Stops to wait. The alarm refers to this value, so it must be dropped.
    pub(super) fn cancel(&self) {
        let alarm = lock(&self.alarm).take();
        let probe = lock(&self.probe).take();
        drop(alarm);
        probe.iter().for_each(|probe| probe.cancel());
    }

    fn give_up(&self, reason: SuspensionEnd) {
        if let Some(owner) = self.owner.upgrade() {
            let (key, number) = (self.key, self.number);
            owner.push_event(LinkEvent::NotReplaced { key, number, reason });
        }
    }
}

impl PeerConnectHandler for SuspendedLink {
    /// The other process lives, and will connect.
    fn on_connected(&self, _: &Hello, stream: Arc<SocketStream>) {
        stream.close_gracefully();
    }

    fn on_failed(&self, _: &Hello, error: Error) {
        let probe = lock(&self.probe).clone();
        crate::log!(LogLevel::Debug, "the other process does not answer: {error}");
        let Some(probe) = probe else { return };
        if probe.has_found_no_process() {
            self.give_up(SuspensionEnd::ProcessGone);
        } else if probe.has_found_no_link() {
            self.give_up(SuspensionEnd::LinkOver);
        }
    }
}

impl AlarmHandler for SuspendedLink {
    fn on_alarm(&self) {
        self.give_up(SuspensionEnd::NotReplaced);
    }
}
