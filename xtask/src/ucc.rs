//! `cargo xtask ucc`: tests the back end `ucc` with a real UCC, which `--prefix` names. Without
//! the option, the command looks for the library and reports that it skips the tests if there is
//! none.
//!
//! - It compares libdist's declarations with UCC's headers.
//! - It runs the conformance suite with one process for each rank, on one host and in two network
//!   namespaces over TCP.
//! - It runs the tests of dead, stopped, aborting and late ranks.
//! - With `--overhead`, it measures the cost of libdist over UCC.
//!
//! The small all_reduce of UCC adds the vectors of several ranks in the order of the rank's own
//! steps, so the last bits of a sum of floats may differ between ranks. With radix 2, each step
//! adds two vectors, and the sum is the same. The suite requires equal bits, so it sets this
//! radix.

use crate::workspace::{StagedBuild, repository_root, scratch_folder, stage_release_build};
use crate::{Arguments, CommandResult, conformance, run, tools};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// The interval at which the state of a link is read, and the maximum number of times.
const LINK_POLL: Duration = Duration::from_millis(50);
const MAX_LINK_TRIES: u32 = 200;

/// The variable that makes sums of floats equal on all ranks.
const RADIX: (&str, &str) = ("UCC_TL_UCP_ALLREDUCE_KN_RADIX", "2");

/// The addresses of the two hosts that the network namespaces represent.
const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// The test of the suite that runs as one rank.
const RANK_TEST: [&str; 4] =
    ["processes::a_rank_of_a_back_end", "--exact", "--ignored", "--nocapture"];

/// An installed UCC.
struct Ucc {
    library: PathBuf,
    /// The folder with `ucc/api/ucc.h`, if it is installed.
    include: Option<PathBuf>,
}

impl Ucc {
    fn in_prefix(prefix: &Path) -> Result<Self, String> {
        let prefix = std::path::absolute(prefix).map_err(|cause| cause.to_string())?;
        let library = prefix.join("lib/libucc.so.1");
        if !library.exists() {
            return Err(format!("{} does not exist", library.display()));
        }
        let include = prefix.join("include");
        let include = include.join("ucc/api/ucc.h").exists().then_some(include);
        Ok(Self { library, include })
    }

    fn installed() -> Option<Self> {
        ["/usr", "/usr/local", "/opt/ucc"]
            .iter()
            .find_map(|prefix| Self::in_prefix(Path::new(prefix)).ok())
    }
}

/// The namespaces of two hosts, with a link between them. They are removed at the end.
struct TwoHosts([String; 2]);

impl TwoHosts {
    /// Creates the namespaces.
    ///
    /// # Errors
    /// The reason, for example if this user may not create them.
    fn create() -> Result<Self, String> {
        let names = [0, 1].map(|host| format!("dist-ucc-{}-{host}", std::process::id()));
        let hosts = Self(names.clone());
        let ip = |words: &[&str]| run::run_checked(run::command("ip").args(words), LIMIT).map(drop);
        for name in &names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        let [first, second] = [0, 1].map(|host| names[host].as_str());
        ip(&[
            "-n", first, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
            second,
        ])?;
        for (name, address) in names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "eth0"])?;
            ip(&["-n", name, "link", "set", "eth0", "up"])?;
        }
        hosts.await_links()?;
        Ok(hosts)
    }

    /// Waits until the links are up. UCX does not use a device before.
    fn await_links(&self) -> Result<(), String> {
        for name in &self.0 {
            let is_up = || {
                let mut show = run::command("ip");
                show.args(["-n", name, "link", "show", "eth0"]);
                run::run_checked(&mut show, LIMIT)
                    .is_ok_and(|shown| shown.text.contains("state UP"))
            };
            let mut tries = 0;
            while !is_up() {
                tries += 1;
                if tries > MAX_LINK_TRIES {
                    return Err(format!("the link of {name} does not come up"));
                }
                std::thread::sleep(LINK_POLL);
            }
        }
        Ok(())
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.0 {
            drop(run::run_quietly(run::command("ip").args(["netns", "delete", name]), LIMIT));
        }
    }
}

/// A program that runs as the ranks of a job.
struct Job<'a> {
    ucc: &'a Ucc,
    ranks: usize,
    hosts: Option<&'a TwoHosts>,
    variables: Vec<(String, String)>,
}

