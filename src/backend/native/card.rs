//! What a rank publishes about itself before the ranks meet.

use super::cores::Cores;
use super::tuning;
use crate::algo::rules::{self, Rule, Source};
use crate::backend::{Context, Parent};
use crate::base::config;
use crate::base::deadline::Timeout;
use crate::base::debug;
use crate::base::error::{Context as _, Error, Result};
use crate::base::ids::Nonce;
use crate::base::renamed::{self, NameKind};
use crate::sys::host;
use crate::transport::Reuse;
use serde_json::{Value, json};

/// The smallest and the largest slot that can be configured.
const SLOT_LIMITS: (u64, u64) = (4096, 64 << 20);

/// The shortest and the longest silence that can be allowed, in milliseconds; 0 allows any.
const HEARTBEAT_LIMITS: (u64, u64) = (100, 3_600_000);
const DEFAULT_HEARTBEAT: u64 = 5000;

/// One rank's card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// What ranks must have in common to be on one host.
    pub(super) host_id: String,
    /// The host's name, for messages.
    pub(super) host_name: String,
    /// The process id.
    pub(super) pid: u32,
    /// The same for all ranks of one process.
    pub(super) process: Nonce,
    /// Where that lies in the process's memory; `None` where nobody shall look there.
    pub(super) mark: Option<u64>,
    /// This rank's own.
    pub(super) nonce: Nonce,
    /// The name of its Unix socket.
    pub(super) socket: String,
    /// The cores that it may use.
    pub(super) cores: Cores,
    /// `auto`, `shm`, `inproc` or `tcp`; that of rank 0 counts.
    pub(super) transport: String,
    /// The slot size it was told; that of rank 0 counts.
    pub(super) slot_bytes: Option<usize>,
    /// How soon its machine's ranks use shared memory again; that of a node's first rank counts
    /// there, and that of rank 0 for the size of slots.
    reuse: Reuse,
    /// For how long a rank may give no sign of life, 0 for ever; that of rank 0 counts.
    pub(super) heartbeat_ms: u64,
    /// Overrides of the choice among algorithms; only rank 0 has any.
    pub(super) rules: Vec<Rule>,
    /// Its debug level is DETAIL; that of rank 0 counts for what all ranks must do alike.
    pub(super) detail: bool,
}

impl Card {
    /// This rank's card, with the name of its socket, and what its options or the environment ask
    /// for.
    pub(super) fn of_this_rank(socket: &str, context: &Context<'_>) -> Result<Self> {
        let wishes = Wishes::parse(context.options)?;
        // The others check what they were told, and take what rank 0 was.
        let rules = match context.rank {
            0 => wishes.overrides(context.parent)?,
            _ => Vec::new(),
        };
        let Wishes { transport, slot_bytes, heartbeat_ms, host_id, cma, .. } = wishes;
        let process = host::process_nonce()?;
        Ok(Self {
            host_id: host_id.unwrap_or_else(host::identity),
            host_name: host::name(),
            pid: host::pid(),
            process,
            mark: cma.then(host::process_nonce_address).flatten(),
            nonce: host::random_nonce()?,
            socket: socket.to_owned(),
            cores: Cores::of_this_thread()?,
            transport,
            slot_bytes,
            reuse: Reuse::here(),
            heartbeat_ms,
            rules,
            detail: debug::level() == debug::Level::Detail,
        })
    }

