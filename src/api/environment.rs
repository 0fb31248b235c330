//! Resolves the rendezvous method (how the ranks find their store), the rank and the world size of
//! a process. The source is an init method URL or the environment variables of a launcher.

use crate::base::config::{self, EnvVariable};
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::process::this_process;
use crate::store::tcp::Secret;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The default port, as in torch.
pub const DEFAULT_PORT: u16 = 29_500;

/// A rank and a world size; each may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankAndSize {
    /// The rank.
    pub rank: Option<usize>,
    /// The world size.
    pub size: Option<usize>,
}

/// The method by which the ranks find the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousMethod {
    /// The store is at a TCP address. Rank 0 hosts it unless `is_agent_hosted` is set.
    Tcp {
        /// The host name or address.
        host: String,
        /// The TCP port.
        port: u16,
        /// True if the launcher hosts the store.
        is_agent_hosted: bool,
        /// True if all ranks are known to be on this host.
        is_single_host: bool,
    },
    /// No rendezvous: the world has a single rank.
    SingleRank,
    /// The store is a file that all ranks can access.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The name of the job, or empty if it is unknown. If the file was created by a job of
        /// another name, opening it fails.
        job: String,
    },
    /// All ranks are on this host. Rank 0 hosts the store on any free port, and publishes the port
    /// to the other ranks under the name of the job.
    Local {
        /// The name of the job.
        job: String,
    },
}

/// The result of resolving a URL or the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedInitMethod {
    /// Rank and world size of this process.
    pub identity: RankAndSize,
    /// The rendezvous method.
    pub rendezvous: RendezvousMethod,
}

/// The environment variables of one launcher.
struct Launcher {
    name: &'static str,
    rank: EnvVariable,
    size: EnvVariable,
}

const LAUNCHERS: &[Launcher] = &[
    Launcher { name: "torchrun or distrun", rank: config::RANK, size: config::WORLD_SIZE },
    Launcher { name: "Open MPI", rank: config::OMPI_RANK, size: config::OMPI_SIZE },
    Launcher { name: "MPICH", rank: config::PMI_RANK, size: config::PMI_SIZE },
    Launcher { name: "Slurm", rank: config::SLURM_RANK, size: config::SLURM_SIZE },
];

/// The supported init methods, for messages.
const INIT_METHOD_FORMS: &str =
    "env://, tcp://host:port?rank=R&world_size=N, or file:///path?rank=R&world_size=N";

/// Resolves an init method. `size` is the world size that the caller has set, if any.
///
/// * `env://`, or an empty text: rank, world size and address come from the environment. If `size`
///   is set, it decides instead of the environment's world size whether the world has a single
///   rank. A world of a single rank needs no address.
/// * `tcp://host:port?rank=R&world_size=N`: all values come from the URL.
/// * `file:///path?rank=R&world_size=N`: a rank or world size that the URL omits comes from the
///   environment.
///
/// # Errors
/// `InvalidArgument`. The message names the invalid part and the valid forms.
pub fn resolve(init_method: &str, size: Option<usize>) -> Result<ResolvedInitMethod> {
    let (scheme, rest) = init_method.split_once("://").unwrap_or((init_method, ""));
    match scheme {
        "" | "env" => from_environment(rest, size),
        "tcp" => from_tcp_url(init_method, rest),
        "file" => from_file_url(init_method, rest),
        _ => {
            let message =
                format!("init_method \"{init_method}\" is unknown; use {INIT_METHOD_FORMS}");
            Err(Error::invalid(message))
        }
    }
}

fn from_environment(rest: &str, size: Option<usize>) -> Result<ResolvedInitMethod> {
    let mut identity = identity_from_environment()?;
    identity.read_query(rest.strip_prefix('?').unwrap_or(rest))?;
    let rendezvous = match size.or(identity.size) {
        Some(1) => RendezvousMethod::SingleRank,
        _ => rendezvous_from_environment(&identity)?,
    };
    Ok(ResolvedInitMethod { identity, rendezvous })
}

