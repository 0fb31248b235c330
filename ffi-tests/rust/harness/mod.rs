//! Runs jobs of real processes under a deadline: starts them, reads their reports, kills and stops
//! them. It checks that no resources of them remain, and removes them also if the test fails.
//!
//! The processes are workers (see [`crate::worker`]). They write their reports to files in the
//! job's folder, so that the output handling of a launcher does not matter. The environment of
//! every process of the job, including grandchildren, has the folder's name; the harness finds the
//! processes by it.
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

/// The time limit of a job on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Arguments that make the test binary run as a worker.
const ENTRY: [&str; 6] =
    ["worker::entry", "--exact", "--ignored", "--quiet", "--nocapture", "--test-threads=1"];

/// Returns a number that is unique in this process, for names and ports of jobs.
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

/// A job: the processes of one test, with their store port and folder.
pub(crate) struct Job {
    /// The port of the job's store; it was free when the job began.
    pub(crate) port: u16,
    folder: PathBuf,
    before: Before,
    began: Instant,
    processes: Vec<Process>,
    /// The inodes of the sockets that the harness has seen in the processes.
    sockets: BTreeSet<u64>,
    /// The command prefixes for the other network namespaces of the job's processes.
    prefixes: BTreeSet<Vec<String>>,
}

impl Job {
    /// Creates a job without processes.
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

    /// Starts ranks without a launcher; rank 0 hosts the store.
    pub(crate) fn by_hand(size: usize, program: impl Fn(usize) -> String) -> Self {
        let mut job = Self::new();
        for rank in 0..size {
            job.start_rank(rank, size, &program(rank));
        }
        job
    }

    /// Starts ranks without a launcher, one on each host in `places`; `master` is the address of
    /// the first host.
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

    /// Starts one rank without a launcher.
    pub(crate) fn start_rank(&mut self, rank: usize, size: usize, program: &str) {
        let environment = self.environment(rank, size);
        self.start(&rank.to_string(), &environment, program);
    }

