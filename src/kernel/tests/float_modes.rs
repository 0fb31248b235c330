//! Every kernel in every floating-point mode of the calling thread gives the bits of the default
//! mode.

use super::super::float_mode::tests::in_unusual_modes;
use super::*;

const COUNTS: [usize; 4] = [1, 3, 17, 300];

/// Checks that `run` gives the same bytes in each mode.
fn check(what: &str, run: impl Fn() -> Vec<u8>) {
    let expected = run();
    in_unusual_modes(|| assert!(run() == expected, "{what} depends on the mode"));
}

fn float_types() -> impl Iterator<Item = DataType> {
    DataType::ALL.into_iter().filter(|dtype| dtype.is_float())
}

#[test]
fn folds_do_not_depend_on_the_callers_mode() {
    let mut random = XorShift(0x51ab);
    for dtype in float_types() {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(dtype)) {
            for count in COUNTS {
                let sources: Vec<Vec<u8>> = (0..3).map(|_| random.elements(dtype, count)).collect();
                let views: Vec<Src<'_>> = sources.iter().map(|it| Src::from(&it[..])).collect();
                let bytes = count * dtype.size();
                check(&format!("{op} of {count} {dtype}"), || {
                    let mut result = vec![0; bytes];
                    fold(dtype, op, Dst::from(&mut result[..]), &views);
                    result
                });
                check(&format!("{op} of {count} {dtype}, resolved"), || {
                    let mut result = vec![0; bytes];
                    ResolvedFold::resolve(dtype, op).fold(Dst::from(&mut result[..]), &views);
                    result
                });
            }
        }
    }
}

#[test]
fn other_kernels_do_not_depend_on_the_callers_mode() {
    let mut random = XorShift(0x77c1);
    for dtype in float_types() {
        for count in COUNTS {
            let elements = random.elements(dtype, count);
            let source = Src::from(&elements[..]);
            check(&format!("the factor of {count} {dtype}"), || {
                let mut result = vec![0; elements.len()];
                scale_copy(dtype, 1.0 / 3.0, Dst::from(&mut result[..]), source);
                result
            });
            check(&format!("the norm of {count} {dtype}"), || {
                let sum = sum_of_powers(dtype, NormPower::Two, source);
                sum.to_bits().to_le_bytes().to_vec()
            });
            if !is_convertible(dtype) {
                continue;
            }
            for to in float_types().filter(|&to| is_convertible(to)) {
                check(&format!("the conversion of {count} {dtype} to {to}"), || {
                    let mut result = vec![0; count * to.size()];
                    convert(dtype, source, 1.0 / 3.0, to, Dst::from(&mut result[..]));
                    result
                });
            }
        }
    }
}
