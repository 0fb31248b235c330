//! The back ends by name: the native one, and those that are registered beside it.
//!
//! Names do not differ by case, and none can be taken twice or given back: a group may outlive
//! whoever registered its back end. What is registered here is all the state of the process that
//! there is about back ends.

use super::{Backend, Context, Exchange};
use crate::base::error::{Error, ErrorKind, Result};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

/// The name of the native back end, and its other one.
const OWN: [&str; 2] = ["native", "gloo"];

/// Names that no plug-in may have: they mean something in a map of devices.
const RESERVED: [&str; 4] = ["nccl", "cpu", "cuda", "default"];

/// The longest name.
const LONGEST: usize = 64;

/// How many back ends can be registered, since none ever goes.
const MOST: usize = 256;

/// Makes the back end of one group.
pub trait Factory: Send + Sync + Debug {
    /// Makes this rank's part, together with the other ranks.
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    fn create(&self, context: &Context<'_>, exchange: &dyn Exchange) -> Result<Arc<dyn Backend>>;
}

#[derive(Clone, Debug)]
struct Entry {
    name: &'static str,
    factory: Arc<dyn Factory>,
}

static REGISTERED: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

/// Adds a back end; `make` gets its name as it will be told. Returns that name.
///
/// # Errors
/// `InvalidArgument` for a name that no back end can have, or that one has already.
pub fn register(
    name: &str,
    make: impl FnOnce(&'static str) -> Arc<dyn Factory>,
) -> Result<&'static str> {
    let name = checked(name)?;
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if OWN.contains(&name.as_str()) || registered.iter().any(|entry| entry.name == name) {
        let message = format!("there is a back end \"{name}\" already: choose another name");
        return Err(Error::invalid(message));
    }
    if registered.len() == MOST {
        let message = format!("{MOST} back ends are registered, which is the most there may be");
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    // It stays for as long as the process, as the entry does.
    let name: &'static str = name.leak();
    registered.push(Entry { name, factory: make(name) });
    Ok(name)
}

/// A name in the form that it is kept in.
fn checked(name: &str) -> Result<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > LONGEST || !name.bytes().all(fits) {
        let message = format!(
            "\"{}\" is no name of a back end: 1 to {LONGEST} of A-Z, a-z, 0-9, \"_\" and \"-\"",
            name.chars().take(LONGEST).collect::<String>()
        );
        return Err(Error::invalid(message));
    }
    let name = name.to_ascii_lowercase();
    if RESERVED.contains(&name.as_str()) {
        let message = format!("the name \"{name}\" is the library's own: choose another one");
        return Err(Error::invalid(message));
    }
    Ok(name)
}

/// What a name stands for among those that were registered.
pub(super) fn find(name: &str) -> Option<Arc<dyn Factory>> {
    entry(name).map(|entry| entry.factory)
}

fn entry(name: &str) -> Option<Entry> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    registered.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)).cloned()
}

/// The one name of the back end that a name stands for; `None` for an unknown one.
pub fn known(name: &str) -> Option<&'static str> {
    if OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Some(OWN[0]);
    }
    entry(name).map(|entry| entry.name)
}

/// All names, for messages.
pub fn names() -> Vec<&'static str> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    OWN.into_iter().chain(registered.iter().map(|entry| entry.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Factory for Nothing {
        fn create(&self, _: &Context<'_>, _: &dyn Exchange) -> Result<Arc<dyn Backend>> {
            Err(Error::new(ErrorKind::Unsupported, "nothing comes of it"))
        }
    }

    fn add(name: &str) -> Result<&'static str> {
        register(name, |_| Arc::new(Nothing))
    }

    #[test]
    fn a_name_is_taken_once_whatever_its_case() {
        assert_eq!(known("Registry-Test"), None);
        assert_eq!(add("Registry-TEST").unwrap(), "registry-test");
        assert_eq!(known("REGISTRY-test"), Some("registry-test"));
        assert!(names().contains(&"registry-test") && find("registry-Test").is_some());
        for taken in ["registry-test", "REGISTRY-TEST", "native", "Gloo"] {
            let error = add(taken).unwrap_err();
            assert!(error.message().contains("already"), "{error}");
        }
        let unknown = super::super::check_name("unheard-of").unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        for name in ["native", "gloo", "registry-test"] {
            assert!(unknown.message().contains(name), "{unknown}");
        }
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        let long = "x".repeat(LONGEST + 1);
        for name in ["", "a b", "cpu:native", "a,b", "cuda", "NCCL", "\u{e9}", long.as_str()] {
            assert_eq!(add(name).unwrap_err().kind(), ErrorKind::InvalidArgument, "{name}");
            assert_eq!(known(name), None);
        }
    }

    #[test]
    fn of_many_who_register_one_name_one_has_it() {
        let taken: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| add("registry-race").is_ok())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|&&taken| taken).count(), 1);
    }
}
