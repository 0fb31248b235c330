//! The processes of a scenario from the driver's side. The driver starts them, reads their reports,
//! and ends them in every case.

use crate::RUN;
use crate::body::{KEEPER, LISTEN, MARK, NAME, ORIGIN, STORE};
use crate::harness::{TestHost, leftovers};
use crate::scenario::Scenario;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, pipe};
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Arguments that make the test binary run as a rank.
const ENTRY: [&str; 6] =
    ["body::entry", "--exact", "--ignored", "--quiet", "--nocapture", "--test-threads=1"];

/// No port to check: another test may already use this one. The leak check compares the socket
/// numbers instead.
const NO_PORT: u16 = 0;

/// The port of a store on a host with its own network namespace.
const SPACE_PORT: u16 = 29_500;

/// The maximum time until the processes exit after their last step.
const ENDING: Duration = Duration::from_secs(20);

/// A report from a process.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Start(u32),
    Begin(usize),
    End { step: usize, status: i32, over_ms: i64, at_us: u64, text: String },
    Wrong(String),
    Left,
    Done,
}

impl Said {
    /// Parses a report line.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        Some(match word {
            "start" => Self::Start(rest.parse().ok()?),
            "begin" => Self::Begin(rest.parse().ok()?),
            "end" => {
                let mut parts = rest.splitn(5, ' ');
                Self::End {
                    step: parts.next()?.parse().ok()?,
                    status: parts.next()?.parse().ok()?,
                    over_ms: parts.next()?.parse().ok()?,
                    at_us: parts.next()?.parse().ok()?,
                    text: parts.next()?.to_owned(),
                }
            }
            "wrong" => Self::Wrong(rest.to_owned()),
            "left" => Self::Left,
            "done" => Self::Done,
            _ => return None,
        })
    }
}

/// A process of the scenario.
pub(crate) struct Member {
    /// The rank; `None` for the store host process.
    pub(crate) rank: Option<usize>,
    pub(crate) pid: u32,
    child: Option<Child>,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) said: Vec<Said>,
}

impl Member {
    /// Returns the exit status, or 128 plus the number of the signal that ended the process.
    pub(crate) fn code(&self) -> Option<i32> {
        let status = self.status?;
        status.code().or_else(|| Some(128 + status.signal().unwrap_or(0)))
    }

    /// Returns true if the process has reported that it left the library, or has exited.
    pub(crate) fn has_left(&self) -> bool {
        self.status.is_some() || self.said.iter().any(|said| matches!(said, Said::Left))
    }
}

/// The pipe ends for the processes: they report through one and wait on the other.
struct Ends {
    report: PipeWriter,
    gate: PipeReader,
}

/// All processes of a scenario.
pub(crate) struct Crew {
    pub(crate) members: Vec<Member>,
    /// The port of the store.
    pub(crate) port: u16,
    lines: Receiver<(String, Said)>,
    reader: Option<JoinHandle<()>>,
    gate: Option<PipeWriter>,
    folder: PathBuf,
    /// The socket numbers that the driver has seen in the processes.
    sockets: BTreeSet<u64>,
}

/// Where a scenario runs.
pub(crate) struct Ground<'a> {
    /// An existing folder for this scenario only.
    pub(crate) folder: &'a Path,
    /// The emulated hosts (network namespaces), in the scenario's order. If empty, all processes
    /// run on this host and only have different host names.
    pub(crate) places: &'a [TestHost],
    /// The port of the store if the driver hosts it; the driver is then rank 0.
    pub(crate) served: Option<u16>,
}

