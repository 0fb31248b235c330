//! The parameters of a model, and the check that all ranks have the same parameters.

use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use std::collections::HashSet;
use std::fmt::Write as _;

/// The maximum number of parameters of a reducer.
pub const MOST_PARAMS: usize = 1 << 20;

/// The role of a parameter in a reducer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamRole {
    /// The parameter has a gradient, which is reduced.
    Trained,
    /// The parameter has no gradient.
    Frozen,
    /// The parameter is state of a layer, such as a running mean, and no weight. It has no
    /// gradient.
    Buffer,
}

/// A parameter of the model on this rank.
#[derive(Clone, Debug)]
pub struct Param {
    /// A name that no other parameter of the reducer has.
    pub name: String,
    /// The values of the parameter.
    pub data: Dst<'static>,
    /// The caller's gradient; `None` if the reducer provides the memory for it.
    pub grad: Option<Dst<'static>>,
    /// The extent of each dimension.
    pub shape: Vec<i64>,
    /// The number of elements.
    pub count: usize,
    /// The element type of the values.
    pub dtype: DataType,
    /// The element type of the gradient.
    pub grad_dtype: DataType,
    /// The device of the values and the gradient; `None` for host memory.
    pub device: Option<usize>,
    /// Whether the gradient consists of some rows of the parameter, which the caller passes in each
    /// step.
    pub is_sparse: bool,
    /// The role of the parameter.
    pub role: ParamRole,
    /// A number of the caller. Parameters with different tags never share a bucket.
    pub tag: u64,
}

impl Param {
    /// Returns whether the parameter has a gradient.
    pub fn is_trained(&self) -> bool {
        self.role == ParamRole::Trained
    }

    /// Returns the size of the gradient in bytes; 0 for a sparse gradient, which has no fixed
    /// place.
    pub fn grad_bytes(&self) -> usize {
        if self.is_sparse {
            return 0;
        }
        self.count * self.grad_dtype.size()
    }

    /// Describes, in one line, the properties that must be equal on all ranks.
    fn description(&self) -> String {
        let mut text = format!("\"{}\" {:?}", self.name, self.shape);
        if self.shape.is_empty() {
            // Writing to a string cannot fail.
            _ = write!(text, " with {} elements", self.count);
        }
        _ = write!(text, " {}", self.dtype.name());
        if self.grad_dtype != self.dtype {
            _ = write!(text, " with a gradient of {}", self.grad_dtype.name());
        }
        match self.role {
            ParamRole::Trained => {}
            ParamRole::Frozen => text.push_str(", frozen"),
            ParamRole::Buffer => text.push_str(", a buffer"),
        }
        if self.is_trained() && self.grad.is_some() {
            text.push_str(", in the caller's gradient");
        }
        if self.is_sparse {
            text.push_str(", with sparse rows");
        }
        if self.device.is_some() {
            text.push_str(", on a device");
        }
        if self.tag != 0 {
            _ = write!(text, ", tag {}", self.tag);
        }
        text
    }
}

