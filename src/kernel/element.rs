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
pub(super) trait Operator<A> {
    fn combine(earlier: A, later: A) -> A;

    /// What happens to the result, for so many ranks, before it is stored.
    #[inline(always)]
    fn finish(acc: A, _ranks: usize) -> A {
        acc
    }
}

/// Arithmetic under the rules of the module: integers wrap, NaN propagates, -0 is below +0.
pub(super) trait Number: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
    fn divided_by(self, divisor: usize) -> Self;
}

/// Numbers that can be scaled by a factor.
pub(super) trait Real: Number {
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

impl<A: Number> Operator<A> for Sum {
    #[inline(always)]
    fn combine(earlier: A, later: A) -> A {
        earlier.plus(later)
    }
}

impl<A: Number> Operator<A> for Product {
    #[inline(always)]
    fn combine(earlier: A, later: A) -> A {
        earlier.times(later)
    }
}

impl<A: Number> Operator<A> for Min {
    #[inline(always)]
    fn combine(earlier: A, later: A) -> A {
        earlier.lesser(later)
    }
}

impl<A: Number> Operator<A> for Max {
    #[inline(always)]
    fn combine(earlier: A, later: A) -> A {
        earlier.greater(later)
    }
}

impl<A: Number> Operator<A> for Avg {
    #[inline(always)]
    fn combine(earlier: A, later: A) -> A {
        earlier.plus(later)
    }

    #[inline(always)]
    fn finish(acc: A, ranks: usize) -> A {
        acc.divided_by(ranks)
    }
}

impl Operator<u8> for And {
    #[inline(always)]
    fn combine(earlier: u8, later: u8) -> u8 {
        earlier & later
    }
}

impl Operator<u8> for Or {
    #[inline(always)]
    fn combine(earlier: u8, later: u8) -> u8 {
        earlier | later
    }
}

impl Operator<u8> for Xor {
    #[inline(always)]
    fn combine(earlier: u8, later: u8) -> u8 {
        earlier ^ later
    }
}
