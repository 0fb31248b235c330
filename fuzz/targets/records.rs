//! Fuzzes the records of encrypted connections: an attacker between both sides.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    dist_fuzz::metered(input, dist::security::fuzz::records);
});
