//! The traits of the loops for element types and operators, and the operators, each written once
//! for all numbers.
//!
//! All code here is arithmetic on values, inlined into the loops. It does not access memory.

/// An element type: its representation in memory, and the type in which it is folded.
pub(super) trait Element {
    /// The bits in a buffer. Every bit pattern must be a value of this type.
    type Stored: Copy;
    /// The type in which values are combined.
    type Acc: Copy;

    fn load(stored: Self::Stored) -> Self::Acc;

    /// Rounds a value, and replaces a NaN by the canonical one.
    fn store(acc: Self::Acc) -> Self::Stored;
}

/// An operator that combines two accumulators into one.
pub(super) trait FoldOperator<A> {
    /// The argument of [`FoldOperator::finish`], computed from the number of ranks.
    type FinishArg: Copy;

    fn finish_arg(ranks: usize) -> Self::FinishArg;

    fn combine(earlier: A, later: A) -> A;

    /// Transforms the result before it is stored.
    #[inline(always)]
    fn finish(acc: A, _: Self::FinishArg) -> A {
        acc
    }
}

/// Arithmetic under the rules of the module: integers wrap, NaN propagates, -0 is below +0.
pub(super) trait Numeric: Copy {
    /// A precomputed divisor, which makes each division cheap.
    type Divisor: Copy;

    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
    fn divisor(ranks: usize) -> Self::Divisor;
    fn divided_by(self, divisor: Self::Divisor) -> Self;
}

/// Numbers that can be multiplied by a factor.
pub(super) trait Real: Numeric {
    fn from_factor(factor: f64) -> Self;
}

/// The operator SUM, also for PREMUL_SUM.
pub(super) struct Sum;
/// The operator PRODUCT.
pub(super) struct Product;
/// The operator MIN.
pub(super) struct Min;
/// The operator MAX.
pub(super) struct Max;
/// The operator AVG.
pub(super) struct Avg;
/// The operator BAND.
pub(super) struct And;
/// The operator BOR.
pub(super) struct Or;
/// The operator BXOR.
pub(super) struct Xor;

/// Implements the operators that do not transform the result.
macro_rules! plain {
    ($($operator:ident, $earlier:ident, $later:ident, $result:expr;)*) => {$(
        impl<A: Numeric> FoldOperator<A> for $operator {
            type FinishArg = ();

            #[inline(always)]
            fn finish_arg(_ranks: usize) {}

            #[inline(always)]
            fn combine($earlier: A, $later: A) -> A {
                $result
            }
        }
    )*};
}

plain! {
    Sum, earlier, later, earlier.plus(later);
    Product, earlier, later, earlier.times(later);
    Min, earlier, later, earlier.lesser(later);
    Max, earlier, later, earlier.greater(later);
}

impl<A: Numeric> FoldOperator<A> for Avg {
    type FinishArg = A::Divisor;

    #[inline(always)]
    fn finish_arg(ranks: usize) -> A::Divisor {
        A::divisor(ranks)
    }

    #[inline(always)]
    fn combine(earlier: A, later: A) -> A {
        earlier.plus(later)
    }

    #[inline(always)]
    fn finish(acc: A, finish_arg: A::Divisor) -> A {
        acc.divided_by(finish_arg)
    }
}

/// Implements the bitwise operators.
macro_rules! bitwise {
    ($($operator:ident, $symbol:tt;)*) => {$(
        impl FoldOperator<u8> for $operator {
            type FinishArg = ();

            #[inline(always)]
            fn finish_arg(_ranks: usize) {}

            #[inline(always)]
            fn combine(earlier: u8, later: u8) -> u8 {
                earlier $symbol later
            }
        }
    )*};
}

bitwise! {
    And, &;
    Or, |;
    Xor, ^;
}
