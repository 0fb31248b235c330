//! A group of ranks: how it comes to be, what is known of it, how it fails and how it ends.

use super::activity;
use super::callbacks;
use super::error_file;
use super::keys;
use super::lineage::Lineage;
use super::monitored::Monitor;
use super::observer::Observer;
use super::prompt::Known;
use super::queue::RunQueue;
use super::recorder;
use super::rendezvous::{Rendezvous, StoreExchange};
use super::subgroup::{Lease, Mailbox};
use super::trace;
use crate::backend::{self, Backend, Context, Place};
use crate::base::config;
use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Context as _, Culprit, Error, ErrorKind, Result};
use crate::base::ids::{GroupId, MAX_WORLD_SIZE, Rank, WorldSize};
use crate::process::this;
use crate::store::Store;
use crate::transport::reunion::Port;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The default deadline of an operation: half an hour, as in c10d.
pub const DEFAULT_TIMEOUT_MS: u64 = 1_800_000;

/// The default deadline of starting a group: five minutes.
pub const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 300_000;

pub(super) const LONGEST_NAME: usize = 200;

/// What a group is made from.
#[derive(Debug)]
pub struct GroupOptions {
    /// Where its ranks meet.
    pub store: Arc<dyn Store>,
    /// This process's rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The back end by name; `None` for the native one.
    pub backend: Option<String>,
    /// What is asked of the back end, "key=value;key=value"; may be empty.
    pub backend_options: String,
    /// The GPU of this rank; `None` for none.
    pub device: Option<usize>,
    /// The group's name; ranks of one group use the same.
    pub name: String,
    /// The deadline of operations in milliseconds; 0 for the default.
    pub timeout_ms: u64,
    /// The deadline of starting in milliseconds; 0 for the default.
    pub connect_timeout_ms: u64,
    /// Which ranks of something larger its ranks are, in order; `None` where it is the outermost.
    pub global_ranks: Option<Vec<Rank>>,
}

/// Where a group comes from, and what those made from it take over.
#[derive(Debug)]
pub(super) struct Origin {
    /// Which ranks of the outermost group its ranks are.
    pub(super) ranks: Vec<Rank>,
    /// The name of the group that it was made from.
    pub(super) parent: Option<String>,
    /// As the back end was asked for.
    pub(super) backend: String,
    pub(super) backend_options: String,
    /// The GPU of this rank.
    pub(super) device: Option<usize>,
    /// Host and port of the store that the outermost group met in.
    pub(super) store: Option<(String, u16)>,
    /// That store, while somebody has it.
    pub(super) meeting: Weak<dyn Store>,
    /// How often a group was replaced by what was left of it, to come to this one.
    pub(super) epoch: u32,
    /// Where late ranks of those groups are told so.
    pub(super) former: Vec<Arc<Port>>,
    /// Of its name, where its members alone gave it.
    pub(super) _lease: Option<Lease>,
}

/// What a group made from another is, beside its origin and its back end.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) id: GroupId,
    pub(super) name: String,
    pub(super) rank: Rank,
    pub(super) timeout_ms: u64,
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// First, so that it ends before the back end goes.
    _membership: recorder::Membership,
    id: GroupId,
    name: String,
    rank: Rank,
    size: WorldSize,
    timeout_ms: AtomicU64,
    pub(super) backend: Arc<dyn Backend>,
    /// Shared with the works that wait in it and with its worker, which must not keep the group.
    pub(super) queue: Arc<RunQueue>,
    /// Messages have numbers of their own.
    pub(super) messages_issued: AtomicU64,
    pub(super) origin: Origin,
    pub(super) lineage: Arc<Lineage>,
    /// Where those write who make a group from this one.
    pub(super) mailbox: OnceLock<Arc<Mailbox>>,
    pub(super) monitor: Monitor,
    pub(super) observer: Observer,
    /// The device that it serves beside host memory: where buffers lie is looked at then.
    pub(super) device: Option<usize>,
    /// All ranks come together before each collective.
    pub(super) looks_who_is_there: bool,
    /// The back end is asked before a call takes its place.
    pub(super) is_selective: bool,
    /// Small calls may have a shorter way.
    pub(super) is_prompt: bool,
    /// Those that have been there.
    pub(super) known: Known,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.tell_end();
    }
}