/// Returns the rank and world size of the first launcher that has set either.
///
/// # Errors
/// `InvalidArgument` if a value is not a number, or if only one of the two is set.
pub fn identity_from_environment() -> Result<RankAndSize> {
    for launcher in LAUNCHERS {
        let rank = config::read_number(launcher.rank)?;
        let size = config::read_number(launcher.size)?;
        if rank.is_some() != size.is_some() {
            let (set, unset) = if rank.is_some() {
                (launcher.rank.name, launcher.size.name)
            } else {
                (launcher.size.name, launcher.rank.name)
            };
            let message = format!(
                "environment variable {set} is set but {unset} is not ({} sets both); start the \
                 program with distrun, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR \
                 and MASTER_PORT",
                launcher.name
            );
            return Err(Error::invalid(message));
        }
        if rank.is_some() {
            return Ok(RankAndSize { rank, size });
        }
    }
    Ok(RankAndSize::default())
}

/// Reads the secret of the job's store from the file or the descriptor that the environment names.
/// Returns `None` if it names neither.
///
/// # Errors
/// `InvalidArgument` if two sources are named or the content is not a valid secret; `System` if the
/// source cannot be read. Each error names the variable and never the content.
pub fn job_secret() -> Result<Option<Secret>> {
    let (file, fd) = (config::SECRET_FILE, config::SECRET_FD);
    let (found, source) = match (config::read_text(file)?, config::read_number(fd)?) {
        (None, None) => return Ok(None),
        (Some(path), None) => (Secret::from_file(Path::new(&path)), file),
        (None, Some(number)) => (Secret::from_fd(number), fd),
        (Some(_), Some(_)) => {
            let message = format!(
                "both {} and {} are set, and each specifies the secret of the job's store: unset one",
                file.name, fd.name
            );
            return Err(Error::invalid(message));
        }
    };
    found.map(Some).context(|| format!("the store's secret, from {}", source.name))
}

/// Returns whether the environment says that the launcher's store has the job's secret. distrun and
/// `dist_spawn` say so; the store of torchrun has no secret.
///
/// # Errors
/// `InvalidArgument` if a variable is not UTF-8.
pub fn launcher_has_secret() -> Result<bool> {
    let is_set = |variable| config::read_text(variable).map(|value| value.is_some());
    Ok(is_set(config::SECRET_FD)? || is_set(config::LAUNCHER_HAS_SECRET)?)
}

fn rendezvous_from_environment(identity: &RankAndSize) -> Result<RendezvousMethod> {
    if let Some(host) = config::read_text(config::MASTER_ADDR)? {
        let port = config::read_number(config::MASTER_PORT)?.unwrap_or(DEFAULT_PORT);
        let is_agent_hosted =
            config::read_text(config::USE_AGENT_STORE)?.is_some_and(|text| text == "True");
        let is_single_host = is_single_host(&host, identity)?;
        return Ok(RendezvousMethod::Tcp { host, port, is_agent_hosted, is_single_host });
    }
    if let Some(job) = local_job(identity)? {
        return Ok(RendezvousMethod::Local { job });
    }
    // MASTER_ADDR is unset here, so this call always returns the error that names the variable.
    config::read_required(
        config::MASTER_ADDR,
        "start the program with distrun, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR \
         and MASTER_PORT (the host and port of rank 0)",
    )
    .map(|host| RendezvousMethod::Tcp {
        host,
        port: DEFAULT_PORT,
        is_agent_hosted: false,
        is_single_host: false,
    })
}

