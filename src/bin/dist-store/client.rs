//! Reaching the store, and what several commands ask of it.

use crate::cli::Place;
use crate::{Failure, UNREACHABLE};
use dist::api::store::open_tcp;
use dist::base::deadline::Deadline;
use dist::base::error::{Error, ErrorKind, Result};
use dist::store::tcp::ClientOptions;
use dist::store::{PrefixStore, Store, TcpStore};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many values are fetched at once: all of the greatest size that can be set still fit into one
/// answer.
const BATCH: usize = 24;
/// How long values whose keys were there a moment ago are waited for together.
const VANISHED: Duration = Duration::from_secs(1);

/// A store that was reached.
#[derive(Debug)]
pub(crate) struct Client {
    /// The keys that were asked for: the whole store, or the part under the prefix.
    pub(crate) store: Arc<dyn Store>,
    /// The same, whole.
    pub(crate) tcp: Arc<TcpStore>,
    /// How long it took to reach it.
    pub(crate) took: Duration,
    allowed: Duration,
}

/// The one place that says how to reach the store.
fn client_options(place: &Place) -> Result<ClientOptions> {
    let secret = place.secret.read()?;
    Ok(ClientOptions {
        host: place.host()?,
        port: place.port()?,
        secret,
        ..ClientOptions::default()
    })
}

impl Client {
    /// Connects.
    pub(crate) fn connect(place: &Place) -> std::result::Result<Self, Failure> {
        let options = client_options(place)?;
        let allowed = place.timeout.0;
        let began = Instant::now();
        let tcp = open_tcp(None, options, &Deadline::after(allowed));
        let tcp = Arc::new(tcp.map_err(|error| match error.kind() {
            // Here a time-out says that there is no store.
            ErrorKind::Timeout => Failure::new(UNREACHABLE, error.to_string()),
            _ => error.into(),
        })?);
        let store: Arc<dyn Store> = match &place.prefix {
            Some(prefix) => Arc::new(PrefixStore::new(prefix.as_bytes(), tcp.clone())),
            None => tcp.clone(),
        };
        Ok(Self { store, tcp, took: began.elapsed(), allowed })
    }

    /// Returns once the server has carried out all that it was told: a set is not waited for
    /// otherwise.
    pub(crate) fn settle(&self) -> Result<()> {
        self.store.check(&[], &self.deadline()).map(drop)
    }

    /// The deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.allowed)
    }

    /// The keys that begin with `start`, in order.
    pub(crate) fn keys(&self, start: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.store.list_keys(&self.deadline())?;
        keys.retain(|key| key.starts_with(start));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Those of `keys` that are not there.
    pub(crate) fn missing<'a>(&self, keys: &[&'a [u8]]) -> Result<Vec<&'a [u8]>> {
        let mut missing = Vec::new();
        if !self.store.check(keys, &self.deadline())? {
            for &key in keys {
                if !self.store.check(&[key], &self.deadline())? {
                    missing.push(key);
                }
            }
        }
        Ok(missing)
    }

    /// Hands over key and value of each of `keys` that is there, in order, without holding all
    /// values.
    pub(crate) fn each_value(
        &self,
        keys: &[Vec<u8>],
        mut take: impl FnMut(&[u8], Vec<u8>) -> std::result::Result<(), Failure>,
    ) -> std::result::Result<(), Failure> {
        for batch in keys.chunks(BATCH) {
            for (key, value) in batch.iter().zip(self.values(batch)?) {
                if let Some(value) = value {
                    take(key, value)?;
                }
            }
        }
        Ok(())
    }

    /// The values of a few keys.
    fn values(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        if let Ok(values) = self.store.multi_get(&borrowed, &self.deadline().capped(VANISHED)) {
            return Ok(values.into_iter().map(Some).collect());
        }
        // One has vanished, or together they are too long: values can grow by being appended to.
        borrowed.into_iter().map(|key| self.value(key)).collect()
    }

    /// The value of a key, if it is there.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let is_there = || self.store.check(&[key], &self.deadline());
        if !is_there()? {
            return Ok(None);
        }
        match self.store.get(key, &self.deadline()) {
            Err(error) if is_time_out(&error) && !is_there()? => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}

/// Whether it is the deadline that ended a call.
pub(crate) fn is_time_out(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout
}
