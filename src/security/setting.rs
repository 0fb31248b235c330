//! The security setting: how the processes of a job protect the connections between them.

use super::secret::Secret;
use crate::base::config;
use crate::base::error::{Error, ErrorKind, Result};
use std::fmt;

/// The value of `DIST_SECURITY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SecuritySetting {
    /// Connections are not protected.
    None = 0,
    /// Both sides of a connection prove that they hold the job's secret. The bytes after that are
    /// not protected.
    Auth = 1,
}

impl SecuritySetting {
    /// Returns the name of the setting, as in `DIST_SECURITY`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Auth => "auth",
        }
    }

    /// Returns the setting with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::None, Self::Auth].into_iter().find(|setting| setting.name() == name)
    }

    /// Returns the setting with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::None, Self::Auth].into_iter().find(|&setting| setting as u8 == number)
    }
}

impl fmt::Display for SecuritySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The protection of the links of a group.
#[derive(Clone, Debug, Default)]
pub enum LinkSecurity {
    /// The setting [`SecuritySetting::None`].
    #[default]
    None,
    /// The setting [`SecuritySetting::Auth`], with the job's secret.
    Auth(Secret),
}

impl LinkSecurity {
    /// Returns the protection that `DIST_SECURITY` requests for a process with this secret. If the
    /// variable is not set, a process with a secret uses `auth`, and a process without one `none`.
    ///
    /// # Errors
    /// `Auth` for `auth` without a secret; `Unsupported` for `encrypt`; `InvalidArgument` for any
    /// other value.
    pub fn from_environment(secret: Option<&Secret>) -> Result<Self> {
        Self::of_process(config::read_text(config::SECURITY)?.as_deref(), secret)
    }

    fn of_process(value: Option<&str>, secret: Option<&Secret>) -> Result<Self> {
        let name = config::SECURITY.name;
        let setting = match value {
            None => None,
            Some("encrypt") => {
                let message = format!(
                    "{name}=encrypt: this version of libdist cannot encrypt connections; set {name}=auth"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            Some(value) => Some(SecuritySetting::from_name(value).ok_or_else(|| {
                Error::invalid(format!("{name}=\"{value}\" is neither auth nor none"))
            })?),
        };
        match (setting, secret) {
            (Some(SecuritySetting::None), _) | (None, None) => Ok(Self::None),
            (Some(SecuritySetting::Auth) | None, Some(secret)) => Ok(Self::Auth(secret.clone())),
            (Some(SecuritySetting::Auth), None) => {
                let message = format!(
                    "{name}=auth, but the store of this process has no secret, which is the setting \
                     {name}=none: set {} on all ranks, or give the store a secret",
                    config::SECRET_FILE.name
                );
                Err(Error::new(ErrorKind::Auth, message))
            }
        }
    }

    /// Returns the setting.
    pub fn setting(&self) -> SecuritySetting {
        match self {
            Self::None => SecuritySetting::None,
            Self::Auth(_) => SecuritySetting::Auth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_follows_the_variable_and_the_secret() {
        let secret = Secret::from_bytes(b"of the job").unwrap();
        let setting = |value, secret| {
            LinkSecurity::of_process(value, secret).map(|security| security.setting())
        };
        assert_eq!(setting(None, None).unwrap(), SecuritySetting::None);
        assert_eq!(setting(None, Some(&secret)).unwrap(), SecuritySetting::Auth);
        assert_eq!(setting(Some("none"), Some(&secret)).unwrap(), SecuritySetting::None);
        assert_eq!(setting(Some("none"), None).unwrap(), SecuritySetting::None);
        assert_eq!(setting(Some("auth"), Some(&secret)).unwrap(), SecuritySetting::Auth);
        for (value, secret, kind, word) in [
            ("auth", None, ErrorKind::Auth, "DIST_SECURITY=none"),
            ("encrypt", None, ErrorKind::Unsupported, "cannot encrypt"),
            ("encrypt", Some(&secret), ErrorKind::Unsupported, "DIST_SECURITY=auth"),
            ("Auth", Some(&secret), ErrorKind::InvalidArgument, "neither auth nor none"),
        ] {
            let error = setting(Some(value), secret).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(word), "{error}");
        }
        for setting in [SecuritySetting::None, SecuritySetting::Auth] {
            assert_eq!(SecuritySetting::from_name(setting.name()), Some(setting));
            assert_eq!(SecuritySetting::from_number(setting as u8), Some(setting));
        }
    }
}
