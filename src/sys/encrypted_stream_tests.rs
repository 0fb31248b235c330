//! Tests of encrypted streams over real sockets, and over a socket whose writes and reads the test
//! cuts at any byte.

use super::*;
use crate::sys::record_layer::tests::ToyCipher;
use crate::sys::stream::SocketStream;
use crate::sys::{socket, unix};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::TcpListener;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

fn ciphers(is_first: bool) -> RecordCiphers {
    let (sealing, opening) = if is_first { (1, 2) } else { (2, 1) };
    RecordCiphers { sealing: Box::new(ToyCipher(sealing)), opening: Box::new(ToyCipher(opening)) }
}

fn pair() -> (EncryptedStream, EncryptedStream) {
    (EncryptedStream::new(ciphers(true), &[]), EncryptedStream::new(ciphers(false), &[]))
}

fn would_block<T>() -> io::Result<T> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// One direction of a socket with little room.
#[derive(Default)]
struct NarrowSocket {
    bytes: RefCell<VecDeque<u8>>,
    room: Cell<usize>,
    writes: Cell<usize>,
    is_closed: Cell<bool>,
}

impl NarrowSocket {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.writes.set(self.writes.get() + 1);
        let count = bytes.len().min(self.room.get());
        self.room.set(self.room.get() - count);
        self.bytes.borrow_mut().extend(&bytes[..count]);
        if count == 0 { would_block() } else { Ok(count) }
    }

    fn read(&self, into: &mut [u8], limit: usize) -> io::Result<usize> {
        let mut bytes = self.bytes.borrow_mut();
        let count = into.len().min(limit).min(bytes.len());
        into.iter_mut().zip(bytes.drain(..count)).for_each(|(to, from)| *to = from);
        if count == 0 && !self.is_closed.get() { would_block() } else { Ok(count) }
    }
}

proptest! {
    #[test]
    fn text_arrives_through_any_partial_writes_and_reads(
        text in vec(any::<u8>(), 1..5000), rooms in vec(0_usize..700, 1..8),
        calls in vec(1_usize..1500, 1..6), part in 1_usize..300, reads in vec(1_usize..900, 1..5),
    ) {
        prop_assume!(rooms.iter().any(|&room| room > 0));
        let (a, b) = pair();
        let socket = NarrowSocket::default();
        let (mut sent, mut got, mut was_sent) = (0, Vec::<u8>::new(), false);
        let (mut rooms, mut calls) = (rooms.iter().cycle(), calls.iter().cycle());
        let mut reads = reads.iter().cycle();
        let mut buffer = vec![0; 900];
        for _ in 0..1_000_000 {
            socket.room.set(*rooms.next().unwrap());
            if sent < text.len() {
                let end = text.len().min(sent + calls.next().unwrap());
                let parts: Vec<Src<'_>> = text[sent..end].chunks(part).map(Src::from).collect();
                match a.send(&parts, |bytes| socket.write(bytes)) {
                    Ok(count) => {
                        prop_assert!(count > 0 && count <= end - sent);
                        sent += count;
                    }
                    Err(cause) => prop_assert_eq!(cause.kind(), io::ErrorKind::WouldBlock),
                }
            } else if !was_sent {
                was_sent = a.send_end(|bytes| socket.write(bytes)).unwrap();
                socket.is_closed.set(was_sent);
            }
            let len = *reads.next().unwrap();
            let limit = *reads.next().unwrap();
            match b.receive(Dst::from(&mut buffer[..len]), |space| socket.read(space, limit)) {
                Ok(0) => break,
                Ok(count) => got.extend(&buffer[..count]),
                Err(cause) => prop_assert_eq!(cause.kind(), io::ErrorKind::WouldBlock),
            }
            prop_assert!(got.len() <= sent + 1);
        }
        prop_assert!(was_sent && got == text);
    }
}

