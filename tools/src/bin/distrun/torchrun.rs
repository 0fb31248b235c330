//! Flags of torchrun that have little or no effect in distrun. distrun accepts a flag without
//! effect if the job runs as the user expects. For a flag that would change how the job runs,
//! distrun returns an error with the reason, so that no important flag is silently ignored.

use std::str::FromStr;

/// The address of torchrun's rendezvous. distrun uses it as the address of the job's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RendezvousEndpoint {
    /// The host's name or address.
    pub(crate) address: String,
    /// The port, if given.
    pub(crate) port: Option<u16>,
}

impl FromStr for RendezvousEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An IPv6 address contains colons. If a port follows, the address is in brackets.
        let (address, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, rest.strip_prefix(':')),
            None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map(str::parse).transpose();
        match port {
            Ok(port) if !address.is_empty() => Ok(Self { address: address.to_owned(), port }),
            _ => Err("expected HOST or HOST:PORT".to_owned()),
        }
    }
}

/// Parses a Python truth value in upper or lower case.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err("the value is neither true nor false".to_owned()),
    }
}

fn backend(text: &str) -> Result<String, String> {
    match text {
        "static" | "c10d" => Ok(text.to_owned()),
        _ => {
            Err("distrun hosts the job's store itself: the value must be static or c10d".to_owned())
        }
    }
}

/// The flags.
#[derive(Debug, clap::Args)]
pub(crate) struct TorchrunOptions {
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]", hide = true)]
    #[arg(conflicts_with_all = ["master_addr", "master_port"])]
    pub(crate) rdzv_endpoint: Option<RendezvousEndpoint>,

    #[arg(long, alias = "rdzv_id", value_name = "ID", hide = true)]
    pub(crate) rdzv_id: Option<String>,

    #[arg(long, alias = "rdzv_backend", value_parser = backend, hide = true)]
    rdzv_backend: Option<String>,

    /// No effect: distrun never starts an interpreter for the program.
    #[arg(long, alias = "no_python", hide = true)]
    no_python: bool,

    /// No effect: distrun detects the exit of a rank immediately.
    #[arg(long, alias = "monitor_interval", hide = true)]
    monitor_interval: Option<f64>,

    /// No effect: distrun always executes programs.
    #[arg(long, alias = "start_method", hide = true)]
    start_method: Option<String>,

    #[arg(short, long, hide = true)]
    module: bool,

    #[arg(long, alias = "run_path", hide = true)]
    run_path: bool,

    #[arg(long, alias = "virtual_local_rank", hide = true)]
    virtual_local_rank: bool,

    #[arg(long, alias = "numa_binding", hide = true)]
    numa_binding: Option<String>,

    #[arg(long, alias = "signals_to_handle", hide = true)]
    signals_to_handle: Option<String>,

    #[arg(long, alias = "rdzv_conf", hide = true)]
    rdzv_conf: Option<String>,

    #[arg(long, alias = "local_addr", hide = true)]
    local_addr: Option<String>,
}

impl TorchrunOptions {
    /// Checks the flags. The error is the reason why a flag cannot be used.
    pub(crate) fn check(&self, nnodes: usize, is_node_named: bool) -> Result<(), String> {
        let refused = [
            (
                self.module,
                "--module: use the interpreter as the program: distrun ... python3 -m MODULE",
            ),
            (
                self.run_path,
                "--run-path: use the interpreter as the program: distrun ... python3 SCRIPT",
            ),
            (self.virtual_local_rank, "--virtual-local-rank: ranks always have their LOCAL_RANK"),
            (
                self.numa_binding.is_some(),
                "--numa-binding: distrun does not bind ranks; use numactl",
            ),
            (
                self.signals_to_handle.is_some(),
                "--signals-to-handle: SIGINT, SIGTERM, SIGHUP and SIGQUIT are always forwarded",
            ),
            (
                self.rdzv_conf.is_some(),
                "--rdzv-conf: the launchers have no rendezvous to configure; set the number of a node by \
                 --node-rank, and the time that ranks wait for each other by DIST_CONNECT_TIMEOUT_MS",
            ),
            (
                self.local_addr.is_some(),
                "--local-addr: set the interfaces of a node by DIST_SOCKET_IFNAME",
            ),
            (
                nnodes > 1 && self.rdzv_backend.as_deref() == Some("c10d") && !is_node_named,
                "--rdzv-backend c10d: distrun does not number the nodes; pass --node-rank on each node, \
                 and the address of node 0 as --rdzv-endpoint",
            ),
        ];
        match refused.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, reason)) => Err(reason.to_owned()),
            None => Ok(()),
        }
    }
}
