//! Connections that break although both processes live: they are replaced, and no byte is lost or
//! arrives twice.

use super::failure::{outgoing_link, outgoing_stream};
use super::*;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::transport::tcp::hello::{ConnectionPurpose, Hello};
use crate::transport::tcp::outgoing_channel::KeepPolicy;
use crate::transport::tcp::peer_connect::{PeerConnectHandler, PeerConnector};
use std::sync::{Weak, mpsc};

#[test]
fn connection_that_is_reset_is_replaced() {
    for security in [LinkSecurity::None, authenticated(), encrypted()] {
        let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
        let mut meshes = secured_meshes(openings, &[0, 1], &security);
        let (b, a) = (meshes.pop().unwrap(), meshes.pop().unwrap());
        let (mut sent, mut got) = (Vec::<u8>::new(), Vec::<u8>::new());
        for round in 0..50_u8 {
            let bytes = vec![round; 1 + usize::from(round) * 7];
            send_all(&a, 1, STREAM, &bytes).unwrap();
            sent.extend(&bytes);
            if round % 3 == 0 {
                let mut some = vec![0; bytes.len() / 2];
                receive_all(&b, 0, STREAM, &mut some).unwrap();
                got.extend(some);
            }
            if round % 5 == 4 {
                outgoing_stream(&a, 1).reset();
            }
        }
        let mut rest = vec![0; sent.len() - got.len()];
        receive_all(&b, 0, STREAM, &mut rest).unwrap();
        got.extend(rest);
        assert!(sent == got, "bytes were lost, or arrived twice");
        assert_eq!((a.failure(), b.failure()), (None, None));
    }
}

#[test]
fn messages_and_control_frames_survive_resets() {
    let (a, b) = pair("127.0.0.1");
    let channel = Channel::PointToPoint;
    send_all(&a, 1, channel, b"x").unwrap();
    let link =
        lock(&a.shared.channel_pair(1, channel).outgoing).channel.as_ref().unwrap().0.clone();
    for round in 0..20_u8 {
        link.stream().iter().for_each(|stream| stream.reset());
        send_all(&a, 1, channel, &[round; 10]).unwrap();
    }
    let mut got = vec![0; 201];
    let mut filled = 0;
    let began = Instant::now();
    while filled < got.len() {
        b.collect_ready_peers(&mut Vec::new());
        filled += b.try_receive(0, channel, Dst::from(&mut got[filled..])).unwrap();
        assert!(began.elapsed() < TEST_TIMEOUT, "only {filled} bytes");
    }
    assert!(got[1..].iter().enumerate().all(|(at, &byte)| usize::from(byte) == at / 10));
    drop(a);
    let error = first_error(|| receive_all(&b, 0, STREAM, &mut [0]));
    assert!(error.message().contains("has left"), "{error}");
    assert_eq!(b.failure(), None);
}

/// Sends the bytes as a loan, as far as the link takes them. Returns their number.
fn lend(mesh: &TcpMesh, to: Rank, bytes: &'static [u8]) -> usize {
    mesh.try_send_lent(to, STREAM, Src::empty(), Src::from(bytes)).unwrap()
}