impl Group {
    /// Makes a group together with its other ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for impossible ranks, sizes and names; `NotFound` for an unknown back end;
    /// and whatever keeps the ranks from meeting before the deadline.
    pub fn create(options: GroupOptions) -> Result<Self> {
        callbacks::refuse_to_block("making a group")?;
        config::refuse_former_names()?;
        check(&options)?;
        recorder::look_at_environment()?;
        debug::read_environment()?;
        this::mark_used()?;
        let GroupOptions { store, rank, size, name, .. } = options;
        let timeout_ms = timeout(options.timeout_ms, config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS)?;
        let deadline = connect_deadline(options.connect_timeout_ms)?;
        let who = format!("pid {}, host {}", this::pid(), this::host_name());
        let nonce = this::fresh_nonce()?;
        let address = store.address();
        let place = Arc::downgrade(&store);
        let meeting =
            Rendezvous { store, name: &name, rank, size, nonce, who, deadline: &deadline };
        // A rank alone needs nobody to agree with.
        let id = if size == 1 { nonce } else { meeting.meet()? };
        let keys = keys::of(&place, id);
        let context = Context {
            group: id,
            name: &name,
            timeout_ms,
            epoch: 0,
            rank,
            size,
            store: address.as_ref().map(|(host, port)| (host.as_str(), *port)),
            keys: keys.as_ref(),
            options: &options.backend_options,
            device: options.device,
            parent: None,
            activity: Some(activity::elsewhere),
            deadline: &deadline,
        };
        let exchange = StoreExchange { rendezvous: &meeting, id };
        let backend_name = match options.device {
            None => options.backend.as_deref().unwrap_or("native"),
            Some(_) => options.backend.as_deref().unwrap_or(backend::map::DEFAULT),
        };
        let backend = backend::create(backend_name, &context, &exchange)?;
        let origin = Origin {
            ranks: options.global_ranks.unwrap_or_else(|| (0..size).collect()),
            parent: None,
            backend: backend_name.to_owned(),
            backend_options: options.backend_options,
            device: backend.device().or(options.device),
            store: address,
            meeting: place,
            epoch: 0,
            former: Vec::new(),
            _lease: None,
        };
        let group = Self::assemble(Identity { id, name, rank, timeout_ms }, origin, backend);
        group.tell_birth(deadline.elapsed());
        Ok(group)
    }

    /// A group whose ranks have met.
    pub(super) fn assemble(identity: Identity, origin: Origin, backend: Arc<dyn Backend>) -> Self {
        let Identity { id, name, rank, timeout_ms } = identity;
        trace::start_from_environment(origin.ranks.get(rank).copied().unwrap_or(rank));
        let observer = Observer::new(id, &name, rank, &origin.ranks, &backend);
        let membership = recorder::Membership::of(&recorder::New {
            id,
            name: &name,
            rank,
            global_ranks: &origin.ranks,
            parent: origin.parent.as_deref(),
            backend: &backend,
        });
        let lineage = Lineage::new(&name, backend.as_ref());
        Self {
            _membership: membership,
            id,
            name,
            rank,
            size: origin.ranks.len(),
            timeout_ms: AtomicU64::new(timeout_ms),
            device: backend.device(),
            looks_who_is_there: backend.looks_who_is_there(),
            is_selective: backend.is_selective(),
            is_prompt: backend.is_prompt(),
            known: Known::default(),
            backend,
            queue: Arc::default(),
            messages_issued: AtomicU64::new(0),
            origin,
            lineage,
            mailbox: OnceLock::new(),
            monitor: Monitor::default(),
            observer,
        }
    }

    /// Rank 0 of a group over a back end that is there already.
    #[cfg(test)]
    pub(super) fn over(name: &str, backend: Arc<dyn Backend>) -> Self {
        let id = this::fresh_nonce().unwrap();
        let identity = Identity { id, name: name.to_owned(), rank: 0, timeout_ms: 60_000 };
        let origin = Origin {
            ranks: (0..backend.places().len()).collect(),
            parent: None,
            backend: "native".into(),
            backend_options: String::new(),
            device: None,
            store: None,
            meeting: Weak::<crate::store::HashStore>::new(),
            epoch: 0,
            former: Vec::new(),
            _lease: None,
        };
        Self::assemble(identity, origin, backend)
    }

