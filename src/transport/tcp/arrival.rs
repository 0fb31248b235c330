//! How connections come to their places in a mesh: those that others have made, and those that this
//! rank has.

use super::control::Line;
use super::dial::Caller;
use super::door::{Guest, lock};
use super::hello::{Hello, Purpose, Refusal, TAKEN};
use super::introduction::Circle;
use super::mesh::{Out, Shared, leave};
use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::sys::stream::Stream;
use crate::transport::{Channel, Direction};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Guest for Shared {
    fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        let Self { epoch, me, lanes, .. } = *self;
        let (members, leaders) = (&self.members, &self.leaders);
        Circle { epoch, me, members, leaders, lanes }.check(hello)?;
        let is_there = match hello.purpose {
            Purpose::Stream(channel) => lock(&self.slot(hello.from, channel).incoming).is_some(),
            Purpose::Control => match lock(&self.lines).get(members[hello.from].node) {
                Some(line) => line.is_some(),
                None => return Err(Refusal::Stranger),
            },
            Purpose::Reunion => return Err(Refusal::Stranger),
        };
        if is_there { Err(Refusal::Double) } else { Ok(()) }
    }

    fn take(&self, hello: &Hello, stream: Arc<Stream>) {
        let Purpose::Stream(channel) = hello.purpose else {
            // Ahead of what the line says.
            drop(stream.send(&[TAKEN]));
            return self.add_line(hello.from, stream);
        };
        let slot = self.slot(hello.from, channel);
        let mut incoming = lock(&slot.incoming);
        let refusal = match incoming.is_some() {
            true => Some(Refusal::Double),
            false => self.leaving.load(Ordering::Acquire).then_some(Refusal::NotHere),
        };
        if let Some(refusal) = refusal {
            drop(incoming);
            crate::log!(
                Level::Debug,
                "a stream of {} is dropped: {refusal}",
                self.name(hello.from)
            );
            drop(stream.send(&[refusal as u8]));
            return stream.end_sending();
        }
        let armed = stream.set_reset_on_close(true);
        *incoming = Some(Arc::clone(&stream));
        // Under the lock: it comes before the end of a stream that is given up at once.
        drop(stream.send(&[TAKEN]));
        drop(incoming);
        let enrol = |()| self.enrol(hello.from, channel, Direction::In, &stream);
        if let Err(cause) = armed.and_then(enrol) {
            self.fail_here(&Error::system("watching a connection", &cause));
        }
        self.wake.raise();
    }
}

impl Caller for Shared {
    fn connected(&self, hello: &Hello, stream: Arc<Stream>) {
        let Purpose::Stream(channel) = hello.purpose else {
            return self.add_line(hello.to, stream);
        };
        let mut out = lock(&self.slot(hello.to, channel).out);
        if self.leaving.load(Ordering::Acquire) {
            return leave(&stream);
        }
        let armed = stream.set_reset_on_close(true);
        *out = Out::Open(Arc::clone(&stream));
        drop(out);
        let enrol = |()| self.enrol(hello.to, channel, Direction::Out, &stream);
        if let Err(cause) = armed.and_then(enrol) {
            self.fail_here(&Error::system("watching a connection", &cause));
        }
        self.wake.raise();
    }

    fn failed(&self, hello: &Hello, error: Error) {
        let Purpose::Stream(channel) = hello.purpose else {
            lock(&self.unreached).get_or_insert(error);
            self.bell.ring();
            return;
        };
        let mut out = lock(&self.slot(hello.to, channel).out);
        if error.kind() == ErrorKind::PeerFailed {
            *out = Out::Unused;
            self.mark_left(hello.to);
        } else {
            *out = Out::Failed(error);
        }
        drop(out);
        self.wake.raise();
        if channel == Channel::PointToPoint {
            self.messages.tell(hello.to);
        }
    }
}

impl Shared {
    fn add_line(&self, leader: Rank, stream: Arc<Stream>) {
        let Some(shared) = self.weak.upgrade() else { return };
        let line = Line::open(&shared, leader, stream);
        let node = self.members[leader].node;
        let mut lines = lock(&self.lines);
        if self.leaving.load(Ordering::Acquire) {
            drop(lines);
            return line.end(self.me);
        }
        if let Some(place) = lines.get_mut(node) {
            *place = Some(Arc::clone(&line));
        }
        // Under the lock: whoever ends the lines ends one that has begun.
        let begun = line.begin();
        drop(lines);
        if let Err(error) = begun {
            lock(&self.unreached).get_or_insert(error);
        }
        self.bell.ring();
    }
}
