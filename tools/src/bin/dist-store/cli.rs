//! The command line. This module only parses and checks options.

use clap::{Args, Parser, Subcommand};
use dist::api::environment::{DEFAULT_PORT, job_secret};
use dist::base::config;
use dist::base::error::Result;
use dist::security::{LinkSecurity, SecuritySetting};
use dist::store::tcp::proto::MAX_VALUE_BYTES;
use dist::store::tcp::{MAX_CONNECTIONS, Secret};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The longest time that an option accepts: one year.
const MAX_SECONDS: f64 = 365.0 * 24.0 * 3600.0;

const HELP: &str = "\
Ranks:
  stats reads the rendezvous entries of libdist's ranks. The entries stay in the store: if a job was
  restarted with the same store, stats may show a rank as arrived that has not arrived yet, until
  the rendezvous is complete.

Exit statuses:
  0    done
  1    a key is missing (get --no-wait), a value is not a number (add), or dist-store itself failed,
       for example because the port of serve is in use
  2    wrong usage
  3    the store cannot be reached, or the connection to it broke
  4    the timeout has passed: a key was not set, or the store did not answer
  A command that a signal ends exits with 128 plus the signal's number; serve then exits with 0.

Keys and values:
  Both are bytes. dist-store escapes unprintable characters as in Rust (\\n, \\x00), and doubles a
  backslash. The store has the keys that the job sets, the rendezvous entries of libdist's ranks
  under dist/GROUP/, and the keys of torch's process groups under torch's names.

Log:
  The library's log is written to standard error. DIST_LOG_LEVEL is OFF, ERROR, WARN (the default
  of dist-store), INFO, DEBUG or TRACE.

Examples:
  The arrived and the missing ranks of the job (MASTER_ADDR and MASTER_PORT are set):
    dist-store stats
  The same for a job on another host:
    dist-store stats --host node1 --port 29500
  All keys in the store, with values:
    dist-store list --values
  The changes in the store during the next minute:
    dist-store watch --for 60
  Delay a job until its data is ready: in the job's script, and when the data is ready
    dist-store wait data/ready --timeout 3600
    dist-store set data/ready yes
  A store for experiments, which prints its port, and its latency:
    dist-store serve --port 0
    dist-store bench --port PORT";

/// Inspects the store of a job, changes it, hosts a store, or measures one.
#[derive(Debug, Parser)]
#[command(name = "dist-store", version, after_long_help = HELP, max_term_width = 100)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Host a store until SIGINT or SIGTERM; prints "listening on ADDRESS:PORT"
    Serve(ServeArgs),
    /// Wait until keys exist, and print their values
    Get(GetArgs),
    /// Store a value under a key
    Set(SetArgs),
    /// Add to a counter and print the sum; a missing key counts as 0
    Add(AddArgs),
    /// Wait until keys exist; prints the missing keys every 5 seconds
    Wait(WaitArgs),
    /// List the keys in order, with the sizes of their values
    List(ListArgs),
    /// Print a line for each key that is added (+), changed (~) or removed (-)
    Watch(WatchArgs),
    /// Show the latency and the contents of the store, and the ranks that have arrived
    Stats(StatsArgs),
    /// Measure the latency of calls; removes its keys afterwards
    ///
    /// The rate of set counts the calls that the server has executed; a single call does not wait
    /// for the server. On the host of the store, calls use a Unix socket, unless DIST_STORE_UNIX is
    /// "off".
    Bench(BenchArgs),
}

/// The location of the store.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreLocation {
    /// Host of the store [default: MASTER_ADDR, or 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port of the store [default: MASTER_PORT, or 29500]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Timeout for connecting to the store, and for each request
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    pub(crate) timeout: PositiveSeconds,

    /// Use the keys under P: each key is P, "/" and the given key
    #[arg(long, value_name = "P")]
    pub(crate) prefix: Option<OsString>,

    #[command(flatten)]
    pub(crate) secret: SecretFile,
}

/// The secret of the store.
#[derive(Clone, Debug, Args)]
pub(crate) struct SecretFile {
    /// The file (mode 0600) with the store's secret [default: DIST_STORE_SECRET_FILE, or none]
    #[arg(long, value_name = "PATH")]
    secret_file: Option<PathBuf>,
}

impl SecretFile {
    /// Reads the secret, if one is given.
    pub(crate) fn read(&self) -> Result<Option<Secret>> {
        match &self.secret_file {
            Some(path) => Secret::from_file(path).map(Some),
            None => job_secret(),
        }
    }

