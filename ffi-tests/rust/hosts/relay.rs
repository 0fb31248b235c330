//! An emulated link between two hosts that delays packets and drops some. It runs the program
//! `ffi-tests/net/relay.c`.

use super::net_namespace::{KERNEL_TIMEOUT, NetNamespace};
use crate::toolchain::Compiler;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The properties of an emulated link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSettings {
    /// The one-way delay of each packet.
    pub(crate) delay: Duration,
    /// The number of lost packets per million.
    pub(crate) loss_ppm: u32,
    /// The seed of the random choice of lost packets.
    pub(crate) seed: u64,
    /// The maximum number of packets in flight in one direction; further packets are dropped.
    pub(crate) queue_packets: u32,
    /// The bytes per second in one direction; `None` for no limit.
    pub(crate) bytes_per_second: Option<u64>,
    /// The port whose connections get no fault.
    pub(crate) spared_port: u16,
}

impl LinkSettings {
    /// Returns a link with a delay and losses, a large queue and no rate limit.
    pub(crate) fn new(delay_ms: u64, loss_ppm: u32) -> Self {
        let delay = Duration::from_millis(delay_ms);
        Self {
            delay,
            loss_ppm,
            seed: 1,
            queue_packets: 4096,
            bytes_per_second: None,
            spared_port: 0,
        }
    }
}

/// The numbers of packets from the first and from the second host, by their result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RelayCounts {
    pub(crate) forwarded: [u64; 2],
    pub(crate) lost: [u64; 2],
    pub(crate) overflowed: [u64; 2],
    /// The number of faults that have met a connection.
    pub(crate) faults: u64,
}

/// A running relay.
pub(crate) struct Relay(Child);

impl Relay {
    /// Compiles the relay program.
    pub(super) fn compile(compiler: &Compiler, name: &str) -> PathBuf {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        compiler.tool(&program, "ffi-tests/net/relay.c");
        program
    }

    /// Starts the relay between devices of the same name, and waits until they carry packets.
    pub(super) fn start(
        program: &Path,
        line: &LinkSettings,
        spaces: [&NetNamespace; 2],
        device: &str,
    ) -> Self {
        let mut command = Command::new(program);
        let options = [
            ("-d", u64::try_from(line.delay.as_micros()).unwrap()),
            ("-l", u64::from(line.loss_ppm)),
            ("-s", line.seed),
            ("-q", u64::from(line.queue_packets)),
            ("-r", line.bytes_per_second.unwrap_or(0)),
            ("-x", u64::from(line.spared_port)),
        ];
        for (option, value) in options {
            command.args([option, &value.to_string()]);
        }
        for space in spaces {
            command.args([space.name(), device]);
        }
        // The standard error of the relay stays in the output of the test.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let relay = Self(command.spawn().unwrap());
        spaces.iter().for_each(|space| space.until_ready(device));
        relay
    }

    /// Adds a fault of a connection: `reset N`, `half N SIDE`, `forget N` or `stall N MS`
    /// (`tcp_faults.h`).
    pub(crate) fn add_fault(&mut self, fault: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{fault}").unwrap();
    }

    /// Ends the relay and returns its counts. Afterwards no packet passes.
    pub(crate) fn stop(mut self) -> RelayCounts {
        // The relay ends when its input is closed.
        drop(self.0.stdin.take());
        let began = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < KERNEL_TIMEOUT, "the relay does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        RelayCounts::parse(&text).unwrap_or_else(|| panic!("the relay ended with \"{text}\""))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl RelayCounts {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let of = |word: &str| {
            let at = words.iter().position(|found| *found == word)?;
            Some([words.get(at + 1)?.parse().ok()?, words.get(at + 2)?.parse().ok()?])
        };
        let faults = words.last()?.parse().ok()?;
        let [forwarded, lost, overflowed] = [of("forwarded")?, of("lost")?, of("overflowed")?];
        Some(Self { forwarded, lost, overflowed, faults })
    }
}
