//! The secret of the job's store. distrun reads or generates the secret, and passes its location (a
//! file or a descriptor) to the ranks. The secret itself never appears in an environment variable
//! or on a command line.

use crate::cli::Options;
use dist::base::config::{self, LAUNCHER_HAS_SECRET, SECRET_FD, SECRET_FILE};
use dist::base::error::ErrorContext as _;
use dist::process::child_group::ChildProcessGroup;
use dist::security::SecuritySetting;
use dist::store::tcp::Secret;
use dist_tools::Failure;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;

/// The name and value of the environment variable with the location of the secret.
type EnvVariable = (&'static str, String);

/// The job's secret, and its location for the ranks of this node.
#[derive(Debug)]
pub(crate) struct JobSecret {
    secret: Option<Secret>,
    /// The variables that name the location.
    variables: Vec<EnvVariable>,
}

impl JobSecret {
    /// Loads the secret. If the options or the environment name a file, reads the file. Otherwise,
    /// for a job of one node, generates a secret in a descriptor that the ranks inherit. The other
    /// nodes of a larger job could not know a generated secret.
    ///
    /// # Errors
    /// The reason why the file is not a valid secret file. Wrong usage if a job of several nodes
    /// has no secret, and the options do not request this.
    pub(crate) fn load(
        options: &Options,
        process_group: &mut ChildProcessGroup,
    ) -> Result<Self, Failure> {
        if options.no_secret {
            return Ok(Self { secret: None, variables: Vec::new() });
        }
        if let Some(path) = secret_file_path(options)? {
            return Self::from_file(path);
        }
        if options.nnodes > 1 {
            let nnodes = options.nnodes;
            return Err(Failure::usage(format!(
                "--nnodes {nnodes} needs --secret-file PATH with the same file on each node, so \
                 that no other process can join the job: create the file with \
                 (umask 077; head -c 32 /dev/urandom | base64 >PATH) and copy it to the other \
                 nodes. --no-secret starts a job that each process in the network can join"
            )));
        }
        let (secret, fd) = Secret::generate()?;
        let variable = (SECRET_FD.name, fd.as_raw_fd().to_string());
        process_group.inherit_fd(fd);
        Ok(Self { secret: Some(secret), variables: vec![variable] })
    }

    fn from_file(path: PathBuf) -> Result<Self, Failure> {
        let secret = Secret::from_file(&path).context(|| "the job's secret")?;
        // Pass an absolute path, because ranks may change their working directory.
        let absolute_path = std::path::absolute(&path).map_err(|cause| {
            Failure::new(format!(
                "cannot get the absolute path of the secret file {}: {cause}",
                path.display()
            ))
        })?;
        let text = absolute_path.into_os_string().into_string().map_err(|path| {
            let path = path.to_string_lossy();
            Failure::new(format!(
                "cannot pass the secret file {path} to the ranks: its path is not UTF-8"
            ))
        })?;
        let variables = vec![(SECRET_FILE.name, text), (LAUNCHER_HAS_SECRET.name, "1".to_owned())];
        Ok(Self { secret: Some(secret), variables })
    }

    /// Returns the secret for the job's store.
    pub(crate) fn for_server(&self) -> Option<Secret> {
        self.secret.clone()
    }

    /// Returns whether the connections of the job's store are encrypted: the ranks inherit
    /// `DIST_SECURITY` from distrun.
    ///
    /// # Errors
    /// The value of the variable is wrong.
    pub(crate) fn encrypts_store(&self) -> Result<bool, Failure> {
        Ok(SecuritySetting::encrypts_store(self.secret.is_some())?)
    }

    /// Sets the location of the secret for a rank, and removes locations that distrun inherited.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        for inherited in [SECRET_FILE, SECRET_FD, LAUNCHER_HAS_SECRET] {
            command.env_remove(inherited.name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

/// Returns the path of the secret file that the options or the environment name. Ignores a secret
/// descriptor in the environment of distrun: it belongs to another job, which has started distrun
/// as one of its ranks.
fn secret_file_path(options: &Options) -> Result<Option<PathBuf>, Failure> {
    match &options.secret_file {
        Some(path) => Ok(Some(path.clone())),
        None => Ok(config::read_text(SECRET_FILE)?.map(PathBuf::from)),
    }
}