    /// Returns whether `DIST_SECURITY` requests encrypted connections to the store.
    pub(crate) fn encrypts(secret: Option<&Secret>) -> Result<bool> {
        let setting = SecuritySetting::requested(secret.is_some())?;
        if setting == SecuritySetting::Encrypt {
            // Refuses a store without a secret, whose values would travel unencrypted.
            LinkSecurity::new(setting, secret)?;
        }
        Ok(setting == SecuritySetting::Encrypt)
    }
}

impl StoreLocation {
    /// Returns the host.
    pub(crate) fn host(&self) -> Result<String> {
        match &self.host {
            Some(host) => Ok(host.clone()),
            None => {
                Ok(config::read_text(config::MASTER_ADDR)?.unwrap_or_else(|| "127.0.0.1".into()))
            }
        }
    }

    /// Returns the port.
    pub(crate) fn port(&self) -> Result<u16> {
        port_or_default(self.port)
    }
}

fn port_or_default(port: Option<u16>) -> Result<u16> {
    match port {
        Some(port) => Ok(port),
        None => Ok(config::read_number(config::MASTER_PORT)?.unwrap_or(DEFAULT_PORT)),
    }
}

/// `dist-store serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on, or "all" (or "") for all interfaces. Each process that can reach
    /// the port can use the store, so by default only processes of this host can
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: String,

    /// The port; 0 for a free one [default: MASTER_PORT, or 29500]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,

    /// The approximate memory limit of the store: bytes, or with K, M or G (times 1024)
    /// [default: 4G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_bytes: Option<ByteSize>,

    #[command(flatten)]
    pub(crate) secret: SecretFile,

    /// Do not start if the limit of open files is too low for this many connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_CONNECTIONS as u64))]
    pub(crate) connections: Option<u64>,
}

impl ServeArgs {
    /// Returns the address to listen on, empty for all interfaces.
    pub(crate) fn bind(&self) -> &str {
        if self.bind == "all" { "" } else { &self.bind }
    }

    /// Returns the port.
    pub(crate) fn port(&self) -> Result<u16> {
        port_or_default(self.port)
    }
}

/// `dist-store get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    /// Do not wait: exit status 1 if a key is missing
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Print the bytes unchanged, without a line end; the default for one value if standard output
    /// is not a terminal. Otherwise each value is printed as a line, escaped
    #[arg(long, conflicts_with = "json")]
    raw: bool,

    /// Print a JSON object for each key; keys and values are escaped
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

impl GetArgs {
    /// Returns the keys.
    pub(crate) fn keys(&self) -> Vec<&[u8]> {
        as_bytes(&self.keys)
    }

    /// Returns true if the bytes are printed unchanged.
    pub(crate) fn is_raw(&self, to_terminal: bool) -> bool {
        self.raw || self.keys.len() == 1 && !to_terminal
    }
}

/// `dist-store set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: OsString,

    /// The value; "-" reads it from standard input
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: OsString,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// `dist-store add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The counter
    #[arg(value_name = "KEY")]
    pub(crate) key: OsString,

    /// The number to add; may be negative
    #[arg(value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub(crate) amount: i64,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// `dist-store wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

impl WaitArgs {
    /// Returns the keys.
    pub(crate) fn keys(&self) -> Vec<&[u8]> {
        as_bytes(&self.keys)
    }
}

/// `dist-store list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only keys that begin with PREFIX
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) start: OsString,

    /// Also show the values, escaped and not shortened
    #[arg(long)]
    pub(crate) values: bool,

    /// Print a JSON object for each key; keys and values are escaped
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// `dist-store watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Only keys that begin with PREFIX
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) start: OsString,

    /// Milliseconds between two polls; changes that are undone between two polls are not shown
    #[arg(long, value_name = "MS", default_value = "200", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(crate) interval: u64,

    /// End after this time [default: at Ctrl-C]
    #[arg(long = "for", value_name = "SECONDS")]
    pub(crate) duration: Option<PositiveSeconds>,

    /// Print a JSON object for each change, without the first line; keys and values are escaped
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// `dist-store stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// `dist-store bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Size of the values
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = value_size)]
    pub(crate) bytes: ByteSize,

    /// Duration of the measurement of each kind of call
    #[arg(long, value_name = "SECONDS", default_value = "1")]
    pub(crate) seconds: PositiveSeconds,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// A time span above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositiveSeconds(pub(crate) Duration);