/// Returns true if all ranks of a job are known to be on this host: the store is on its loopback
/// interface, or a launcher says so.
fn is_single_host(store_host: &str, identity: &RankAndSize) -> Result<bool> {
    if config::read_text(config::HOST_ID)?.is_some() {
        // The user decides which ranks share a host.
        return Ok(false);
    }
    let is_loopback = |host: &str| {
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let mut is_single_host = is_loopback(store_host);
    for size in [config::LOCAL_WORLD_SIZE, config::OMPI_LOCAL_SIZE, config::PMI_LOCAL_SIZE] {
        is_single_host |= identity.size.is_some() && config::read_number(size)? == identity.size;
    }
    Ok(is_single_host)
}

/// Returns a name for the job if an MPI launcher or Slurm started all its ranks on this host. The
/// ranks of one job get the same name. Returns `None` if the job spans hosts or the number of hosts
/// is unknown.
///
/// Open MPI and MPICH do not always set a job name. Therefore the name has `sibling_group_name`,
/// which is equal for the processes that one parent (the launcher) has started.
fn local_job(identity: &RankAndSize) -> Result<Option<String>> {
    let size = identity.size;
    let is_single_host = |local: EnvVariable| -> Result<bool> {
        Ok(size.is_some() && config::read_number::<usize>(local)? == size)
    };
    if is_single_host(config::OMPI_LOCAL_SIZE)? {
        let job = config::read_text(config::PMIX_NAMESPACE)?.unwrap_or_default();
        return Ok(Some(format!("openmpi-{job}-{}", this_process::sibling_group_name())));
    }
    if is_single_host(config::PMI_LOCAL_SIZE)? {
        return Ok(Some(format!("mpich-{}", this_process::sibling_group_name())));
    }
    if config::read_number::<usize>(config::SLURM_NODES)? == Some(1)
        && let Some(job) = config::read_text(config::SLURM_JOB)?
    {
        let step = config::read_text(config::SLURM_STEP)?.unwrap_or_default();
        return Ok(Some(format!("slurm-{job}-{step}-{}", this_process::uid())));
    }
    Ok(None)
}

fn from_tcp_url(url: &str, rest: &str) -> Result<ResolvedInitMethod> {
    let bad = |problem: &str| {
        Error::invalid(format!(
            "init_method \"{url}\": {problem}; the form is tcp://host:port?rank=R&world_size=N"
        ))
    };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = address.trim_end_matches('/');
    let (host, port) = address.rsplit_once(':').ok_or_else(|| bad("the port is missing"))?;
    let port = port.parse().map_err(|_| bad("the port is not a number from 0 to 65535"))?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(bad("the host is missing"));
    }
    let mut identity = RankAndSize::default();
    identity.read_query(query).map_err(|error| bad(error.message()))?;
    let is_single_host = is_single_host(host, &RankAndSize::default())?;
    let rendezvous =
        RendezvousMethod::Tcp { host: host.into(), port, is_agent_hosted: false, is_single_host };
    Ok(ResolvedInitMethod { identity, rendezvous })
}

fn from_file_url(url: &str, rest: &str) -> Result<ResolvedInitMethod> {
    let bad = |problem: &str| {
        Error::invalid(format!(
            "init_method \"{url}\": {problem}; the form is file:///path?rank=R&world_size=N"
        ))
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err(bad("the path does not begin with \"/\""));
    }
    let path = decode_percent(path).map_err(bad)?;
    let mut identity = RankAndSize::default();
    identity.read_query(query).map_err(|error| bad(error.message()))?;
    if identity.rank.is_none() || identity.size.is_none() {
        let found = identity_from_environment()?;
        identity.rank = identity.rank.or(found.rank);
        identity.size = identity.size.or(found.size);
    }
    let path = PathBuf::from(OsString::from_vec(path));
    Ok(ResolvedInitMethod {
        identity,
        rendezvous: RendezvousMethod::File { path, job: job_name()? },
    })
}

/// Returns the launcher's name for the job, which is equal on all ranks of the job. Returns an
/// empty text if the launcher sets no name.
fn job_name() -> Result<String> {
    for variable in [config::RUN_ID, config::PMIX_NAMESPACE, config::SLURM_JOB] {
        if let Some(name) = config::read_text(variable)? {
            return Ok(name);
        }
    }
    Ok(String::new())
}

