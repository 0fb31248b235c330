//! Runs jobs of real processes under a deadline: starts them, reads their reports, kills and stops
//! them. It checks that no resources of them remain, and removes them also if the test fails.
//!
//! The processes are workers (see [`crate::worker`]). They write their reports to files in the
//! job's folder, so that the output handling of a launcher does not matter. The environment of
//! every process of the job, including grandchildren, has the folder's name; the harness finds the
//! processes by it.
#![allow(dead_code, reason = "each test program uses its own part")]

mod command_report;
pub(crate) mod leftovers;
mod test_host;

pub(crate) use command_report::CommandReport;
pub(crate) use test_host::TestHost;

use crate::worker::{FOLDER_VARIABLE, NAME_VARIABLE, PROGRAM_VARIABLE, now_us};
use leftovers::SharedFiles;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The time limit of a job on a busy machine.
const JOB_TIMEOUT: Duration = Duration::from_secs(180);

/// Arguments that make the test binary run as a worker.
const WORKER_ARGUMENTS: [&str; 6] =
    ["worker::entry", "--exact", "--ignored", "--quiet", "--nocapture", "--test-threads=1"];

/// Returns a number that is unique in this process, for names and ports of jobs.
pub(crate) fn next_serial() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// A process of a job.
struct JobProcess {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

/// A job: the processes of one test, with their store port and folder.
pub(crate) struct TestJob {
    /// The port of the job's store; it was free when the job began.
    pub(crate) port: u16,
    folder: PathBuf,
    shared_files_before: SharedFiles,
    began: Instant,
    processes: Vec<JobProcess>,
    /// The inodes of the sockets that the harness has seen in the processes.
    sockets: BTreeSet<u64>,
    /// The command prefixes for the other network namespaces of the job's processes.
    network_prefixes: BTreeSet<Vec<String>>,
}

impl TestJob {
    /// Creates a job without processes.
    pub(crate) fn new() -> Self {
        let name = format!("job-{}-{}", std::process::id(), next_serial());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(folder.join("tmp")).unwrap();
        Self {
            port: free_port(),
            folder,
            shared_files_before: SharedFiles::take(),
            began: Instant::now(),
            processes: Vec::new(),
            sockets: BTreeSet::new(),
            network_prefixes: BTreeSet::new(),
        }
    }

    /// Starts ranks without a launcher; rank 0 hosts the store.
    pub(crate) fn without_launcher(size: usize, program: impl Fn(usize) -> String) -> Self {
        let mut job = Self::new();
        for rank in 0..size {
            job.start_rank(rank, size, &program(rank));
        }
        job
    }

