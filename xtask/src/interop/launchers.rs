//! Runs libdist's programs under the launchers of other projects. Each launcher sets its own
//! environment variables. torchrun also hosts the store. The results must be identical to the
//! results under distrun.

use super::{CaseProblem, CaseResult, InteropCase, InteropContext, PROCESS_TIMEOUT, RANKS};
use crate::examples::{TrainingResult, distrun};
use crate::{run, tools};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

/// The cases, in the order in which they run.
pub(super) fn cases() -> Vec<InteropCase> {
    vec![
        InteropCase::new("torchrun --standalone: all_reduce", |context| {
            let store = ("TORCHELASTIC_USE_AGENT_STORE", "True");
            all_reduce(context, &["--standalone"], store, None)
        }),
        InteropCase::new("torchrun with a c10d rendezvous: all_reduce", |context| {
            let endpoint = format!("localhost:{}", free_port()?);
            let options =
                ["--rdzv-backend=c10d", "--rdzv-endpoint", &endpoint, "--rdzv-id=interop"];
            all_reduce(context, &options, ("TORCHELASTIC_RUN_ID", "interop"), None)
        }),
        InteropCase::new("torchrun in static mode: all_reduce", |context| {
            let port = free_port()?.to_string();
            all_reduce(context, &fixed_endpoint_options(&port), ("MASTER_PORT", &port), None)
        }),
        InteropCase::new("torchrun without a shared store: all_reduce", |context| {
            let store = ("TORCHELASTIC_USE_AGENT_STORE", "False");
            let apart = Some(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"));
            all_reduce(context, &["--standalone"], store, apart)
        }),
        InteropCase::new("torchrun restarts in dynamic mode", |context| {
            restart(context, &["--standalone"], ("TORCHELASTIC_USE_AGENT_STORE", "True"))
        }),
        InteropCase::new("torchrun restarts in static mode", |context| {
            let port = free_port()?.to_string();
            restart(context, &fixed_endpoint_options(&port), ("MASTER_PORT", &port))
        }),
        InteropCase::new("torchrun: train_digits", |context| {
            let mut command = context.torch()?.torchrun(RANKS, &["--standalone"]);
            command.arg(&context.train_digits);
            train(context, command)
        }),
        InteropCase::new("Open MPI: train_digits", |context| {
            let names = ["mpirun.openmpi", "mpirun"];
            let mut command =
                run::command(find_mpi_launcher(&names, &["Open MPI", "OpenRTE"], "openmpi-bin")?);
            command.args(["--allow-run-as-root", "--oversubscribe", "-n", &RANKS.to_string()]);
            command.arg(&context.train_digits);
            train(context, command)
        }),
        InteropCase::new("MPICH: train_digits", |context| {
            let mut command = run::command(find_mpi_launcher(
                &["mpiexec.mpich", "mpiexec"],
                &["HYDRA"],
                "mpich",
            )?);
            command.args(["-n", &RANKS.to_string()]).arg(&context.train_digits);
            train(context, command)
        }),
    ]
}

/// Returns torchrun's options for a job with a fixed endpoint.
fn fixed_endpoint_options(port: &str) -> [&str; 5] {
    ["--nnodes=1", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port", port]
}

/// Returns a port that is currently free.
fn free_port() -> CaseResult<u16> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    Ok(bound.map_err(|cause| format!("cannot bind a port: {cause}"))?.port())
}

/// Adds a program to the launcher's command. The program only runs if an environment variable has
/// the value that identifies the requested mode of torchrun. So a case cannot pass in another mode.
fn require_variable(command: &mut Command, (variable, value): (&str, &str), program: &PathBuf) {
    let script = format!(
        "[ \"${variable}\" = '{value}' ] || {{ echo \"{variable} is ${variable}, not {value}\"; exit 9; }}; exec \"$0\""
    );
    command.args(["sh", "-c", &script]).arg(program);
}

fn all_reduce(
    context: &InteropContext,
    options: &[&str],
    mode: (&str, &str),
    setting: Option<(&str, &str)>,
) -> CaseResult {
    let mut command = context.torch()?.torchrun(RANKS, options);
    command.envs(setting);
    require_variable(&mut command, mode, &context.all_reduce);
    let text = run::run_checked(&mut command, PROCESS_TIMEOUT)?.text;
    let right = text.lines().filter(|line| line.ends_with("sums correct")).count();
    if right != RANKS {
        return Err(CaseProblem::Failed(format!(
            "{right} of {RANKS} ranks have correct sums:\n{text}"
        )));
    }
    Ok(format!("{RANKS} ranks have correct sums; {} was {}", mode.0, mode.1))
}

/// Tests a restart: the first attempt fails on one rank, and the second attempt must succeed on all
/// ranks.
fn restart(context: &InteropContext, options: &[&str], mode: (&str, &str)) -> CaseResult {
    let again = ["--max-restarts=1", "--monitor-interval=0.1"];
    let mut command = context.torch()?.torchrun(RANKS, &[options, &again].concat());
    require_variable(&mut command, mode, &context.restart);
    let text = run::run_checked(&mut command, PROCESS_TIMEOUT)?.text;
    let formed_line = "attempt 1 formed a group of its own";
    let formed = text.lines().filter(|line| line.ends_with(formed_line)).count();
    if formed != RANKS || text.contains("does not hold") {
        return Err(CaseProblem::Failed(format!(
            "{formed} of {RANKS} ranks formed a group:\n{text}"
        )));
    }
    Ok(format!("attempt 0 failed on a rank, {formed_line} on the same store"))
}

/// Compares the result under another launcher with the result under distrun.
fn train(context: &InteropContext, mut command: Command) -> CaseResult {
    let expected = training(&mut distrun(&context.stage, RANKS, &context.train_digits))?;
    let training = training(&mut command)?;
    if training == expected {
        return Ok(training.result);
    }
    let distance = training.max_loss_difference(&expected);
    let (result, expected_result) = (training.result, expected.result);
    Err(CaseProblem::Failed(format!(
        "{result}, but under distrun {expected_result}; losses differ by {distance}"
    )))
}

fn training(command: &mut Command) -> CaseResult<TrainingResult> {
    Ok(TrainingResult::parse_output(&run::run_checked(command, PROCESS_TIMEOUT)?.text)?)
}

/// Returns the first of the launchers `names` whose version output contains one of `words`, which
/// identify the implementation.
fn find_mpi_launcher(names: &[&str], words: &[&str], package: &str) -> CaseResult<PathBuf> {
    let launcher_name = names.iter().find(|name| tools::version_mentions(name, words));
    launcher_name.and_then(|name| tools::find_program(name)).ok_or_else(|| {
        CaseProblem::Skipped(format!(
            "not installed; on Debian or Ubuntu: `apt-get install {package}`"
        ))
    })
}
