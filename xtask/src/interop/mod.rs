//! `cargo xtask interop`: tests libdist together with other projects, in both directions.
//!
//! | file | subject |
//! |---|---|
//! | `stores` | torch's store clients on our server, ours on torch's, both on one server |
//! | `launchers` | our programs under torchrun (also restarted), Open MPI and MPICH |
//! | `libtorch` | modules of libtorch trained over `dist::reducer` |
//! | `nccl` | a real libnccl has all functions that the library uses |
//!
//! Every case prints one line and has a time limit. If torch is not available, the cases that need
//! it are skipped.

mod launchers;
mod libtorch;
mod nccl;
mod stores;

use crate::examples::{self, ALL_REDUCE, TRAIN_DIGITS};
use crate::tools::{self, Tool};
use crate::torch::TorchEnvironment;
use crate::workspace::{self, StagedBuild, repository_root};
use crate::{Arguments, CommandResult};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of one process of a case. The waits inside the process have shorter limits, so
/// that it can report its state before.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(180);
/// The number of ranks of libdist's programs.
const RANKS: usize = 4;

const NEEDED_TOOLS: &[Tool] = &[
    Tool { program: "python3", package: "python3-venv", purpose: "torch" },
    Tool { program: "mpirun.openmpi", package: "openmpi-bin", purpose: "Open MPI's launcher" },
    Tool { program: "mpiexec.mpich", package: "mpich", purpose: "MPICH's launcher" },
];

/// The reason why a case did not succeed.
enum CaseProblem {
    /// The case cannot run on this machine.
    Skipped(String),
    /// The case failed.
    Failed(String),
}

impl From<String> for CaseProblem {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

/// The outcome of a case or of one of its steps.
type CaseResult<T = String> = Result<T, CaseProblem>;

/// A case with its name and function.
struct InteropCase {
    name: String,
    run: Box<dyn Fn(&InteropContext) -> CaseResult>,
}

impl InteropCase {
    fn new(name: impl Into<String>, run: impl Fn(&InteropContext) -> CaseResult + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// The settings and programs that all cases use.
struct InteropContext {
    torch: Result<TorchEnvironment, String>,
    /// The path of the NCCL library, if the user named one.
    nccl: Option<PathBuf>,
    stage: StagedBuild,
    all_reduce: PathBuf,
    train_digits: PathBuf,
    serve: PathBuf,
    client: PathBuf,
    restart: PathBuf,
}

impl InteropContext {
    fn new(venv: Option<&Path>, nccl: Option<PathBuf>) -> Result<Self, String> {
        let stage = workspace::stage_release_build()?;
        let ours = |name: &str| {
            let source = repository_root().join("ffi-tests/interop").join(format!("{name}.c"));
            examples::compile(&stage, name, &[source])
        };
        Ok(Self {
            torch: TorchEnvironment::find_torch(venv),
            nccl,
            all_reduce: ALL_REDUCE.compile(&stage)?,
            train_digits: TRAIN_DIGITS.compile(&stage)?,
            serve: ours("serve")?,
            client: ours("client")?,
            restart: ours("restart")?,
            stage,
        })
    }

    fn torch(&self) -> CaseResult<&TorchEnvironment> {
        self.torch.as_ref().map_err(|reason| CaseProblem::Skipped(reason.clone()))
    }
}

/// Runs the command. The last line of its output has the numbers of passed, failed and skipped
/// cases.
pub(crate) fn main(rest: &[String]) -> CommandResult {
    let mut arguments = Arguments::new(rest);
    let venv = arguments.value("--venv")?.map(PathBuf::from);
    let nccl = arguments.value("--nccl")?.map(PathBuf::from);
    let only = arguments.value("--only")?.unwrap_or_default();
    let may_install = !arguments.flag("--no-install");
    arguments.finish()?;

    let cases = stores::cases().into_iter().chain(launchers::cases());
    let cases = cases.chain(libtorch::cases()).chain(nccl::cases());
    let cases: Vec<InteropCase> = cases.collect();
    let chosen: Vec<&InteropCase> = cases.iter().filter(|case| case.name.contains(&only)).collect();
    if chosen.is_empty() {
        return Err(format!("--only: no case name contains \"{only}\""));
    }
    tools::install_missing(NEEDED_TOOLS, may_install);
    let context = InteropContext::new(venv.as_deref(), nccl)?;
    match &context.torch {
        Ok(torch) => println!("torch {}", torch.version),
        Err(reason) => println!("no torch: {reason}"),
    }
    Ok(run_cases(&context, &chosen))
}

/// Runs the cases in order. Returns true if no case failed.
fn run_cases(context: &InteropContext, cases: &[&InteropCase]) -> bool {
    let widest = cases.iter().map(|case| case.name.chars().count()).max().unwrap_or(0);
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in cases {
        let (verdict, detail, count) = match (case.run)(context) {
            Ok(detail) => ("ok", detail, &mut passed),
            Err(CaseProblem::Failed(what)) => ("FAILED", what, &mut failed),
            Err(CaseProblem::Skipped(reason)) => {
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
