//! Fuzzes the handshake of a mesh: connections from foreign processes and from false ranks.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::transport::tcp::fuzz::hello);
});