/// Decodes a path from a URL. In the URL, `%` and two hexadecimal digits represent one byte.
fn decode_percent(text: &str) -> std::result::Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, remainder) = match (first, tail) {
            (b'%', [high, low, remainder @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let value = digit(*high).zip(digit(*low)).map(|(high, low)| high * 16 + low);
                (value.and_then(|value| u8::try_from(value).ok()).ok_or(BAD_PERCENT)?, remainder)
            }
            (b'%', _) => return Err(BAD_PERCENT),
            _ => (first, tail),
        };
        if byte == 0 {
            return Err("a path has no zero bytes");
        }
        bytes.push(byte);
        rest = remainder;
    }
    Ok(bytes)
}

/// The error text for a path with an invalid escape.
const BAD_PERCENT: &str =
    "\"%\" is not followed by two hexadecimal digits (write \"%\" itself as %25)";

impl RankAndSize {
    /// Reads `rank` and `world_size` from a URL's query. Ignores the parameter `use_libuv`, which
    /// torch accepts.
    fn read_query(&mut self, query: &str) -> Result<()> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let field = match name {
                "rank" => &mut self.rank,
                "world_size" => &mut self.size,
                "use_libuv" => continue,
                _ => return Err(Error::invalid(format!("unknown parameter \"{name}\""))),
            };
            let number = value.parse().map_err(|_| {
                Error::invalid(format!("{name}=\"{value}\" is not a number of at least 0"))
            })?;
            *field = Some(number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(url: &str) -> ResolvedInitMethod {
        resolve(url, None).unwrap()
    }

    #[test]
    fn tcp_urls() {
        let full = tcp("tcp://host.example:1234?rank=3&world_size=8&use_libuv=1");
        assert_eq!(full.identity, RankAndSize { rank: Some(3), size: Some(8) });
        let at = |host: &str, port| RendezvousMethod::Tcp {
            host: host.into(),
            port,
            is_agent_hosted: false,
            is_single_host: host == "localhost",
        };
        assert_eq!(full.rendezvous, at("host.example", 1234));
        assert_eq!(tcp("tcp://[fe80::1%eth0]:5").rendezvous, at("fe80::1%eth0", 5));
        assert_eq!(tcp("tcp://10.0.0.1:29500/").rendezvous, at("10.0.0.1", 29_500));
        assert_eq!(tcp("tcp://localhost:1").rendezvous, at("localhost", 1));
    }

    #[test]
    fn file_urls() {
        let file = |url: &str| match resolve(url, None).unwrap() {
            ResolvedInitMethod { identity, rendezvous: RendezvousMethod::File { path, .. } } => {
                (identity, path)
            }
            other => panic!("{other:?}"),
        };
        let both = RankAndSize { rank: Some(3), size: Some(8) };
        let (identity, path) = file("file:///tmp/a?rank=3&world_size=8");
        assert_eq!((identity, path), (both, PathBuf::from("/tmp/a")));
        let (_, path) = file("file:///with%20blank%3f%C3%A9é?world_size=8&rank=3");
        assert_eq!(path, PathBuf::from("/with blank?éé"));
    }

    #[test]
    fn bad_url_errors_name_the_cause() {
        for (url, word) in [
            ("etcd://x", "unknown"),
            ("tcp://host", "port is missing"),
            ("tcp://host:99999", "not a number"),
            ("tcp://:80", "host is missing"),
            ("tcp://h:1?rank=-1", "rank=\"-1\""),
            ("tcp://h:1?wolrd_size=2", "wolrd_size"),
            ("etcd://x", "file:///path?rank=R&world_size=N"),
            ("file://relative/path?rank=0&world_size=1", "does not begin with"),
            ("file:///a%2?rank=0&world_size=1", "%25"),
            ("file:///a%zz?rank=0&world_size=1", "%25"),
            ("file:///a%00?rank=0&world_size=1", "zero bytes"),
            ("file:///a?rank=x&world_size=1", "rank=\"x\""),
        ] {
            let error = resolve(url, None).unwrap_err();
            assert!(error.message().contains(word), "{url}: {error}");
        }
    }
}
