//! Tests the stores of both projects together: torch's clients with libdist's server, libdist's
//! client and whole jobs with torch's server, and processes of both projects with one server.

use super::{CaseProblem, CaseResult, InteropCase, InteropContext, PROCESS_TIMEOUT, RANKS};
use crate::run::{self, BackgroundProcess};
use std::process::Command;
use std::time::Duration;

/// The time limit for a server to start and print its port. It is long, because the import of torch
/// is slow on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(90);

/// The test sections of torch's clients. Each section runs with a new server.
const TORCH_SECTIONS: &[(&str, &str)] = &[
    ("basics", "values, counters, compare_set, clone"),
    ("waits", "wait, timeouts, wake-ups"),
    ("queues", "queues"),
    ("names", "list_keys, barriers"),
    ("prefixes", "PrefixStore, also nested"),
];

/// The test sections of libdist's client. All sections run with one server.
const OUR_SECTIONS: &[(&str, &str)] = &[
    ("basics", "values, compare_set, clone"),
    ("counters", "counters, NOT_A_NUMBER"),
    ("waits", "wait, timeouts that name keys"),
    ("queues", "queues"),
    ("names", "list_keys"),
    ("barriers", "barriers"),
    ("prefixes", "prefix stores, also nested"),
];

/// The implementation of a server.
#[derive(Clone, Copy, PartialEq)]
enum ServerKind {
    Ours,
    /// torch's default server.
    Libuv,
    /// torch's older server, which has no queues.
    Legacy,
}

impl ServerKind {
    /// Returns the name of this kind in the arguments of the test programs.
    fn argument(self) -> &'static str {
        match self {
            Self::Ours | Self::Libuv => "libuv",
            Self::Legacy => "legacy",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "libdist's server",
            Self::Libuv => "torch's server (libuv)",
            Self::Legacy => "torch's server (legacy)",
        }
    }
}

/// A server process that runs until this value is dropped.
struct StoreServer {
    process: BackgroundProcess,
    port: String,
}

impl StoreServer {
    fn start(context: &InteropContext, kind: ServerKind) -> CaseResult<Self> {
        let mut command = match kind {
            ServerKind::Ours => run::command(&context.serve),
            ServerKind::Libuv | ServerKind::Legacy => {
                let mut command = context.torch()?.script("ffi-tests/interop/torch_server.py");
                command.arg(kind.argument());
                command
            }
        };
        let mut process = BackgroundProcess::start(&mut command)?;
        let port = process.await_line("port ", START_LIMIT)?;
        Ok(Self { process, port })
    }

    /// Runs client programs concurrently to their ends. If a client fails, the error contains the
    /// output of the server.
    fn run_clients(&mut self, commands: Vec<Command>) -> CaseResult<Vec<String>> {
        run::run_all(commands, PROCESS_TIMEOUT).map_err(|problem| {
            let server_output = self.process.other_output();
            let server = if server_output.is_empty() {
                String::new()
            } else {
                format!("\n  server: {server_output}")
            };
            CaseProblem::Failed(format!("{problem}{server}"))
        })
    }
}

/// The cases, in the order in which they run.
pub(super) fn cases() -> Vec<InteropCase> {
    let mut cases = Vec::new();
    for &(section, what) in TORCH_SECTIONS {
        cases.push(InteropCase::new(
            format!("torch's client on libdist's server: {what}"),
            move |context| torch_section(context, section),
        ));
    }
    cases.push(InteropCase::new("torch's client on libdist's server: 4 processes", torch_members));
    cases.push(InteropCase::new("torch's Gloo job of 2 ranks on libdist's server", gloo_job));
    for kind in [ServerKind::Libuv, ServerKind::Legacy] {
        for &(section, what) in OUR_SECTIONS {
            let name = format!("libdist's client on {}: {what}", kind.name());
            cases.push(InteropCase::new(name, move |context| our_section(context, kind, section)));
        }
    }
    for kind in [ServerKind::Ours, ServerKind::Libuv, ServerKind::Legacy] {
        let name = format!("torch and libdist together on {}", kind.name());
        cases.push(InteropCase::new(name, move |context| mixed_clients(context, kind)));
    }
    for kind in [ServerKind::Libuv, ServerKind::Legacy] {
        let name = format!("dist_init of {RANKS} ranks on {}", kind.name());
        cases.push(InteropCase::new(name, move |context| dist_init(context, kind)));
    }
    cases
}