impl FromStr for PositiveSeconds {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
        if !(0.001..=MAX_SECONDS).contains(&seconds) {
            return Err(format!("the value must be from 0.001 to {MAX_SECONDS} seconds"));
        }
        Ok(Self(Duration::from_secs_f64(seconds)))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let shift = match text.bytes().last() {
            Some(b'k' | b'K') => 10,
            Some(b'm' | b'M') => 20,
            Some(b'g' | b'G') => 30,
            _ => 0,
        };
        let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
        let count: usize = digits
            .parse()
            .map_err(|_| "expected a number of bytes, such as 64, 4K or 1G".to_owned())?;
        match count.checked_mul(1 << shift) {
            Some(0) => Err("the value must be more than zero".to_owned()),
            Some(bytes) => Ok(Self(bytes)),
            None => Err("the value exceeds the address space".to_owned()),
        }
    }
}

fn value_size(text: &str) -> std::result::Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if size.0 > MAX_VALUE_BYTES {
        return Err(format!("a value has at most {MAX_VALUE_BYTES} bytes"));
    }
    Ok(size)
}

fn as_bytes(keys: &[OsString]) -> Vec<&[u8]> {
    keys.iter().map(OsString::as_os_str).map(OsStr::as_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> std::result::Result<Command, clap::Error> {
        Options::try_parse_from(line.split(' ')).map(|options| options.command)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn every_command_takes_its_arguments() {
        let Command::Get(get) =
            parse("dist-store get a b --host h --port 7 --timeout 0.5").unwrap()
        else {
            panic!("not get")
        };
        assert_eq!(get.keys(), [b"a", b"b"]);
        let location = &get.location;
        assert_eq!((location.host().unwrap().as_str(), location.port().unwrap()), ("h", 7));
        assert_eq!(location.timeout.0, Duration::from_millis(500));
        let Command::Set(set) = parse("dist-store set k -v --prefix p").unwrap() else {
            panic!("not set")
        };
        assert_eq!(
            (set.value.as_bytes(), set.location.prefix.as_deref()),
            (&b"-v"[..], Some("p".as_ref()))
        );
        let Command::Add(add) = parse("dist-store add k -3").unwrap() else { panic!("not add") };
        assert_eq!(add.amount, -3);
        let Command::Serve(serve) =
            parse("dist-store serve --bind all --port 0 --max-bytes 2G").unwrap()
        else {
            panic!("not serve")
        };
        assert_eq!((serve.bind(), serve.port().unwrap()), ("", 0));
        assert_eq!(serve.max_bytes, Some(ByteSize(2 << 30)));
        let Command::Watch(watch) = parse("dist-store watch dist/ --for 2 --interval 5").unwrap()
        else {
            panic!("not watch")
        };
        assert_eq!((watch.start.as_bytes(), watch.interval), (&b"dist/"[..], 5));
        assert_eq!(watch.duration, Some(PositiveSeconds(Duration::from_secs(2))));
    }

    #[test]
    fn single_value_is_raw_unless_shown_on_a_terminal() {
        let is_raw = |line: &str, to_terminal: bool| match parse(line).unwrap() {
            Command::Get(get) => get.is_raw(to_terminal),
            other => panic!("{other:?}"),
        };
        assert!(is_raw("dist-store get a", false) && !is_raw("dist-store get a", true));
        assert!(!is_raw("dist-store get a b", false) && is_raw("dist-store get a b --raw", true));
    }

    #[test]
    fn wrong_command_lines_are_refused() {
        for line in [
            "dist-store",
            "dist-store get",
            "dist-store wait",
            "dist-store set k",
            "dist-store add k one",
            "dist-store get k --port 0",
            "dist-store get k --port 65536",
            "dist-store get k --timeout 0",
            "dist-store get k --timeout -1",
            "dist-store get k --timeout inf",
            "dist-store get k --timeout nan",
            "dist-store serve --host h",
            "dist-store serve --connections 0",
            "dist-store serve --connections 65537",
            "dist-store serve --max-bytes 0",
            "dist-store serve --max-bytes 99999999999G",
            "dist-store serve --max-bytes G",
            "dist-store bench --bytes 9M",
            "dist-store watch --interval 0",
            "dist-store fetch k",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