#[test]
fn partial_send_withholds_its_last_byte() {
    let (a, b) = pair();
    let socket = NarrowSocket::default();
    let mut write = |bytes: &[u8]| socket.write(bytes);
    // Nothing fits, and the caller may not change its mind.
    assert_eq!(
        a.send(&[Src::from(&b"x"[..])], &mut write).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    let error = a.send(&[Src::from(&b"y"[..])], &mut write).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    socket.room.set(10);
    assert!(a.send(&[Src::from(&b"xyz"[..])], &mut write).is_err());
    socket.room.set(11);
    // The rest of the first record fits, and nothing of the second one.
    assert_eq!(a.send(&[Src::from(&b"xyz"[..])], &mut write).unwrap(), 2);
    socket.room.set(1000);
    assert!(!a.send_end(|_| would_block()).unwrap());
    assert_eq!(a.send(&[Src::from(&b"z"[..])], &mut write).unwrap(), 1);
    let mut text = [0; 9];
    assert_eq!(b.receive(Dst::from(&mut text[..]), |space| socket.read(space, 9999)).unwrap(), 3);
    assert_eq!(&text[..3], b"xyz");
    assert_eq!(b.receive(Dst::from(&mut text[..]), |space| socket.read(space, 9999)).unwrap(), 0);
    let error = a.send(&[Src::from(&b"w"[..])], &mut write).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn small_send_costs_one_write_and_small_receive_one_read() {
    let (a, b) = pair();
    let socket = NarrowSocket::default();
    socket.room.set(1 << 20);
    for round in 1..=10 {
        let (header, payload) = ([1_u8; 40], [2_u8; 4]);
        let parts = [Src::from(&header[..]), Src::from(&payload[..])];
        assert_eq!(a.send(&parts, |bytes| socket.write(bytes)).unwrap(), 44);
        assert_eq!(socket.writes.get(), round);
        let (mut text, mut reads) = ([0; 44], 0);
        let mut read = |space: &mut [u8]| {
            reads += 1;
            socket.read(space, 9999)
        };
        assert_eq!(b.receive(Dst::from(&mut text[..40]), &mut read).unwrap(), 40);
        assert!(b.has_input() && !b.is_silent());
        assert_eq!(b.receive(Dst::from(&mut text[40..]), &mut read).unwrap(), 4);
        assert_eq!((reads, &text[..40], &text[40..]), (1, &header[..], &payload[..]));
        assert!(!b.has_input() && b.is_silent());
    }
}

fn socket_pair() -> (SocketStream, SocketStream) {
    let (a, b) = unix::pair().unwrap();
    let (a, b) = (SocketStream::from_unix(a).unwrap(), SocketStream::from_unix(b).unwrap());
    a.encrypt(ciphers(true), &[]).unwrap();
    b.encrypt(ciphers(false), &[]).unwrap();
    (a, b)
}

#[test]
fn socket_carries_no_plain_byte_and_reports_buffered_input() {
    let (a, b) = unix::pair().unwrap();
    let (a, b) = (SocketStream::from_unix(a).unwrap(), SocketStream::from_unix(b).unwrap());
    a.encrypt(ciphers(true), &[]).unwrap();
    assert_eq!(a.send(b"a secret text").unwrap(), 13);
    let mut raw = [0; 100];
    let count = b.receive(&mut raw).unwrap();
    assert_eq!(count, 13 + OVERHEAD_BYTES);
    assert!(!raw.windows(6).any(|window| window == b"secret"));
    // These bytes were read before the encryption began.
    b.encrypt(ciphers(false), &raw[..count]).unwrap();
    assert!(b.encrypt(ciphers(false), &[]).is_err());
    assert!(b.has_buffered_input() && !b.is_open_and_silent());
    let mut text = [0; 9];
    assert_eq!(b.receive_blocking(&mut text[..2]).unwrap(), 2);
    assert!(b.has_buffered_input());
    assert_eq!(b.receive_into(Dst::from(&mut text[2..])).unwrap(), 7);
    assert_eq!(&text, b"a secret ");
    assert_eq!(b.receive(&mut text).unwrap(), 4);
    assert!(!b.has_buffered_input() && b.is_open_and_silent());
    assert_eq!(b.receive(&mut text).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let began = Instant::now();
    assert_eq!(b.receive_blocking(&mut text).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(began.elapsed() < TIMEOUT);
}

#[test]
fn only_a_sealed_end_is_orderly() {
    let (a, b) = socket_pair();
    a.send(b"hi").unwrap();
    a.shutdown_write();
    let mut text = [0; 8];
    // Unread bytes precede the end.
    assert!(b.check_end().is_ok() && b.has_buffered_input());
    assert_eq!(b.receive(&mut text).unwrap(), 2);
    assert!(b.check_end().is_ok());
    assert_eq!(b.receive(&mut text).unwrap(), 0);
    assert_eq!(b.receive(&mut text).unwrap(), 0);
    assert!(!b.is_open_and_silent());

    let (a, b) = socket_pair();
    a.send(b"hi").unwrap();
    drop(a);
    assert_eq!(b.receive(&mut text).unwrap(), 2);
    for _ in 0..2 {
        assert_eq!(b.receive(&mut text).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(b.check_end().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
    // The connection is broken, and no sealed end has arrived.
    assert_eq!(b.send(b"x").unwrap_err().kind(), io::ErrorKind::ConnectionAborted);

    let (a, b) = socket_pair();
    a.shutdown_write();
    drop(a);
    assert_eq!(b.send(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn reflected_records_are_refused() {
    let (a, b) = unix::pair().unwrap();
    let (a, b) = (SocketStream::from_unix(a).unwrap(), SocketStream::from_unix(b).unwrap());
    a.encrypt(ciphers(true), &[]).unwrap();
    a.send(b"hi").unwrap();
    let mut raw = [0; 100];
    let count = b.receive(&mut raw).unwrap();
    b.send(&raw[..count]).unwrap();
    let error = a.receive(&mut raw).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("third party"), "{error}");
}

#[test]
fn full_tcp_socket_takes_all_text_and_the_end_later() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let deadline = crate::base::deadline::Deadline::after_ms(10_000);
    let a = SocketStream::from_tcp(socket::connect(address, &deadline).unwrap()).unwrap();
    let b = SocketStream::from_tcp(listener.accept().unwrap().0).unwrap();
    a.encrypt(ciphers(true), &[]).unwrap();
    b.encrypt(ciphers(false), &[]).unwrap();
    let text: Vec<u8> = (0..=250).cycle().take(24 << 20).collect();
    let (mut sent, mut got, mut has_ended) = (0, vec![0; text.len()], false);
    // Fill the connection before the first read.
    while let Ok(count) = a.send_parts(&[Src::from(&text[sent..])]) {
        sent += count;
    }
    assert!(sent < text.len(), "the connection took all text");
    let (mut filled, began) = (0, Instant::now());
    loop {
        assert!(began.elapsed() < TIMEOUT);
        if sent < text.len() {
            sent += a.send_parts(&[Src::from(&text[sent..])]).unwrap_or(0);
        } else if !has_ended {
            has_ended = a.try_send_end();
            if has_ended {
                a.close_gracefully();
            }
        }
        let end = got.len().min(filled + 100_000);
        match b.receive(&mut got[filled..end]) {
            Ok(0) if filled == text.len() => break,
            Ok(count) => filled += count,
            Err(cause) => assert_eq!(cause.kind(), io::ErrorKind::WouldBlock),
        }
    }
    assert!(has_ended && got == text);
}