/// Checks the parameters of this rank.
///
/// # Errors
/// `InvalidArgument`, naming the parameter.
pub(super) fn check_params(params: &[Param]) -> Result<()> {
    let mut names = HashSet::with_capacity(params.len());
    for (index, param) in params.iter().enumerate() {
        let Param { name, shape, count, .. } = param;
        if name.is_empty() || name.contains('\n') {
            let message = format!(
                "params[{index}].name is {name:?}: give each parameter a name that is one \
                         nonempty line"
            );
            return Err(Error::invalid(message));
        }
        if !names.insert(name.as_str()) {
            let message = format!(
                "params[{index}].name is \"{name}\", which is also the name of \
                                   another parameter"
            );
            return Err(Error::invalid(message));
        }
        if param.is_sparse {
            check_sparse(param)?;
        }
        let elements = shape.iter().try_fold(1_usize, |product, &extent| {
            usize::try_from(extent).ok().and_then(|extent| product.checked_mul(extent))
        });
        if !shape.is_empty() && elements != Some(*count) {
            let message = format!(
                "parameter \"{name}\" has the shape {shape:?} and {count} elements: the product of \
                 the extents must be the number of elements"
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

fn check_sparse(param: &Param) -> Result<()> {
    let Param { name, shape, .. } = param;
    let wrong = if shape.is_empty() {
        "has sparse rows: set its shape, whose first extent is the number of rows"
    } else if param.grad.is_some() || !param.is_trained() {
        "has sparse rows: it must be trained and have no gradient buffer; pass its gradient to \
         dist_reducer_ready_rows"
    } else if param.device.is_some() {
        "has sparse rows, which are reduced in host memory only"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("parameter \"{name}\" {wrong}")))
}

/// Describes all parameters, one line each.
pub(super) fn describe_params(params: &[Param]) -> String {
    let mut text = String::new();
    for param in params {
        text.push_str(&param.description());
        text.push('\n');
    }
    text
}

/// Returns the error for the first difference between the parameters of rank 0 and of another rank.
/// `texts` are the results of [`describe_params`] on all ranks.
pub(super) fn first_difference(texts: &[Vec<u8>]) -> Option<Error> {
    let lines = |text: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(text).lines().map(str::to_owned).collect()
    };
    let first = lines(texts.first()?);
    let (rank, other) = texts
        .iter()
        .enumerate()
        .find_map(|(rank, text)| (text != &texts[0]).then(|| (rank, lines(text))))?;
    let index = (0..first.len().max(other.len()))
        .find(|&index| first.get(index) != other.get(index))
        .unwrap_or(0);
    Some(difference(index, rank, first.get(index), other.get(index)))
}

fn difference(index: usize, rank: Rank, first: Option<&String>, other: Option<&String>) -> Error {
    let has = |line: Option<&String>| line.map_or_else(|| "none".to_owned(), Clone::clone);
    let message = format!(
        "the ranks have different parameters: parameter {index} of rank 0 is {}, and of rank {rank} {}; \
         pass the same list in the same order on all ranks",
        has(first),
        has(other)
    );
    Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a parameter without memory.
    pub(in crate::api::reducer) fn param(name: &str, count: usize) -> Param {
        Param {
            name: name.to_owned(),
            data: Dst::empty(),
            grad: None,
            shape: vec![i64::try_from(count).unwrap()],
            count,
            dtype: DataType::F32,
            grad_dtype: DataType::F32,
            device: None,
            is_sparse: false,
            role: ParamRole::Trained,
            tag: 0,
        }
    }

    #[test]
    fn names_and_shapes_are_checked() {
        assert!(check_params(&[param("a", 3), param("b", 0)]).is_ok());
        let refused = |params: &[Param]| check_params(params).unwrap_err().message().to_owned();
        assert!(refused(&[param("a", 1), param("a", 1)]).contains("another"));
        assert!(refused(&[param("", 1)]).contains("params[0].name"));
        let wrong = Param { shape: vec![2, 2], ..param("w", 5) };
        assert!(refused(&[wrong]).contains("[2, 2]"));
        let negative = Param { shape: vec![-1], ..param("w", 1) };
        assert!(refused(&[negative]).contains("\"w\""));
    }

    #[test]
    fn the_first_difference_names_both_ranks() {
        let text = |params: &[Param]| describe_params(params).into_bytes();
        let same = text(&[param("a", 3), param("b", 4)]);
        assert!(first_difference(&[same.clone(), same.clone()]).is_none());
        let variants = [
            (text(&[param("a", 3), param("b", 5)]), "parameter 1 of rank 0 is \"b\" [4] f32"),
            (text(&[param("a", 3)]), "and of rank 2 none"),
            (text(&[param("b", 4), param("a", 3)]), "parameter 0 of rank 0"),
            (
                text(&[Param { dtype: DataType::F64, ..param("a", 3) }, param("b", 4)]),
                "f64 with a gradient of f32",
            ),
            (text(&[Param { role: ParamRole::Frozen, ..param("a", 3) }, param("b", 4)]), "frozen"),
            (
                text(&[Param { shape: Vec::new(), ..param("a", 3) }, param("b", 4)]),
                "[] with 3 elements f32",
            ),
            (text(&[Param { tag: 7, ..param("a", 3) }, param("b", 4)]), "tag 7"),
        ];
        for (other, part) in variants {
            let error = first_difference(&[same.clone(), same.clone(), other]).unwrap();
            assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(2)));
            assert!(error.message().contains(part), "{error}");
        }
    }
}
