//! Fixed expected results. The test compares the results of all kernels on fixed inputs with the
//! hashes in `reference_vectors.txt`. The same file holds on every processor, so a processor on
//! which this test passes gives the same bits as x86-64, where the hashes were computed.
//!
//! The other tests compare the kernels with an oracle that runs on the same processor. If that
//! processor computed differently, the oracle could do so, too.

use super::*;
use std::collections::BTreeMap;

const REFERENCE: &str = include_str!("reference_vectors.txt");

/// Lengths around the number of elements that a vector instruction handles, and of a long vector.
const LENGTHS: [usize; 7] = [1, 2, 7, 8, 17, 64, 301];

/// The hash FNV-1a of 64 bits over all results of one kernel.
struct ResultHash(u64);

impl ResultHash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Returns the hash of the results that `run` appends, for each length of [`LENGTHS`].
fn hash_of(mut run: impl FnMut(&mut XorShift, usize) -> Vec<u8>) -> u64 {
    let (mut random, mut hash) = (XorShift(0x6a09_e667_f3bc_c908), ResultHash::new());
    for length in LENGTHS {
        hash.add(&run(&mut random, length));
    }
    hash.0
}

fn floats() -> impl Iterator<Item = DataType> + Clone {
    DataType::ALL.into_iter().filter(|dtype| dtype.is_float())
}

fn fold_hashes(found: &mut BTreeMap<String, u64>) {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(dtype)) {
            let hash = hash_of(|random, length| {
                let inputs: Vec<_> = (0..5).map(|_| random.elements(dtype, length)).collect();
                let views: Vec<_> = inputs.iter().map(|it| Src::from(&it[..])).collect();
                let fold_first = |ranks: usize| {
                    let mut result = vec![0; length * dtype.size()];
                    fold(dtype, op, Dst::from(&mut result[..]), &views[..ranks]);
                    result
                };
                [2, 3, 5].map(fold_first).concat()
            });
            found.insert(format!("fold {op} {dtype}"), hash);
        }
    }
}

fn average_hashes(found: &mut BTreeMap<String, u64>) {
    for dtype in floats() {
        let hash = hash_of(|random, length| {
            let inputs = [random.elements(dtype, length), random.elements(dtype, length)];
            let views = [Src::from(&inputs[0][..]), Src::from(&inputs[1][..])];
            let mut result = vec![0; length * dtype.size()];
            fold_average(dtype, Dst::from(&mut result[..]), &views, 7);
            result
        });
        found.insert(format!("partial average {dtype}"), hash);
    }
    for dtype in [DataType::F32, DataType::F64, DataType::C64, DataType::C128] {
        let hash = hash_of(|random, length| {
            let inputs = [random.elements(dtype, length), random.elements(dtype, length)];
            let mut result = vec![0; length * dtype.size()];
            let into = Dst::from(&mut result[..]);
            add_to_average(dtype, into, Src::from(&inputs[0][..]), Src::from(&inputs[1][..]), 7);
            result
        });
        found.insert(format!("add to average {dtype}"), hash);
    }
}

fn conversion_hashes(found: &mut BTreeMap<String, u64>) {
    for dtype in floats() {
        let hash = hash_of(|random, length| {
            let input = random.elements(dtype, length);
            let mut result = vec![0; input.len()];
            scale_copy(dtype, 1.0 / 3.0, Dst::from(&mut result[..]), Src::from(&input[..]));
            result
        });
        found.insert(format!("scale {dtype}"), hash);
    }
    let convertible = floats().filter(|&dtype| is_convertible(dtype));
    for from in convertible.clone() {
        for to in convertible.clone() {
            let hash = hash_of(|random, length| {
                let input = random.elements(from, length);
                let mut result = vec![0; length * to.size()];
                convert(from, Src::from(&input[..]), 0.3, to, Dst::from(&mut result[..]));
                result
            });
            found.insert(format!("convert {from} {to}"), hash);
        }
    }
}

/// Norms, without powers other than 1 and 2: for these the standard library calls the C library of
/// the system.
fn norm_hashes(found: &mut BTreeMap<String, u64>) {
    let powers =
        [("one", NormPower::One), ("two", NormPower::Two), ("largest", NormPower::Largest)];
    for dtype in floats() {
        for (name, power) in powers {
            // The absolute value of a complex number calls the C library, too.
            if dtype.is_complex() && power != NormPower::Two {
                continue;
            }
            let hash = hash_of(|random, length| {
                let input = random.ordinary_elements(dtype, length);
                sum_of_powers(dtype, power, Src::from(&input[..])).to_bits().to_le_bytes().to_vec()
            });
            found.insert(format!("norm {name} {dtype}"), hash);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri checks the memory accesses, which other tests have as well")]
fn results_have_the_bits_of_the_reference() {
    let mut found = BTreeMap::new();
    fold_hashes(&mut found);
    average_hashes(&mut found);
    conversion_hashes(&mut found);
    norm_hashes(&mut found);
    let text: String = found.iter().map(|(name, hash)| format!("{name}: {hash:016x}\n")).collect();
    let differing: Vec<&str> =
        text.lines().filter(|line| !REFERENCE.lines().any(|known| known == *line)).collect();
    assert!(
        differing.is_empty() && text.lines().count() == REFERENCE.lines().count(),
        "{} of {} results differ from the {} in reference_vectors.txt:\n{}",
        differing.len(),
        text.lines().count(),
        REFERENCE.lines().count(),
        differing.join("\n")
    );
}