fn torch_section(context: &InteropContext, section: &str) -> CaseResult {
    let mut client = context.torch()?.script("ffi-tests/interop/torch_client.py");
    let mut server = StoreServer::start(context, ServerKind::Ours)?;
    client.args([&server.port, section]);
    let outputs = server.run_clients(vec![client])?;
    check_scripts(&outputs)
}

fn torch_members(context: &InteropContext) -> CaseResult {
    let torch = context.torch()?;
    let mut server = StoreServer::start(context, ServerKind::Ours)?;
    let members = (0..RANKS).map(|rank| {
        let mut member = torch.script("ffi-tests/interop/torch_client.py");
        member.args([&server.port, "member", &rank.to_string(), &RANKS.to_string()]);
        member
    });
    let members = members.collect();
    check_scripts(&server.run_clients(members)?)
}

fn gloo_job(context: &InteropContext) -> CaseResult {
    let torch = context.torch()?;
    let mut server = StoreServer::start(context, ServerKind::Ours)?;
    let ranks = (0..2).map(|rank| {
        let mut command = torch.script("ffi-tests/interop/torch_job.py");
        set_rank_environment(&mut command, rank, 2, &server.port);
        command
    });
    let ranks = ranks.collect();
    check_scripts(&server.run_clients(ranks)?)
}

fn our_section(context: &InteropContext, kind: ServerKind, section: &str) -> CaseResult {
    let mut server = StoreServer::start(context, kind)?;
    let mut client = run::command(&context.client);
    client.args([&server.port, section, kind.argument()]);
    let outputs = server.run_clients(vec![client])?;
    // If a client was refused, show its line. Otherwise show the last line.
    let refused =
        outputs.iter().flat_map(|text| text.lines()).find(|line| line.starts_with("refused"));
    let last = outputs.iter().flat_map(|text| text.lines()).last();
    Ok(refused.or(last).unwrap_or_default().to_string())
}

fn mixed_clients(context: &InteropContext, kind: ServerKind) -> CaseResult {
    let mut torch_client = context.torch()?.script("ffi-tests/interop/torch_mixed.py");
    let mut server = StoreServer::start(context, kind)?;
    torch_client.args([&server.port, kind.argument()]);
    let mut libdist_client = run::command(&context.client);
    libdist_client.args([&server.port, "mixed", kind.argument()]);
    let outputs = server.run_clients(vec![torch_client, libdist_client])?;
    check_scripts(&outputs[..1])?;
    Ok("values, counters, queues and both kinds of barriers".into())
}

fn dist_init(context: &InteropContext, kind: ServerKind) -> CaseResult {
    let mut server = StoreServer::start(context, kind)?;
    let ranks = (0..RANKS).map(|rank| {
        let mut command = run::command(&context.all_reduce);
        set_rank_environment(&mut command, rank, RANKS, &server.port);
        command
    });
    let ranks = ranks.collect();
    let outputs = server.run_clients(ranks)?;
    match outputs.iter().find(|text| !text.contains("sums correct")) {
        Some(text) => Err(CaseProblem::Failed(format!("a rank has wrong or no sums: {text}"))),
        None => Ok(format!("{RANKS} ranks have correct sums")),
    }
}

/// Sets the environment variables that a launcher with its own store sets for a rank.
fn set_rank_environment(command: &mut Command, rank: usize, size: usize, port: &str) {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", size.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port)
        .env("TORCHELASTIC_USE_AGENT_STORE", "True");
}

/// Checks that every script ran to its end, and reports the parts that it skipped.
fn check_scripts(outputs: &[String]) -> CaseResult {
    for text in outputs {
        if text.lines().last() != Some("all as expected") {
            return Err(CaseProblem::Failed(format!("a script did not run to its end: {text}")));
        }
    }
    let left_out =
        outputs.iter().flat_map(|text| text.lines()).find(|line| line.starts_with("without"));
    Ok(left_out.unwrap_or("all as expected").to_string())
}
