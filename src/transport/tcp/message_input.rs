//! The links that carry point-to-point messages to this process. While no caller waits for
//! messages, the service thread waits for them. A caller that waits polls the links itself, for all
//! groups of the process. The service thread then does not watch them, because a thread that sleeps
//! on the same socket makes each message slower.

use super::incoming_link::IncomingLink;
use crate::base::error::Result as LocalResult;
use crate::base::sync::lock;
use crate::sys::poll::{Interest, PollEvents, Poller};
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};

/// The maximum number of links that one poll returns.
const EVENTS_PER_POLL: u16 = 64;

/// The links for messages.
#[derive(Debug)]
pub(super) struct MessageInput {
    poller: Arc<Poller>,
    state: Mutex<MessageInputState>,
    events: Mutex<PollEvents>,
}

#[derive(Debug, Default)]
struct MessageInputState {
    links: BTreeMap<u64, Arc<IncomingLink>>,
    next_token: u64,
    /// The number of groups in which a caller polls.
    pollers: usize,
    watch: Option<DescriptorWatch>,
}

impl MessageInput {
    /// Creates an empty set.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new() -> LocalResult<Arc<Self>> {
        Ok(Arc::new(Self {
            poller: Arc::new(Poller::new()?),
            state: Mutex::default(),
            events: Mutex::new(PollEvents::with_capacity(EVENTS_PER_POLL)),
        }))
    }

    /// Adds a link.
    ///
    /// # Errors
    /// The error of the system, as text.
    pub(super) fn add(self: &Arc<Self>, link: &Arc<IncomingLink>) -> Result<(), String> {
        let mut state = lock(&self.state);
        let token = state.next_token;
        state.next_token += 1;
        let added = self.poller.add(link.stream().as_fd(), token, Interest::READ);
        added.map_err(|cause| cause.to_string())?;
        state.links.insert(token, Arc::clone(link));
        if state.watch.is_none() {
            let handler = Arc::new(MessageInputEvents(Arc::clone(self)));
            let watch = service::watch(handler).map_err(|error| error.to_string())?;
            if state.pollers > 0 {
                watch.pause();
            }
            state.watch = Some(watch);
        }
        Ok(())
    }

    /// Removes a link that has ended.
    pub(super) fn remove(&self, link: &IncomingLink) {
        let mut state = lock(&self.state);
        // Fails only if the poller does not watch the stream.
        drop(self.poller.remove(link.stream().as_fd()));
        state.links.retain(|_, known| !std::ptr::eq(Arc::as_ptr(known), link));
        let unused = if state.links.is_empty() { state.watch.take() } else { None };
        drop(state);
        drop(unused);
    }

    /// Removes all links.
    pub(super) fn clear(&self) {
        let removed = std::mem::take(&mut *lock(&self.state));
        drop(removed);
    }

    /// Records that a caller of one more group, or of one group less, polls.
    pub(super) fn count_poller(&self, polls: bool) {
        let mut state = lock(&self.state);
        state.pollers = if polls { state.pollers + 1 } else { state.pollers.saturating_sub(1) };
        match &state.watch {
            Some(watch) if polls && state.pollers == 1 => watch.pause(),
            Some(watch) if !polls && state.pollers == 0 => watch.set_interest(Interest::READ),
            _ => {}
        }
    }

    /// Reads the heads that have arrived, and tells the groups whose messages follow.
    pub(super) fn poll(&self) {
        let mut events = lock(&self.events);
        if self.poller.poll_now(&mut events).is_err() || events.is_empty() {
            return;
        }
        let state = lock(&self.state);
        let mut links = events.iter().filter_map(|event| state.links.get(&event.token).cloned());
        // Usually there is one link, for which nothing is allocated.
        let (first, others): (_, Vec<_>) = (links.next(), links.collect());
        drop((state, events));
        first.iter().chain(&others).for_each(|link| link.announce());
    }
}

/// The handler of the service thread.
#[derive(Debug)]
struct MessageInputEvents(Arc<MessageInput>);

impl DescriptorHandler for MessageInputEvents {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.poller.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        self.0.poll();
        WatchAction::Keep
    }
}
