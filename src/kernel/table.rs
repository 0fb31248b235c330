//! The table of the kernels: it maps an instruction set, an element type and an operator to a
//! compiled loop.
//!
//! Types share a loop if the results have the same bits:
//!
//! - A wrapping sum or product is the same for signed and unsigned integers of the same size.
//! - Bitwise operators work on bytes for all types.
//! - A complex number is folded as two separate numbers, its real and its imaginary part.

use super::element::{
    AddToFloatAvg, And, Element, FloatAvg, FoldOperator, IntegerAvg, Max, Min, Numeric, Or,
    Product, Real, Sum, Xor,
};
#[cfg(target_arch = "x86_64")]
use super::f32x8::{F32x8 as Wide, SmallFloatX8};
use super::integer::{Bool, Widened};
use super::loops::{self, FoldKernel, ScaleKernel};
use super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use super::ordered_codes::{OrderedForMax, OrderedForMin};
use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;

/// The instruction set for which a loop is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// The baseline of the target.
    Portable,
    /// The instruction set x86-64 with AVX2 and F16C, which every processor with AVX2 has.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// Returns the best instruction set of this processor.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            return Self::Avx2;
        }
        Self::Portable
    }
}

/// The type in which small floats are folded. It is a scalar if there are no vector instructions.
#[cfg(not(target_arch = "x86_64"))]
type Wide = f32;

/// A float that is folded in f32.
trait SmallFloat: Element<Acc = f32> {
    /// The element type for MIN ([`super::ordered_codes`]).
    type MinOrdered: Element<Acc: Numeric>;
    /// The element type for MAX.
    type MaxOrdered: Element<Acc: Numeric>;
    /// The vector of 8 elements.
    #[cfg(target_arch = "x86_64")]
    type Vector: Element<Acc = Wide>;
}

macro_rules! small_float {
    ($($format:ty)*) => {$(
        impl SmallFloat for $format {
            type MinOrdered = OrderedForMin<Self>;
            type MaxOrdered = OrderedForMax<Self>;
            #[cfg(target_arch = "x86_64")]
            type Vector = SmallFloatX8<Self>;
        }
    )*};
}

small_float!(F16 Bf16 F8E4M3 F8E5M2);

/// Returns the loop that folds, or `None` if the operator is not defined for the type.
pub(super) fn fold_kernel(isa: Isa, dtype: DataType, op: ReduceOp) -> Option<FoldKernel> {
    match dtype {
        DataType::I8 => integer::<i8, u8>(isa, op),
        DataType::U8 => integer::<u8, u8>(isa, op),
        DataType::I16 => integer::<i16, u16>(isa, op),
        DataType::U16 => integer::<u16, u16>(isa, op),
        DataType::I32 => integer::<i32, u32>(isa, op),
        DataType::U32 => integer::<u32, u32>(isa, op),
        DataType::I64 => integer::<i64, u64>(isa, op),
        DataType::U64 => integer::<u64, u64>(isa, op),
        DataType::F16 => small_float::<F16>(isa, op),
        DataType::Bf16 => small_float::<Bf16>(isa, op),
        DataType::F32 => float::<f32>(isa, op),
        DataType::F64 => float::<f64>(isa, op),
        DataType::C64 => complex::<f32>(isa, op),
        DataType::C128 => complex::<f64>(isa, op),
        DataType::Bool => boolean(isa, op),
        DataType::F8E4M3 => small_float::<F8E4M3>(isa, op),
        DataType::F8E5M2 => small_float::<F8E5M2>(isa, op),
    }
}

/// Returns the loop that scales, or `None` if the type is not a floating-point type.
pub(super) fn scale_kernel(isa: Isa, dtype: DataType) -> Option<ScaleKernel> {
    Some(match dtype {
        DataType::F16 => small_float_scale_loop::<F16>(isa),
        DataType::Bf16 => small_float_scale_loop::<Bf16>(isa),
        DataType::F32 | DataType::C64 => scale_loop::<f32>(isa),
        DataType::F64 | DataType::C128 => scale_loop::<f64>(isa),
        DataType::F8E4M3 => small_float_scale_loop::<F8E4M3>(isa),
        DataType::F8E5M2 => small_float_scale_loop::<F8E5M2>(isa),
        DataType::I8
        | DataType::U8
        | DataType::I16
        | DataType::U16
        | DataType::I32
        | DataType::U32
        | DataType::I64
        | DataType::U64
        | DataType::Bool => return None,
    })
}

/// Returns the loop that adds a rank's vector to a partial average. Returns `None` for types whose
/// partial results are rounded, and for types that are not floating-point types.
pub(super) fn add_to_average_kernel(isa: Isa, dtype: DataType) -> Option<FoldKernel> {
    match dtype {
        DataType::F32 | DataType::C64 => Some(fold_loop::<f32, AddToFloatAvg>(isa)),
        DataType::F64 | DataType::C128 => Some(fold_loop::<f64, AddToFloatAvg>(isa)),
        _ => None,
    }
}

