//! What a loop needs to know of an element type and of an operator: the two traits, and the
//! operators, each written once for all numbers.
//!
//! Everything here is arithmetic on values, inlined into the loops; nothing here knows of memory.

/// An element type: how it lies in memory, and what it is folded in.
pub(super) trait Element {
    /// The bits in a buffer. Every bit pattern must be a value of this type.
    type Stored: Copy;
    /// The type that values are combined in.
    type Acc: Copy;

    fn load(stored: Self::Stored) -> Self::Acc;

    /// Rounds, and makes a NaN the canonical one.
    fn store(acc: Self::Acc) -> Self::Stored;
}

/// How two accumulators become one.
pub(super) trait FoldOperator<A> {
    /// What [`FoldOperator::finish`] needs of the number of ranks.
    type FinishArg: Copy;

    fn finish_arg(ranks: usize) -> Self::FinishArg;

    fn combine(earlier: A, later: A) -> A;

    /// What happens to the result before it is stored.
    #[inline(always)]
    fn finish(acc: A, _: Self::FinishArg) -> A {
        acc
    }
}

/// Arithmetic under the rules of the module: integers wrap, NaN propagates, -0 is below +0.
pub(super) trait Numeric: Copy {
    /// What is known of a divisor, so that each division costs little.
    type Divisor: Copy;

    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
    fn divisor(ranks: usize) -> Self::Divisor;
    fn divided_by(self, divisor: Self::Divisor) -> Self;
}

/// Numbers that can be scaled by a factor.
pub(super) trait Real: Numeric {
    fn from_factor(factor: f64) -> Self;
}

/// SUM, and PREMUL_SUM.
pub(super) struct Sum;
/// PRODUCT.
pub(super) struct Product;
/// MIN.
pub(super) struct Min;
/// MAX.
pub(super) struct Max;
/// AVG.
pub(super) struct Avg;
/// BAND.
pub(super) struct And;
/// BOR.
pub(super) struct Or;
/// BXOR.
pub(super) struct Xor;

/// Operators that leave the result as it is.
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
    fn finish(acc: A, ending: A::Divisor) -> A {
        acc.divided_by(ending)
    }
}

/// Operators on bits.
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
