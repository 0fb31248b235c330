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
    /// As `Auth`, and all bytes after that are encrypted and authenticated.
    Encrypt = 2,
}

impl SecuritySetting {
    /// Returns the name of the setting, as in `DIST_SECURITY`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Auth => "auth",
            Self::Encrypt => "encrypt",
        }
    }

    /// Returns the setting with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::None, Self::Auth, Self::Encrypt];
        all.into_iter().find(|setting| setting.name() == name)
    }

    /// Returns the setting that `DIST_SECURITY` requests for a process with or without a secret. If
    /// the variable is not set, a process with a secret uses `auth`, and a process without one
    /// `none`.
    ///
    /// # Errors
    /// `InvalidArgument` if the variable has another value.
    pub fn requested(has_secret: bool) -> Result<Self> {
        match config::read_text(config::SECURITY)? {
            None => Ok(if has_secret { Self::Auth } else { Self::None }),
            Some(value) => Self::from_name(&value).ok_or_else(|| {
                let name = config::SECURITY.name;
                Error::invalid(format!("{name}=\"{value}\" is none of auth, none and encrypt"))
            }),
        }
    }

    /// Returns whether `DIST_SECURITY` requests that the connections of a store with or without a
    /// secret are encrypted.
    ///
    /// # Errors
    /// As [`SecuritySetting::requested`].
    pub fn encrypts_store(has_secret: bool) -> Result<bool> {
        Ok(has_secret && Self::requested(has_secret)? == Self::Encrypt)
    }

    /// Returns the setting of a connection with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::None, Self::Auth, Self::Encrypt];
        all.into_iter().find(|&setting| setting as u8 == number)
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
    /// The setting [`SecuritySetting::Encrypt`], with the job's secret.
    Encrypt(Secret),
}

impl LinkSecurity {
    /// Returns the protection of a process with this setting and this secret.
    ///
    /// # Errors
    /// `Auth` for `auth` or `encrypt` without a secret.
    pub fn new(setting: SecuritySetting, secret: Option<&Secret>) -> Result<Self> {
        match (setting, secret) {
            (SecuritySetting::None, _) => Ok(Self::None),
            (SecuritySetting::Auth, Some(secret)) => Ok(Self::Auth(secret.clone())),
            (SecuritySetting::Encrypt, Some(secret)) => Ok(Self::Encrypt(secret.clone())),
            (SecuritySetting::Auth | SecuritySetting::Encrypt, None) => {
                let name = config::SECURITY.name;
                let message = format!(
                    "{name}={setting}, but the store of this process has no secret, which is the \
                     setting {name}=none: set {} on all ranks, or give the store a secret",
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
            Self::Encrypt(_) => SecuritySetting::Encrypt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_follows_the_setting_and_the_secret() {
        let secret = Secret::from_bytes(b"of the job").unwrap();
        let protection =
            |setting, secret| LinkSecurity::new(setting, secret).map(|security| security.setting());
        for (setting, secret) in [
            (SecuritySetting::None, None),
            (SecuritySetting::None, Some(&secret)),
            (SecuritySetting::Auth, Some(&secret)),
            (SecuritySetting::Encrypt, Some(&secret)),
        ] {
            assert_eq!(protection(setting, secret).unwrap(), setting);
        }
        for setting in [SecuritySetting::Auth, SecuritySetting::Encrypt] {
            let error = protection(setting, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
            for word in ["DIST_SECURITY=none", &format!("DIST_SECURITY={setting}")] {
                assert!(error.message().contains(word), "{error}");
            }
        }
    }

    #[test]
    fn names_and_numbers_round_trip() {
        for setting in [SecuritySetting::None, SecuritySetting::Auth, SecuritySetting::Encrypt] {
            assert_eq!(SecuritySetting::from_name(setting.name()), Some(setting));
            assert_eq!(SecuritySetting::from_number(setting as u8), Some(setting));
        }
        assert_eq!(SecuritySetting::from_name("Auth"), None);
        assert_eq!(SecuritySetting::from_number(3), None);
    }
}
