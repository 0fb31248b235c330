//! The point-to-point streams, whose progress nobody waits for: which may go on, and who is called
//! then.

use super::listener_registry::lock;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::transport::ProgressHandler;
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

/// The token of the event that says that `notified_peers` has something.
const NOTIFIED_TOKEN: u64 = u64::MAX;

/// How many events one look takes.
const EVENTS_PER_POLL: u16 = 64;

/// Which streams may go on, and the attendant. Its descriptor is readable while there are any.
#[derive(Debug)]
pub(super) struct MessageStreams {
    poller: Poller,
    /// Raised when there is something in `notified_peers`.
    event: EventFd,
    notified_peers: Mutex<Vec<Rank>>,
    events: Mutex<PollEvents>,
    progress_state: Mutex<TcpProgressState>,
}

#[derive(Debug, Default)]
struct TcpProgressState {
    attendant: Option<Weak<dyn ProgressHandler>>,
    is_paused: bool,
    watch: Option<DescriptorWatch>,
}

impl MessageStreams {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new() -> Result<Arc<Self>> {
        let messages = Self {
            poller: Poller::new()?,
            event: EventFd::new()?,
            notified_peers: Mutex::default(),
            events: Mutex::new(PollEvents::with_capacity(EVENTS_PER_POLL)),
            progress_state: Mutex::default(),
        };
        let added = messages.poller.add(messages.event.as_fd(), NOTIFIED_TOKEN, Interest::READ);
        added.map_err(|cause| Error::system("epoll_ctl", &cause))?;
        Ok(Arc::new(messages))
    }

    /// Adds a stream of a peer.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub(super) fn add_stream(
        &self,
        stream: BorrowedFd<'_>,
        peer: Rank,
        interest: Interest,
    ) -> std::io::Result<()> {
        self.poller.add_edge_triggered(
            stream,
            u64::try_from(peer).unwrap_or(NOTIFIED_TOKEN),
            interest,
        )
    }

    /// The stream of a peer has something to say that its descriptor does not show.
    pub(super) fn notify_peer(&self, peer: Rank) {
        let mut notified_peers = lock(&self.notified_peers);
        if !notified_peers.contains(&peer) {
            notified_peers.push(peer);
        }
        self.event.raise();
    }

    /// Calls the attendant soon, though no stream may go on.
    pub(super) fn wake_progress(&self) {
        self.event.raise();
    }

    /// Adds the peers whose streams may go on.
    pub(super) fn ready(&self, peers: &mut Vec<Rank>) {
        let mut events = lock(&self.events);
        loop {
            if self.poller.poll_now(&mut events).is_err() {
                return;
            }
            let mut seen = 0;
            for event in events.iter() {
                seen += 1;
                if event.token == NOTIFIED_TOKEN {
                    self.event.clear();
                    peers.append(&mut lock(&self.notified_peers));
                } else {
                    peers.extend(Rank::try_from(event.token));
                }
            }
            if seen < usize::from(EVENTS_PER_POLL) {
                return;
            }
        }
    }

    /// Says who is called.
    pub(super) fn set_attendant(
        self: &Arc<Self>,
        attendant: Weak<dyn ProgressHandler>,
    ) -> Result<()> {
        let mut state = lock(&self.progress_state);
        state.attendant = Some(attendant);
        match &state.watch {
            Some(watch) if !state.is_paused => watch.set_interest(Interest::READ),
            Some(_) => {}
            None => {
                let watch = service::watch(self.clone())?;
                if state.is_paused {
                    watch.pause();
                }
                state.watch = Some(watch);
            }
        }
        Ok(())
    }

    /// Nobody is called while paused.
    pub(super) fn pause(&self, paused: bool) {
        let mut state = lock(&self.progress_state);
        state.is_paused = paused;
        match &state.watch {
            Some(watch) if paused => watch.pause(),
            Some(watch) => watch.set_interest(Interest::READ),
            None => {}
        }
    }

    /// Nobody is called any more.
    pub(super) fn stop(&self) {
        let state = std::mem::take(&mut *lock(&self.progress_state));
        drop(state);
    }
}

impl DescriptorHandler for MessageStreams {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let state = lock(&self.progress_state);
        let attendant = state.attendant.as_ref().and_then(Weak::upgrade);
        match (attendant, &state.watch) {
            (Some(_), _) if state.is_paused => {}
            (Some(attendant), _) => {
                drop(state);
                attendant.on_streams_ready();
            }
            // Until there is another one.
            (None, Some(watch)) => watch.pause(),
            (None, None) => {}
        }
        WatchAction::Keep
    }
}
