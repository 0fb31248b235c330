//! One store, two implementations: torch's clients on our server, our client and whole jobs on
//! torch's, and processes of both on one.

use super::{Case, Context, LIMIT, Problem, RANKS, Result};
use crate::run::{self, Background};
use std::process::Command;
use std::time::Duration;

/// What a server may take until it says its port; torch is slow to import on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(90);

/// What torch's clients are asked for, each on a fresh server.
const TORCH_SECTIONS: &[(&str, &str)] = &[
    ("basics", "values, counters, compare_set, clone"),
    ("waits", "wait, time-outs, wake-ups"),
    ("queues", "queues"),
    ("names", "list_keys, barriers"),
    ("prefixes", "PrefixStore, also nested"),
];

/// What our client is asked for, all on one server.
const OUR_SECTIONS: &[(&str, &str)] = &[
    ("basics", "values, compare_set, clone"),
    ("counters", "counters, NOT_A_NUMBER"),
    ("waits", "wait, time-outs that name keys"),
    ("queues", "queues"),
    ("names", "list_keys"),
    ("barriers", "barriers"),
    ("prefixes", "prefix stores, also nested"),
];

/// Whose server, and of which kind.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ours,
    /// torch's default.
    Libuv,
    /// torch's older one, which has no queues.
    Legacy,
}

impl Kind {
    /// What torch's and our programs call it.
    fn word(self) -> &'static str {
        match self {
            Self::Ours | Self::Libuv => "libuv",
            Self::Legacy => "legacy",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "our server",
            Self::Libuv => "torch's server (libuv)",
            Self::Legacy => "torch's server (legacy)",
        }
    }
}

/// A server that runs as long as this lives.
struct Server {
    process: Background,
    port: String,
}

impl Server {
    fn start(context: &Context, kind: Kind) -> Result<Self> {
        let mut command = match kind {
            Kind::Ours => run::command(&context.serve),
            Kind::Libuv | Kind::Legacy => {
                let mut command = context.torch()?.script("ffi-tests/interop/torch_server.py");
                command.arg(kind.word());
                command
            }
        };
        let mut process = Background::start(&mut command)?;
        let port = process.line("port ", START_LIMIT)?;
        Ok(Self { process, port })
    }

    /// Runs programs at once, to their ends. Where one fails, what the server has said is part of
    /// the message.
    fn serve(&mut self, commands: Vec<Command>) -> Result<Vec<String>> {
        run::together(commands, LIMIT).map_err(|problem| {
            let said = self.process.said();
            let server =
                if said.is_empty() { String::new() } else { format!("\n  server: {said}") };
            Problem::Failed(format!("{problem}{server}"))
        })
    }
}

/// The cases, in the order in which they run.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &(section, what) in TORCH_SECTIONS {
        cases.push(Case::new(format!("torch's client on our server: {what}"), move |context| {
            torch_section(context, section)
        }));
    }
    cases.push(Case::new("torch's client on our server: 4 processes", torch_members));
    cases.push(Case::new("torch's Gloo job of 2 ranks on our server", gloo_job));
    for kind in [Kind::Libuv, Kind::Legacy] {
        for &(section, what) in OUR_SECTIONS {
            let name = format!("our client on {}: {what}", kind.name());
            cases.push(Case::new(name, move |context| our_section(context, kind, section)));
        }
    }
    for kind in [Kind::Ours, Kind::Libuv, Kind::Legacy] {
        let name = format!("torch and libdist together on {}", kind.name());
        cases.push(Case::new(name, move |context| mixed(context, kind)));
    }
    for kind in [Kind::Libuv, Kind::Legacy] {
        let name = format!("dist_init of {RANKS} ranks on {}", kind.name());
        cases.push(Case::new(name, move |context| dist_init(context, kind)));
    }
    cases
}

fn torch_section(context: &Context, section: &str) -> Result {
    let mut client = context.torch()?.script("ffi-tests/interop/torch_client.py");
    let mut server = Server::start(context, Kind::Ours)?;
    client.args([&server.port, section]);
    let said = server.serve(vec![client])?;
    as_expected(&said)
}

fn torch_members(context: &Context) -> Result {
    let torch = context.torch()?;
    let mut server = Server::start(context, Kind::Ours)?;
    let members = (0..RANKS).map(|rank| {
        let mut member = torch.script("ffi-tests/interop/torch_client.py");
        member.args([&server.port, "member", &rank.to_string(), &RANKS.to_string()]);
        member
    });
    let members = members.collect();
    as_expected(&server.serve(members)?)
}

fn gloo_job(context: &Context) -> Result {
    let torch = context.torch()?;
    let mut server = Server::start(context, Kind::Ours)?;
    let ranks = (0..2).map(|rank| {
        let mut command = torch.script("ffi-tests/interop/torch_job.py");
        as_rank(&mut command, rank, 2, &server.port);
        command
    });
    let ranks = ranks.collect();
    as_expected(&server.serve(ranks)?)
}

fn our_section(context: &Context, kind: Kind, section: &str) -> Result {
    let mut server = Server::start(context, kind)?;
    let mut client = run::command(&context.client);
    client.args([&server.port, section, kind.word()]);
    let said = server.serve(vec![client])?;
    // A refusal is part of the outcome.
    let refused =
        said.iter().flat_map(|text| text.lines()).find(|line| line.starts_with("refused"));
    let last = said.iter().flat_map(|text| text.lines()).last();
    Ok(refused.or(last).unwrap_or_default().to_string())
}

fn mixed(context: &Context, kind: Kind) -> Result {
    let mut theirs = context.torch()?.script("ffi-tests/interop/torch_mixed.py");
    let mut server = Server::start(context, kind)?;
    theirs.args([&server.port, kind.word()]);
    let mut ours = run::command(&context.client);
    ours.args([&server.port, "mixed", kind.word()]);
    let said = server.serve(vec![theirs, ours])?;
    as_expected(&said[..1])?;
    Ok("values, counters, queues and both kinds of barriers".into())
}

fn dist_init(context: &Context, kind: Kind) -> Result {
    let mut server = Server::start(context, kind)?;
    let ranks = (0..RANKS).map(|rank| {
        let mut command = run::command(&context.all_reduce);
        as_rank(&mut command, rank, RANKS, &server.port);
        command
    });
    let ranks = ranks.collect();
    let said = server.serve(ranks)?;
    match said.iter().find(|text| !text.contains("sums correct")) {
        Some(text) => Err(Problem::Failed(format!("a rank has no sums: {text}"))),
        None => Ok(format!("{RANKS} ranks have the sums")),
    }
}

/// What a launcher that hosts the store tells a rank.
fn as_rank(command: &mut Command, rank: usize, size: usize, port: &str) {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", size.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port)
        .env("TORCHELASTIC_USE_AGENT_STORE", "True");
}

/// Every script came to its end; what it had to leave out is told.
fn as_expected(said: &[String]) -> Result {
    for text in said {
        if text.lines().last() != Some("all as expected") {
            return Err(Problem::Failed(format!("a script has not come to its end: {text}")));
        }
    }
    let left_out =
        said.iter().flat_map(|text| text.lines()).find(|line| line.starts_with("without"));
    Ok(left_out.unwrap_or("all as expected").to_string())
}