impl Crew {
    /// Starts all processes.
    pub(crate) fn start(scenario: &Scenario, ground: &Ground<'_>) -> Self {
        // The process that hosts the store inherits a listening socket, so that its port cannot be
        // in use. A host with its own network namespace needs no such socket, since all its ports
        // are free.
        let is_here = ground.places.is_empty() && ground.served.is_none();
        let listener = is_here.then(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let own = listener.as_ref().map(|listener| listener.local_addr().unwrap().port());
        let port = ground.served.or(own).unwrap_or(SPACE_PORT);
        let (mut crew, ends) = Self::empty(ground, port);
        let keeper = scenario.keeper && ground.served.is_none();
        let ranks = (usize::from(ground.served.is_some())..scenario.size).map(Some);
        for rank in keeper.then_some(None).into_iter().chain(ranks) {
            let mut command = crew.command(scenario, ground, rank);
            command.stdin(ends.gate.try_clone().unwrap());
            command.stdout(ends.report.try_clone().unwrap());
            match &listener {
                _ if rank != if keeper { None } else { Some(0) } => {}
                Some(listener) => keep_open(&mut command, listener),
                None => drop(command.env(LISTEN, "new")),
            }
            let child = command.spawn().unwrap();
            let pid = child.id();
            let said = Vec::new();
            crew.members.push(Member { rank, pid, child: Some(child), status: None, said });
        }
        crew
    }

    /// Returns a value without processes, and the pipe ends that the processes will get.
    fn empty(ground: &Ground<'_>, port: u16) -> (Self, Ends) {
        let (reader, report) = pipe().unwrap();
        let (gate, opened) = pipe().unwrap();
        let (sender, lines) = channel();
        let hear = move || hear(reader, |name, said| drop(sender.send((name, said))));
        let crew = Self {
            members: Vec::new(),
            port,
            lines,
            reader: Some(std::thread::Builder::new().spawn(hear).unwrap()),
            gate: Some(opened),
            folder: ground.folder.to_owned(),
            sockets: BTreeSet::new(),
        };
        (crew, Ends { report, gate })
    }

    fn command(&self, scenario: &Scenario, ground: &Ground<'_>, rank: Option<usize>) -> Command {
        let program = std::env::current_exe().unwrap();
        let place =
            rank.map_or(ground.places.first(), |rank| ground.places.get(scenario.hosts[rank]));
        let mut words = place.map_or(Vec::new(), |place| place.command_prefix().to_vec());
        words.push(program.to_str().unwrap().to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(ENTRY);
        let name = rank.map_or(KEEPER.to_owned(), |rank| rank.to_string());
        let host = ground.places.first().map_or("127.0.0.1", TestHost::address);
        command.env(ORIGIN, &scenario.origin).env(NAME, name);
        command.env(RUN, std::process::id().to_string());
        command.env(STORE, format!("{host} {}", self.port));
        command.env("TMPDIR", ground.folder.join("tmp"));
        command.env("DIST_HEARTBEAT_LIMIT_MS", scenario.heartbeat_limit_ms.to_string());
        let errors = File::options().create(true).append(true).open(self.folder.join("err"));
        command.stderr(errors.unwrap());
        command
    }

    /// Starts ranks that use a file store on a disk of `pages` pages. Returns `None` if the shell
    /// cannot be started.
    pub(crate) fn start_on_disk(
        scenario: &Scenario,
        ground: &Ground<'_>,
        pages: u64,
    ) -> Option<Self> {
        let disk = ground.folder.join("disk");
        fs::create_dir_all(&disk).unwrap();
        let mount = format!("mount -t tmpfs -o size={} none \"$1\"", pages * 4096);
        // The mount is in a separate namespace, so that the kernel removes it in every case. The
        // shell connects background jobs to no input, therefore descriptor 3 carries it.
        let script = format!(
            "{mount} || exit 99; exec 3<&0; rank=0; while [ $rank -lt {} ]; do {NAME}=$rank \"$2\" {} <&3 & \
             rank=$((rank + 1)); done; wait",
            scenario.size,
            ENTRY.join(" ")
        );
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script, "sh"]).arg(&disk);
        command.arg(std::env::current_exe().unwrap());
        command.env(ORIGIN, &scenario.origin).env(STORE, disk.join("store"));
        command.env(RUN, std::process::id().to_string());
        command.env("TMPDIR", ground.folder.join("tmp"));
        let errors = File::options().create(true).append(true).open(ground.folder.join("err"));
        command.stderr(errors.unwrap());
        let (mut crew, ends) = Self::empty(ground, 0);
        command.stdin(ends.gate).stdout(ends.report);
        let child = command.spawn().ok()?;
        let member = |rank, child, pid, said| Member { rank, pid, child, status: None, said };
        crew.members =
            (0..scenario.size).map(|rank| member(Some(rank), None, 0, Vec::new())).collect();
        let pid = child.id();
        crew.members.push(member(None, Some(child), pid, vec![Said::Left]));
        Some(crew)
    }