    /// Its id, different for every group that was ever made.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This process's rank in it.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of its ranks.
    pub fn size(&self) -> WorldSize {
        self.size
    }

    /// Which ranks of the outermost group that it descends from its ranks are, in order.
    pub fn global_ranks(&self) -> &[Rank] {
        &self.origin.ranks
    }

    /// The back end's name.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// The deadline of operations that name none.
    pub fn timeout_ms(&self) -> u64 {
        self.timeout_ms.load(Ordering::Relaxed)
    }

    /// Changes that deadline for operations issued from now on; 0 for the default, as in
    /// [`Self::create`].
    ///
    /// # Errors
    /// `InvalidArgument` for the environment's default, where that is none.
    pub fn set_timeout_ms(&self, timeout_ms: u64) -> Result<()> {
        let ms = timeout(timeout_ms, config::TIMEOUT_MS, DEFAULT_TIMEOUT_MS)?;
        self.timeout_ms.store(ms, Ordering::Relaxed);
        Ok(())
    }

    /// Where this rank is.
    pub fn place(&self) -> &Place {
        &self.backend.places()[self.rank]
    }

    /// The number of ranks on this rank's host.
    pub fn local_size(&self) -> usize {
        let host = self.place().host_index;
        self.backend.places().iter().filter(|place| place.host_index == host).count()
    }

    /// The number of hosts.
    pub fn host_count(&self) -> usize {
        self.backend.places().iter().map(|place| place.host_index + 1).max().unwrap_or(1)
    }

    /// Why the group has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        self.backend.failure()
    }

    /// Fails the group on all its ranks and ends every wait in it, and in the groups that were made
    /// from it. The first reason stays.
    pub fn abort(&self, reason: &str) {
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let message = format!("rank {} aborted group {}: {reason}", self.rank, self.name);
        self.fail(&Error::new(ErrorKind::Aborted, message).with_culprit(self.rank));
        recorder::dump_failures();
    }

    pub(super) fn fail(&self, error: &Error) {
        self.backend.abort(error);
        // The first reason, which may be another.
        self.queue.fail_all(&self.failure().unwrap_or_else(|| error.clone()));
        self.lineage.pass_on();
    }

    /// Fails the group because of an error on this rank, for which the other ranks may wait, and
    /// returns the error.
    ///
    /// An error that names a rank keeps it. A failed peer that has no name stays without one: this
    /// rank would blame itself for the peer's failure, and the group that goes on would exclude it.
    pub(super) fn fail_here(&self, error: Error) -> Error {
        let is_own = error.culprit().is_none() && error.kind() != ErrorKind::PeerFailed;
        let error = if is_own { error.with_culprit(self.rank) } else { error };
        self.fail(&error);
        error
    }

    /// A blocking call is about to hand an error to its caller, who may end the process: what is to
    /// be left on disk goes there.
    pub(super) fn hand_out(&self, error: &Error) {
        recorder::dump_failures();
        self.note(error);
    }

    /// Notes an error of the group for the launcher, if it is fatal; to be called when it is handed
    /// to a caller.
    pub(super) fn note(&self, error: &Error) {
        error_file::note(error, self.blamed(error));
    }

    /// Which rank of the outermost group an error blames, if that is another than this one.
    pub(super) fn blamed(&self, error: &Error) -> Option<Rank> {
        let culprit = error.culprit().filter(|&rank| rank != self.rank)?;
        self.global_ranks().get(culprit).copied()
    }

    /// An error with the process of the rank that it names.
    pub(super) fn identify(&self, error: Error) -> Error {
        match error.culprit().and_then(|rank| self.backend.places().get(rank)) {
            Some(Place { name, .. }) => error.with_process(name.pid, Arc::clone(&name.host)),
            None => error,
        }
    }

    /// The rank that has failed the group, if it has failed and somebody is named.
    pub fn culprit(&self) -> Option<Culprit> {
        self.identify(self.failure()?).culprit_details()
    }

    /// How many collectives have been issued on this rank.
    pub fn sequence(&self) -> u64 {
        self.queue.issued()
    }

    /// How many operations have been issued on this rank, messages among them.
    pub(super) fn works_issued(&self) -> u64 {
        self.sequence() + self.messages_issued.load(Ordering::Relaxed)
    }

    /// The number of asynchronous operations that have been issued and have not ended.
    pub fn outstanding(&self) -> u64 {
        self.queue.works()
    }

    /// Waits until all asynchronous operations have ended; false where the limit came first.
    pub fn drain(&self, limit: &Deadline) -> bool {
        self.queue.drain(limit)
    }

    /// The group and this rank of it, for messages.
    pub(super) fn whom(&self) -> String {
        format!("group {}, rank {}", self.name, self.rank)
    }

    /// Who is where, over what, with which algorithms.
    pub fn describe(&self) -> Value {
        let member = |place: &Place| {
            json!({
                "rank": place.name.rank,
                "host": *place.name.host,
                "host_index": place.host_index,
                "local_rank": place.local_rank,
                "pid": place.name.pid,
            })
        };
        let members: Vec<Value> = self.backend.places().iter().map(member).collect();
        let (skew, straggler) = self.observer.describe();
        let of_backend = match (self.device, self.backend_name()) {
            (Some(_), _) => "map",
            (None, "native") => "native",
            (None, _) => "plugin",
        };
        json!({
            "name": self.name,
            "id": self.id.to_string(),
            "rank": self.rank,
            "size": self.size,
            "ranks": self.origin.ranks,
            "parent": self.origin.parent,
            "backend": self.backend.name(),
            "timeout_ms": self.timeout_ms(),
            "operations_issued": self.queue.issued(),
            "error": self.failure().map(|error| error.message().to_owned()),
            "members": members,
            of_backend: self.backend.describe(),
            "skew": skew,
            "straggler": straggler,
            "trace": trace::describe(),
        })
    }

    /// What the flight recorder knows of the group.
    pub fn flight_record(&self) -> Value {
        recorder::dump(Some(self.id), recorder::Why::Asked)
    }
}

