//! The point-to-point streams, whose progress nobody waits for: which may go on, and who is called
//! then.

use super::door::lock;
use crate::base::error::{Error, Result};
use crate::base::ids::Rank;
use crate::sys::event::Event;
use crate::sys::poll::{Events, Interest, Poller};
use crate::transport::Attendant;
use crate::wait::service::{self, Next, Watch, Watched};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

/// The token of the event that says that `told` has something.
const TOLD: u64 = u64::MAX;

/// How many events one look takes.
const EVENTS: u16 = 64;

/// Which streams may go on, and the attendant. Its descriptor is readable while there are any.
#[derive(Debug)]
pub(super) struct Messages {
    poller: Poller,
    /// Raised when there is something in `told`.
    event: Event,
    told: Mutex<Vec<Rank>>,
    events: Mutex<Events>,
    attendance: Mutex<Attendance>,
}

#[derive(Debug, Default)]
struct Attendance {
    attendant: Option<Weak<dyn Attendant>>,
    paused: bool,
    watch: Option<Watch>,
}

impl Messages {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new() -> Result<Arc<Self>> {
        let messages = Self {
            poller: Poller::new()?,
            event: Event::new()?,
            told: Mutex::default(),
            events: Mutex::new(Events::with_room(EVENTS)),
            attendance: Mutex::default(),
        };
        let added = messages.poller.add(messages.event.as_fd(), TOLD, Interest::READ);
        added.map_err(|cause| Error::system("epoll_ctl", &cause))?;
        Ok(Arc::new(messages))
    }

    /// Adds a stream of a peer.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub(super) fn add(
        &self,
        stream: BorrowedFd<'_>,
        peer: Rank,
        interest: Interest,
    ) -> std::io::Result<()> {
        self.poller.add_changes(stream, u64::try_from(peer).unwrap_or(TOLD), interest)
    }

    /// The stream of a peer has something to say that its descriptor does not show.
    pub(super) fn tell(&self, peer: Rank) {
        let mut told = lock(&self.told);
        if !told.contains(&peer) {
            told.push(peer);
        }
        self.event.raise();
    }

    /// Calls the attendant soon, though no stream may go on.
    pub(super) fn stir(&self) {
        self.event.raise();
    }

    /// Adds the peers whose streams may go on.
    pub(super) fn ready(&self, peers: &mut Vec<Rank>) {
        let mut events = lock(&self.events);
        loop {
            if self.poller.look(&mut events).is_err() {
                return;
            }
            let mut seen = 0;
            for event in events.iter() {
                seen += 1;
                if event.token == TOLD {
                    self.event.clear();
                    peers.append(&mut lock(&self.told));
                } else {
                    peers.extend(Rank::try_from(event.token));
                }
            }
            if seen < usize::from(EVENTS) {
                return;
            }
        }
    }

    /// Says who is called.
    pub(super) fn set_attendant(self: &Arc<Self>, attendant: Weak<dyn Attendant>) -> Result<()> {
        let mut attendance = lock(&self.attendance);
        attendance.attendant = Some(attendant);
        match &attendance.watch {
            Some(watch) if !attendance.paused => watch.want(Interest::READ),
            Some(_) => {}
            None => {
                let watch = service::watch(self.clone())?;
                if attendance.paused {
                    watch.rest();
                }
                attendance.watch = Some(watch);
            }
        }
        Ok(())
    }

    /// Nobody is called while paused.
    pub(super) fn pause(&self, paused: bool) {
        let mut attendance = lock(&self.attendance);
        attendance.paused = paused;
        match &attendance.watch {
            Some(watch) if paused => watch.rest(),
            Some(watch) => watch.want(Interest::READ),
            None => {}
        }
    }

    /// Nobody is called any more.
    pub(super) fn end(&self) {
        let attendance = std::mem::take(&mut *lock(&self.attendance));
        drop(attendance);
    }
}

impl Watched for Messages {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn on_readable(&self) -> Next {
        let attendance = lock(&self.attendance);
        let attendant = attendance.attendant.as_ref().and_then(Weak::upgrade);
        match (attendant, &attendance.watch) {
            (Some(_), _) if attendance.paused => {}
            (Some(attendant), _) => {
                drop(attendance);
                attendant.attend();
            }
            // Until there is another one.
            (None, Some(watch)) => watch.rest(),
            (None, None) => {}
        }
        Next::Keep
    }
}
