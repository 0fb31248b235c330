//! Fuzzes the server's parser and handler with three clients that send arbitrary bytes in arbitrary
//! pieces. There are no sockets: this module replaces the event loop.
//!
//! A script is a sequence of steps. The low two bits of a step's first byte select the client. The
//! other bits are the number of script bytes that this client sends. The value 3, which is not a
//! client, selects another action ([`FuzzServer::run_other_action`]).

use super::super::handshake::{ServerHandshake, StoreSecurity};
use super::super::proto::{self, StoreRequest};
use super::super::request_handler::{ClientRejection, RequestHandler};
use super::super::request_reader::RequestReader;
use super::super::waiters::ConnectionId;
use crate::base::fuzz::FuzzScript;
use crate::security::CipherSet;

/// The memory limit of the store, low enough to be reached.
const MAX_STORE_BYTES: usize = 8 << 10;
/// The limit of the bytes that actions generate in one run. It bounds the memory of the run.
const MAX_RUN_BYTES: usize = 64 << 10;

/// Runs a script.
///
/// # Panics
/// If the server violates an invariant.
pub fn server(input: &[u8]) {
    let mut script = FuzzScript(input);
    let mut server = FuzzServer::new();
    while let Some(step) = script.next_byte() {
        let (client_index, count) = (usize::from(step & 3), usize::from(step >> 2));
        if client_index < CLIENTS {
            let piece = script.take_bytes(count + 1);
            server.receive(client_index, piece);
        } else {
            server.run_other_action(count, &mut script);
        }
        server.check();
    }
    (0..CLIENTS).for_each(|index| server.replace(index));
    server.check();
    assert!(server.handler.is_idle(), "a removed connection still waits");
}

const CLIENTS: usize = 3;

struct FuzzClient {
    id: ConnectionId,
    request_reader: RequestReader,
    /// The bytes that the client has sent and that are not yet part of a complete request.
    unparsed: Vec<u8>,
    is_validated: bool,
    /// True while a WAIT or BARRIER has no reply.
    is_waiting: bool,
    answers: Vec<u8>,
}

impl FuzzClient {
    fn new(id: ConnectionId) -> Self {
        Self {
            id,
            request_reader: RequestReader::new(ServerHandshake::new(
                &StoreSecurity::default(),
                CipherSet::EVERY_PROCESSOR,
            )),
            unparsed: Vec::new(),
            is_validated: false,
            is_waiting: false,
            answers: Vec::new(),
        }
    }

    /// Checks that the sent bytes begin with the bytes of this request, and removes these bytes.
    fn consume_request(&mut self, request: &StoreRequest<'_>) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert!(self.unparsed.starts_with(&bytes), "{request:?} differs from the sent bytes");
        self.unparsed.drain(..bytes.len());
    }
}

struct FuzzServer {
    handler: RequestHandler,
    clients: [FuzzClient; CLIENTS],
    next_id: ConnectionId,
    /// The number of bytes that actions may still generate, out of [`MAX_RUN_BYTES`].
    run_bytes_left: usize,
}

impl FuzzServer {
    fn new() -> Self {
        let clients = [0, 1, 2].map(FuzzClient::new);
        Self {
            handler: RequestHandler::new(MAX_STORE_BYTES),
            clients,
            next_id: 3,
            run_bytes_left: MAX_RUN_BYTES,
        }
    }

    /// Runs an action of a client that does not send script bytes.
    fn run_other_action(&mut self, action: usize, script: &mut FuzzScript<'_>) {
        let client_index = action % CLIENTS;
        match action / CLIENTS % 4 {
            0 => {
                let mut hello = Vec::new();
                StoreRequest::Validate(proto::MAGIC).encode(&mut hello);
                self.receive(client_index, &hello);
            }
            1 => self.replace(client_index),
            2 => self.clients[client_index].answers.clear(),
            _ => {
                let length = script.next_number().unsigned_abs();
                let length = usize::try_from(length)
                    .map_or(self.run_bytes_left, |n| n.min(self.run_bytes_left));
                self.run_bytes_left -= length;
                self.receive(client_index, &vec![b'x'; length]);
            }
        }
    }

    fn receive(&mut self, client_index: usize, piece: &[u8]) {
        self.clients[client_index].unparsed.extend_from_slice(piece);
        if self.serve(client_index, piece).is_err() {
            self.replace(client_index);
            return;
        }
        let client = &mut self.clients[client_index];
        if client.request_reader.is_validated() && !client.is_validated {
            client.is_validated = true;
            client.consume_request(&StoreRequest::Validate(proto::MAGIC));
        }
        // In the request, a string has its length (8 bytes) and its content. In memory, it takes a
        // `Vec` (24 bytes) and its content. So the memory of an unfinished request is less than
        // four times its bytes.
        let (buffered, unparsed) = (client.request_reader.buffered_bytes(), client.unparsed.len());
        assert!(buffered <= 4 * unparsed, "{unparsed} bytes of a request take {buffered}");
    }

    fn serve(&mut self, client_index: usize, mut input: &[u8]) -> Result<(), ClientRejection> {
        let mut woken = Vec::new();
        loop {
            let client = &mut self.clients[client_index];
            let Some(request) =
                client.request_reader.next_request(&mut input, &mut client.answers)?
            else {
                break;
            };
            assert!(
                client.request_reader.is_validated(),
                "a request of a client that is not validated: {request:?}"
            );
            if !client.is_validated {
                client.is_validated = true;
                client.consume_request(&StoreRequest::Validate(proto::MAGIC));
            }
            client.consume_request(&request);
            let may_wait = matches!(request, StoreRequest::Wait(_) | StoreRequest::Barrier(..));
            let before = client.answers.len();
            let cancels = may_wait || request == StoreRequest::CancelWait;
            let (id, answers) = (client.id, &mut client.answers);
            let served = self.handler.serve(id, request, answers, &mut woken);
            if cancels {
                client.is_waiting = may_wait && client.answers.len() == before;
            }
            self.deliver_answers(&mut woken);
            served?;
        }
        assert!(input.is_empty(), "unread bytes remain");
        Ok(())
    }

    /// Delivers replies to the woken connections.
    fn deliver_answers(&mut self, woken: &mut Vec<ConnectionId>) {
        for id in woken.drain(..) {
            let found = self.clients.iter_mut().find(|client| client.id == id);
            let client = found.expect("a removed client was woken");
            assert!(client.is_waiting, "a client was woken without waiting, or twice");
            assert!(client.is_validated, "a client that is not validated was woken");
            client.is_waiting = false;
            client.answers.push(proto::READY);
        }
    }

    /// Replaces a client by a new one.
    fn replace(&mut self, client_index: usize) {
        let mut woken = Vec::new();
        let removed =
            std::mem::replace(&mut self.clients[client_index], FuzzClient::new(self.next_id));
        self.next_id += 1;
        // A client that requests a proof gets "OPEN", since the server has no secret.
        let is_answer_expected = removed.answers.is_empty() || removed.answers == b"OPEN";
        assert!(
            removed.is_validated || is_answer_expected,
            "a reply to a client that is not validated"
        );
        self.handler.remove_connection(removed.id, &mut woken);
        self.deliver_answers(&mut woken);
    }

    fn check(&self) {
        self.handler.assert_consistent();
        for client in &self.clients {
            assert_eq!(self.handler.is_waiting(client.id), client.is_waiting);
        }
    }
}
