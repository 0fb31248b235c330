//! The peer info of a rank: the data about itself that each rank publishes at the bootstrap of a
//! native group.

use super::cores::AllowedCores;
use super::tuning;
use crate::algo::rules::{self, AlgorithmRule, RuleSource};
use crate::backend::{GroupContext, ParentGroup};
use crate::base::config;
use crate::base::deadline::Timeout;
use crate::base::debug;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::ids::Nonce;
use crate::base::renamed::{self, NameKind};
use crate::sys::host;
use crate::transport::{ReusePolicy, cma_bounce};
use serde_json::{Value, json};

/// The minimum and maximum of the configured data slot size in bytes.
const SLOT_LIMITS: (u64, u64) = (4096, 64 << 20);

/// The minimum and maximum of the configured heartbeat limit (the time after which a silent rank
/// counts as dead) in milliseconds. The value 0, which means no limit, is also allowed.
const HEARTBEAT_LIMITS_MS: (u64, u64) = (100, 3_600_000);
const DEFAULT_HEARTBEAT_MS: u64 = 5000;

/// The peer info of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NativePeerInfo {
    /// The identity of the host. Ranks with the same identity are on one host.
    pub(super) host_id: String,
    /// The name of the host, for messages.
    pub(super) host_name: String,
    /// The process id.
    pub(super) pid: u32,
    /// The process cookie: a random number that is equal for all ranks of one process.
    pub(super) process_cookie: Nonce,
    /// The address of the process cookie in the memory of the process. Other ranks read it by CMA
    /// to test whether CMA works. `None` if CMA is disabled for this process.
    pub(super) cookie_address: Option<u64>,
    /// A random number that identifies this rank.
    pub(super) rank_nonce: Nonce,
    /// The network name space of the process. In another one, its Unix socket has no name.
    pub(super) network: String,
    /// The name of the Unix socket of the rank's process.
    pub(super) socket: String,
    /// The cores that the rank may use.
    pub(super) cores: AllowedCores,
    /// The configured transport: `auto`, `shm`, `inproc` or `tcp`. The group uses the value of rank
    /// 0.
    pub(super) transport: String,
    /// The configured data slot size, if any. The group uses the value of rank 0.
    pub(super) slot_bytes: Option<usize>,
    /// The policy for the reuse of data slots on the rank's CPU. A node uses the policy of its
    /// first rank. The default slot size of the group is computed from the policy of rank 0.
    reuse_policy: ReusePolicy,
    /// The time in ms after which a silent rank counts as dead; 0 means no limit. The group uses
    /// the value of rank 0.
    pub(super) heartbeat_ms: u64,
    /// The algorithm overrides. On ranks other than rank 0, the list is empty.
    pub(super) rules: Vec<AlgorithmRule>,
    /// True if the debug level is DETAIL. The value of rank 0 decides about additional steps that
    /// all ranks must perform.
    pub(super) has_detail_level: bool,
}

impl NativePeerInfo {
    /// Returns the peer info of this rank. `socket` is the name of the socket of
    /// its process. The settings
    /// come from the options of the group or from the environment.
    pub(super) fn of_this_rank(socket: &str, context: &GroupContext<'_>) -> Result<Self> {
        let options = NativeOptions::parse(context.options)?;
        // The other ranks check their options and then use the rules of rank 0.
        let rules = match context.rank {
            0 => options.algorithm_overrides(context.parent)?,
            _ => Vec::new(),
        };
        let NativeOptions { transport, slot_bytes, heartbeat_ms, host_id, cma, .. } = options;
        let process = host::process_nonce()?;
        Ok(Self {
            host_id: host_id.unwrap_or_else(host::identity),
            host_name: host::name(),
            pid: host::pid(),
            process_cookie: process,
            cookie_address: cma.then(host::process_nonce_address).flatten(),
            rank_nonce: host::random_nonce()?,
            network: host::network_namespace(),
            socket: socket.to_owned(),
            cores: AllowedCores::of_this_thread(),
            transport,
            slot_bytes,
            reuse_policy: ReusePolicy::for_this_cpu(),
            heartbeat_ms,
            rules,
            has_detail_level: debug::level() == debug::DebugLevel::Detail,
        })
    }

