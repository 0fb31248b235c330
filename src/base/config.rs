//! The environment variables of the library: one table, and the only code that reads them.
//!
//! The table is also the source of `docs/environment.md` (a test compares the two). This module
//! checks the values. A wrong value is an error that names the variable, never a silent default.

use super::deadline::Timeout;
use super::error::{Error, ErrorKind, Result};
use super::misspelt::meant_variable;
use super::renamed::{NAME_CHANGES, NameKind, former_name_error};
use std::str::FromStr;

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct EnvVariable {
    /// The name of the variable.
    pub name: &'static str,
    /// The program or person that sets the variable, such as the launcher or the user.
    pub set_by: &'static str,
    /// The behaviour if the variable is not set.
    pub default: &'static str,
    /// The meaning in one line.
    pub meaning: &'static str,
}

macro_rules! variables {
    ($($ident:ident = $name:literal, $set_by:literal, $default:literal, $meaning:literal;)+) => {
        $(
            #[doc = $meaning]
            pub const $ident: EnvVariable = EnvVariable {
                name: $name, set_by: $set_by, default: $default, meaning: $meaning,
            };
        )+
        /// All variables that the library reads, in the order of `docs/environment.md`.
        pub const VARIABLES: &[EnvVariable] = &[$($ident),+];
    };
}