    /// Returns the variables that a user sets to start a rank without a launcher.
    pub(crate) fn environment(&self, rank: usize, size: usize) -> Vec<(&'static str, String)> {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", self.port.to_string()),
        ]
    }

    /// As [`Self::environment`], with `master` as the address of rank 0.
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

    /// Starts a worker with this name and environment, without the variables of a launcher.
    pub(crate) fn start(&mut self, name: &str, environment: &[(&str, String)], program: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        scrub(&mut command);
        command.args(ENTRY).env(NAME, name).env(PROGRAM, program);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// As [`Self::start`], on a host; the host sets the worker's host id.
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

    /// Starts a program on a host; the program is not a worker.
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

    /// Returns a command on a host without the variables of a launcher. The leak check of the job
    /// includes the host's network.
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

    /// Starts workers through a launcher. `command` is the launcher's command line up to the
    /// program.
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

    /// Waits for the first report on a command and returns it.
    pub(crate) fn report(&mut self, name: &str, what: &str) -> Report {
        loop {
            if let Some(report) = self.reports(name).into_iter().find(|it| it.what == what) {
                self.sockets.extend(residue::sockets(&self.living()));
                return report;
            }
            self.poll(&format!("{name} to report \"{what}\""));
        }
    }

    /// Waits until all workers in `names` have reported a command.
    pub(crate) fn all_report(&mut self, names: &[impl AsRef<str>], what: &str) {
        for name in names {
            drop(self.report(name.as_ref(), what));
        }
    }

    /// Returns the reports so far, in order.
    pub(crate) fn reports(&self, name: &str) -> Vec<Report> {
        let path = self.folder.join(format!("{name}.reports"));
        report::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Returns the standard error output of a process.
    pub(crate) fn errors(&self, name: &str) -> String {
        self.written(name, "err")
    }

    fn written(&self, name: &str, kind: &str) -> String {
        let bytes = fs::read(self.folder.join(format!("{name}.{kind}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Opens a gate for all workers.
    pub(crate) fn open(&self, gate: &str) {
        drop(File::create(self.folder.join(gate)).unwrap());
    }

    /// Waits until `holds` returns true.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        while !holds(self) {
            self.poll(what);
        }
    }

    fn poll(&self, what: &str) {
        assert!(self.began.elapsed() < LIMIT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }

    /// Returns the process id of a worker.
    pub(crate) fn pid(&mut self, name: &str) -> u32 {
        self.report(name, "start").pid
    }

    /// Returns the path of a file in the job's folder, which is removed with the job.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Kills a worker and returns the time of the kill, on the clock of the reports.
    pub(crate) fn kill(&mut self, name: &str) -> u64 {
        let pid = self.pid(name);
        let at = now_us();
        signal("KILL", &[pid]);
        at
    }

    /// Stops a worker and waits until it has stopped.
    pub(crate) fn stop(&mut self, name: &str) {
        let pid = self.pid(name);
        signal("STOP", &[pid]);
        self.until("the worker to stop", |_| residue::state(pid) == Some('T'));
    }

    /// Resumes a stopped worker.
    pub(crate) fn resume(&mut self, name: &str) {
        let pid = self.pid(name);
        signal("CONT", &[pid]);
    }

    /// Kills the orphaned children of the workers, waits until they have exited, and returns their
    /// number.
    pub(crate) fn kill_orphans(&mut self) -> usize {
        self.wait();
        let orphans = self.living();
        signal("KILL", &orphans);
        self.until("the orphans to end", |job| job.living().is_empty());
        orphans.len()
    }

    /// Waits until all started processes have exited.
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

    /// Waits until all processes have exited, checks that no resources of them remain, and returns
    /// the finished job.
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

    /// Returns the names of the abstract sockets on which the ranks listen at present.
    pub(crate) fn abstract_sockets(&self) -> Vec<String> {
        let pids: Vec<u32> = self.processes.iter().map(|process| process.child.id()).collect();
        residue::abstract_names(&residue::sockets(&pids))
    }

    /// Returns the living processes of the job, including grandchildren.
    pub(crate) fn living(&self) -> Vec<u32> {
        residue::processes(&format!("{FOLDER}={}", self.folder.display()))
    }
}

/// A job whose processes have exited.
pub(crate) struct Ended(Job);

impl Ended {
    /// Returns the exit status of a process, or 128 plus the signal number.
    pub(crate) fn status(&self, name: &str) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        let process = self.0.processes.iter().find(|process| process.name == name).unwrap();
        let ended = process.ended.unwrap();
        ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0))
    }

    /// Returns the reports of a worker.
    pub(crate) fn reports(&self, name: &str) -> Vec<Report> {
        self.0.reports(name)
    }

    /// Asserts that a worker has made this number of reports and that all report success.
    pub(crate) fn all_succeeded(&self, name: &str, count: usize) {
        let reports = self.reports(name);
        assert_eq!(reports.len(), count, "{reports:?}");
        reports.iter().for_each(|report| assert_eq!(report.status, 0, "{report:?}"));
    }

    /// Returns the first report on a command.
    pub(crate) fn report(&self, name: &str, what: &str) -> Report {
        let found = self.reports(name).into_iter().find(|report| report.what == what);
        found.unwrap_or_else(|| panic!("{name} has not reported \"{what}\""))
    }

    /// Returns the first report on a command after the report on an earlier command.
    pub(crate) fn report_after(&self, name: &str, what: &str, earlier: &str) -> Report {
        let mut reports =
            self.reports(name).into_iter().skip_while(|report| report.what != earlier);
        let found = reports.by_ref().skip(1).find(|report| report.what == what);
        found.unwrap_or_else(|| panic!("{name} has not reported \"{what}\" after \"{earlier}\""))
    }

    /// Returns the path of a file in the job's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// Returns the standard error output of a process.
    pub(crate) fn errors(&self, name: &str) -> String {
        self.0.errors(name)
    }

    /// Returns the standard output of a process.
    pub(crate) fn output(&self, name: &str) -> String {
        self.0.written(name, "out")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A launcher may start more processes while its ranks are killed, so the loop runs three
        // times.
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
    /// Prints the reports and output of a job whose test has failed.
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

/// Removes the variables of launchers from a command's environment.
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

/// Sends a signal to processes and ignores processes that have exited.
pub(crate) fn signal(name: &str, pids: &[u32]) {
    if !pids.is_empty() {
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let script = format!("kill -{name} {} 2>/dev/null", pids.join(" "));
        // A failure status only means that one of the processes had exited.
        Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
    }
}

/// Returns an unused port outside of the kernel's range of ephemeral ports.
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
