//! Jobs of real processes under a deadline: starts them, hears what they report, kills and stops
//! them, and makes sure that nothing of them is left, also where the test fails.
//!
//! The processes are workers (see [`crate::worker`]); they write their reports to files of the
//! job's folder, so that it does not matter what a launcher does with their output. The folder's
//! name is in the environment of every process of the job, its grandchildren included, which is how
//! they are found.
#![allow(dead_code, reason = "each test program uses its own part")]

mod place;
mod report;
pub(crate) mod residue;

pub(crate) use place::Place;
pub(crate) use report::Report;

use crate::worker::{FOLDER, NAME, PROGRAM, now_us};
use residue::Before;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a job may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// What makes the test program run as a worker.
const ENTRY: [&str; 6] =
    ["worker::entry", "--exact", "--ignored", "--quiet", "--nocapture", "--test-threads=1"];

/// A number for everything that must differ between jobs.
pub(crate) fn serial() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// A process of a job.
struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

/// Processes that belong together.
pub(crate) struct Job {
    /// The port of its store, free when the job began.
    pub(crate) port: u16,
    folder: PathBuf,
    before: Before,
    began: Instant,
    processes: Vec<Process>,
    /// The sockets that its processes were seen to hold.
    sockets: BTreeSet<u64>,
    /// How to get to the networks that its processes are on, beside this one.
    prefixes: BTreeSet<Vec<String>>,
}

impl Job {
    /// One without processes.
    pub(crate) fn new() -> Self {
        let name = format!("job-{}-{}", std::process::id(), serial());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(folder.join("tmp")).unwrap();
        Self {
            port: free_port(),
            folder,
            before: Before::now(),
            began: Instant::now(),
            processes: Vec::new(),
            sockets: BTreeSet::new(),
            prefixes: BTreeSet::new(),
        }
    }

    /// Ranks that are started by hand: without a launcher, rank 0 hosts the store.
    pub(crate) fn by_hand(size: usize, program: impl Fn(usize) -> String) -> Self {
        let mut job = Self::new();
        for rank in 0..size {
            job.start_rank(rank, size, &program(rank));
        }
        job
    }

    /// Ranks that are started by hand on several hosts, one for each entry of `places`; the first
    /// of them has the address `master`.
    pub(crate) fn spread(
        places: &[Place],
        master: &str,
        program: impl Fn(usize) -> String,
    ) -> Self {
        let mut job = Self::new();
        for (rank, place) in places.iter().enumerate() {
            let environment = job.environment_towards(master, rank, places.len());
            job.start_at(place, &rank.to_string(), &environment, &program(rank));
        }
        job
    }

    /// Starts one rank by hand.
    pub(crate) fn start_rank(&mut self, rank: usize, size: usize, program: &str) {
        let environment = self.environment(rank, size);
        self.start(&rank.to_string(), &environment, program);
    }

