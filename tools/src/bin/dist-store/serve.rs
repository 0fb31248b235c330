//! The command serve: hosts a store until a signal ends the program.

use crate::{CommandResult, Failure, cli, print};
use dist::base::deadline::Deadline;
use dist::base::error::{Error, Result};
use dist::store::tcp::{Server, ServerOptions};
use dist::sys::limits;
use dist::sys::poll::Interest;
use dist::sys::signal::SignalFd;
use dist::wait::io::ready_within;
use dist_tools::EXIT_FAILURE;
use std::os::fd::AsFd as _;

/// The signals with which a user or a job manager ends a program: SIGHUP, SIGINT and SIGTERM.
const TERMINATION_SIGNALS: [i32; 3] = [1, 2, 15];

/// An upper bound for the descriptors that the server needs in addition to its connections.
const RESERVED_FILES: u64 = 32;

/// Builds the server's options.
fn server_options(options: &cli::ServeArgs) -> Result<ServerOptions> {
    let secret = options.secret.read()?;
    Ok(ServerOptions {
        bind: options.bind().to_owned(),
        port: options.port()?,
        encrypts: cli::SecretFile::encrypts(secret.as_ref())?,
        secret,
        max_bytes: options.max_bytes.map_or(0, |size| size.0),
        ..ServerOptions::default()
    })
}

pub(crate) fn run(options: &cli::ServeArgs) -> CommandResult {
    // Intercept signals before the server starts, so that none is missed.
    let signals = SignalFd::intercept(&TERMINATION_SIGNALS)?;
    let limit = limits::raise_max_open_files()?;
    if let Some(connections) = options.connections {
        check_limit(connections, limit)?;
    }
    let server = Server::start(server_options(options)?)?;
    print(format!("listening on {}\n", server.address()))?;
    while signals.next_signal().is_none() {
        ready_within(signals.as_fd(), Interest::READ, &Deadline::never())
            .map_err(|cause| Error::system("poll", cause))?;
    }
    drop(server);
    Ok(0)
}

/// Checks that the limit of open files is high enough for the required connections.
fn check_limit(connections: u64, limit: u64) -> std::result::Result<(), Failure> {
    let needed = connections + RESERVED_FILES;
    if needed <= limit {
        return Ok(());
    }
    let message = format!(
        "{connections} connections need {needed} open files, but the limit is {limit} (the hard \
         limit of this process): raise it with \"ulimit -Hn {needed}\" as root, LimitNOFILE= of \
         systemd, or --ulimit nofile={needed} of docker"
    );
    Err(Failure::new(EXIT_FAILURE, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_open_file_limit_is_reported_with_the_need() {
        assert!(check_limit(100, 132).is_ok() && check_limit(65_536, u64::MAX).is_ok());
        let failure = check_limit(100, 131).unwrap_err();
        assert_eq!(failure.status, EXIT_FAILURE);
        let text = "100 connections need 132 open files, but the limit is 131";
        assert!(failure.message.starts_with(text), "{}", failure.message);
    }
}