variables! {
    RANK = "RANK", "launcher", "none", "This process's rank, from 0.";
    WORLD_SIZE = "WORLD_SIZE", "launcher", "none", "The number of ranks of the job.";
    MASTER_ADDR = "MASTER_ADDR", "launcher", "none", "The host of the job's store.";
    MASTER_PORT = "MASTER_PORT", "launcher", "29500", "The port of the job's store.";
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE", "launcher", "none",
        "The ranks on this host. If they are all ranks and no secret is given, rank 0 makes one, unless the launcher hosts the store.";
    USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE", "launcher", "False",
        "`True`: the launcher hosts the store, and rank 0 joins it as a client.";
    RUN_ID = "TORCHELASTIC_RUN_ID", "launcher", "none",
        "The job's id; its presence means that an elastic launcher started this process.";
    ERROR_FILE = "TORCHELASTIC_ERROR_FILE", "launcher", "none",
        "The file for the first fatal error of this process, in torchrun's form, for the launcher's summary. An \
         error that the program wrote to the file is kept.";
    OMPI_RANK = "OMPI_COMM_WORLD_RANK", "Open MPI", "none", "The rank, where RANK is not set.";
    OMPI_SIZE = "OMPI_COMM_WORLD_SIZE", "Open MPI", "none", "The world size, where WORLD_SIZE is not set.";
    OMPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI", "none", "The ranks on this host.";
    PMIX_NAMESPACE = "PMIX_NAMESPACE", "Open MPI, PMIx", "none", "The job's id under PMIx.";
    PMI_RANK = "PMI_RANK", "MPICH", "none", "The rank under MPICH's launcher.";
    PMI_SIZE = "PMI_SIZE", "MPICH", "none", "The world size under MPICH's launcher.";
    PMI_LOCAL_SIZE = "MPI_LOCALNRANKS", "MPICH", "none", "The ranks on this host under MPICH's launcher.";
    SLURM_RANK = "SLURM_PROCID", "Slurm", "none", "The rank under srun.";
    SLURM_SIZE = "SLURM_NTASKS", "Slurm", "none", "The world size under srun.";
    SLURM_NODES = "SLURM_NNODES", "Slurm", "none", "The number of hosts under srun.";
    SLURM_JOB = "SLURM_JOB_ID", "Slurm", "none", "The job's id under srun.";
    SLURM_STEP = "SLURM_STEP_ID", "Slurm", "none", "The step's id under srun.";
    SECRET_FILE = "DIST_STORE_SECRET_FILE", "user", "none",
        "A file with the secret of the job's store, the same on all ranks; only its owner may have access (mode 0600).";
    SECRET_FD = "DIST_STORE_SECRET_FD", "distrun, dist_spawn", "none",
        "The number of an inherited descriptor of such a file, or of one in memory.";
    LAUNCHER_HAS_SECRET = "DIST_STORE_HAS_SECRET", "distrun", "none",
        "1 if the launcher's store has the secret of DIST_STORE_SECRET_FILE. torchrun's store has none; the secret then protects only the connections between ranks.";
    SECURITY = "DIST_SECURITY", "user", "auth with a secret, else none",
        "auth: both sides of each connection between ranks prove that they hold the job's secret. encrypt: in addition, all bytes of these connections and of those to the store are encrypted. none: neither, even with a secret. Equal on all ranks; see docs/security.md.";
    TIMEOUT_MS = "DIST_TIMEOUT_MS", "user", "1800000",
        "Default deadline of an operation in milliseconds, if the options name none; -1 for no deadline, 0 for the default.";
    CONNECT_TIMEOUT_MS = "DIST_CONNECT_TIMEOUT_MS", "user", "300000",
        "Deadline of initialisation in milliseconds, if the options name none; -1 for no deadline, 0 for the default.";
    LOG_LEVEL = "DIST_LOG_LEVEL", "user, distrun", "OFF; WARN under distrun",
        "OFF, ERROR, WARN, INFO, DEBUG or TRACE; lines go to standard error or the log callback.";
    TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL", "user", "none",
        "The same with torch's level names, where DIST_LOG_LEVEL is not set: INFO, WARNING, ERROR, FATAL, or their \
         numbers from 0. With INFO, the debug level INFO gives DEBUG, and DETAIL gives TRACE (docs/debugging.md).";
    DEBUG_LEVEL = "DIST_DEBUG_LEVEL", "user", "OFF",
        "OFF, INFO or DETAIL (docs/debugging.md). For the arrival check before each collective, the value of rank 0 \
         counts.";
    TORCH_DEBUG = "TORCH_DISTRIBUTED_DEBUG", "user", "none", "The same, where DIST_DEBUG_LEVEL is not set.";
    CHECK_NAN = "DIST_CHECK_NAN", "user", "0",
        "1: a collective or a message with a NaN in it fails its group, and the error gives the element; `inf`: infinities too.";
    STACKTRACES = "DIST_SHOW_STACKTRACES", "user", "0",
        "1: errors keep a back-trace of the calling thread (dist_last_error_backtrace); so does the debug level DETAIL.";
    TORCH_STACKTRACES = "TORCH_SHOW_CPP_STACKTRACES", "user", "none",
        "The same, where DIST_SHOW_STACKTRACES is not set.";
    SLOW_WARNING_MS = "DIST_SLOW_WARNING_MS", "user", "30000",
        "After this many milliseconds, a wait is logged (at level WARN) with the missing ranks; -1 for never, 0 for the default.";
    DEADLOCK_MS = "DIST_DEADLOCK_MS", "user", "300",
        "A call that waits longer than this many milliseconds is checked for a deadlock; -1 for never, 0 for the default.";
    BACKEND_PLUGINS = "DIST_BACKEND_PLUGINS", "user", "none",
        "Paths of shared objects with back ends, separated by `:`; loaded when a group requests an unknown back end.";
    MPI_PLUGIN = "DIST_MPI_PLUGIN", "user", "automatic search",
        "The path of the plug-in for the back end `mpi`: libdist_mpi_openmpi.so or libdist_mpi_mpich.so (docs/mpi.md).";
    RECORDER_FILE = "DIST_FLIGHT_RECORDER_FILE", "user, distrun", "none; a folder of the job under distrun",
        "The prefix of the file to which each rank writes the flight recorder's dump when a group fails: with `/tmp/fr_`, rank 3 writes `/tmp/fr_3.json`. For dist-doctor.";
    TORCH_RECORDER_FILE = "TORCH_FR_DUMP_TEMP_FILE", "user", "none",
        "The same, where DIST_FLIGHT_RECORDER_FILE is not set; the name ends with the rank, without `.json`.";
    TORCH_NCCL_RECORDER_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "user", "none",
        "The same, where TORCH_FR_DUMP_TEMP_FILE is not set either.";
    RECORDER_TRIGGER = "DIST_FLIGHT_RECORDER_TRIGGER", "user", "none",
        "A file PATH that requests dumps: all ranks write theirs within seconds after PATH is touched. If PATH followed by a rank is touched, this rank writes its dump. Without DIST_FLIGHT_RECORDER_FILE the dumps go to PATH_RANK.json.";
    STORE_BIND = "DIST_STORE_BIND_ADDRESS", "user", "MASTER_ADDR",
        "The address on which the store listens if rank 0 hosts it and MASTER_ADDR is not an address of that host; \
         `::` for all interfaces.";
    STORE_UNIX = "DIST_STORE_UNIX", "user", "on",
        "off: clients on the host of the store use TCP too, not a Unix socket.";
    HEARTBEAT_LIMIT_MS = "DIST_HEARTBEAT_LIMIT_MS", "user", "5000",
        "How long a rank may send no heartbeat before its group fails, in milliseconds; 100 to 3600000, -1 for no limit (under a debugger), or 0 for the default. The value of rank 0 counts.";
    LINK_KEEPALIVE_MS = "DIST_LINK_KEEPALIVE_MS", "user", "60000",
        "How long a connection between two processes may be idle before the system sends a probe, in milliseconds; 1000 to 3600000, in whole seconds. Routers, firewalls and clouds forget idle connections, some after 4 minutes; set less than that time. The process that has connected sends the probes.";
    LINK_RETRY_MS = "DIST_LINK_RETRY_MS", "user", "10000",
        "The time within which a connection between two processes that breaks, although both live, must be replaced, in milliseconds; at most 3600000. 0: it is not replaced, and the group fails.";
    TRANSPORT = "DIST_TRANSPORT", "user", "auto",
        "The transport: auto (shared memory inside a host, TCP between hosts), shm (also for threads of one process), inproc (only for threads of one process), or tcp (also inside a host).";
    HOST_ID = "DIST_HOST_ID", "user", "boot id and IPC namespace",
        "Replaces the host's identity, so that ranks of one host act as ranks of several hosts (tests).";
    CMA = "DIST_CMA", "user", "1",
        "0: no cross-memory attach (CMA). Other ranks neither read this process's memory nor write received data there (process_vm_readv, process_vm_writev). Large vectors and messages go through shared memory, which is slower. If one rank of a group sets 0, the group's collectives do not use CMA. Memory of dist_mem_alloc is mapped by other ranks in any case.";
    CMA_BOUNCE = "DIST_CMA_BOUNCE", "user", "measured",
        "1: CMA copies at addresses where the kernel's copy is slow (the destination is 1 to 31 bytes after the source, modulo 4096) go through a small buffer. 0: no copy does. By default, each process measures in 50 us whether its processor has slow addresses; see `cma_bounce` in dist_group_describe.";
    DEATH_WITNESS = "DIST_DEATH_WITNESS", "user", "1",
        "0: no death witness. By default, in a group on several hosts, the process of the first rank of each host starts one small process, the death witness. If the rank's process dies, the witness proves the death to the survivors on other hosts for 30 s. Without it, they may have to wait for the heartbeat limit before they go on.";
    SLOT_BYTES = "DIST_SHM_SLOT_BYTES", "user", "On AMD's processors 524288 for 2 ranks on a host, 262144 for 4, \
                                                 131072 from 8 on; on other processors 131072 if each rank has a \
                                                 core, else 262144 for up to 4 ranks, 131072 from 8 on",
        "Size of one data slot of a rank in shared memory, in bytes; 4096 to 67108864.";
    SOCKET_IFNAME = "DIST_SOCKET_IFNAME", "user", "the interface towards the store",
        "Network interfaces between hosts, used round-robin: prefixes of names, `=name` for an exact name, \
         addresses; or `^name,...` for all except these.";
    GLOO_SOCKET_IFNAME = "GLOO_SOCKET_IFNAME", "user", "none", "The same, where DIST_SOCKET_IFNAME is not set.";
    SOCKET_FAMILY = "DIST_SOCKET_FAMILY", "user", "both", "`AF_INET` or `AF_INET6`: only addresses of this family.";
    NCCL_SOCKET_FAMILY = "NCCL_SOCKET_FAMILY", "user", "none", "The same, where DIST_SOCKET_FAMILY is not set.";
    PORT_RANGE = "DIST_PORT_RANGE", "user", "any free ports",
        "The ports on which ranks listen: low-high, or one port; each process of a host needs one port for each address.";
    ADVERTISE = "DIST_ADVERTISE", "user", "the local addresses",
        "The address and the ports by which ranks of other networks reach this rank: host:port or host:low-high, for \
         published ports of a container or NAT. The rank listens on its local addresses, on the same ports or on those \
         of DIST_PORT_RANGE (the n-th published port leads to the n-th local port).";
    TCP_LANES = "DIST_TCP_LANES", "user", "one for each named interface",
        "The number of TCP connections to each peer that share large messages; 1 to 8. The value of rank 0 counts.";
    ALGORITHM = "DIST_ALGORITHM", "user", "the library's choice",
        "Selects algorithms by operation, for example `all_reduce=ring;broadcast=binomial`. Ignored for calls that the algorithm does not support. The value of rank 0 counts.";
    TUNING_FILE = "DIST_TUNING_FILE", "user", "none",
        "A file that selects algorithms by operation and size (docs/tuning.md). The value of rank 0 counts.";
    TRACE_FILE = "DIST_TRACE_FILE", "user", "none",
        "The prefix of the trace file of this process, followed by its rank and `.json`. The trace lasts from the first group to dist_finalize. A file that cannot be written is an error of dist_init.";
    NCCL_LIB = "DIST_NCCL_LIB", "user", "libnccl.so.2, libnccl.so",
        "The file of NCCL (docs/nccl.md), if the loader's search path has none or another one.";
    VLLM_NCCL_SO_PATH = "VLLM_NCCL_SO_PATH", "user", "none", "The same, where DIST_NCCL_LIB is not set.";
    UCC_LIB = "DIST_UCC_LIB", "user", "libucc.so.1",
        "The file of UCC (docs/ucc.md), if the loader's search path has none or another one.";
    UCC_CLS = "UCC_CLS", "user", "UCC's choice", "UCC's own variable: the collective layers that it uses. dist_group_describe shows the value.";
    UCC_TLS = "UCC_TLS", "user", "UCC's choice", "UCC's own variable: the transport layers that it uses. dist_group_describe shows the value.";
    UCX_TLS = "UCX_TLS", "user", "UCX's choice", "UCX's own variable: the transports under UCC. dist_group_describe shows the value.";
    UCX_NET_DEVICES = "UCX_NET_DEVICES", "user", "UCX's choice", "UCX's own variable: the network devices under UCC. dist_group_describe shows the value.";
    UCC_ALL_REDUCE_RADIX = "UCC_TL_UCP_ALLREDUCE_KN_RADIX", "user", "UCC's choice",
        "UCC's own variable. 2: a small all_reduce of floats has the same bits on all ranks (docs/ucc.md).";
    TORCH_NCCL_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT", "user", "0",
        "1: a call on GPU memory ends when the device has completed it, and returns its errors and its time-out.";
    NCCL_BLOCKING_WAIT = "NCCL_BLOCKING_WAIT", "user", "none", "The same, where TORCH_NCCL_BLOCKING_WAIT is not set.";
    TORCH_NCCL_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "user", "3",
        "0: errors and deadlines of operations on a GPU do not fail the group; 1, 2, 3: they do. libdist never ends the process.";
    NCCL_ASYNC_ERRORS = "NCCL_ASYNC_ERROR_HANDLING", "user", "none",
        "The same, where TORCH_NCCL_ASYNC_ERROR_HANDLING is not set.";
    TORCH_NCCL_HIGH_PRIORITY = "TORCH_NCCL_HIGH_PRIORITY", "user", "0",
        "1: the library's own streams have a high priority on the GPU, as with the option nccl.high_priority.";
    TORCH_NCCL_NON_BLOCKING = "TORCH_NCCL_USE_COMM_NONBLOCKING", "user", "1",
        "0: calls on GPU memory may block inside NCCL until the other ranks have called, and cost less, as with the option nccl.blocking.";
    TORCH_NCCL_TIMING = "TORCH_NCCL_ENABLE_TIMING", "user", "0",
        "1: the flight recorder has the time that the GPU needs for each operation of NCCL. While a trace is written, the time is measured in any case.";
    NCCL_MULTI_RANK_GPU = "NCCL_MULTI_RANK_GPU_ENABLE", "user", "0",
        "NCCL's own variable. 1: several ranks may share a GPU, from NCCL 2.30 on; otherwise the group is refused before the ranks meet.";
    NCCL_DEBUG = "NCCL_DEBUG", "user", "none",
        "NCCL's own variable: the level of NCCL's log, which NCCL writes itself: VERSION, WARN, INFO or TRACE. libdist logs the value (at level INFO) when it makes a group over NCCL.";
    NCCL_DEBUG_SUBSYS = "NCCL_DEBUG_SUBSYS", "user", "none",
        "NCCL's own variable: the parts of NCCL that write lines at level INFO, for example INIT,NET or ALL. libdist logs the value, too.";
    SPIN_US = "DIST_SPIN_US", "user", "200",
        "How long a wait spins before it yields or sleeps, in microseconds, if each rank has a core.";
}

