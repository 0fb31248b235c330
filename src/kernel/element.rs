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
///
/// The first source goes through [`FoldOperator::begin`], each later source is combined with the
/// result so far, and [`FoldOperator::finish`] makes the stored value.
pub(super) trait FoldOperator<A> {
    /// A value that is computed once for each fold: the factor or the divisor of an average, `()`
    /// for the other operators.
    type Arg: Copy;
    /// Computes the argument. `ranks` is the number by which an average divides.
    fn arg(ranks: usize) -> Self::Arg;

    /// Transforms the value of the first source. Only averages of floats transform it.
    #[inline(always)]
    fn begin(first: A, _: Self::Arg) -> A {
        first
    }

    /// Combines two values. In the order of the sources, `earlier` comes before `later`.
    fn combine(earlier: A, later: A, arg: Self::Arg) -> A;

    /// Transforms the combined value of all sources before it is stored. Only averages of integers
    /// transform it.
    #[inline(always)]
    fn finish(acc: A, _: Self::Arg) -> A {
        acc
    }
}

/// Arithmetic under the rules of [the kernel module](super): integers wrap, NaN propagates, and -0
/// is smaller than +0.
pub(super) trait Numeric: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
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
/// The operator AVG on floating-point numbers. Each source is multiplied by 1/N before it is added,
/// so that no sum is larger than the largest source.
pub(super) struct FloatAvg;
/// Adds contributions to an average: as [`FloatAvg`], but the first source is a partial result,
/// whose contributions are already multiplied.
pub(super) struct AddToFloatAvg;
/// The operator AVG on integers. The values are wide enough for the exact sum
/// ([`super::integer::Widened`]).
pub(super) struct IntegerAvg;
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
            type Arg = ();

            #[inline(always)]
            fn arg(_ranks: usize) {}

            #[inline(always)]
            fn combine($earlier: A, $later: A, (): ()) -> A {
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

impl<A: Real> FoldOperator<A> for FloatAvg {
    type Arg = A;

    #[inline(always)]
    fn arg(ranks: usize) -> A {
        A::from_factor(1.0 / ranks as f64)
    }

    #[inline(always)]
    fn begin(first: A, factor: A) -> A {
        first.times(factor)
    }

    #[inline(always)]
    fn combine(earlier: A, later: A, factor: A) -> A {
        earlier.plus(later.times(factor))
    }
}

impl<A: Real> FoldOperator<A> for AddToFloatAvg {
    type Arg = A;

    #[inline(always)]
    fn arg(ranks: usize) -> A {
        FloatAvg::arg(ranks)
    }

    #[inline(always)]
    fn combine(earlier: A, later: A, factor: A) -> A {
        FloatAvg::combine(earlier, later, factor)
    }
}

/// Implements the bitwise operators. They work on bytes.
macro_rules! bitwise {
    ($($operator:ident, $symbol:tt;)*) => {$(
        impl FoldOperator<u8> for $operator {
            type Arg = ();

            #[inline(always)]
            fn arg(_ranks: usize) {}

            #[inline(always)]
            fn combine(earlier: u8, later: u8, (): ()) -> u8 {
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