    /// Returns the reuse policy for a set of ranks. Ranks that are threads of one process reuse
    /// memory early, so that their groups do not fill the heap of the process.
    pub(super) fn reuse_policy_for(&self, are_threads: bool) -> ReusePolicy {
        if are_threads { ReusePolicy::WhileCached } else { self.reuse_policy }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let json = json!({
            "host_id": self.host_id,
            "host_name": self.host_name,
            "pid": self.pid,
            "process": self.process_cookie.to_string(),
            "mark": self.cookie_address,
            "nonce": self.rank_nonce.to_string(),
            "network": self.network,
            "socket": self.socket,
            "cores": self.cores.to_string(),
            "transport": self.transport,
            "slot_bytes": self.slot_bytes,
            "reuse": self.reuse_policy.name(),
            "heartbeat_ms": self.heartbeat_ms,
            "rules": tuning::encode(&self.rules),
            "detail": self.has_detail_level,
        });
        json.to_string().into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let json: Value = serde_json::from_slice(bytes).ok()?;
        let text = |name: &str| json.get(name)?.as_str().map(str::to_owned);
        let number = |name: &str| usize::try_from(json.get(name)?.as_u64()?).ok();
        Some(Self {
            host_id: text("host_id")?,
            host_name: text("host_name")?,
            pid: u32::try_from(number("pid")?).ok()?,
            process_cookie: Nonce::parse(&text("process")?)?,
            cookie_address: json.get("mark")?.as_u64(),
            rank_nonce: Nonce::parse(&text("nonce")?)?,
            network: text("network")?,
            socket: text("socket")?,
            cores: AllowedCores::parse(&text("cores")?)?,
            transport: text("transport")?,
            slot_bytes: match json.get("slot_bytes")? {
                Value::Null => None,
                _ => Some(number("slot_bytes")?),
            },
            reuse_policy: ReusePolicy::from_name(&text("reuse")?)?,
            heartbeat_ms: check_heartbeat_ms(json.get("heartbeat_ms")?.as_u64()?, "").ok()?,
            rules: tuning::decode(json.get("rules")?)?,
            has_detail_level: json.get("detail")?.as_bool()?,
        })
    }
}

/// Checks the options of a group of one rank, which needs no bootstrap.
///
/// # Errors
/// `InvalidArgument`, as in a group of several ranks.
pub(in crate::backend) fn check_options(context: &GroupContext<'_>) -> Result<()> {
    let options = NativeOptions::parse(context.options)?;
    check_transport(&options.transport)?;
    options.algorithm_overrides(context.parent).map(drop)
}

/// Checks that a transport has this name.
///
/// # Errors
/// `InvalidArgument` with the available names.
pub(super) fn check_transport(name: &str) -> Result<()> {
    match name {
        "auto" | "shm" | "inproc" | "tcp" => Ok(()),
        _ => {
            let message = format!("transport \"{name}\" is unknown: use auto, shm, inproc or tcp");
            Err(Error::invalid(message))
        }
    }
}

/// Converts a configured heartbeat limit to milliseconds. `number` has the notation of all timeouts
/// of the library. The result 0 means no limit.
fn parse_heartbeat(number: i64, source: &str) -> Result<u64> {
    match Timeout::from_number(number) {
        Some(Timeout::Default) => Ok(DEFAULT_HEARTBEAT_MS),
        Some(Timeout::Forever) => Ok(0),
        Some(Timeout::Ms(ms)) if check_heartbeat_ms(ms, source).is_ok() => Ok(ms),
        _ => {
            let (low, high) = HEARTBEAT_LIMITS_MS;
            let message = format!(
                "{source}={number} is invalid: use {low} to {high} ms, 0 for the default \
                 ({DEFAULT_HEARTBEAT_MS} ms), or -1 for no limit"
            );
            Err(Error::invalid(message))
        }
    }
}

/// Checks the heartbeat limit in a peer info.
fn check_heartbeat_ms(ms: u64, source: &str) -> Result<u64> {
    let (low, high) = HEARTBEAT_LIMITS_MS;
    if ms == 0 || (low..=high).contains(&ms) {
        return Ok(ms);
    }
    Err(Error::invalid(format!(
        "{source}={ms} is invalid: use {low} to {high} ms, or 0 for no limit"
    )))
}

/// The options of the native back end.
#[derive(Debug)]
struct NativeOptions {
    transport: String,
    slot_bytes: Option<usize>,
    heartbeat_ms: u64,
    host_id: Option<String>,
    /// True if other ranks of the host may read and write the memory of this process by CMA.
    cma: bool,
    rules: Vec<AlgorithmRule>,
    /// The tuning file that the options name. It is empty if the options disable the tuning file.
    option_tuning_file: Option<String>,
    /// The tuning file that the environment names.
    env_tuning_file: Option<String>,
}

