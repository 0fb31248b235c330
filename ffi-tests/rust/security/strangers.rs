//! A stranger that reads all of the store and reaches the ports of the ranks, but has no secret.

use super::{
    ANSWER_BYTES, HELLO_BYTES, REQUIRES_AUTH, SECRET, SECURITY, WRONG_PROOF, assert_both_succeeded,
    reply_to, secret_of, start_rank,
};
use crate::harness::TestJob;
use dist::base::deadline::Deadline;
use dist::store::Store as _;
use dist::store::tcp::{ClientOptions, Secret, TcpStore};
use serde_json::Value;

const PROGRAM: &str = "init\nall_reduce f32 SUM 1000\ngate attacked\n\
                       send 16 PEER 4 async=yes\nrecv 16 PEER 4\nsettle\nfinalize\nleaks\n";

/// What the store of a job of two ranks tells about rank 0.
pub(super) struct StoreContent {
    group: [u8; 16],
    /// The port of rank 0.
    port: u16,
    /// The nonces of both ranks.
    nonces: [Vec<u8>; 2],
}

fn hex_bytes(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

pub(super) fn read_store(port: u16, has_secret: bool) -> StoreContent {
    let options = ClientOptions {
        host: "127.0.0.1".to_owned(),
        port,
        secret: has_secret.then(|| Secret::from_bytes(SECRET.as_bytes()).unwrap()),
        ..ClientOptions::default()
    };
    let deadline = Deadline::after_ms(60_000);
    let store = TcpStore::connect(options, &deadline).unwrap();
    let keys = store.list_keys(&deadline).unwrap();
    let keys: Vec<String> = keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect();
    let find = |end: &str| keys.iter().find(|key| key.ends_with(end)).unwrap();
    let value = |end: &str| -> Value {
        serde_json::from_slice(&store.get(find(end).as_bytes(), &deadline).unwrap()).unwrap()
    };
    let group = find("/card/0").rsplit('/').nth(2).unwrap();
    let nonce = |card: &str| hex_bytes(value(card)["nonce"].as_str().unwrap());
    let address = value("/addresses/0")["near"][0][0].as_str().unwrap().to_owned();
    StoreContent {
        group: hex_bytes(group).try_into().unwrap(),
        port: address.rsplit(':').next().unwrap().parse().unwrap(),
        nonces: [nonce("/card/0"), nonce("/card/1")],
    }
}

/// Returns a hello of rank 1 to rank 0 for the second stream of collectives, which no small
/// operation uses, with this security setting (0: none, 1: auth), cipher suite and proof.
pub(super) fn forged_hello(
    content: &StoreContent,
    security: u8,
    cipher: u8,
    proof: &[u8],
) -> Vec<u8> {
    let mut hello = b"distlnk1".to_vec();
    hello.extend(6_u16.to_le_bytes());
    hello.extend([0, 1]);
    for number in [0_u32, 1, 0] {
        hello.extend(number.to_le_bytes());
    }
    hello.extend(content.group);
    hello.extend([security, cipher, 0, 0, 0, 0, 0, 0]);
    hello.extend(proof);
    hello.resize(HELLO_BYTES, 0);
    hello
}

/// Starts a job, attacks it before its ranks exchange messages, and checks its results.
fn attack(setting: &str, attack: impl Fn(&StoreContent)) {
    let mut job = TestJob::new();
    for rank in 0..2 {
        let streams = ("DIST_TCP_LANES", "2".to_owned());
        let variables = [secret_of(&job), (SECURITY, setting.to_owned()), streams];
        let program = PROGRAM.replace("PEER", &(1 - rank).to_string());
        start_rank(&mut job, rank, &variables, &program);
    }
    job.await_reports(&["0", "1"], "at attacked");
    attack(&read_store(job.port, true));
    job.open_gate("attacked");
    assert_both_succeeded(&job.finish(), PROGRAM);
}

#[test]
fn stranger_that_reads_the_store_cannot_join_a_stream() {
    attack("auth", |content| {
        let [_, nonce] = &content.nonces;
        for cipher in [1, 2] {
            for proof in [&[][..], nonce, &[7; 48]] {
                let reply =
                    reply_to(content.port, &forged_hello(content, 1, cipher, proof), ANSWER_BYTES);
                // An acceptor refuses another cipher suite than that of the group, too.
                assert!(reply == [WRONG_PROOF] || reply == [3], "{reply:?}");
            }
        }
        let reply = reply_to(content.port, &forged_hello(content, 0, 2, nonce), ANSWER_BYTES);
        assert!(reply == [REQUIRES_AUTH], "{reply:?}");
    });
}

/// The control of the test above: without protection, the forged hello is accepted.
#[test]
fn forged_hello_is_answered_without_protection() {
    attack("none", |content| {
        let [_, nonce] = &content.nonces;
        let reply =
            |cipher| reply_to(content.port, &forged_hello(content, 0, cipher, nonce), ANSWER_BYTES);
        let is_answered = |reply: Vec<u8>| reply.len() == ANSWER_BYTES && reply[0] == 0;
        assert!(is_answered(reply(1)) || is_answered(reply(2)));
    });
}
