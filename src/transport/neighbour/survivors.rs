//! The connections of survivors to one member: of the ranks of the same node, after the failure of
//! the group.
//!
//! The queue keeps each connection until the caller takes it. Once the caller has set a final
//! answer, the queue sends the answer on each connection and closes the connection.

use super::frame::{SURVIVOR_ACCEPTED, SurvivorHello};
use crate::base::error::Result;
use crate::base::sync::lock;
use crate::sys::eventfd::EventFd;
use crate::sys::stream::SocketStream;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The maximum number of connections from one rank that the queue keeps until the caller takes
/// them. A further connection replaces the oldest connection of that rank.
const MAX_KEPT_PER_RANK: usize = 8;
/// The maximum number of connections that the queue keeps. A further one replaces the oldest one.
const MAX_KEPT: usize = 1024;

/// The queue of one member.
#[derive(Debug, Default)]
pub(super) struct SurvivorQueue {
    state: Mutex<SurvivorQueueState>,
}

#[derive(Debug, Default)]
struct SurvivorQueueState {
    arrived: VecDeque<(SurvivorHello, Arc<SocketStream>)>,
    /// The final answer to each connection; `None` while the queue keeps connections.
    answer: Option<Vec<u8>>,
    /// The flag of the open session, which a new connection raises.
    arrival_flag: Option<Arc<EventFd>>,
}

impl SurvivorQueue {
    /// Takes over a connection, on the service thread.
    pub(super) fn accept(&self, hello: SurvivorHello, stream: SocketStream) {
        // A new connection has room for the bytes. If the peer has closed the connection, the next
        // read reports it.
        drop(stream.send(&[SURVIVOR_ACCEPTED]));
        let mut state = lock(&self.state);
        if let Some(answer) = &state.answer {
            return send_last_answer(&stream, answer);
        }
        let is_from_peer =
            |(known, _): &&(SurvivorHello, Arc<SocketStream>)| known.from == hello.from;
        let is_full = state.arrived.iter().filter(is_from_peer).count() >= MAX_KEPT_PER_RANK;
        let replaced = match is_full {
            true => state.arrived.iter().position(|it| is_from_peer(&it)),
            false => (state.arrived.len() >= MAX_KEPT).then_some(0),
        };
        drop(replaced.and_then(|at| state.arrived.remove(at)));
        state.arrived.push_back((hello, Arc::new(stream)));
        state.arrival_flag.iter().for_each(|flag| flag.raise());
    }

    /// Begins a session: the queue keeps connections again. Returns the flag that is raised when a
    /// connection arrives, or has arrived before.
    pub(super) fn open_session(&self) -> Result<Arc<EventFd>> {
        let flag = Arc::new(EventFd::new()?);
        let mut state = lock(&self.state);
        state.answer = None;
        state.arrival_flag = Some(Arc::clone(&flag));
        if !state.arrived.is_empty() {
            flag.raise();
        }
        Ok(flag)
    }

    /// Ends a session.
    pub(super) fn close_session(&self) {
        lock(&self.state).arrival_flag = None;
    }

    /// Removes and returns the connections that have arrived, in order of arrival.
    pub(super) fn take_arrivals(&self) -> Vec<(SurvivorHello, Arc<SocketStream>)> {
        let mut state = lock(&self.state);
        state.arrival_flag.iter().for_each(|flag| flag.clear());
        state.arrived.drain(..).collect()
    }

    /// Sets the final answer, which the queue then sends on each connection, including the
    /// connections that already wait.
    pub(super) fn set_answer(&self, answer: Vec<u8>) {
        let mut state = lock(&self.state);
        let waiting = std::mem::take(&mut state.arrived);
        state.answer = Some(answer.clone());
        drop(state);
        waiting.iter().for_each(|(_, stream)| send_last_answer(stream, &answer));
    }
}

/// Sends the final answer and the end of the stream.
fn send_last_answer(stream: &SocketStream, answer: &[u8]) {
    // As above.
    drop(stream.send(answer));
    stream.shutdown_write();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;
    use crate::sys::unix;

    fn connection(from: usize) -> (SurvivorHello, SocketStream, SocketStream) {
        let (a, b) = unix::pair().unwrap();
        let nonce = Nonce::default();
        let hello = SurvivorHello { group: nonce, from_nonce: nonce, to_nonce: nonce, from, to: 0 };
        let [a, b] = [a, b].map(SocketStream::from_nonblocking_unix);
        (hello, a, b)
    }

    fn read_all(stream: &SocketStream) -> Vec<u8> {
        let mut bytes = [0; 64];
        let got = stream.receive(&mut bytes).unwrap();
        bytes[..got].to_vec()
    }

    #[test]
    fn connections_wait_for_a_session_or_get_the_answer() {
        let queue = SurvivorQueue::default();
        let (early, local, early_peer) = connection(1);
        queue.accept(early, local);
        drop(queue.open_session().unwrap());
        assert_eq!(queue.take_arrivals().len(), 1);
        let (waiting, local, waiting_peer) = connection(2);
        queue.accept(waiting, local);
        queue.close_session();
        queue.set_answer(b"over".to_vec());
        let (late, local, late_peer) = connection(3);
        queue.accept(late, local);
        assert_eq!(read_all(&early_peer), [SURVIVOR_ACCEPTED]);
        assert_eq!(read_all(&waiting_peer), b"Aover");
        assert_eq!(read_all(&late_peer), b"Aover");
        assert!(queue.take_arrivals().is_empty());
    }

    #[test]
    fn one_rank_does_not_displace_the_others() {
        let queue = SurvivorQueue::default();
        let accept = |from| {
            let (hello, local, peer) = connection(from);
            queue.accept(hello, local);
            peer
        };
        let mut peers = vec![accept(1)];
        peers.extend((0..3 * MAX_KEPT_PER_RANK).map(|_| accept(2)));
        let arrived = queue.take_arrivals();
        assert_eq!(arrived.iter().filter(|(hello, _)| hello.from == 1).count(), 1);
        assert_eq!(arrived.len(), 1 + MAX_KEPT_PER_RANK);
    }
}
