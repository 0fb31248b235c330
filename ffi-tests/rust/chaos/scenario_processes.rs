//! The processes of a scenario from the driver's side. The driver starts them, reads their reports,
//! and ends them in every case.

use crate::RUN_VARIABLE;
use crate::body::{
    LISTEN_VARIABLE, NAME_VARIABLE, REPORT_PREFIX, SCENARIO_VARIABLE, STORE_HOST_NAME,
    STORE_VARIABLE,
};
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
const RANK_ARGUMENTS: [&str; 6] =
    ["body::entry", "--exact", "--ignored", "--quiet", "--nocapture", "--test-threads=1"];

/// No port to check: another test may already use this one. The leak check compares the socket
/// numbers instead.
const ANY_PORT: u16 = 0;

/// The port of a store on a host with its own network namespace.
pub(crate) const NAMESPACE_STORE_PORT: u16 = 29_500;

/// The maximum time until the processes exit after their last step.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A report from a process.
#[derive(Clone, Debug)]
pub(crate) enum RankReport {
    Start(u32),
    Begin(usize),
    End {
        step: usize,
        status: i32,
        over_ms: i64,
        at_us: u64,
        text: String,
    },
    WrongResult(String),
    /// The rank that the library calls the culprit of the world's failure, and the kind of its
    /// failure.
    Culprit {
        step: usize,
        rank: usize,
        kind: i32,
    },
    /// The size of the group that a shrink has made.
    Rest(usize),
    /// The process id of a child that the rank has forked.
    Forked(u32),
    Finalized,
    Done,
}

impl RankReport {
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
            "culprit" => {
                let mut parts = rest.splitn(3, ' ');
                Self::Culprit {
                    step: parts.next()?.parse().ok()?,
                    rank: parts.next()?.parse().ok()?,
                    kind: parts.next()?.parse().ok()?,
                }
            }
            "rest" => Self::Rest(rest.parse().ok()?),
            "forked" => Self::Forked(rest.parse().ok()?),
            "wrong" => Self::WrongResult(rest.to_owned()),
            "left" => Self::Finalized,
            "done" => Self::Done,
            _ => return None,
        })
    }
}

/// A process of the scenario.
pub(crate) struct ScenarioProcess {
    /// The rank; `None` for the store host process.
    pub(crate) rank: Option<usize>,
    pub(crate) pid: u32,
    child: Option<Child>,
    pub(crate) status: Option<ExitStatus>,
    pub(crate) reports: Vec<RankReport>,
}

impl ScenarioProcess {
    /// Returns the exit status, or 128 plus the number of the signal that ended the process.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let status = self.status?;
        status.code().or_else(|| Some(128 + status.signal().unwrap_or(0)))
    }

    /// Returns true if the process has reported that it left the library, or has exited.
    pub(crate) fn has_left(&self) -> bool {
        self.status.is_some()
            || self.reports.iter().any(|report| matches!(report, RankReport::Finalized))
    }
}

/// The pipe ends for the processes: they report through one and wait on the other.
struct PipeEnds {
    report: PipeWriter,
    gate_reader: PipeReader,
}

/// All processes of a scenario.
pub(crate) struct ScenarioProcesses {
    pub(crate) processes: Vec<ScenarioProcess>,
    /// The port of the store.
    pub(crate) port: u16,
    reports: Receiver<(String, RankReport)>,
    reader: Option<JoinHandle<()>>,
    gate_writer: Option<PipeWriter>,
    folder: PathBuf,
    /// The socket numbers that the driver has seen in the processes.
    sockets: BTreeSet<u64>,
}

/// Where a scenario runs.
pub(crate) struct ScenarioEnvironment<'a> {
    /// An existing folder for this scenario only.
    pub(crate) folder: &'a Path,
    /// The emulated hosts (network namespaces), in the scenario's order. If empty, all processes
    /// run on this host and only have different host names.
    pub(crate) hosts: &'a [TestHost],
    /// The port of the store if the driver hosts it; the driver is then rank 0.
    pub(crate) driver_store_port: Option<u16>,
}

