//! The secret of the job's store: read from a file or made anew, and passed on so that it is in no
//! environment variable and on no command line.

use crate::Failure;
use crate::cli::Options;
use dist::base::config::{self, SECRET_FD, SECRET_FILE};
use dist::base::error::ErrorContext as _;
use dist::process::child_group::ChildProcessGroup;
use dist::store::tcp::Secret;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;

/// What a rank is told about the secret: a variable of its environment.
type EnvVariable = (&'static str, String);

/// The job's secret, and where the ranks of this node find it.
#[derive(Debug)]
pub(crate) struct JobSecret {
    secret: Option<Secret>,
    variable: Option<EnvVariable>,
}

impl JobSecret {
    /// That of the file which the options or the environment name; else a new one, in a descriptor
    /// which the crew's ranks inherit, for a job of this node alone; else none, since the other
    /// nodes could not know it.
    ///
    /// # Errors
    /// Where the file cannot hold a secret.
    pub(crate) fn load(
        options: &Options,
        process_group: &mut ChildProcessGroup,
    ) -> Result<Self, Failure> {
        let none = Self { secret: None, variable: None };
        if options.no_secret {
            return Ok(none);
        }
        if let Some(path) = secret_file_path(options)? {
            return Self::from_file(path);
        }
        if options.nnodes > 1 {
            return Ok(none);
        }
        let (secret, fd) = Secret::generate()?;
        let variable = (SECRET_FD.name, fd.as_raw_fd().to_string());
        process_group.inherit_fd(fd);
        Ok(Self { secret: Some(secret), variable: Some(variable) })
    }

    fn from_file(path: PathBuf) -> Result<Self, Failure> {
        let secret = Secret::from_file(&path).context(|| "the job's secret")?;
        // Whole, since ranks may change their folder first.
        let absolute_path = std::path::absolute(&path)
            .map_err(|cause| Failure::new(format!("where {} is: {cause}", path.display())))?;
        let text = absolute_path.into_os_string().into_string().map_err(|path| {
            let path = path.to_string_lossy();
            Failure::new(format!("the ranks cannot be told of {path}: its name is not UTF-8"))
        })?;
        Ok(Self { secret: Some(secret), variable: Some((SECRET_FILE.name, text)) })
    }

    /// What the job's store needs.
    pub(crate) fn for_server(&self) -> Option<Secret> {
        self.secret.clone()
    }

    /// Tells a rank where the secret is, and nothing of one that whoever started us may have had.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        command.env_remove(SECRET_FILE.name).env_remove(SECRET_FD.name);
        command.envs(self.variable.iter().map(|(name, value)| (name, value)));
    }
}

/// The file that is named. A descriptor in our own environment is another job's: that of which we
/// are a rank.
fn secret_file_path(options: &Options) -> Result<Option<PathBuf>, Failure> {
    match &options.secret_file {
        Some(path) => Ok(Some(path.clone())),
        None => Ok(config::read_text(SECRET_FILE)?.map(PathBuf::from)),
    }
}
