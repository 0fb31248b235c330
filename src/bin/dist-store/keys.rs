//! The commands that ask one thing of the store.

use crate::client::{Client, is_time_out};
use crate::text::{escaped, key_list};
use crate::{Failure, NEGATIVE, Outcome, TIMED_OUT, cli, complain, say};
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// How often a wait tells which keys are missing.
const TELL_EVERY: Duration = Duration::from_secs(5);

pub(crate) fn get(options: &cli::Get) -> Outcome {
    let client = Client::connect(&options.place)?;
    let keys = options.keys();
    if options.no_wait {
        let missing = client.missing(&keys)?;
        if !missing.is_empty() {
            return Err(Failure::new(NEGATIVE, format!("missing: {}", key_list(&missing))));
        }
    } else {
        wait_for(&client, &keys)?;
    }
    let values = client.store.multi_get(&keys, &client.deadline())?;
    if options.is_raw(std::io::stdout().is_terminal()) {
        say(values.concat())?;
    } else {
        let lines: String = values.iter().map(|value| escaped(value) + "\n").collect();
        say(lines)?;
    }
    Ok(0)
}

pub(crate) fn set(options: &cli::Set) -> Outcome {
    let mut value = options.value.as_bytes().to_vec();
    if value == b"-" {
        value.clear();
        std::io::stdin().lock().read_to_end(&mut value).map_err(|cause| {
            Failure::new(NEGATIVE, format!("cannot read standard input: {cause}"))
        })?;
    }
    let client = Client::connect(&options.place)?;
    client.store.set(options.key.as_bytes(), &value, &client.deadline())?;
    client.settle()?;
    Ok(0)
}

pub(crate) fn add(options: &cli::Add) -> Outcome {
    let client = Client::connect(&options.place)?;
    let sum = client.store.add(options.key.as_bytes(), options.amount, &client.deadline())?;
    say(format!("{sum}\n"))?;
    Ok(0)
}

pub(crate) fn wait(options: &cli::Wait) -> Outcome {
    let client = Client::connect(&options.place)?;
    wait_for(&client, &options.keys())?;
    Ok(0)
}

pub(crate) fn list(options: &cli::List) -> Outcome {
    let client = Client::connect(&options.place)?;
    let keys = client.keys(options.start.as_bytes())?;
    client.each_value(&keys, |key, value| {
        let (size, key) = (value.len(), escaped(key));
        if options.values {
            return say(format!("{size:>10}  {key} = {}\n", escaped(&value)));
        }
        say(format!("{size:>10}  {key}\n"))
    })?;
    Ok(0)
}

/// Waits until all keys are there, and tells meanwhile which are not.
fn wait_for(client: &Client, keys: &[&[u8]]) -> Result<(), Failure> {
    let deadline = client.deadline();
    loop {
        match client.store.wait(keys, &deadline.capped(TELL_EVERY)) {
            Err(error) if is_time_out(&error) => {}
            outcome => return Ok(outcome?),
        }
        let missing = client.missing(keys)?;
        if missing.is_empty() {
            return Ok(());
        }
        let (waited, missing) = (deadline.elapsed().as_secs_f64(), key_list(&missing));
        if deadline.has_passed() {
            let message = format!("timed out after {waited:.1} s; missing: {missing}");
            return Err(Failure::new(TIMED_OUT, message));
        }
        complain(&format!("waiting for {waited:.0} s; missing: {missing}"));
    }
}