    /// Starts ranks without a launcher, one on each host in `rank_hosts`; `master` is the address
    /// of the first host.
    pub(crate) fn on_hosts(
        rank_hosts: &[TestHost],
        master: &str,
        program: impl Fn(usize) -> String,
    ) -> Self {
        let mut job = Self::new();
        for (rank, host) in rank_hosts.iter().enumerate() {
            let environment = job.environment_with_master(master, rank, rank_hosts.len());
            job.start_on_host(host, &rank.to_string(), &environment, &program(rank));
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
    pub(crate) fn environment_with_master(
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
        clear_launcher_variables(&mut command);
        command.args(WORKER_ARGUMENTS).env(NAME_VARIABLE, name).env(PROGRAM_VARIABLE, program);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// As [`Self::start`], on a host; the host sets the worker's host id.
    pub(crate) fn start_on_host(
        &mut self,
        host: &TestHost,
        name: &str,
        environment: &[(&str, String)],
        program: &str,
    ) {
        let mut command = self.command_on_host(host, std::env::current_exe().unwrap().as_os_str());
        command.args(WORKER_ARGUMENTS).env(NAME_VARIABLE, name).env(PROGRAM_VARIABLE, program);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// Starts a program on a host; the program is not a worker.
    pub(crate) fn start_program_on_host(
        &mut self,
        host: &TestHost,
        name: &str,
        environment: &[(&str, String)],
        words: &[&str],
    ) {
        let mut command = self.command_on_host(host, OsStr::new(words[0]));
        command.args(&words[1..]);
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        self.launch(name, command);
    }

    /// Returns a command on a host without the variables of a launcher. The leak check of the job
    /// includes the host's network.
    fn command_on_host(&mut self, host: &TestHost, program: &OsStr) -> Command {
        let mut words = host.command_prefix().iter().map(OsStr::new).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        clear_launcher_variables(&mut command);
        command.env("DIST_HOST_ID", host.identity());
        if !host.command_prefix().is_empty() {
            self.network_prefixes.insert(host.command_prefix().to_vec());
        }
        command
    }

    /// Starts workers through a launcher. `command` is the launcher's command line up to the
    /// program.
    pub(crate) fn start_under(&mut self, name: &str, mut command: Command, program: &str) {
        clear_launcher_variables(&mut command);
        command
            .arg(std::env::current_exe().unwrap())
            .args(WORKER_ARGUMENTS)
            .env(PROGRAM_VARIABLE, program);
        self.launch(name, command);
    }

    fn launch(&mut self, name: &str, mut command: Command) {
        let file = |kind: &str| File::create(self.folder.join(format!("{name}.{kind}"))).unwrap();
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        command.env(FOLDER_VARIABLE, &self.folder).env("TMPDIR", self.folder.join("tmp"));
        let child = command.spawn().unwrap();
        self.processes.push(JobProcess { name: name.to_owned(), child, ended: None });
    }

    /// Waits for the first report on a command and returns it.
    pub(crate) fn await_report(&mut self, name: &str, command: &str) -> CommandReport {
        loop {
            if let Some(report) =
                self.reports_so_far(name).into_iter().find(|it| it.command == command)
            {
                self.sockets.extend(leftovers::sockets_of(&self.living_processes()));
                return report;
            }
            self.check_deadline(&format!("{name} to report \"{command}\""));
        }
    }

    /// Waits until all workers in `names` have reported a command.
    pub(crate) fn await_reports(&mut self, names: &[impl AsRef<str>], command: &str) {
        for name in names {
            drop(self.await_report(name.as_ref(), command));
        }
    }

    /// Returns the reports so far, in order.
    pub(crate) fn reports_so_far(&self, name: &str) -> Vec<CommandReport> {
        let path = self.folder.join(format!("{name}.reports"));
        command_report::parse_reports(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Returns the standard error output of a process.
    pub(crate) fn stderr_text(&self, name: &str) -> String {
        self.file_text(name, "err")
    }

    fn file_text(&self, name: &str, kind: &str) -> String {
        let bytes = fs::read(self.folder.join(format!("{name}.{kind}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Opens a gate for all workers.
    pub(crate) fn open_gate(&self, gate: &str) {
        drop(File::create(self.folder.join(gate)).unwrap());
    }

    /// Waits until `holds` returns true.
    pub(crate) fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        while !holds(self) {
            self.check_deadline(what);
        }
    }

    fn check_deadline(&self, what: &str) {
        assert!(self.began.elapsed() < JOB_TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }

    /// Returns the process id of a worker.
    pub(crate) fn pid(&mut self, name: &str) -> u32 {
        self.await_report(name, "start").pid
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
        self.wait_until("the worker to stop", |_| leftovers::process_state(pid) == Some('T'));
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
        let orphans = leftovers::end_witnesses(&self.living_processes());
        signal("KILL", &orphans);
        self.wait_until("the orphans to end", |job| job.living_processes().is_empty());
        orphans.len()
    }

    /// Waits until all started processes have exited.
    fn wait(&mut self) {
        for index in 0..self.processes.len() {
            while self.processes[index].ended.is_none() {
                let process = &mut self.processes[index];
                process.ended = process.child.try_wait().unwrap();
                if process.ended.is_none() {
                    self.check_deadline(&format!("the end of {}", self.processes[index].name));
                }
            }
        }
    }

    /// Waits until all processes have exited, checks that no resources of them remain, and returns
    /// the finished job.
    pub(crate) fn finish(mut self) -> FinishedJob {
        self.wait();
        let mut leftovers = Vec::new();
        let began = Instant::now();
        leftovers::end_witnesses(&self.living_processes());
        while began.elapsed() < Duration::from_secs(5) {
            leftovers = self.shared_files_before.leftovers(&self.folder, &self.living_processes());
            leftovers.extend(leftovers::leftover_sockets(&[], &self.sockets, self.port));
            for prefix in &self.network_prefixes {
                leftovers.extend(leftovers::leftover_sockets(prefix, &self.sockets, self.port));
            }
            if leftovers.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(leftovers.is_empty(), "left behind: {}", leftovers.join("; "));
        FinishedJob(self)
    }

    /// Returns the names of the abstract sockets on which the ranks listen at present.
    pub(crate) fn abstract_sockets(&self) -> Vec<String> {
        let pids: Vec<u32> = self.processes.iter().map(|process| process.child.id()).collect();
        leftovers::abstract_socket_names(&leftovers::sockets_of(&pids))
    }

    /// Returns the living processes of the job, including grandchildren.
    pub(crate) fn living_processes(&self) -> Vec<u32> {
        leftovers::processes_with_environment(&format!(
            "{FOLDER_VARIABLE}={}",
            self.folder.display()
        ))
    }
}

/// A job whose processes have exited.
pub(crate) struct FinishedJob(TestJob);

impl FinishedJob {
    /// Returns the exit status of a process, or 128 plus the signal number.
    pub(crate) fn exit_status(&self, name: &str) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        let process = self.0.processes.iter().find(|process| process.name == name).unwrap();
        let ended = process.ended.unwrap();
        ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0))
    }

    /// Returns the reports of a worker.
    pub(crate) fn reports(&self, name: &str) -> Vec<CommandReport> {
        self.0.reports_so_far(name)
    }

    /// Asserts that a worker has made this number of reports and that all report success.
    pub(crate) fn assert_all_succeeded(&self, name: &str, count: usize) {
        let reports = self.reports(name);
        assert_eq!(reports.len(), count, "{reports:?}");
        reports.iter().for_each(|report| assert_eq!(report.status, 0, "{report:?}"));
    }

    /// Returns the first report on a command.
    pub(crate) fn report(&self, name: &str, what: &str) -> CommandReport {
        let report = self.reports(name).into_iter().find(|report| report.command == what);
        report.unwrap_or_else(|| panic!("{name} has not reported \"{what}\""))
    }

    /// Returns the first report on a command after the report on an earlier command.
    pub(crate) fn report_after(&self, name: &str, what: &str, earlier: &str) -> CommandReport {
        let mut reports =
            self.reports(name).into_iter().skip_while(|report| report.command != earlier);
        let report = reports.by_ref().skip(1).find(|report| report.command == what);
        report.unwrap_or_else(|| panic!("{name} has not reported \"{what}\" after \"{earlier}\""))
    }

    /// Returns the path of a file in the job's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// Returns the standard error output of a process.
    pub(crate) fn stderr_text(&self, name: &str) -> String {
        self.0.stderr_text(name)
    }

    /// Returns the standard output of a process.
    pub(crate) fn stdout_text(&self, name: &str) -> String {
        self.0.file_text(name, "out")
    }
}

impl Drop for TestJob {
    fn drop(&mut self) {
        // A launcher may start more processes while its ranks are killed, so the loop runs three
        // times.
        for _ in 0..3 {
            let living = self.living_processes();
            if !living.is_empty() {
                signal("KILL", &living);
            }
        }
        for process in &mut self.processes {
            drop(process.child.kill());
            drop(process.child.wait());
        }
        if std::thread::panicking() {
            self.print_details();
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl TestJob {
    /// Prints the reports and output of a job whose test has failed.
    fn print_details(&self) {
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
fn clear_launcher_variables(command: &mut Command) {
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
        let port = u16::try_from(20_000 + (first + next_serial()) % 10_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("there is no free port from 20000 to 30000");
}