    /// The same for ranks that may be threads of one process, whose heap their groups should not
    /// fill.
    pub(super) fn reuse_among(&self, are_threads: bool) -> Reuse {
        if are_threads { Reuse::Soon } else { self.reuse }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let card = json!({
            "host_id": self.host_id,
            "host_name": self.host_name,
            "pid": self.pid,
            "process": self.process.to_string(),
            "mark": self.mark,
            "nonce": self.nonce.to_string(),
            "socket": self.socket,
            "cores": self.cores.to_string(),
            "transport": self.transport,
            "slot_bytes": self.slot_bytes,
            "reuse": self.reuse.name(),
            "heartbeat_ms": self.heartbeat_ms,
            "rules": tuning::encode(&self.rules),
            "detail": self.detail,
        });
        card.to_string().into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let card: Value = serde_json::from_slice(bytes).ok()?;
        let text = |name: &str| card.get(name)?.as_str().map(str::to_owned);
        let number = |name: &str| usize::try_from(card.get(name)?.as_u64()?).ok();
        Some(Self {
            host_id: text("host_id")?,
            host_name: text("host_name")?,
            pid: u32::try_from(number("pid")?).ok()?,
            process: Nonce::parse(&text("process")?)?,
            mark: card.get("mark")?.as_u64(),
            nonce: Nonce::parse(&text("nonce")?)?,
            socket: text("socket")?,
            cores: Cores::parse(&text("cores")?)?,
            transport: text("transport")?,
            slot_bytes: match card.get("slot_bytes")? {
                Value::Null => None,
                _ => Some(number("slot_bytes")?),
            },
            reuse: Reuse::named(&text("reuse")?)?,
            heartbeat_ms: check_heartbeat(card.get("heartbeat_ms")?.as_u64()?, "").ok()?,
            rules: tuning::decode(card.get("rules")?)?,
            detail: card.get("detail")?.as_bool()?,
        })
    }
}

/// Checks what a rank that meets nobody was told.
///
/// # Errors
/// `InvalidArgument`, as with more ranks.
pub(in crate::backend) fn check(context: &Context<'_>) -> Result<()> {
    let wishes = Wishes::parse(context.options)?;
    check_transport(&wishes.transport)?;
    wishes.overrides(context.parent).map(drop)
}

/// Whether a transport has this name.
///
/// # Errors
/// `InvalidArgument`, with the names there are.
pub(super) fn check_transport(name: &str) -> Result<()> {
    match name {
        "auto" | "shm" | "inproc" | "tcp" => Ok(()),
        _ => {
            let message = format!("transport \"{name}\" is none of auto, shm, inproc, tcp");
            Err(Error::invalid(message))
        }
    }
}

/// The limit that this number asks for, as all time-outs are written; 0 for no limit.
fn heartbeat_of(number: i64, place: &str) -> Result<u64> {
    match Timeout::from_number(number) {
        Some(Timeout::Default) => Ok(DEFAULT_HEARTBEAT),
        Some(Timeout::Forever) => Ok(0),
        Some(Timeout::Ms(ms)) if check_heartbeat(ms, place).is_ok() => Ok(ms),
        _ => {
            let (low, high) = HEARTBEAT_LIMITS;
            let message = format!(
                "{place}={number} is not one from {low} to {high}, 0 for the default ({DEFAULT_HEARTBEAT}), nor -1 for no limit"
            );
            Err(Error::invalid(message))
        }
    }
}

/// The limit that a rank's card tells.
fn check_heartbeat(ms: u64, place: &str) -> Result<u64> {
    let (low, high) = HEARTBEAT_LIMITS;
    if ms == 0 || (low..=high).contains(&ms) {
        return Ok(ms);
    }
    Err(Error::invalid(format!("{place}={ms} is not one from {low} to {high}, nor 0 for no limit")))
}

/// What can be asked of the native back end.
#[derive(Debug)]
struct Wishes {
    transport: String,
    slot_bytes: Option<usize>,
    heartbeat_ms: u64,
    host_id: Option<String>,
    /// Other ranks of the host may read and write this process's memory (cross-memory attach).
    cma: bool,
    rules: Vec<Rule>,
    /// In the options; nothing where they ask for none.
    own_file: Option<String>,
    /// In the environment.
    general_file: Option<String>,
}