    /// What a user sets who starts a rank by hand.
    pub(crate) fn environment(&self, rank: usize, size: usize) -> Vec<(&'static str, String)> {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", self.port.to_string()),
        ]
    }

    /// The same where rank 0 has another address than this network's own.
    pub(crate) fn environment_towards(
        &self,
        master: &str,
        rank: usize,
        size: usize,
    ) -> Vec<(&'static str, String)> {
        let mut environment = self.environment(rank, size);
        environment.retain(|(name, _)| *name != "MASTER_ADDR");
        environment.push(("MASTER_ADDR", master.to_owned()));
        environment
    }

    /// Starts a worker under a name, with this environment and nothing that a launcher sets.
    pub(crate) fn start(&mut self, name: &str, environment: &[(&str, String)], program: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        scrub(&mut command);
        command.args(ENTRY).env(NAME, name).env(PROGRAM, program);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// The same on a host, which gives it its identity.
    pub(crate) fn start_at(
        &mut self,
        place: &Place,
        name: &str,
        environment: &[(&str, String)],
        program: &str,
    ) {
        let mut command = self.command_at(place, std::env::current_exe().unwrap().as_os_str());
        command.args(ENTRY).env(NAME, name).env(PROGRAM, program);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// Starts a program that is no worker on a host.
    pub(crate) fn start_program_at(
        &mut self,
        place: &Place,
        name: &str,
        environment: &[(&str, String)],
        words: &[&str],
    ) {
        let mut command = self.command_at(place, OsStr::new(words[0]));
        command.args(&words[1..]);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// A command on a host with nothing that a launcher sets. What the job leaves is looked for
    /// there.
    fn command_at(&mut self, place: &Place, program: &OsStr) -> Command {
        let mut words = place.prefix().iter().map(OsStr::new).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        scrub(&mut command);
        command.env("DIST_HOST_ID", place.identity());
        if !place.prefix().is_empty() {
            self.prefixes.insert(place.prefix().to_vec());
        }
        command
    }

    /// Starts workers through a launcher: `command` is to end where its program begins.
    pub(crate) fn start_under(&mut self, name: &str, mut command: Command, program: &str) {
        scrub(&mut command);
        command.arg(std::env::current_exe().unwrap()).args(ENTRY).env(PROGRAM, program);
        self.launch(name, command);
    }

    fn launch(&mut self, name: &str, mut command: Command) {
        let file = |kind: &str| File::create(self.folder.join(format!("{name}.{kind}"))).unwrap();
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        command.env(FOLDER, &self.folder).env("TMPDIR", self.folder.join("tmp"));
        let child = command.spawn().unwrap();
        self.processes.push(Process { name: name.to_owned(), child, ended: None });
    }

    /// Waits for the first report on a command, and returns it.
    pub(crate) fn report(&mut self, name: &str, what: &str) -> Report {
        loop {
            if let Some(report) = self.reports(name).into_iter().find(|it| it.what == what) {
                self.sockets.extend(residue::sockets(&self.living()));
                return report;
            }
            self.poll(&format!("{name} to report \"{what}\""));
        }
    }

    /// Waits until all of these have reported a command.
    pub(crate) fn all_report(&mut self, names: &[impl AsRef<str>], what: &str) {
        for name in names {
            drop(self.report(name.as_ref(), what));
        }
    }

    /// The reports so far, in order.
    pub(crate) fn reports(&self, name: &str) -> Vec<Report> {
        let path = self.folder.join(format!("{name}.reports"));
        report::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Everything that a process has written to standard error.
    pub(crate) fn errors(&self, name: &str) -> String {
        self.written(name, "err")
    }

    fn written(&self, name: &str, kind: &str) -> String {
        let bytes = fs::read(self.folder.join(format!("{name}.{kind}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Lets everybody pass a gate.
    pub(crate) fn open(&self, gate: &str) {
        drop(File::create(self.folder.join(gate)).unwrap());
    }

    /// Waits until something holds.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        while !holds(self) {
            self.poll(what);
        }
    }

    fn poll(&self, what: &str) {
        assert!(self.began.elapsed() < LIMIT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }

    /// The process id of a worker.
    pub(crate) fn pid(&mut self, name: &str) -> u32 {
        self.report(name, "start").pid
    }

    /// A file of the job's own, which goes with it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Kills a worker; returns when that was, on the clock of the reports.
    pub(crate) fn kill(&mut self, name: &str) -> u64 {
        let pid = self.pid(name);
        let at = now_us();
        signal("KILL", &[pid]);
        at
    }

    /// Stops a worker, and waits until it is.
    pub(crate) fn stop(&mut self, name: &str) {
        let pid = self.pid(name);
        signal("STOP", &[pid]);
        self.until("the worker to stop", |_| residue::state(pid) == Some('T'));
    }

    /// Lets a stopped worker go on.
    pub(crate) fn resume(&mut self, name: &str) {
        let pid = self.pid(name);
        signal("CONT", &[pid]);
    }

    /// Kills what the workers have forked and left behind, and waits until it is gone.
    pub(crate) fn kill_orphans(&mut self) -> usize {
        self.wait();
        let orphans = self.living();
        signal("KILL", &orphans);
        self.until("the orphans to end", |job| job.living().is_empty());
        orphans.len()
    }

    /// Waits for the processes that were started.
    fn wait(&mut self) {
        for index in 0..self.processes.len() {
            while self.processes[index].ended.is_none() {
                let process = &mut self.processes[index];
                process.ended = process.child.try_wait().unwrap();
                if process.ended.is_none() {
                    self.poll(&format!("the end of {}", self.processes[index].name));
                }
            }
        }
    }

    /// Waits until all processes have ended, makes sure that nothing is left of them, and returns
    /// what the job has done.
    pub(crate) fn finish(mut self) -> Ended {
        self.wait();
        let mut left = Vec::new();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            left = self.before.left(&self.folder, &self.living());
            left.extend(residue::on_network(&[], &self.sockets, self.port));
            for prefix in &self.prefixes {
                left.extend(residue::on_network(prefix, &self.sockets, self.port));
            }
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(left.is_empty(), "left behind: {}", left.join("; "));
        Ended(self)
    }

    /// The names of the abstract sockets on which its ranks listen for each other at this moment.
    pub(crate) fn abstract_sockets(&self) -> Vec<String> {
        let pids: Vec<u32> = self.processes.iter().map(|process| process.child.id()).collect();
        residue::abstract_names(&residue::sockets(&pids))
    }

    /// The processes of the job that are alive, whoever started them.
    pub(crate) fn living(&self) -> Vec<u32> {
        residue::processes(&format!("{FOLDER}={}", self.folder.display()))
    }
}

/// A job whose processes have ended.
pub(crate) struct Ended(Job);

impl Ended {
    /// How a process has ended: its exit status, or 128 plus the signal.
    pub(crate) fn status(&self, name: &str) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        let process = self.0.processes.iter().find(|process| process.name == name).unwrap();
        let ended = process.ended.unwrap();
        ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0))
    }

    /// What a worker has reported.
    pub(crate) fn reports(&self, name: &str) -> Vec<Report> {
        self.0.reports(name)
    }

    /// Asserts that a worker has made this many reports, all of success.
    pub(crate) fn all_succeeded(&self, name: &str, count: usize) {
        let reports = self.reports(name);
        assert_eq!(reports.len(), count, "{reports:?}");
        reports.iter().for_each(|report| assert_eq!(report.status, 0, "{report:?}"));
    }

    /// The first report on a command.
    pub(crate) fn report(&self, name: &str, what: &str) -> Report {
        let found = self.reports(name).into_iter().find(|report| report.what == what);
        found.unwrap_or_else(|| panic!("{name} has not reported \"{what}\""))
    }

    /// The first report on a command behind the one on another.
    pub(crate) fn report_after(&self, name: &str, what: &str, earlier: &str) -> Report {
        let mut reports =
            self.reports(name).into_iter().skip_while(|report| report.what != earlier);
        let found = reports.by_ref().skip(1).find(|report| report.what == what);
        found.unwrap_or_else(|| panic!("{name} has not reported \"{what}\" after \"{earlier}\""))
    }

    /// A file of the job's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// Everything that a process has written to standard error.
    pub(crate) fn errors(&self, name: &str) -> String {
        self.0.errors(name)
    }

    /// Everything that a process has written to standard output.
    pub(crate) fn output(&self, name: &str) -> String {
        self.0.written(name, "out")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A launcher may start more while its ranks are killed; it is among the first to be.
        for _ in 0..3 {
            let living = self.living();
            if !living.is_empty() {
                signal("KILL", &living);
            }
        }
        for process in &mut self.processes {
            drop(process.child.kill());
            drop(process.child.wait());
        }
        if std::thread::panicking() {
            self.tell();
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Job {
    /// Prints what there is to know about a job whose test has failed.
    fn tell(&self) {
        let mut files: Vec<PathBuf> = fs::read_dir(&self.folder)
            .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
            .unwrap_or_default();
        files.sort();
        for file in files.iter().filter(|file| file.is_file()) {
            let text = fs::read(file).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            println!("--- {name}\n{}", text.trim_end());
        }
    }
}

/// Takes out of a command's environment what any launcher sets.
fn scrub(command: &mut Command) {
    let of_a_launcher = ["OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_", "DIST_"];
    let of_torch = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
    for (name, _) in std::env::vars() {
        if of_a_launcher.iter().any(|prefix| name.starts_with(prefix))
            || of_torch.contains(&name.as_str())
        {
            command.env_remove(name);
        }
    }
}

/// Sends a signal to processes; those that are gone already do not count.
pub(crate) fn signal(name: &str, pids: &[u32]) {
    if !pids.is_empty() {
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let script = format!("kill -{name} {} 2>/dev/null", pids.join(" "));
        // Its outcome says no more than that one of them was gone.
        Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
    }
}

/// A port that nobody uses, and that the kernel gives to nobody who asks for any.
pub(crate) fn free_port() -> u16 {
    let first = std::process::id() % 100 * 100;
    for _ in 0..10_000 {
        let port = u16::try_from(20_000 + (first + serial()) % 10_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("there is no free port from 20000 to 30000");
}