impl ScenarioProcesses {
    /// Starts all processes.
    pub(crate) fn start(scenario: &Scenario, environment: &ScenarioEnvironment<'_>) -> Self {
        // The process that hosts the store inherits a listening socket, so that its port cannot be
        // in use. A host with its own network namespace needs no such socket, since all its ports
        // are free.
        let is_here = environment.hosts.is_empty() && environment.driver_store_port.is_none();
        let listener = is_here.then(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let own = listener.as_ref().map(|listener| listener.local_addr().unwrap().port());
        let port = environment.driver_store_port.or(own).unwrap_or(NAMESPACE_STORE_PORT);
        let (mut started, ends) = Self::without_processes(environment, port);
        let has_store_process =
            scenario.has_store_process && environment.driver_store_port.is_none();
        let ranks = (usize::from(environment.driver_store_port.is_some())..scenario.size).map(Some);
        for rank in has_store_process.then_some(None).into_iter().chain(ranks) {
            let mut command = started.command(scenario, environment, rank);
            command.stdin(ends.gate_reader.try_clone().unwrap());
            command.stdout(ends.report.try_clone().unwrap());
            match &listener {
                _ if rank != if has_store_process { None } else { Some(0) } => {}
                Some(listener) => inherit_listener(&mut command, listener),
                None => drop(command.env(LISTEN_VARIABLE, "new")),
            }
            let child = command.spawn().unwrap();
            let pid = child.id();
            let reports = Vec::new();
            started.processes.push(ScenarioProcess {
                rank,
                pid,
                child: Some(child),
                status: None,
                reports,
            });
        }
        started
    }

    /// Returns a value without processes, and the pipe ends that the processes will get.
    fn without_processes(environment: &ScenarioEnvironment<'_>, port: u16) -> (Self, PipeEnds) {
        let (reader, report) = pipe().unwrap();
        let (gate, opened) = pipe().unwrap();
        let (sender, lines) = channel();
        let read_thread =
            move || read_reports(reader, |name, report| drop(sender.send((name, report))));
        let processes = Self {
            processes: Vec::new(),
            port,
            reports: lines,
            reader: Some(std::thread::Builder::new().spawn(read_thread).unwrap()),
            gate_writer: Some(opened),
            folder: environment.folder.to_owned(),
            sockets: BTreeSet::new(),
        };
        (processes, PipeEnds { report, gate_reader: gate })
    }

    fn command(
        &self,
        scenario: &Scenario,
        environment: &ScenarioEnvironment<'_>,
        rank: Option<usize>,
    ) -> Command {
        let program = std::env::current_exe().unwrap();
        let host_of_rank = rank
            .map_or(environment.hosts.first(), |rank| environment.hosts.get(scenario.hosts[rank]));
        let mut words = host_of_rank.map_or(Vec::new(), |host| host.command_prefix().to_vec());
        words.push(program.to_str().unwrap().to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(RANK_ARGUMENTS);
        let name = rank.map_or(STORE_HOST_NAME.to_owned(), |rank| rank.to_string());
        let host = environment.hosts.first().map_or("127.0.0.1", TestHost::address);
        command.env(SCENARIO_VARIABLE, &scenario.origin).env(NAME_VARIABLE, name);
        command.env(RUN_VARIABLE, std::process::id().to_string());
        command.env(STORE_VARIABLE, format!("{host} {}", self.port));
        command.env("TMPDIR", environment.folder.join("tmp"));
        command.env("DIST_HEARTBEAT_LIMIT_MS", scenario.heartbeat_limit_ms.to_string());
        let errors = File::options().create(true).append(true).open(self.folder.join("err"));
        command.stderr(errors.unwrap());
        command
    }

    /// Starts ranks that use a file store on a disk of `pages` pages. Returns `None` if the shell
    /// cannot be started.
    pub(crate) fn start_on_disk(
        scenario: &Scenario,
        environment: &ScenarioEnvironment<'_>,
        pages: u64,
    ) -> Option<Self> {
        let disk = environment.folder.join("disk");
        fs::create_dir_all(&disk).unwrap();
        let mount = format!("mount -t tmpfs -o size={} none \"$1\"", pages * 4096);
        // The mount is in a separate namespace, so that the kernel removes it in every case. The
        // shell connects background jobs to no input, therefore descriptor 3 carries it.
        let script = format!(
            "{mount} || exit 99; exec 3<&0; rank=0; while [ $rank -lt {} ]; do {NAME_VARIABLE}=$rank \"$2\" {} <&3 & \
             rank=$((rank + 1)); done; wait",
            scenario.size,
            RANK_ARGUMENTS.join(" ")
        );
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script, "sh"]).arg(&disk);
        command.arg(std::env::current_exe().unwrap());
        command.env(SCENARIO_VARIABLE, &scenario.origin).env(STORE_VARIABLE, disk.join("store"));
        command.env(RUN_VARIABLE, std::process::id().to_string());
        command.env("TMPDIR", environment.folder.join("tmp"));
        let errors = File::options().create(true).append(true).open(environment.folder.join("err"));
        command.stderr(errors.unwrap());
        let (mut started, ends) = Self::without_processes(environment, 0);
        command.stdin(ends.gate_reader).stdout(ends.report);
        let child = command.spawn().ok()?;
        let process =
            |rank, child, pid, reports| ScenarioProcess { rank, pid, child, status: None, reports };
        started.processes =
            (0..scenario.size).map(|rank| process(Some(rank), None, 0, Vec::new())).collect();
        let pid = child.id();
        started.processes.push(process(None, Some(child), pid, vec![RankReport::Finalized]));
        Some(started)
    }

