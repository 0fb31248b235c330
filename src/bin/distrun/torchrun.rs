//! Flags of torchrun with little or no effect here. distrun accepts flags that a start line may
//! contain without harm. It refuses flags that would change the program's run, with the reason, so
//! that no flag is silently ignored.

use std::str::FromStr;

/// The address of torchrun's rendezvous, which is the address of the job's store here.
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
        // An IPv6 address contains colons, and is in brackets if a port follows.
        let (address, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, rest.strip_prefix(':')),
            None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map(str::parse).transpose();
        match port {
            Ok(port) if !address.is_empty() => Ok(Self { address: address.to_owned(), port }),
            _ => Err("it is no HOST:PORT".to_owned()),
        }
    }
}

/// Parses a Python truth value in upper or lower case.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err("it is neither true nor false".to_owned()),
    }
}

fn backend(text: &str) -> Result<String, String> {
    match text {
        "static" | "c10d" => Ok(text.to_owned()),
        _ => Err("distrun hosts the job's store itself: static and c10d are known".to_owned()),
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

    /// The program is never taken for a Python script.
    #[arg(long, alias = "no_python", hide = true)]
    no_python: bool,

    /// The end of a rank is noticed at once.
    #[arg(long, alias = "monitor_interval", hide = true)]
    monitor_interval: Option<f64>,

    /// Programs are always executed.
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
    /// Checks the flags; the error is the reason why they cannot be used.
    pub(crate) fn check(&self, nnodes: usize, is_node_named: bool) -> Result<(), String> {
        let refused = [
            (self.module, "--module: name the interpreter: distrun ... python3 -m MODULE"),
            (self.run_path, "--run-path: name the interpreter: distrun ... python3 SCRIPT"),
            (self.virtual_local_rank, "--virtual-local-rank: ranks always have their LOCAL_RANK"),
            (self.numa_binding.is_some(), "--numa-binding: distrun binds no rank; use numactl"),
            (
                self.signals_to_handle.is_some(),
                "--signals-to-handle: SIGINT, SIGTERM, SIGHUP and SIGQUIT are always passed on",
            ),
            (
                self.rdzv_conf.is_some(),
                "--rdzv-conf: there is no rendezvous of launchers to configure; --node-rank numbers a \
                 node, DIST_CONNECT_TIMEOUT_MS says how long ranks wait for each other",
            ),
            (
                self.local_addr.is_some(),
                "--local-addr: DIST_SOCKET_IFNAME names the interfaces of a node",
            ),
            (
                nnodes > 1 && self.rdzv_backend.as_deref() == Some("c10d") && !is_node_named,
                "--rdzv-backend c10d: distrun does not number the nodes by itself; give each its \
                 --node-rank, and node 0's address as --rdzv-endpoint",
            ),
        ];
        match refused.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, reason)) => Err(reason.to_owned()),
            None => Ok(()),
        }
    }
}
