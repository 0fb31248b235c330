//! The point-to-point streams of a group. A caller does not wait for a single one of them. Instead,
//! this module reports which of them are ready, and calls the progress handler when one becomes
//! ready.

use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::base::sync::lock;
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::transport::ProgressHandler;
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

/// The poll token of the event by which [`MessageStreams::notify_peer`] wakes a poll. The token of
/// a stream is the rank of its peer.
const NOTIFIED_TOKEN: u64 = u64::MAX;

/// The maximum number of events that one poll returns.
const EVENTS_PER_POLL: u16 = 64;

/// The point-to-point streams and their progress handler. The descriptor of this object is readable
/// while a stream is ready.
#[derive(Debug)]
pub(super) struct MessageStreams {
    poller: Poller,
    /// Raised when `notified_peers` has entries.
    event: EventFd,
    notified_peers: Mutex<Vec<Rank>>,
    events: Mutex<PollEvents>,
    progress_state: Mutex<TcpProgressState>,
}

#[derive(Debug, Default)]
struct TcpProgressState {
    progress_handler: Option<Weak<dyn ProgressHandler>>,
    is_paused: bool,
    watch: Option<DescriptorWatch>,
}

impl MessageStreams {
    /// Creates an empty set.
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
        added.map_err(|cause| Error::system("epoll_ctl", cause))?;
        Ok(Arc::new(messages))
    }

    /// Adds a stream to or from a peer.
    ///
    /// # Errors
    /// The error of the system.
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

    /// Marks a peer as ready because of a change that the descriptors of its streams do not show,
    /// for example that the peer has left.
    pub(super) fn notify_peer(&self, peer: Rank) {
        let mut notified_peers = lock(&self.notified_peers);
        if !notified_peers.contains(&peer) {
            notified_peers.push(peer);
        }
        self.event.raise();
    }

    /// Wakes the progress handler even if no stream is ready.
    pub(super) fn wake_progress(&self) {
        self.event.raise();
    }

    /// Appends the peers whose streams are ready.
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

    /// Sets the progress handler.
    pub(super) fn set_progress_handler(
        self: &Arc<Self>,
        progress_handler: Weak<dyn ProgressHandler>,
    ) -> Result<()> {
        let mut state = lock(&self.progress_state);
        state.progress_handler = Some(progress_handler);
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

    /// Pauses or resumes calls of the progress handler.
    pub(super) fn pause(&self, paused: bool) {
        let mut state = lock(&self.progress_state);
        state.is_paused = paused;
        match &state.watch {
            Some(watch) if paused => watch.pause(),
            Some(watch) => watch.set_interest(Interest::READ),
            None => {}
        }
    }

    /// Removes the progress handler.
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
        let progress_handler = state.progress_handler.as_ref().and_then(Weak::upgrade);
        match (progress_handler, &state.watch) {
            (Some(_), _) if state.is_paused => {}
            (Some(progress_handler), _) => {
                drop(state);
                progress_handler.on_streams_ready();
            }
            // The handler is gone. Pause the watch until a new handler is set.
            (None, Some(watch)) => watch.pause(),
            (None, None) => {}
        }
        WatchAction::Keep
    }
}