impl<'a> Job<'a> {
    fn new(ucc: &'a Ucc, ranks: usize, hosts: Option<&'a TwoHosts>) -> Self {
        let mut job = Self { ucc, ranks, hosts, variables: Vec::new() };
        job.set(RADIX.0, RADIX.1);
        if hosts.is_some() {
            job.set("UCX_TLS", "tcp");
            job.set("UCX_NET_DEVICES", "eth0");
        }
        job
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Returns the command of each rank.
    fn commands(&self, program: &Path, words: &[&str]) -> Result<Vec<Command>, String> {
        let address = if self.hosts.is_some() { ADDRESSES[0] } else { "127.0.0.1" };
        let port = match self.hosts {
            Some(_) => 29_500,
            None => free_port()?,
        };
        let of_rank = |rank: usize| {
            // The first half of the ranks is on the first host.
            let host = rank * 2 / self.ranks.max(2);
            let mut command = match self.hosts {
                Some(hosts) => {
                    let mut command = run::command("ip");
                    command.args(["netns", "exec", &hosts.0[host]]).arg(program);
                    command.env("DIST_HOST_ID", format!("host-{host}"));
                    command
                }
                None => run::command(program),
            };
            command.args(words);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.ranks.to_string());
            command.env("LOCAL_RANK", rank.to_string());
            command.env("MASTER_ADDR", address).env("MASTER_PORT", port.to_string());
            command.env("DIST_UCC_LIB", &self.ucc.library);
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            command
        };
        Ok((0..self.ranks).map(of_rank).collect())
    }

    /// Runs all ranks, which must succeed, and returns their outputs.
    fn run(&self, program: &Path, words: &[&str]) -> Result<Vec<String>, String> {
        run::run_all(self.commands(program, words)?, LIMIT)
    }

    /// Runs all ranks. The last rank may end in any way; the others must pass their checks.
    fn run_without_last(&self, program: &Path, words: &[&str]) -> Result<(), String> {
        let mut commands = self.commands(program, words)?;
        let mut last = commands.pop().ok_or("a job has ranks")?;
        let mut last = last.spawn().map_err(|cause| cause.to_string())?;
        let outcome = run::run_all(commands, LIMIT);
        // The rank has ended, or it is stopped.
        drop(last.kill());
        drop(last.wait());
        outcome.map(drop)
    }
}

/// Returns a folder in the scratch space, and creates it if necessary.
fn new_folder(name: &str) -> Result<PathBuf, String> {
    let folder = scratch_folder(name)?;
    std::fs::create_dir_all(&folder).map_err(|cause| format!("{}: {cause}", folder.display()))?;
    Ok(folder)
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|cause| cause.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|cause| cause.to_string())
}

/// Runs the command.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let prefix = arguments.value("--prefix")?;
    let calls = arguments.value("--calls")?.unwrap_or_else(|| "600".to_owned());
    let only_overhead = arguments.flag("--overhead");
    arguments.finish()?;
    let ucc = match prefix {
        Some(prefix) => Some(Ucc::in_prefix(Path::new(&prefix))?),
        None => Ucc::installed(),
    };
    let Some(ucc) = ucc else {
        println!("skipped: UCC is not installed; name its folder with --prefix");
        return Ok(true);
    };
    let stage = stage_release_build()?;
    if only_overhead {
        return measure_overhead(&ucc, &stage).map(|()| true);
    }
    compare_layouts(&ucc)?;
    let hosts = match TwoHosts::create() {
        Ok(hosts) => Some(hosts),
        Err(reason) => {
            println!("skipped: two network namespaces: {reason}");
            None
        }
    };
    run_conformance(&ucc, hosts.as_ref(), &calls)?;
    run_behaviour(&ucc, &stage, hosts.as_ref())?;
    Ok(true)
}

/// Compares the declarations with the headers.
fn compare_layouts(ucc: &Ucc) -> Result<(), String> {
    let Some(include) = &ucc.include else {
        println!("skipped: comparison of layouts: UCC's headers are not installed");
        return Ok(());
    };
    let folder = new_folder("ucc")?;
    let (program, output) = (folder.join("layout"), folder.join("layout.txt"));
    let mut compiler = run::command(tools::c_compiler()?);
    compiler.arg("-I").arg(include).arg("-o").arg(&program);
    compiler.arg(repository_root().join("ffi-tests/ucc/layout.c"));
    run::run_checked(&mut compiler, LIMIT)?;
    let text = run::run_checked(&mut run::command(&program), LIMIT)?.text;
    std::fs::write(&output, text).map_err(|cause| format!("{}: {cause}", output.display()))?;
    let mut test = crate::workspace::cargo();
    test.args(["test", "--package", "dist", "--lib", "--", "--exact", "--ignored", "--nocapture"]);
    test.arg("backend::ucc::layout_tests::layouts_match_the_headers");
    test.env("DIST_TEST_UCC_LAYOUT", &output);
    let text = run::run_checked(&mut test, LIMIT * 6)?.text;
    let line = text.lines().find(|line| line.contains("are those of the headers"));
    println!("{}", line.ok_or("the test of the layouts did not run")?);
    Ok(())
}