impl NativeOptions {
    /// Parses options such as "transport=shm;slot_bytes=65536". The options override the
    /// environment, and the environment overrides the defaults.
    fn parse(options: &str) -> Result<Self> {
        let (low, high) = SLOT_LIMITS;
        let mut transport = config::read_text(config::TRANSPORT)?;
        let mut host_id = config::read_text(config::HOST_ID)?;
        let mut slot_bytes = match config::read_text(config::SLOT_BYTES)? {
            None => None,
            Some(_) => Some(config::read_bounded(config::SLOT_BYTES, low, low, high)?),
        };
        let variable = config::HEARTBEAT_LIMIT_MS;
        let mut heartbeat_ms =
            parse_heartbeat(config::read_number(variable)?.unwrap_or(0), variable.name)?;
        let mut cma = config::read_bool(config::CMA)?.unwrap_or(true);
        config::read_bool(config::CMA_BOUNCE)?.into_iter().for_each(cma_bounce::force);
        let mut own_file = None;
        let name = config::ALGORITHM.name;
        let wanted = config::read_text(config::ALGORITHM)?.unwrap_or_default();
        let mut rules = rules::parse_rules(&wanted, RuleSource::Environment).context(|| name)?;
        for option in options.split(';').map(str::trim).filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("transport", name)) => transport = Some(name.to_owned()),
                Some(("host_id", label)) if !label.is_empty() => host_id = Some(label.to_owned()),
                Some(("algorithm", list)) => {
                    rules.extend(
                        rules::parse_rules(list, RuleSource::Options).context(|| "algorithm")?,
                    );
                }
                Some(("tuning_file", path)) => own_file = Some(path.to_owned()),
                Some(("cma", "1")) => cma = true,
                Some(("cma", "0")) => cma = false,
                Some(("slot_bytes", bytes)) => {
                    let wanted = bytes.parse().ok().filter(|bytes| (low..=high).contains(bytes));
                    slot_bytes = Some(wanted.ok_or_else(|| {
                        Error::invalid(format!(
                            "slot_bytes={bytes} is invalid: use {low} to {high}"
                        ))
                    })?);
                }
                Some(("heartbeat_ms", ms)) => {
                    let wanted = ms.parse().map_err(|_| {
                        Error::invalid(format!("heartbeat_ms={ms} is not a 64-bit integer"))
                    })?;
                    heartbeat_ms = parse_heartbeat(wanted, "heartbeat_ms")?;
                }
                _ => {
                    let key = option.split('=').next().unwrap_or(option).trim();
                    if let Some(error) = renamed::former_name_error(NameKind::BackendOption, key) {
                        return Err(error);
                    }
                    return Err(Error::invalid(format!(
                        "the native back end has no option \"{option}\": use \
                         transport=auto|shm|inproc|tcp, host_id=LABEL, slot_bytes=N, \
                         heartbeat_ms=N, cma=0|1, algorithm=OPERATION=ALGORITHM,... or \
                         tuning_file=PATH"
                    )));
                }
            }
        }
        Ok(Self {
            transport: transport.unwrap_or_else(|| "auto".to_owned()),
            slot_bytes: slot_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            heartbeat_ms,
            host_id,
            cma,
            rules,
            option_tuning_file: own_file,
            env_tuning_file: config::read_text(config::TUNING_FILE)?,
        })
    }

    /// Returns the algorithm overrides for a group whose rank 0 is this rank. A child group
    /// inherits the overrides of its parent group, and does not read the environment of its own
    /// rank 0. Only the options of the child group replace inherited overrides.
    fn algorithm_overrides(&self, parent: Option<ParentGroup<'_>>) -> Result<Vec<AlgorithmRule>> {
        let option_file = self.option_tuning_file.as_ref();
        let (mut rules, file) = match parent {
            None => (self.rules.clone(), option_file.or(self.env_tuning_file.as_ref())),
            Some(ParentGroup { algorithm_overrides: overrides, inherits_options: true }) => {
                (overrides.to_vec(), None)
            }
            Some(ParentGroup { algorithm_overrides: overrides, inherits_options: false }) => {
                let is_inherited = |rule: &&AlgorithmRule| match rule.source {
                    RuleSource::Options => false,
                    RuleSource::Environment => true,
                    RuleSource::File(_) => option_file.is_none(),
                };
                let own_rules = self.rules.iter().filter(|rule| rule.source == RuleSource::Options);
                (
                    overrides.iter().filter(is_inherited).chain(own_rules).cloned().collect(),
                    option_file,
                )
            }
        };
        if let Some(path) = file.filter(|path| !path.is_empty()) {
            rules.extend(tuning::read(path)?);
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::security::LinkSecurity;

    #[test]
    fn options_are_read_or_refused() {
        let options = NativeOptions::parse("transport=shm; slot_bytes=8192;host_id=a;").unwrap();
        assert_eq!((options.transport.as_str(), options.slot_bytes), ("shm", Some(8192)));
        assert_eq!(NativeOptions::parse("").unwrap().slot_bytes, None);
        assert_eq!(options.host_id.as_deref(), Some("a"));
        assert_eq!(options.heartbeat_ms, DEFAULT_HEARTBEAT_MS);
        assert_eq!(
            NativeOptions::parse("heartbeat_ms=0").unwrap().heartbeat_ms,
            DEFAULT_HEARTBEAT_MS
        );
        assert_eq!(NativeOptions::parse("heartbeat_ms=-1").unwrap().heartbeat_ms, 0);
        for (bad, word) in [
            ("slot_bytes=1", "4096"),
            ("heartbeat_ms=99", "100 to 3600000"),
            ("heartbeat_ms=-2", "-1 for no limit"),
            ("heartbeat_ms=soon", "heartbeat_ms=soon"),
            ("tarnsport=shm", "tarnsport"),
            ("x", "\"x\""),
            ("cma=2", "cma=0|1"),
            ("attach=0", "\"attach\" is now called \"cma\""),
            ("algorithm=all_reduce=pull", "\"pull\" is now called \"cma_read\""),
            ("algorithm=all_reduce=rnig", "rabenseifner"),
            ("algorithm=ring", "OPERATION=ALGORITHM"),
        ] {
            let error = NativeOptions::parse(bad).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }

    /// Returns the context of a group of one rank without options.
    fn context_without_options(deadline: &Deadline) -> GroupContext<'_> {
        let (group, options, name) = (Nonce::default(), "", "");
        let (rank, size, epoch, timeout_ms) = (0, 1, 0, 0);
        let (store, keys, parent, activity) = (None, None, None, None);
        GroupContext {
            group,
            name,
            timeout_ms,
            epoch,
            rank,
            size,
            shown_ranks: None,
            store_address: store,
            security: &LinkSecurity::None,
            group_keys: keys,
            options,
            device: None,
            parent,
            activity,
            deadline,
        }
    }

    #[test]
    fn peer_info_round_trips_through_json() {
        let deadline = Deadline::never();
        let peer_info = |options, rank| {
            let context =
                GroupContext { rank, size: 2, options, ..context_without_options(&deadline) };
            NativePeerInfo::of_this_rank("some-socket", &context)
        };
        let options =
            "algorithm=all_reduce=ring,broadcast=binomial;slot_bytes=8192;heartbeat_ms=700";
        let first = peer_info(options, 0).unwrap();
        assert_eq!(first.rules.len(), 2);
        assert_eq!(NativePeerInfo::decode(&first.encode()), Some(first));
        assert!(peer_info(options, 1).unwrap().rules.is_empty());
        assert!(peer_info("algorithm=x=y", 1).is_err());
        assert!(peer_info("tuning_file=/nonexistent", 0).is_err());
        let default_info = peer_info("", 0).unwrap();
        assert_eq!(NativePeerInfo::decode(&default_info.encode()), Some(default_info));
        assert_eq!(NativePeerInfo::decode(b"{}"), None);
        assert_eq!(NativePeerInfo::decode(b"\xff"), None);
    }

    #[test]
    fn subgroup_inherits_algorithm_overrides() {
        let overrides = [RuleSource::Options, RuleSource::Environment, RuleSource::File(7)]
            .map(|source| rules::parse_rules("all_reduce=ring", source).unwrap().remove(0));
        let inherited_sources = |options: &str, same_options| {
            let parent =
                ParentGroup { algorithm_overrides: &overrides, inherits_options: same_options };
            let rules = NativeOptions::parse(options).unwrap().algorithm_overrides(Some(parent))?;
            Ok::<_, Error>(rules.iter().map(|rule| rule.source).collect::<Vec<_>>())
        };
        let [options, environment, file] = overrides.each_ref().map(|rule| rule.source);
        // The tuning file of the parent's rank 0 does not have to exist on this host.
        let all = vec![options, environment, file];
        assert_eq!(inherited_sources("tuning_file=/nonexistent", true), Ok(all));
        assert_eq!(inherited_sources("slot_bytes=8192", false), Ok(vec![environment, file]));
        assert_eq!(inherited_sources("tuning_file=", false), Ok(vec![environment]));
        let own = inherited_sources("algorithm=broadcast=binomial", false);
        assert_eq!(own, Ok(vec![environment, file, options]));
        assert!(inherited_sources("tuning_file=/nonexistent", false).is_err());
    }

    #[test]
    fn single_rank_group_rejects_bad_options() {
        let deadline = Deadline::never();
        let check_alone = |options| {
            let context = GroupContext { options, ..context_without_options(&deadline) };
            check_options(&context).map_err(|error| error.message().to_owned())
        };
        assert_eq!(check_alone("transport=tcp;algorithm=all_reduce=ring"), Ok(()));
        for (options, word) in [
            ("tarnsport=shm", "tarnsport"),
            ("transport=smh", "inproc"),
            ("algorithm=all_reduce=rnig", "rabenseifner"),
            ("tuning_file=/nonexistent", "/nonexistent"),
        ] {
            let error = check_alone(options).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
