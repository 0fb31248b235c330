//! distrun: starts the ranks of a job on this host.
fn main() {}