#[test]
fn lent_messages_survive_resets() {
    for security in [LinkSecurity::None, encrypted()] {
        let openings = vec![listen_on_loopback("127.0.0.1", 1), listen_on_loopback("127.0.0.1", 1)];
        let mut meshes = secured_meshes(openings, &[0, 1], &security);
        let (b, a) = (meshes.pop().unwrap(), meshes.pop().unwrap());
        send_all(&a, 1, STREAM, b"begin").unwrap();
        let link = outgoing_link(&a, 1);
        lock(&link.state).queue.policy = KeepPolicy::All;
        let all: &'static mut [u8] = vec![0; 3 << 20].leak();
        (0..).zip(all.iter_mut()).for_each(|(at, byte)| *byte = (at % 251_u32) as u8);
        let (all, mut got) = (&*all, vec![0; 5 + all.len()]);
        let (mut sent, mut filled, mut resets) = (0, 0, 0);
        let began = Instant::now();
        while filled < got.len() && a.failure().is_none() && b.failure().is_none() {
            assert!(began.elapsed() < TEST_TIMEOUT, "only {filled} bytes arrive");
            let moved = lend(&a, 1, &all[sent..]);
            sent += moved;
            if moved > 0 && sent / (400 << 10) > resets && link.stream().is_some() {
                resets += 1;
                outgoing_stream(&a, 1).reset();
            }
            if resets % 2 == 1 {
                a.end_loans(1, STREAM);
                assert!(!lock(&link.state).queue.kept.has_loans());
            }
            if resets % 3 != 2 || moved == 0 {
                filled += b.try_receive(0, STREAM, Dst::from(&mut got[filled..])).unwrap();
            }
        }
        assert!(resets > 0);
        assert_eq!((a.failure(), b.failure()), (None, None));
        assert!(got[5..] == *all, "bytes were lost, or arrived twice");
    }
}

#[test]
fn link_that_is_not_replaced_keeps_nothing() {
    for (retry_time, is_kept) in [(Duration::ZERO, false), (TEST_TIMEOUT, true)] {
        let (a, b) = pair("127.0.0.1");
        let own = a.shared.members[a.shared.me].process;
        a.shared.links.set_retry_time(own, retry_time);
        send_all(&a, 1, STREAM, &[7; 100]).unwrap();
        receive_all(&b, 0, STREAM, &mut [0; 100]).unwrap();
        let link = outgoing_link(&a, 1);
        assert_eq!(lock(&link.state).queue.kept.len() > 0, is_kept);
    }
}

/// Sends the outcome of an attempt to connect.
#[derive(Debug)]
struct Attempt(mpsc::Sender<Result<()>>);

impl PeerConnectHandler for Attempt {
    fn on_connected(&self, _: &Hello, stream: Arc<SocketStream>) {
        stream.close_gracefully();
        self.0.send(Ok(())).unwrap();
    }

    fn on_failed(&self, _: &Hello, error: Error) {
        self.0.send(Err(error)).unwrap();
    }
}

/// Connects from a rank to rank 0 for this purpose.
fn connect(mesh: &TcpMesh, purpose: ConnectionPurpose) -> (Arc<PeerConnector>, Result<()>) {
    let (sender, outcomes) = mpsc::channel();
    let attempt = Arc::new(Attempt(sender));
    let handler: Weak<dyn PeerConnectHandler> = Arc::<Attempt>::downgrade(&attempt);
    let limit = purpose.broken_link().map(|_| Deadline::after(TEST_TIMEOUT));
    let connector = mesh.shared.new_connector(0, purpose, limit, handler).unwrap();
    connector.start();
    let outcome = outcomes.recv_timeout(TEST_TIMEOUT).expect("the attempt does not end");
    (connector, outcome)
}

/// The last bytes of a rank may be on their way when it leaves. So a question about its links gets
/// an answer after its departure, too: silence would look like its death.
#[test]
fn rank_that_has_left_answers_for_its_links() {
    let (a, b) = pair("127.0.0.1");
    send_all(&a, 1, STREAM, b"x").unwrap();
    receive_all(&b, 0, STREAM, &mut [0]).unwrap();
    let probe = ConnectionPurpose::Probe(STREAM);
    assert!(connect(&b, probe).1.is_ok());

    drop(a);
    // The first question has broken the link off, so it may still be replaced.
    let began = Instant::now();
    let (connector, outcome) = std::iter::repeat_with(|| connect(&b, probe))
        .take_while(|_| began.elapsed() < TEST_TIMEOUT)
        .find(|(_, outcome)| outcome.is_err())
        .unwrap();
    assert!(outcome.unwrap_err().message().contains("no such connection"));
    assert!(connector.has_found_no_link() && !connector.has_found_no_process());
    // It accepts no new link.
    let (_, outcome) = connect(&b, ConnectionPurpose::Stream(STREAM));
    assert!(outcome.unwrap_err().message().contains("has left"));
}
