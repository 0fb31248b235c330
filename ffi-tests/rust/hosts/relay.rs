//! A line between two hosts that delays packets and loses some: the program
//! `ffi-tests/net/relay.c`.

use super::space::{LIMIT, Space};
use crate::toolchain::Compiler;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a line does to packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// How long each is on its way, one way.
    pub(crate) delay: Duration,
    /// How many of a million are lost.
    pub(crate) loss_ppm: u32,
    /// What decides which ones.
    pub(crate) seed: u64,
    /// How many may be on their way in one direction; more are dropped.
    pub(crate) queue: u32,
    /// Bytes per second in one direction; none for as many as come.
    pub(crate) rate: Option<u64>,
}

impl Line {
    /// A line with a delay and losses, and room for everything else.
    pub(crate) fn new(delay_ms: u64, loss_ppm: u32) -> Self {
        let delay = Duration::from_millis(delay_ms);
        Self { delay, loss_ppm, seed: 1, queue: 4096, rate: None }
    }
}

/// What has become of the packets from the first host, and of those from the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) forwarded: [u64; 2],
    pub(crate) lost: [u64; 2],
    pub(crate) overflowed: [u64; 2],
}

/// A running relay.
pub(crate) struct Relay(Child);

impl Relay {
    /// Compiles the program.
    pub(super) fn compile(compiler: &Compiler, name: &str) -> PathBuf {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        compiler.tool(&program, "ffi-tests/net/relay.c");
        program
    }

    /// Starts it between devices of the same name, and waits until they carry packets.
    pub(super) fn start(program: &Path, line: &Line, spaces: [&Space; 2], device: &str) -> Self {
        let mut command = Command::new(program);
        let options = [
            ("-d", u64::try_from(line.delay.as_micros()).unwrap()),
            ("-l", u64::from(line.loss_ppm)),
            ("-s", line.seed),
            ("-q", u64::from(line.queue)),
            ("-r", line.rate.unwrap_or(0)),
        ];
        for (option, value) in options {
            command.args([option, &value.to_string()]);
        }
        for space in spaces {
            command.args([space.name(), device]);
        }
        // What it complains about is for whoever reads the test's own output.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let relay = Self(command.spawn().unwrap());
        spaces.iter().for_each(|space| space.until_ready(device));
        relay
    }

    /// Ends it, and returns what it has counted. From then on, nothing passes.
    pub(crate) fn end(mut self) -> Counts {
        // The end of its input is what it ends for.
        drop(self.0.stdin.take());
        let began = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < LIMIT, "the relay does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        Counts::parse(&text).unwrap_or_else(|| panic!("the relay ended with \"{text}\""))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Counts {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let of = |word: &str| {
            let at = words.iter().position(|found| *found == word)?;
            Some([words.get(at + 1)?.parse().ok()?, words.get(at + 2)?.parse().ok()?])
        };
        Some(Self { forwarded: of("forwarded")?, lost: of("lost")?, overflowed: of("overflowed")? })
    }
}
