//! The traits for element types and operators, over which the loops in [`super::loops`] are
//! generic, and the operators. Each operator is written once for all element types.
//!
//! All code in this file is arithmetic on values and is inlined into the loops. It does not access
//! memory.

/// An element type: its representation in memory, and the type in which elements are folded. For
/// example, an f16 is stored as 16 bits and folded as f32.
pub(super) trait Element {
    /// The bits in a buffer. Every bit pattern must be a value of this type.
    type Stored: Copy;
    /// The type in which values are combined (the type of the accumulator's elements).
    type Acc: Copy;

    /// Converts an element from its representation in memory.
    fn load(stored: Self::Stored) -> Self::Acc;

    /// Converts a value to its representation in memory. Rounds the value, and replaces a NaN by
    /// the canonical NaN.
    fn store(acc: Self::Acc) -> Self::Stored;
}

/// An operator on values of type `A`.
pub(super) trait FoldOperator<A> {
    /// The argument of [`FoldOperator::finish`]: a precomputed divisor for AVG, `()` for the other
    /// operators.
    type FinishArg: Copy;
    /// Computes the argument of [`FoldOperator::finish`]. `ranks` is the number by which an average
    /// divides.
    fn finish_arg(ranks: usize) -> Self::FinishArg;

    /// Combines two values. In the order of the sources, `earlier` comes before `later`.
    fn combine(earlier: A, later: A) -> A;

    /// Transforms the combined value of all sources before it is stored. Only AVG transforms it.
    #[inline(always)]
    fn finish(acc: A, _: Self::FinishArg) -> A {
        acc
    }
}

/// Arithmetic under the rules of [the kernel module](super): integers wrap, NaN propagates, and -0
/// is smaller than +0.
pub(super) trait Numeric: Copy {
    /// A precomputed divisor. It makes each division cheap.
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

/// The operator SUM. PREMUL_SUM also uses it, because its inputs are already multiplied.
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

/// Implements the operators on numbers that do not transform the combined value.
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

/// Implements the bitwise operators. They work on bytes.
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