    /// Receives one report, or waits for at most `at_most`. Returns false if no process can report
    /// any more.
    pub(crate) fn hear(&mut self, at_most: Duration) -> bool {
        match self.lines.recv_timeout(at_most) {
            Ok((name, said)) => {
                let rank = name.parse().ok();
                if let Some(member) = self.members.iter_mut().find(|member| member.rank == rank) {
                    if let Said::Start(pid) = said {
                        member.pid = pid;
                    }
                    member.said.push(said);
                }
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.look();
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Records the exit status of each process that has exited.
    fn look(&mut self) {
        for member in &mut self.members {
            if member.status.is_none() {
                member.status = member.child.as_mut().and_then(|child| child.try_wait().unwrap());
            }
        }
    }

    /// Receives reports until `holds` returns true or all processes have exited. Returns false
    /// after `limit`.
    pub(crate) fn until(&mut self, limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let began = Instant::now();
        while !holds(self) {
            if began.elapsed() > limit {
                return false;
            }
            if !self.hear(Duration::from_millis(20)) {
                return true;
            }
        }
        true
    }

    pub(crate) fn member(&self, rank: Option<usize>) -> &Member {
        self.members.iter().find(|member| member.rank == rank).unwrap()
    }

    /// Records the sockets that the processes hold at present.
    pub(crate) fn note_sockets(&mut self) {
        let pids: Vec<u32> = self.members.iter().map(|member| member.pid).collect();
        self.sockets.extend(leftovers::sockets_of(&pids));
    }

    /// Lets the waiting processes exit and receives their last reports. Returns false if a process
    /// does not exit in time.
    pub(crate) fn finish(&mut self) -> bool {
        drop(self.gate.take());
        let began = Instant::now();
        while began.elapsed() < ENDING {
            if !self.hear(Duration::from_millis(20)) {
                self.reap();
                return true;
            }
        }
        false
    }

    /// Waits for the processes; they have closed all descriptors and are about to exit.
    fn reap(&mut self) {
        for member in &mut self.members {
            if member.status.is_none() {
                member.status = member.child.as_mut().map(|child| child.wait().unwrap());
            }
        }
    }

    /// Returns the resources that remain after all processes have exited.
    pub(crate) fn left_behind(&self) -> Vec<String> {
        let mut left = leftovers::leftover_sockets(&[], &self.sockets, NO_PORT);
        let began = Instant::now();
        // The kernel closes the descriptors of a process shortly after it reports the exit.
        while !left.is_empty() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
            left = leftovers::leftover_sockets(&[], &self.sockets, NO_PORT);
        }
        let files = fs::read_dir(self.folder.join("tmp")).into_iter().flatten().flatten();
        left.extend(files.map(|file| format!("file {}", file.path().display())));
        left
    }

    /// Returns the standard error output of all processes.
    pub(crate) fn errors(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("err")).unwrap_or_default()).into_owned()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        drop(self.gate.take());
        for member in &mut self.members {
            if let Some(child) = &mut member.child {
                drop(child.kill());
                drop(child.wait());
            } else if member.pid != 0 && !member.said.iter().any(|said| matches!(said, Said::Done))
            {
                crate::harness::signal("KILL", &[member.pid]);
            }
        }
        drop(self.reader.take().map(JoinHandle::join));
    }
}

/// Reads report lines until all processes have closed the other end.
fn hear(reader: PipeReader, tell: impl Fn(String, Said)) {
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        // The output also contains lines of the test harness.
        let Some((_, text)) = line.split_once(MARK) else { continue };
        if let Some((name, said)) = text.split_once(' ')
            && let Some(said) = Said::parse(said)
        {
            tell(name.to_owned(), said);
        }
    }
}

/// Lets a child inherit a listening socket, and passes its descriptor number in the environment.
#[allow(unsafe_code, reason = "what a child inherits is decided between fork and exec")]
fn keep_open(command: &mut Command, listener: &TcpListener) {
    let fd = listener.as_raw_fd();
    command.env(LISTEN, fd.to_string());
    let keep = move || {
        // SAFETY: the call changes a flag of a descriptor that is open in the child, and is
        // async-signal-safe after `fork`.
        match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(keep) };
}