/// Returns the text of a variable without white space around it, or `None` if it is unset or empty.
/// (Files in YAML easily add a blank or a line feed.)
///
/// # Errors
/// `InvalidArgument` if the text is not UTF-8.
#[allow(clippy::disallowed_methods, reason = "the only place that reads environment variables")]
pub fn read_text(variable: EnvVariable) -> Result<Option<String>> {
    match std::env::var(variable.name) {
        Ok(value) if value.trim().is_empty() => Ok(None),
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::invalid(format!("{} is not valid UTF-8", variable.name)))
        }
    }
}

/// Fails if the environment contains a former name of a variable (a name that only earlier versions
/// of the library read).
///
/// # Errors
/// `InvalidArgument`, with the present name of the variable.
pub fn refuse_former_names() -> Result<()> {
    let variables = NAME_CHANGES.iter().filter(|change| change.kind == NameKind::Variable);
    let set = variables.map(|change| change.old).find(|name| is_set(name));
    set.and_then(|name| former_name_error(NameKind::Variable, name)).map_or(Ok(()), Err)
}

/// Returns the names in the environment that are misspelt, each with the variable that is probably
/// meant.
#[allow(clippy::disallowed_methods, reason = "the only place that reads environment variables")]
pub fn misspelt_variables() -> Vec<(String, &'static str)> {
    let known = VARIABLES.iter().map(|variable| variable.name);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names
        .filter_map(|name| meant_variable(&name, known.clone()).map(|meant| (name, meant)))
        .collect()
}