fn check(options: &GroupOptions) -> Result<()> {
    let GroupOptions { rank, size, name, global_ranks, .. } = options;
    if *size == 0 || *size > MAX_WORLD_SIZE {
        return Err(Error::invalid(format!(
            "a world size of {size}: 1 to {MAX_WORLD_SIZE} is possible"
        )));
    }
    if rank >= size {
        return Err(Error::invalid(format!("rank {rank} does not exist in a group of {size}")));
    }
    check_name(name)?;
    if let Some(ranks) = global_ranks {
        if ranks.len() != *size {
            let message = format!("global_ranks has {} ranks, and the group {size}", ranks.len());
            return Err(Error::invalid(message));
        }
        check_distinct(ranks).context(|| "global_ranks")?;
    }
    options.backend.as_deref().map_or(Ok(()), backend::check_name)
}

/// Whether a group can have a name.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('/') {
        let message =
            format!("\"{name}\" is no group name: 1 to {LONGEST_NAME} bytes without \"/\"");
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Whether no rank is in a list twice.
pub(super) fn check_distinct(ranks: &[Rank]) -> Result<()> {
    let mut known = HashSet::with_capacity(ranks.len());
    match ranks.iter().find(|&&rank| !known.insert(rank)) {
        Some(rank) => Err(Error::invalid(format!("rank {rank} is in the list twice"))),
        None => Ok(()),
    }
}

/// When a group that begins to form must have formed; 0 for the environment's time, or the default.
pub(super) fn connect_deadline(option_ms: u64) -> Result<Deadline> {
    let default_ms = DEFAULT_CONNECT_TIMEOUT_MS;
    Ok(Deadline::after_ms(timeout(option_ms, config::CONNECT_TIMEOUT_MS, default_ms)?))
}

/// A time-out from the options, else from the environment, else the default.
fn timeout(option_ms: u64, variable: config::Variable, default_ms: u64) -> Result<u64> {
    if option_ms != 0 {
        return Ok(option_ms);
    }
    config::time_limit(variable, default_ms)
}
