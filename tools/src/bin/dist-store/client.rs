//! The connection to the store, and queries that several commands use.

use crate::cli::{SecretFile, StoreLocation};
use crate::{EXIT_UNREACHABLE, Failure};
use dist::api::store::open_tcp;
use dist::base::deadline::Deadline;
use dist::base::error::{Error, ErrorKind, Result};
use dist::store::tcp::ClientOptions;
use dist::store::{PrefixStore, Store, TcpStore};
use dist_terminal::Progress;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of values that one request fetches. So many values of the largest size fit into one
/// reply.
const VALUE_BATCH_LEN: usize = 24;
/// The time limit for one request for several values. All keys existed a moment before, so a
/// timeout means that a key was deleted.
const VANISHED_KEY_TIMEOUT: Duration = Duration::from_secs(1);

/// A connected store.
#[derive(Debug)]
pub(crate) struct StoreClient {
    /// The store as the command sees it: the whole store, or only the keys under the prefix of the
    /// command line.
    pub(crate) store: Arc<dyn Store>,
    /// The same store without the prefix.
    pub(crate) tcp: Arc<TcpStore>,
    /// The time that it took to connect.
    pub(crate) connect_time: Duration,
    timeout: Duration,
}

/// Builds the connection options from the command line.
fn client_options(location: &StoreLocation) -> Result<ClientOptions> {
    let secret = location.secret.read()?;
    Ok(ClientOptions {
        host: location.host()?,
        port: location.port()?,
        encrypts: SecretFile::encrypts(secret.as_ref())?,
        secret,
        ..ClientOptions::default()
    })
}

impl StoreClient {
    /// Connects to the store.
    pub(crate) fn connect(location: &StoreLocation) -> std::result::Result<Self, Failure> {
        let options = client_options(location)?;
        let timeout = location.timeout.0;
        let started_at = Instant::now();
        let _progress =
            Progress::of_wait(format!("connecting to {}:{}", options.host, options.port));
        let tcp = open_tcp(None, options, &Deadline::after(timeout));
        let tcp = Arc::new(tcp.map_err(|error| match error.kind() {
            // A timeout during the connect means that there is no store.
            ErrorKind::Timeout => Failure::new(EXIT_UNREACHABLE, error.to_string()),
            _ => error.into(),
        })?);
        let store: Arc<dyn Store> = match &location.prefix {
            Some(prefix) => Arc::new(PrefixStore::new(prefix.as_bytes(), tcp.clone())),
            None => tcp.clone(),
        };
        Ok(Self { store, tcp, connect_time: started_at.elapsed(), timeout })
    }

    /// Waits until the server has processed all earlier requests. `Store::set` returns before the
    /// server has processed the request, and so before an error can be detected.
    pub(crate) fn flush(&self) -> Result<()> {
        self.store.check(&[], &self.deadline()).map(drop)
    }

    /// Returns the deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Returns the keys that begin with `start`, in order.
    pub(crate) fn keys(&self, start: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys = self.store.list_keys(&self.deadline())?;
        keys.retain(|key| key.starts_with(start));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns the missing keys among `keys`.
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

    /// Calls `visit` with the key and the value of each existing key, in order. Fetches the values
    /// in batches, so that they need not all fit into memory.
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

    /// Fetches the values of a batch of keys.
    fn fetch_values(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        if let Ok(values) =
            self.store.multi_get(&borrowed, &self.deadline().capped(VANISHED_KEY_TIMEOUT))
        {
            return Ok(values.into_iter().map(Some).collect());
        }
        // A key was deleted, or the values do not fit into one reply, because APPEND can create a
        // value that is longer than SET allows. Fetch the values one by one.
        borrowed.into_iter().map(|key| self.fetch_value(key)).collect()
    }

    /// Fetches the value of a key. Returns `None` if the key does not exist.
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

/// Returns true if the deadline ended the call.
pub(crate) fn is_time_out(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout
}
