//! The commands with one request: get, set, add, wait and list.

use crate::client::{StoreClient, is_time_out};
use crate::formatting::{escape_bytes, format_keys};
use crate::{CommandResult, EXIT_TIMED_OUT, Failure, cli, print, report_error};
use dist_terminal::Progress;
use dist_tools::EXIT_FAILURE;
use serde_json::json;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// The interval at which a wait prints the missing keys.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) fn get(options: &cli::GetArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    let keys = options.keys();
    if options.no_wait {
        let missing = client.missing_keys(&keys)?;
        if !missing.is_empty() {
            return Err(Failure::new(EXIT_FAILURE, format!("missing: {}", format_keys(&missing))));
        }
    } else {
        wait_with_reports(&client, &keys)?;
    }
    let values = client.store.multi_get(&keys, &client.deadline())?;
    if options.json {
        let object = |(key, value): (&&[u8], &Vec<u8>)| json!({ "key": escape_bytes(key), "value": escape_bytes(value) });
        let objects = keys.iter().zip(&values).map(object);
        print(objects.map(|object| format!("{object}\n")).collect::<String>())?;
    } else if options.is_raw(std::io::stdout().is_terminal()) {
        print(values.concat())?;
    } else {
        let lines: String = values.iter().map(|value| escape_bytes(value) + "\n").collect();
        print(lines)?;
    }
    Ok(0)
}

pub(crate) fn set(options: &cli::SetArgs) -> CommandResult {
    let mut value = options.value.as_bytes().to_vec();
    if value == b"-" {
        value.clear();
        std::io::stdin().lock().read_to_end(&mut value).map_err(|cause| {
            Failure::new(EXIT_FAILURE, format!("cannot read standard input: {cause}"))
        })?;
    }
    let client = StoreClient::connect(&options.location)?;
    client.store.set(options.key.as_bytes(), &value, &client.deadline())?;
    client.flush()?;
    Ok(0)
}

pub(crate) fn add(options: &cli::AddArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    let sum = client.store.add(options.key.as_bytes(), options.amount, &client.deadline())?;
    print(format!("{sum}\n"))?;
    Ok(0)
}

pub(crate) fn wait(options: &cli::WaitArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    wait_with_reports(&client, &options.keys())?;
    Ok(0)
}

pub(crate) fn list(options: &cli::ListArgs) -> CommandResult {
    let client = StoreClient::connect(&options.location)?;
    let keys = client.keys(options.start.as_bytes())?;
    client.for_each_value(&keys, |key, value| {
        let (size, key) = (value.len(), escape_bytes(key));
        if options.json {
            let mut object = json!({ "key": key, "bytes": size });
            if options.values {
                object["value"] = json!(escape_bytes(&value));
            }
            return print(format!("{object}\n"));
        }
        if options.values {
            return print(format!("{size:>10}  {key} = {}\n", escape_bytes(&value)));
        }
        print(format!("{size:>10}  {key}\n"))
    })?;
    Ok(0)
}

/// Waits until all keys exist, and prints the missing keys periodically.
fn wait_with_reports(client: &StoreClient, keys: &[&[u8]]) -> Result<(), Failure> {
    let deadline = client.deadline();
    let progress = Progress::of_wait(format!("waiting for {}", format_keys(keys)));
    loop {
        match client.store.wait(keys, &deadline.capped(REPORT_INTERVAL)) {
            Err(error) if is_time_out(&error) => {}
            outcome => return Ok(outcome?),
        }
        let missing = client.missing_keys(keys)?;
        if missing.is_empty() {
            return Ok(());
        }
        let (waited, missing) = (deadline.elapsed().as_secs_f64(), format_keys(&missing));
        if deadline.has_passed() {
            let message = format!("timed out after {waited:.1} s; missing: {missing}");
            return Err(Failure::new(EXIT_TIMED_OUT, message));
        }
        let report = format!("waiting for {waited:.0} s; missing: {missing}");
        progress.suspend(|| report_error(&report));
    }
}