    /// Receives one report, or waits for at most `at_most`. Returns false if no process can report
    /// any more.
    pub(crate) fn receive_report(&mut self, at_most: Duration) -> bool {
        match self.reports.recv_timeout(at_most) {
            Ok((name, report)) => {
                let rank = name.parse().ok();
                if let Some(member) = self.processes.iter_mut().find(|member| member.rank == rank) {
                    if let RankReport::Start(pid) = report {
                        member.pid = pid;
                    }
                    member.reports.push(report);
                }
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.poll_exits();
                true
            }
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Records the exit status of each process that has exited.
    fn poll_exits(&mut self) {
        for member in &mut self.processes {
            if member.status.is_none() {
                member.status = member.child.as_mut().and_then(|child| child.try_wait().unwrap());
            }
        }
    }

    /// Receives reports until `holds` returns true or all processes have exited. Returns false
    /// after `limit`.
    pub(crate) fn receive_until(
        &mut self,
        limit: Duration,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> bool {
        let began = Instant::now();
        while !holds(self) {
            if began.elapsed() > limit {
                return false;
            }
            if !self.receive_report(Duration::from_millis(20)) {
                return true;
            }
        }
        true
    }

    pub(crate) fn process(&self, rank: Option<usize>) -> &ScenarioProcess {
        self.processes.iter().find(|member| member.rank == rank).unwrap()
    }

    /// Records the sockets that the processes hold at present.
    pub(crate) fn record_sockets(&mut self) {
        let pids: Vec<u32> = self.processes.iter().map(|member| member.pid).collect();
        self.sockets.extend(leftovers::sockets_of(&pids));
    }

    /// Lets the waiting processes exit and receives their last reports. Returns false if a process
    /// does not exit in time.
    pub(crate) fn finish(&mut self) -> bool {
        drop(self.gate_writer.take());
        self.kill_forked_children();
        let began = Instant::now();
        while began.elapsed() < EXIT_TIMEOUT {
            if !self.receive_report(Duration::from_millis(20)) {
                self.reap();
                return true;
            }
        }
        false
    }

    /// Kills the children that outlive their ranks.
    fn kill_forked_children(&self) {
        let reports = self.processes.iter().flat_map(|member| &member.reports);
        let forked = reports.filter_map(|report| match report {
            RankReport::Forked(pid) => Some(*pid),
            _ => None,
        });
        let children: Vec<u32> = forked.collect();
        if !children.is_empty() {
            crate::harness::signal("KILL", &children);
        }
    }

    /// Waits for the processes; they have closed all descriptors and are about to exit.
    fn reap(&mut self) {
        for member in &mut self.processes {
            if member.status.is_none() {
                member.status = member.child.as_mut().map(|child| child.wait().unwrap());
            }
        }
    }

    /// Returns the resources that remain after all processes have exited.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let entry = format!("TMPDIR={}", self.folder.join("tmp").display());
        leftovers::end_witnesses(&leftovers::processes_with_environment(&entry));
        let mut leftovers = leftovers::leftover_sockets(&[], &self.sockets, ANY_PORT);
        let began = Instant::now();
        // The kernel closes the descriptors of a process shortly after it reports the exit.
        while !leftovers.is_empty() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
            leftovers = leftovers::leftover_sockets(&[], &self.sockets, ANY_PORT);
        }
        let files = fs::read_dir(self.folder.join("tmp")).into_iter().flatten().flatten();
        leftovers.extend(files.map(|file| format!("file {}", file.path().display())));
        leftovers
    }

    /// Returns the standard error output of all processes.
    pub(crate) fn errors(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("err")).unwrap_or_default()).into_owned()
    }
}

impl Drop for ScenarioProcesses {
    fn drop(&mut self) {
        if self.gate_writer.take().is_some() {
            self.kill_forked_children();
        }
        for member in &mut self.processes {
            if let Some(child) = &mut member.child {
                drop(child.kill());
                drop(child.wait());
            } else if member.pid != 0
                && !member.reports.iter().any(|report| matches!(report, RankReport::Done))
            {
                crate::harness::signal("KILL", &[member.pid]);
            }
        }
        drop(self.reader.take().map(JoinHandle::join));
    }
}

/// Reads report lines until all processes have closed the other end.
fn read_reports(reader: PipeReader, send_report: impl Fn(String, RankReport)) {
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        // The output also contains lines of the test harness.
        let Some((_, text)) = line.split_once(REPORT_PREFIX) else { continue };
        if let Some((name, report)) = text.split_once(' ')
            && let Some(report) = RankReport::parse(report)
        {
            send_report(name.to_owned(), report);
        }
    }
}

/// Lets a child inherit a listening socket, and passes its descriptor number in the environment.
#[allow(unsafe_code, reason = "what a child inherits is decided between fork and exec")]
fn inherit_listener(command: &mut Command, listener: &TcpListener) {
    let fd = listener.as_raw_fd();
    command.env(LISTEN_VARIABLE, fd.to_string());
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