#[allow(clippy::disallowed_methods, reason = "the only place that reads environment variables")]
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns the number in a variable, or `None` if it is unset or empty.
///
/// # Errors
/// `InvalidArgument`, with the variable and its text, if the text is not a number of this type.
pub fn read_number<T: FromStr>(variable: EnvVariable) -> Result<Option<T>> {
    let Some(value) = read_text(variable)? else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => {
            let problem = match value.trim().parse::<i128>() {
                Ok(_) => "is out of range",
                Err(_) => "is not an integer",
            };
            Err(Error::invalid(format!("{}=\"{value}\" {problem}", variable.name)))
        }
    }
}

/// Returns the number in a variable, or `default` if it is unset or empty.
///
/// # Errors
/// `InvalidArgument`, with the variable, its value and the limits, if the number is outside
/// `low..=high`.
pub fn read_bounded(variable: EnvVariable, default: u64, low: u64, high: u64) -> Result<u64> {
    let value = read_number(variable)?.unwrap_or(default);
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    let message = format!("{}={value} is out of range: {low} to {high}", variable.name);
    Err(Error::invalid(message))
}

/// Returns the timeout that a variable contains, in milliseconds: `u64::MAX` for no limit,
/// `default_ms` if the variable is unset, empty or 0.
///
/// # Errors
/// `InvalidArgument`, with the variable and its text, if the text is not a timeout, or is -2, the
/// number for "no wait" ([`Timeout::NO_WAIT`]).
pub fn read_timeout_ms(variable: EnvVariable, default_ms: u64) -> Result<u64> {
    let number = read_number::<i64>(variable)?.unwrap_or(0);
    match Timeout::from_number(number) {
        None | Some(Timeout::NoWait) => {
            let message = format!(
                "{}={number} is not a valid time-out: set milliseconds, 0 for the default ({default_ms} ms), or -1 \
                 for no limit",
                variable.name
            );
            Err(Error::invalid(message))
        }
        Some(given) => Ok(given.ms_or(default_ms)),
    }
}

