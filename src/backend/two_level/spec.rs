//! The name of a two-level group: `inside=NAME,between=NAME`.

use crate::backend::{OpKind, SupportQuery, registry};
use crate::base::error::{Error, ErrorKind, Result};
use std::fmt;

/// The names of the back ends inside a host and between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct TwoLevelSpec {
    pub(in crate::backend) inside: String,
    pub(in crate::backend) between: String,
}

/// The start of the first part of the name.
const INSIDE: &str = "inside=";

/// The start of the second part of the name, after the comma.
const BETWEEN: &str = "between=";

impl fmt::Display for TwoLevelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{INSIDE}{},{BETWEEN}{}", self.inside, self.between)
    }
}

impl TwoLevelSpec {
    /// Parses a name. Returns `None` if it is not the name of a two-level group.
    ///
    /// # Errors
    /// `InvalidArgument` if the name begins like one and is malformed.
    pub(in crate::backend) fn parse(name: &str) -> Result<Option<Self>> {
        let Some(rest) = strip_ascii_prefix(name.trim(), INSIDE) else { return Ok(None) };
        let parts = rest.split_once(',').map(|(inside, between)| (inside.trim(), between.trim()));
        let parts = parts.and_then(|(inside, between)| {
            Some((inside, strip_ascii_prefix(between, BETWEEN)?.trim()))
        });
        let is_one_name = |name: &str| !name.is_empty() && !name.contains(['=', ',', ':']);
        match parts {
            Some((inside, between)) if is_one_name(inside) && is_one_name(between) => {
                let [inside, between] = [inside, between].map(str::to_ascii_lowercase);
                Ok(Some(Self { inside, between }))
            }
            _ => Err(Error::invalid(format!(
                "\"{name}\" is not the name of a two-level group: use \"inside=NAME,between=NAME\", \
                 for example \"inside=nccl,between=native\""
            ))),
        }
    }
}

impl TwoLevelSpec {
    /// Returns true if the back end inside the host is a device back end.
    pub(in crate::backend) fn is_for_devices(&self) -> bool {
        registry::find_device_factory(&self.inside).is_some()
    }

    /// Returns the name with the canonical names of the back ends.
    pub(in crate::backend) fn canonical(&self) -> String {
        let of = |name: &str| registry::canonical_name(name).unwrap_or(name).to_owned();
        Self { inside: of(&self.inside), between: of(&self.between) }.to_string()
    }

    /// Returns the names of the host back ends, which may be unknown.
    pub(in crate::backend) fn host_backends(&self) -> Vec<String> {
        let inside = Some(self.inside.clone()).filter(|_| !self.is_for_devices());
        inside.into_iter().chain([self.between.clone()]).collect()
    }

    /// Checks that this process has the back ends.
    ///
    /// # Errors
    /// `NotFound` for an unknown name; `Unsupported` for a device back end between hosts; the error
    /// of a library that cannot be loaded.
    pub(in crate::backend) fn check(&self) -> Result<()> {
        if registry::find_device_factory(&self.between).is_some() {
            let message = format!(
                "{self}: {0} runs between hosts only if it also runs inside them: use the back end \
                 \"{0}\" for both, or \"between=native\"",
                self.between
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        registry::check_host_name(&self.between)?;
        match registry::find_device_factory(&self.inside) {
            Some(factory) => factory.check(),
            None => registry::check_host_name(&self.inside),
        }
    }

    /// Checks whether a group supports a call on host memory if its caller requested only this
    /// two-level device back end. Such a group supports only barriers and messages there.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(in crate::backend) fn check_host_support(&self, query: &SupportQuery) -> Result<()> {
        if query.kind.is_none_or(|kind| kind == OpKind::Barrier) {
            return Ok(());
        }
        let message = format!(
            "{query} in host memory: the back end {self} supports GPU memory only; use \
             \"cpu:native,cuda:{self}\" for both"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// Splits a name at its commas, except at the comma inside the name of a two-level group.
pub(in crate::backend) fn split_slots(name: &str) -> Vec<String> {
    let mut slots: Vec<String> = Vec::new();
    for part in name.split(',').map(str::trim) {
        match slots.last_mut() {
            Some(last) if strip_ascii_prefix(part, BETWEEN).is_some() => {
                last.push(',');
                last.push_str(part);
            }
            _ => slots.push(part.to_owned()),
        }
    }
    slots
}

/// Removes a prefix, in upper or lower case.
fn strip_ascii_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        let of = |name: &str| TwoLevelSpec::parse(name).unwrap().map(|spec| spec.to_string());
        for name in ["inside=nccl,between=native", " Inside=NCCL, BETWEEN=native "] {
            assert_eq!(of(name).as_deref(), Some("inside=nccl,between=native"), "{name}");
        }
        for name in ["native", "cpu:inside=a,between=b", "", "between=a", "insid\u{e9}"] {
            assert_eq!(of(name), None, "{name}");
        }
        for wrong in [
            "inside=",
            "inside=a",
            "inside=a,between=",
            "inside=,between=a",
            "inside=a,between=b,c",
            "inside=a,cuda:b",
            "inside=a,between=inside=b",
        ] {
            let error = TwoLevelSpec::parse(wrong).unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
    }

    #[test]
    fn comma_of_two_level_name_does_not_split() {
        let of = |name: &str| split_slots(name).join("|");
        assert_eq!(of("native"), "native");
        assert_eq!(of("cpu:a, cuda:b"), "cpu:a|cuda:b");
        assert_eq!(of("inside=a, between=b"), "inside=a,between=b");
        assert_eq!(
            of("cpu:inside=a,between=b,cuda:inside=c,between=d"),
            "cpu:inside=a,between=b|cuda:inside=c,between=d"
        );
        assert_eq!(of("between=a,x"), "between=a|x");
    }
}
