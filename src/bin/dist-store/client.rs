//! Reaching the store, and what several commands ask of it.

use crate::cli::StoreLocation;
use crate::{EXIT_UNREACHABLE, Failure};
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
const VALUE_BATCH_LEN: usize = 24;
/// How long values whose keys were there a moment ago are waited for together.
const VANISHED_KEY_TIMEOUT: Duration = Duration::from_secs(1);

/// A store that was reached.
#[derive(Debug)]
pub(crate) struct StoreClient {
    /// The keys that were asked for: the whole store, or the part under the prefix.
    pub(crate) store: Arc<dyn Store>,
    /// The same, whole.
    pub(crate) tcp: Arc<TcpStore>,
    /// How long it took to reach it.
    pub(crate) connect_time: Duration,
    timeout: Duration,
}

/// The one place that says how to reach the store.
fn client_options(location: &StoreLocation) -> Result<ClientOptions> {
    let secret = location.secret.read()?;
    Ok(ClientOptions {
        host: location.host()?,
        port: location.port()?,
        secret,
        ..ClientOptions::default()
    })
}

impl StoreClient {
    /// Connects.
    pub(crate) fn connect(location: &StoreLocation) -> std::result::Result<Self, Failure> {
        let options = client_options(location)?;
        let timeout = location.timeout.0;
        let started_at = Instant::now();
        let tcp = open_tcp(None, options, &Deadline::after(timeout));
        let tcp = Arc::new(tcp.map_err(|error| match error.kind() {
            // Here a time-out says that there is no store.
            ErrorKind::Timeout => Failure::new(EXIT_UNREACHABLE, error.to_string()),
            _ => error.into(),
        })?);
        let store: Arc<dyn Store> = match &location.prefix {
            Some(prefix) => Arc::new(PrefixStore::new(prefix.as_bytes(), tcp.clone())),
            None => tcp.clone(),
        };
        Ok(Self { store, tcp, connect_time: started_at.elapsed(), timeout })
    }

    /// Returns once the server has carried out all that it was told: a set is not waited for
    /// otherwise.
    pub(crate) fn flush(&self) -> Result<()> {
        self.store.check(&[], &self.deadline()).map(drop)
    }

    /// The deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// The keys that begin with `start`, in order.
    pub(crate) fn keys(&self, start: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.store.list_keys(&self.deadline())?;
        keys.retain(|key| key.starts_with(start));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Those of `keys` that are not there.
    pub(crate) fn missing_keys<'a>(&self, keys: &[&'a [u8]]) -> Result<Vec<&'a [u8]>> {
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
    pub(crate) fn for_each_value(
        &self,
        keys: &[Vec<u8>],
        mut visit: impl FnMut(&[u8], Vec<u8>) -> std::result::Result<(), Failure>,
    ) -> std::result::Result<(), Failure> {
        for batch in keys.chunks(VALUE_BATCH_LEN) {
            for (key, value) in batch.iter().zip(self.fetch_values(batch)?) {
                if let Some(value) = value {
                    visit(key, value)?;
                }
            }
        }
        Ok(())
    }

    /// The values of a few keys.
    fn fetch_values(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        if let Ok(values) =
            self.store.multi_get(&borrowed, &self.deadline().capped(VANISHED_KEY_TIMEOUT))
        {
            return Ok(values.into_iter().map(Some).collect());
        }
        // One has vanished, or together they are too long: values can grow by being appended to.
        borrowed.into_iter().map(|key| self.fetch_value(key)).collect()
    }

    /// The value of a key, if it is there.
    fn fetch_value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let exists = || self.store.check(&[key], &self.deadline());
        if !exists()? {
            return Ok(None);
        }
        match self.store.get(key, &self.deadline()) {
            Err(error) if is_time_out(&error) && !exists()? => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}

/// Whether it is the deadline that ended a call.
pub(crate) fn is_time_out(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout
}
