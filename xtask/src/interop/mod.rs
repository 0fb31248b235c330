//! `cargo xtask interop`: libdist beside other projects, both ways.
//!
//! | file | what it shows |
//! |---|---|
//! | `stores` | torch's store clients on our server, ours on torch's, both on one |
//! | `launchers` | our programs under torchrun, also restarted, Open MPI and MPICH |
//! | `libtorch` | modules of libtorch trained over `dist::reducer` |
//! | `nccl` | a real libnccl has all that the library uses of it |
//!
//! Every case is one line, and has a limit. What needs torch is skipped where torch cannot be had.

mod launchers;
mod libtorch;
mod nccl;
mod stores;

use crate::examples::{self, ALL_REDUCE, TRAIN_DIGITS};
use crate::tools::{self, Tool};
use crate::torch::Torch;
use crate::workspace::{self, Stage, root};
use crate::{Arguments, Outcome};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What one process of a case may take. Their own waits are shorter, so that they can say what they
/// waited for.
const LIMIT: Duration = Duration::from_secs(180);
/// How many ranks our programs have.
const RANKS: usize = 4;

const NEEDED: &[Tool] = &[
    Tool { program: "python3", package: "python3-venv", purpose: "torch" },
    Tool { program: "mpirun.openmpi", package: "openmpi-bin", purpose: "Open MPI's launcher" },
    Tool { program: "mpiexec.mpich", package: "mpich", purpose: "MPICH's launcher" },
];

/// Why a case has not succeeded.
enum Problem {
    /// It cannot be run here.
    Skipped(String),
    /// It did not do what it should.
    Failed(String),
}

impl From<String> for Problem {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

/// What a case has to say for itself.
type Result<T = String> = std::result::Result<T, Problem>;

/// A case: its name, and what it does.
struct Case {
    name: String,
    run: Box<dyn Fn(&Context) -> Result>,
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn(&Context) -> Result + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// What the cases have in common.
struct Context {
    torch: std::result::Result<Torch, String>,
    /// The file of NCCL that was named.
    nccl: Option<PathBuf>,
    stage: Stage,
    all_reduce: PathBuf,
    train_digits: PathBuf,
    serve: PathBuf,
    client: PathBuf,
    restart: PathBuf,
}

impl Context {
    fn new(venv: Option<&Path>, nccl: Option<PathBuf>) -> std::result::Result<Self, String> {
        let stage = workspace::release()?;
        let ours = |name: &str| {
            let source = root().join("ffi-tests/interop").join(format!("{name}.c"));
            examples::compile(&stage, name, &[source])
        };
        Ok(Self {
            torch: Torch::find(venv),
            nccl,
            all_reduce: ALL_REDUCE.compile(&stage)?,
            train_digits: TRAIN_DIGITS.compile(&stage)?,
            serve: ours("serve")?,
            client: ours("client")?,
            restart: ours("restart")?,
            stage,
        })
    }

    fn torch(&self) -> Result<&Torch> {
        self.torch.as_ref().map_err(|reason| Problem::Skipped(reason.clone()))
    }
}

/// Runs the command. Its last line is the count.
pub(crate) fn main(rest: &[String]) -> Outcome {
    let mut arguments = Arguments::new(rest);
    let venv = arguments.value("--venv")?.map(PathBuf::from);
    let nccl = arguments.value("--nccl")?.map(PathBuf::from);
    let only = arguments.value("--only")?.unwrap_or_default();
    let may_install = !arguments.flag("--no-install");
    arguments.finish()?;

    let cases = stores::cases().into_iter().chain(launchers::cases());
    let cases = cases.chain(libtorch::cases()).chain(nccl::cases());
    let cases: Vec<Case> = cases.collect();
    let chosen: Vec<&Case> = cases.iter().filter(|case| case.name.contains(&only)).collect();
    if chosen.is_empty() {
        return Err(format!("no case has \"{only}\" in its name"));
    }
    tools::provide(NEEDED, may_install);
    let context = Context::new(venv.as_deref(), nccl)?;
    match &context.torch {
        Ok(torch) => println!("torch {}", torch.version),
        Err(reason) => println!("no torch: {reason}"),
    }
    Ok(run(&context, &chosen))
}

/// Runs the cases in order. Returns whether none failed.
fn run(context: &Context, cases: &[&Case]) -> bool {
    let widest = cases.iter().map(|case| case.name.chars().count()).max().unwrap_or(0);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in cases {
        let (verdict, detail, count) = match (case.run)(context) {
            Ok(detail) => ("ok", detail, &mut passed),
            Err(Problem::Failed(what)) => ("FAILED", what, &mut failed),
            Err(Problem::Skipped(reason)) => {
                let reason = reason.lines().next().unwrap_or_default().to_string();
                ("skipped", reason, &mut skipped)
            }
        };
        *count += 1;
        println!("{:<widest$}  {verdict:<7}  {detail}", case.name);
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    failed == 0
}
