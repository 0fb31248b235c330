//! Three clients that send arbitrary bytes, cut anywhere, to what the server makes of them. No
//! sockets: what the event loop does with them is done here in its simplest form.
//!
//! A script is a row of steps. The low two bits of a step's first byte are the client, and the
//! others how many bytes of the script it sends; a client 3 means that one of them does something
//! else ([`Server::special`]).

use super::super::handshake::ServerHandshake;
use super::super::intake::Intake;
use super::super::proto::{self, Request};
use super::super::session::{ConnectionId, Refusal, Session};
use crate::base::fuzz::Script;

/// What the store may take: little, so that it gets full.
const MAX_BYTES: usize = 8 << 10;
/// How much of long texts a script sends at most, so that the memory that it takes stays small.
const RUN_BYTES: usize = 64 << 10;

/// Runs a script.
///
/// # Panics
/// Where the server does what it must never do.
pub fn server(input: &[u8]) {
    let mut script = Script(input);
    let mut server = Server::new();
    while let Some(step) = script.byte() {
        let (who, count) = (usize::from(step & 3), usize::from(step >> 2));
        if who < CLIENTS {
            let piece = script.take(count + 1);
            server.receive(who, piece);
        } else {
            server.special(count, &mut script);
        }
        server.check();
    }
    (0..CLIENTS).for_each(|who| server.replace(who));
    server.check();
    assert!(server.session.is_idle(), "somebody who has gone still waits");
}

const CLIENTS: usize = 3;

struct Client {
    id: ConnectionId,
    intake: Intake,
    /// All that was sent and is not yet part of a request.
    said: Vec<u8>,
    introduced: bool,
    /// A WAIT or BARRIER has no answer yet.
    waits: bool,
    answers: Vec<u8>,
}

impl Client {
    fn new(id: ConnectionId) -> Self {
        Self {
            id,
            intake: Intake::new(ServerHandshake::new(None).expect("no random bytes are needed")),
            said: Vec::new(),
            introduced: false,
            waits: false,
            answers: Vec::new(),
        }
    }

    /// The front of what was said must be this request, byte for byte.
    fn has_said(&mut self, request: &Request<'_>) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert!(self.said.starts_with(&bytes), "{request:?} was not what was sent");
        self.said.drain(..bytes.len());
    }
}

struct Server {
    session: Session,
    clients: [Client; CLIENTS],
    next_id: ConnectionId,
    /// What is left of [`RUN_BYTES`].
    runs: usize,
}

impl Server {
    fn new() -> Self {
        let clients = [0, 1, 2].map(Client::new);
        Self { session: Session::new(MAX_BYTES), clients, next_id: 3, runs: RUN_BYTES }
    }

    /// What a client may do besides sending bytes of the script.
    fn special(&mut self, what: usize, script: &mut Script<'_>) {
        let who = what % CLIENTS;
        match what / CLIENTS % 4 {
            0 => {
                let mut hello = Vec::new();
                Request::Validate(proto::MAGIC).encode(&mut hello);
                self.receive(who, &hello);
            }
            1 => self.replace(who),
            2 => self.clients[who].answers.clear(),
            _ => {
                let length = script.number().unsigned_abs();
                let length = usize::try_from(length).map_or(self.runs, |n| n.min(self.runs));
                self.runs -= length;
                self.receive(who, &vec![b'x'; length]);
            }
        }
    }

    fn receive(&mut self, who: usize, piece: &[u8]) {
        self.clients[who].said.extend_from_slice(piece);
        if self.serve(who, piece).is_err() {
            self.replace(who);
            return;
        }
        let client = &mut self.clients[who];
        if client.intake.is_validated() && !client.introduced {
            client.introduced = true;
            client.has_said(&Request::Validate(proto::MAGIC));
        }
        // The count and the lengths are eight bytes each; what is kept of a text is not much more.
        let (held, said) = (client.intake.held(), client.said.len());
        assert!(held <= 4 * said, "{said} bytes of a request take {held}");
    }

    fn serve(&mut self, who: usize, mut input: &[u8]) -> Result<(), Refusal> {
        let mut woken = Vec::new();
        loop {
            let client = &mut self.clients[who];
            let Some(request) = client.intake.next(&mut input, &mut client.answers)? else { break };
            assert!(client.intake.is_validated(), "a request of nobody: {request:?}");
            if !client.introduced {
                client.introduced = true;
                client.has_said(&Request::Validate(proto::MAGIC));
            }
            client.has_said(&request);
            let may_wait = matches!(request, Request::Wait(_) | Request::Barrier(..));
            let before = client.answers.len();
            let cancels = may_wait || request == Request::CancelWait;
            let (id, answers) = (client.id, &mut client.answers);
            let served = self.session.serve(id, request, answers, &mut woken);
            if cancels {
                client.waits = may_wait && client.answers.len() == before;
            }
            self.wake(&mut woken);
            served?;
        }
        assert!(input.is_empty(), "bytes were left over");
        Ok(())
    }

    /// Hands out answers to those who waited.
    fn wake(&mut self, woken: &mut Vec<ConnectionId>) {
        for id in woken.drain(..) {
            let found = self.clients.iter_mut().find(|client| client.id == id);
            let client = found.expect("woken after it had gone");
            assert!(client.waits, "woken without waiting, or twice");
            assert!(client.introduced, "woken without having been let in");
            client.waits = false;
            client.answers.push(proto::READY);
        }
    }

    /// The client goes, and another one comes.
    fn replace(&mut self, who: usize) {
        let mut woken = Vec::new();
        let gone = std::mem::replace(&mut self.clients[who], Client::new(self.next_id));
        self.next_id += 1;
        // One that asks for a secret is told that there is none.
        let is_told = gone.answers.is_empty() || gone.answers == b"OPEN";
        assert!(gone.introduced || is_told, "an answer to nobody");
        self.session.forget(gone.id, &mut woken);
        self.wake(&mut woken);
    }

    fn check(&self) {
        self.session.check();
        for client in &self.clients {
            assert_eq!(self.session.has_waiting(client.id), client.waits);
        }
    }
}