/// Runs the conformance suite on 1 to 4 ranks.
fn run_conformance(ucc: &Ucc, hosts: Option<&TwoHosts>, calls: &str) -> Result<(), String> {
    let program = conformance::build_suite(false)?;
    let folder = scratch_folder("ucc_conformance")?;
    for hosts in [None].into_iter().chain(hosts.map(Some)) {
        for ranks in 1..=4 {
            if hosts.is_some() && ranks == 1 {
                continue;
            }
            tools::recreate_folder(&folder)?;
            let mut job = Job::new(ucc, ranks, hosts);
            job.set("CONFORMANCE_STORE", &folder.join("store").display().to_string());
            job.set("CONFORMANCE_BACKEND", "ucc");
            job.set("CONFORMANCE_CALLS", calls);
            let place = if hosts.is_some() { "two namespaces, UCX_TLS=tcp" } else { "one host" };
            let outputs = job.run(&program, &RANK_TEST)?;
            let line = outputs[0].lines().find(|line| line.contains("as the oracle says"));
            println!("{place}: {}", line.ok_or("the suite did not run")?);
        }
    }
    Ok(())
}

/// Runs the tests of groups, works, messages and failures.
fn run_behaviour(ucc: &Ucc, stage: &StagedBuild, hosts: Option<&TwoHosts>) -> Result<(), String> {
    let program = compile(stage, None, "behaviour")?;
    for hosts in [None].into_iter().chain(hosts.map(Some)) {
        for ranks in [1, 2, 3, 4] {
            Job::new(ucc, ranks, hosts).run(&program, &["works"])?;
        }
        for way in ["kill", "stop", "abort", "late"] {
            for ranks in [2, 3] {
                let mut job = Job::new(ucc, ranks, hosts);
                job.set("DIST_HEARTBEAT_LIMIT_MS", "1000");
                let place = if hosts.is_some() { "two namespaces" } else { "one host" };
                // The late rank is named on its own host only.
                let elsewhere = hosts.filter(|_| way == "late").map(|_| "elsewhere");
                let words: Vec<&str> = [way].into_iter().chain(elsewhere).collect();
                job.run_without_last(&program, &words)
                    .map_err(|error| format!("{way}, {ranks} ranks, {place}: {error}"))?;
                let names = if elsewhere.is_some() { "get an error" } else { "name the rank" };
                println!("{way}, {ranks} ranks, {place}: the others {names}");
            }
        }
    }
    Ok(())
}

/// Measures what libdist adds to a call of UCC.
fn measure_overhead(ucc: &Ucc, stage: &StagedBuild) -> Result<(), String> {
    let program = compile(stage, Some(ucc), "overhead")?;
    let mut job = Job::new(ucc, 2, None);
    job.variables.clear();
    let outputs = job.run(&program, &[])?;
    print!("{}", outputs[0]);
    Ok(())
}

/// Compiles a program of `ffi-tests/ucc`, which is linked with UCC if `ucc` is given.
fn compile(stage: &StagedBuild, ucc: Option<&Ucc>, name: &str) -> Result<PathBuf, String> {
    let program = new_folder("ucc_programs")?.join(name);
    let mut compiler = run::command(tools::c_compiler()?);
    compiler.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(&stage.include).arg("-I").arg(repository_root().join("ffi-tests/c"));
    compiler.arg(repository_root().join(format!("ffi-tests/ucc/{name}.c"))).arg("-o").arg(&program);
    compiler.arg("-L").arg(&stage.lib).arg("-ldist");
    compiler.arg(format!("-Wl,-rpath,{}", stage.lib.display()));
    if let Some(ucc) = ucc {
        let include = ucc.include.as_ref().ok_or("UCC's headers are not installed")?;
        let folder = ucc.library.parent().unwrap_or(Path::new("/"));
        compiler.arg("-isystem").arg(include).arg(&ucc.library);
        compiler.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    run::run_checked(&mut compiler, LIMIT)?;
    Ok(program)
}