/// Selects the loop for an integer type. `Unsigned` is the unsigned type with the same size as
/// `Int`.
fn integer<Int, Unsigned>(isa: Isa, op: ReduceOp) -> Option<FoldKernel>
where
    Int: Element<Acc = Int> + Numeric,
    Unsigned: Element<Acc = Unsigned> + Numeric,
    Widened<Int>: Element,
    IntegerAvg: FoldOperator<<Widened<Int> as Element>::Acc>,
{
    Some(match op {
        ReduceOp::Sum => fold_loop::<Unsigned, Sum>(isa),
        ReduceOp::Product => fold_loop::<Unsigned, Product>(isa),
        ReduceOp::Min => fold_loop::<Int, Min>(isa),
        ReduceOp::Max => fold_loop::<Int, Max>(isa),
        ReduceOp::Avg => fold_loop::<Widened<Int>, IntegerAvg>(isa),
        ReduceOp::BitAnd => fold_loop::<u8, And>(isa),
        ReduceOp::BitOr => fold_loop::<u8, Or>(isa),
        ReduceOp::BitXor => fold_loop::<u8, Xor>(isa),
        ReduceOp::PremulSum => return None,
    })
}

fn boolean(isa: Isa, op: ReduceOp) -> Option<FoldKernel> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => fold_loop::<Bool, Or>(isa),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => fold_loop::<Bool, And>(isa),
        ReduceOp::BitXor => fold_loop::<Bool, Xor>(isa),
        ReduceOp::Avg | ReduceOp::PremulSum => return None,
    })
}

fn float<E>(isa: Isa, op: ReduceOp) -> Option<FoldKernel>
where
    E: Element,
    E::Acc: Real,
{
    Some(match op {
        ReduceOp::Sum | ReduceOp::PremulSum => fold_loop::<E, Sum>(isa),
        ReduceOp::Product => fold_loop::<E, Product>(isa),
        ReduceOp::Min => fold_loop::<E, Min>(isa),
        ReduceOp::Max => fold_loop::<E, Max>(isa),
        ReduceOp::Avg => fold_loop::<E, FloatAvg>(isa),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    })
}

/// Selects the loop for a small float type. MIN and MAX compare integer keys and need no
/// floating-point arithmetic.
fn small_float<E: SmallFloat>(isa: Isa, op: ReduceOp) -> Option<FoldKernel> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::PremulSum => small_float_fold_loop::<E, Sum>(isa),
        ReduceOp::Product => small_float_fold_loop::<E, Product>(isa),
        ReduceOp::Min => fold_loop::<E::MinOrdered, Min>(isa),
        ReduceOp::Max => fold_loop::<E::MaxOrdered, Max>(isa),
        ReduceOp::Avg => small_float_fold_loop::<E, FloatAvg>(isa),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    })
}

/// Selects the loop for a complex type. `Part` is the type of the real and of the imaginary part.
fn complex<Part>(isa: Isa, op: ReduceOp) -> Option<FoldKernel>
where
    Part: Element<Acc = Part> + Real,
{
    Some(match op {
        ReduceOp::Sum | ReduceOp::PremulSum => fold_loop::<Part, Sum>(isa),
        ReduceOp::Avg => fold_loop::<Part, FloatAvg>(isa),
        ReduceOp::Product
        | ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::BitAnd
        | ReduceOp::BitOr
        | ReduceOp::BitXor => return None,
    })
}

/// Selects the loop for a small float type. The loop folds 8 elements at a time if the processor
/// has the instructions for that.
fn small_float_fold_loop<E: SmallFloat, O>(isa: Isa) -> FoldKernel
where
    O: FoldOperator<Wide> + FoldOperator<f32>,
{
    match isa {
        Isa::Portable => loops::fold_portable::<E, O>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => loops::fold_f32x8::<E, E::Vector, O>,
    }
}

fn fold_loop<E, O>(isa: Isa) -> FoldKernel
where
    E: Element,
    O: FoldOperator<E::Acc>,
{
    match isa {
        Isa::Portable => loops::fold_portable::<E, O>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => loops::fold_avx2::<E, O>,
    }
}

fn scale_loop<E>(isa: Isa) -> ScaleKernel
where
    E: Element,
    E::Acc: Real,
{
    match isa {
        Isa::Portable => loops::scale_portable::<E>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => loops::scale_avx2::<E>,
    }
}

fn small_float_scale_loop<E: SmallFloat>(isa: Isa) -> ScaleKernel {
    match isa {
        Isa::Portable => loops::scale_portable::<E>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => loops::scale_f32x8::<E, E::Vector>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_table_matches_operator_definitions() {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                let implemented = fold_kernel(Isa::best(), dtype, op).is_some();
                assert_eq!(implemented, op.is_defined_for(dtype), "{op} on {dtype}");
                assert_eq!(implemented, fold_kernel(Isa::Portable, dtype, op).is_some());
            }
            let addable = add_to_average_kernel(Isa::best(), dtype).is_some();
            let wide = [DataType::F32, DataType::F64, DataType::C64, DataType::C128];
            assert_eq!(addable, wide.contains(&dtype), "{dtype}");
            let scalable = scale_kernel(Isa::best(), dtype).is_some();
            assert_eq!(scalable, ReduceOp::PremulSum.is_defined_for(dtype), "{dtype}");
        }
    }
}