impl Wishes {
    /// The options, "transport=...;slot_bytes=...;...", over the environment, over the defaults.
    fn parse(options: &str) -> Result<Self> {
        let (low, high) = SLOT_LIMITS;
        let mut transport = config::text(config::TRANSPORT)?;
        let mut host_id = config::text(config::HOST_ID)?;
        let mut slot_bytes = match config::text(config::SLOT_BYTES)? {
            None => None,
            Some(_) => Some(config::bounded(config::SLOT_BYTES, low, low, high)?),
        };
        let variable = config::HEARTBEAT_LIMIT_MS;
        let mut heartbeat_ms = heartbeat_of(config::number(variable)?.unwrap_or(0), variable.name)?;
        let mut cma = config::switch(config::CMA)?.unwrap_or(true);
        let mut own_file = None;
        let name = config::ALGORITHM.name;
        let wanted = config::text(config::ALGORITHM)?.unwrap_or_default();
        let mut rules = rules::parse(&wanted, Source::Environment).context(|| name)?;
        for option in options.split(';').map(str::trim).filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("transport", name)) => transport = Some(name.to_owned()),
                Some(("host_id", label)) if !label.is_empty() => host_id = Some(label.to_owned()),
                Some(("algorithm", list)) => {
                    rules.extend(rules::parse(list, Source::Options).context(|| "algorithm")?);
                }
                Some(("tuning_file", path)) => own_file = Some(path.to_owned()),
                Some(("cma", "1")) => cma = true,
                Some(("cma", "0")) => cma = false,
                Some(("slot_bytes", bytes)) => {
                    let wanted = bytes.parse().ok().filter(|bytes| (low..=high).contains(bytes));
                    slot_bytes = Some(wanted.ok_or_else(|| {
                        Error::invalid(format!(
                            "slot_bytes={bytes} is not one from {low} to {high}"
                        ))
                    })?);
                }
                Some(("heartbeat_ms", ms)) => {
                    let wanted = ms.parse().map_err(|cause| {
                        Error::invalid(format!("heartbeat_ms={ms} is not usable: {cause}"))
                    })?;
                    heartbeat_ms = heartbeat_of(wanted, "heartbeat_ms")?;
                }
                _ => {
                    let key = option.split('=').next().unwrap_or(option).trim();
                    if let Some(error) = renamed::refusal(NameKind::BackendOption, key) {
                        return Err(error);
                    }
                    return Err(Error::invalid(format!(
                        "the native back end has no option \"{option}\"; it has \
                         transport=auto|shm|inproc|tcp, host_id=LABEL, slot_bytes=N, \
                         heartbeat_ms=N, cma=0|1, algorithm=OPERATION=ALGORITHM,... and tuning_file=PATH"
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
            own_file,
            general_file: config::text(config::TUNING_FILE)?,
        })
    }

    /// What rank 0 was told about algorithms. What its parent's rank 0 was told holds in a group
    /// made from another, whoever is rank 0 there and wherever: its own options alone replace that.
    fn overrides(&self, parent: Option<Parent<'_>>) -> Result<Vec<Rule>> {
        let own_file = self.own_file.as_ref();
        let (mut rules, file) = match parent {
            None => (self.rules.clone(), own_file.or(self.general_file.as_ref())),
            Some(Parent { overrides, same_options: true }) => (overrides.to_vec(), None),
            Some(Parent { overrides, same_options: false }) => {
                let stays = |rule: &&Rule| match rule.source {
                    Source::Options => false,
                    Source::Environment => true,
                    Source::File(_) => own_file.is_none(),
                };
                let own = self.rules.iter().filter(|rule| rule.source == Source::Options);
                (overrides.iter().filter(stays).chain(own).cloned().collect(), own_file)
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

    #[test]
    fn options_are_read_or_refused() {
        let wishes = Wishes::parse("transport=shm; slot_bytes=8192;host_id=a;").unwrap();
        assert_eq!((wishes.transport.as_str(), wishes.slot_bytes), ("shm", Some(8192)));
        assert_eq!(Wishes::parse("").unwrap().slot_bytes, None);
        assert_eq!(wishes.host_id.as_deref(), Some("a"));
        assert_eq!(wishes.heartbeat_ms, DEFAULT_HEARTBEAT);
        assert_eq!(Wishes::parse("heartbeat_ms=0").unwrap().heartbeat_ms, DEFAULT_HEARTBEAT);
        assert_eq!(Wishes::parse("heartbeat_ms=-1").unwrap().heartbeat_ms, 0);
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
            let error = Wishes::parse(bad).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }

    /// A rank alone, of which nothing is asked.
    fn bare(deadline: &Deadline) -> Context<'_> {
        let (group, options, name) = (Nonce::default(), "", "");
        let (rank, size, epoch, timeout_ms) = (0, 1, 0, 0);
        let (store, keys, parent, activity) = (None, None, None, None);
        Context {
            group,
            name,
            timeout_ms,
            epoch,
            rank,
            size,
            store,
            keys,
            options,
            device: None,
            parent,
            activity,
            deadline,
        }
    }

    #[test]
    fn a_card_survives_its_bytes() {
        let deadline = Deadline::never();
        let card = |options, rank| {
            let context = Context { rank, size: 2, options, ..bare(&deadline) };
            Card::of_this_rank("some-socket", &context)
        };
        let options =
            "algorithm=all_reduce=ring,broadcast=binomial;slot_bytes=8192;heartbeat_ms=700";
        let first = card(options, 0).unwrap();
        assert_eq!(first.rules.len(), 2);
        assert_eq!(Card::decode(&first.encode()), Some(first));
        assert!(card(options, 1).unwrap().rules.is_empty());
        assert!(card("algorithm=x=y", 1).is_err());
        assert!(card("tuning_file=/nonexistent", 0).is_err());
        let usual = card("", 0).unwrap();
        assert_eq!(Card::decode(&usual.encode()), Some(usual));
        assert_eq!(Card::decode(b"{}"), None);
        assert_eq!(Card::decode(b"\xff"), None);
    }

    #[test]
    fn a_group_made_from_another_takes_over_what_that_was_told() {
        let overrides = [Source::Options, Source::Environment, Source::File(7)]
            .map(|source| rules::parse("all_reduce=ring", source).unwrap().remove(0));
        let taken = |options: &str, same_options| {
            let parent = Parent { overrides: &overrides, same_options };
            let rules = Wishes::parse(options).unwrap().overrides(Some(parent))?;
            Ok::<_, Error>(rules.iter().map(|rule| rule.source).collect::<Vec<_>>())
        };
        let [options, environment, file] = overrides.each_ref().map(|rule| rule.source);
        // The file that the parent's rank 0 has read need not be here.
        let all = vec![options, environment, file];
        assert_eq!(taken("tuning_file=/nonexistent", true), Ok(all));
        assert_eq!(taken("slot_bytes=8192", false), Ok(vec![environment, file]));
        assert_eq!(taken("tuning_file=", false), Ok(vec![environment]));
        let own = taken("algorithm=broadcast=binomial", false);
        assert_eq!(own, Ok(vec![environment, file, options]));
        assert!(taken("tuning_file=/nonexistent", false).is_err());
    }

    #[test]
    fn a_rank_alone_is_told_what_is_wrong_too() {
        let deadline = Deadline::never();
        let alone = |options| {
            let context = Context { options, ..bare(&deadline) };
            check(&context).map_err(|error| error.message().to_owned())
        };
        assert_eq!(alone("transport=tcp;algorithm=all_reduce=ring"), Ok(()));
        for (options, word) in [
            ("tarnsport=shm", "tarnsport"),
            ("transport=smh", "inproc"),
            ("algorithm=all_reduce=rnig", "rabenseifner"),
            ("tuning_file=/nonexistent", "/nonexistent"),
        ] {
            let error = alone(options).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