/// Returns true if a variable is 1 and false if it is 0, or `None` if it is unset or empty.
///
/// # Errors
/// `InvalidArgument`, with the variable, for any other text.
pub fn read_bool(variable: EnvVariable) -> Result<Option<bool>> {
    match read_text(variable)?.as_deref() {
        None => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(other) => {
            Err(Error::invalid(format!("{}=\"{other}\" is neither 0 nor 1", variable.name)))
        }
    }
}

/// Returns the text of a variable that must be set.
///
/// # Errors
/// `InvalidArgument`, with the variable and the remedy.
pub fn read_required(variable: EnvVariable, remedy: &str) -> Result<String> {
    read_text(variable)?.ok_or_else(|| {
        let message = format!("environment variable {} is not set; {remedy}", variable.name);
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// Returns the table of `docs/environment.md`, in Markdown.
pub fn markdown_table() -> String {
    let mut table =
        String::from("| variable | set by | default | meaning |\n| --- | --- | --- | --- |\n");
    for v in VARIABLES {
        table.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            v.name, v.set_by, v.default, v.meaning
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = VARIABLES.iter().map(|v| v.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), VARIABLES.len());
    }

    #[test]
    fn renamed_variables_have_their_present_name_in_the_table() {
        let is_known = |name: &str| VARIABLES.iter().any(|variable| variable.name == name);
        for change in NAME_CHANGES.iter().filter(|change| change.kind == NameKind::Variable) {
            assert!(is_known(change.new) && !is_known(change.old), "{}", change.old);
        }
    }

    #[test]
    fn unset_required_variable_error_names_the_remedy() {
        let unset = EnvVariable { name: "DIST_TEST_UNSET", set_by: "", default: "", meaning: "" };
        assert_eq!(read_text(unset).unwrap(), None);
        assert_eq!(read_bounded(unset, 7, 1, 9).unwrap(), 7);
        let error = read_required(unset, "start the program with distrun").unwrap_err();
        assert!(error.message().contains("DIST_TEST_UNSET"));
        assert!(error.message().contains("distrun"));
    }
}
