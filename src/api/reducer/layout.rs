//! The layout of a reducer: the assignment of gradients to buckets, and the order of the buckets.
//!
//! A layout is a pure function of the parameters, the limits, and the order in which gradients
//! become ready. A layout can therefore be exported, stored in a checkpoint, and given to a rank
//! that joins later.
//!
//! Gradients of one element type, device and tag fill a bucket in the given order. A bucket is
//! closed when it reaches its limit, as in PyTorch's `compute_bucket_assignment_by_size`. Buckets
//! are ordered by the position at which they are full, which is the order in which they can be
//! sent.
//!
//! For example, the limit is 100 bytes, and gradients become ready in this order:
//!
//! | position | gradient | bytes | effect |
//! |---|---|---|---|
//! | 0 | a, f32 | 60 | |
//! | 1 | b, f64 | 80 | |
//! | 2 | c, f32 | 60 | the f32 bucket {a, c} is full and becomes bucket 0 |
//! | 3 | d, f64 | 40 | the f64 bucket {b, d} is full and becomes bucket 1 |

use super::param::Param;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, Result};
use crate::base::sort::sort_by_key;
use serde_json::{Value, json};
use std::collections::HashMap;

/// The alignment of gradients in their bucket in bytes: a cache line.
pub(super) const GRAD_ALIGNMENT: usize = 64;

/// The version of the exported form.
const VERSION: u64 = 1;

/// The size limits of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketLimits {
    /// The size in bytes at which the first bucket of each kind (element type, device and tag) is
    /// closed.
    pub first: usize,
    /// The size in bytes at which later buckets are closed.
    pub rest: usize,
}

/// A bucket: gradients that are reduced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BucketSpec {
    /// The indices of the parameters.
    pub params: Vec<usize>,
    /// The offset of each gradient in bytes.
    pub offsets: Vec<usize>,
    /// The size of each gradient in bytes.
    pub lengths: Vec<usize>,
    /// The size of the bucket in bytes, including the gaps between gradients.
    pub bytes: usize,
    /// The element type of all gradients.
    pub dtype: DataType,
    /// The device of all gradients; `None` for host memory.
    pub device: Option<usize>,
    /// Whether the gradients are in the caller's memory; otherwise each has a slot in the bucket.
    pub is_owned: bool,
    /// Whether the bucket is one gradient with sparse rows.
    pub is_sparse: bool,
}

/// The buckets, in the order in which they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BucketLayout {
    /// The buckets.
    pub buckets: Vec<BucketSpec>,
    /// The position of each parameter's gradient; `None` for parameters without a gradient.
    pub positions: Vec<Option<GradPosition>>,
}

/// The position of a gradient in a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradPosition {
    pub(super) bucket: usize,
    /// The index of the gradient in the bucket.
    pub(super) index: usize,
}

/// The common properties of the gradients of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BucketKey {
    dtype: DataType,
    device: Option<usize>,
    tag: u64,
    is_owned: bool,
    is_sparse: bool,
}

impl BucketKey {
    fn of(param: &Param) -> Self {
        Self {
            dtype: param.grad_dtype,
            device: param.device,
            tag: param.tag,
            is_owned: param.grad.is_some(),
            is_sparse: param.is_sparse,
        }
    }
}

/// A bucket that is not yet closed.
#[derive(Default)]
struct OpenBucket {
    params: Vec<usize>,
    bytes: usize,
    /// The position of the bucket's last parameter in the order.
    last: usize,
    /// Whether an earlier bucket of the same kind is closed.
    follows: bool,
}

impl BucketLayout {
    /// Creates the layout for gradients that become ready in the given order.
    pub(super) fn in_order(params: &[Param], order: &[usize], limits: BucketLimits) -> Self {
        let mut open: HashMap<BucketKey, OpenBucket> = HashMap::new();
        let mut closed: Vec<(usize, Vec<usize>)> = Vec::new();
        for (position, &index) in order.iter().enumerate() {
            let bucket = open.entry(BucketKey::of(&params[index])).or_default();
            bucket.params.push(index);
            bucket.bytes += params[index].grad_bytes();
            bucket.last = position;
            let limit = if bucket.follows { limits.rest } else { limits.first };
            // Sparse gradients do not share a bucket.
            if bucket.bytes >= limit || params[index].is_sparse {
                closed.push((position, std::mem::take(&mut bucket.params)));
                *bucket = OpenBucket { follows: true, ..OpenBucket::default() };
            }
        }
        let left = open.into_values().filter(|bucket| !bucket.params.is_empty());
        closed.extend(left.map(|bucket| (bucket.last, bucket.params)));
        sort_by_key(&mut closed, |&(last, _)| last);
        Self::of_groups(params, closed.into_iter().map(|(_, params)| params).collect())
    }

    /// Creates the initial layout, which assumes that gradients become ready in the reverse order
    /// of their parameters.
    pub(super) fn reversed(params: &[Param], limits: BucketLimits) -> Self {
        let order: Vec<usize> =
            (0..params.len()).rev().filter(|&index| params[index].is_trained()).collect();
        Self::in_order(params, &order, limits)
    }

    /// Creates one bucket for each group of parameters.
    fn of_groups(params: &[Param], groups: Vec<Vec<usize>>) -> Self {
        let mut positions = vec![None; params.len()];
        let mut buckets = Vec::with_capacity(groups.len());
        for (number, group) in groups.into_iter().enumerate() {
            let key = BucketKey::of(&params[group[0]]);
            let mut offsets = Vec::with_capacity(group.len());
            let mut bytes = 0;
            for (index, &param) in group.iter().enumerate() {
                positions[param] = Some(GradPosition { bucket: number, index });
                bytes = usize::next_multiple_of(bytes, GRAD_ALIGNMENT);
                offsets.push(bytes);
                bytes += params[param].grad_bytes();
            }
            let lengths = group.iter().map(|&index| params[index].grad_bytes()).collect();
            let BucketKey { dtype, device, is_owned, is_sparse, .. } = key;
            let params = group;
            buckets.push(BucketSpec {
                params,
                offsets,
                lengths,
                bytes,
                dtype,
                device,
                is_owned,
                is_sparse,
            });
        }
        Self { buckets, positions }
    }

    /// Exports the layout as JSON with the names of the parameters.
    pub(super) fn export(&self, params: &[Param]) -> Value {
        let names = |bucket: &BucketSpec| -> Vec<&str> {
            bucket.params.iter().map(|&index| params[index].name.as_str()).collect()
        };
        json!({
            "version": VERSION,
            "buckets": self.buckets.iter().map(names).collect::<Vec<_>>(),
        })
    }

    /// Imports an exported layout for the same parameters, which may be in another order.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are no layout, or a layout of other parameters.
    pub(super) fn import(params: &[Param], bytes: &[u8]) -> Result<Self> {
        Self::parse(params, bytes).context(|| "the layout")
    }

    fn parse(params: &[Param], bytes: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|_| Error::invalid("it is not an output of dist_reducer_layout"))?;
        let version = value.get("version").and_then(Value::as_u64);
        if version != Some(VERSION) {
            let found = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            let message =
                format!("its version is {found}: this version of libdist reads {VERSION}");
            return Err(Error::invalid(message));
        }
        let mut unplaced: HashMap<&str, usize> = params
            .iter()
            .enumerate()
            .filter(|(_, param)| param.is_trained())
            .map(|(index, param)| (param.name.as_str(), index))
            .collect();
        let buckets = value.get("buckets").and_then(Value::as_array);
        let buckets = buckets.ok_or_else(|| Error::invalid("it has no list of buckets"))?;
        let mut groups = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            let names = bucket.as_array().filter(|names| !names.is_empty());
            let names = names.ok_or_else(|| Error::invalid("a bucket is not a list of names"))?;
            let mut group = Vec::with_capacity(names.len());
            for name in names {
                let name = name.as_str().unwrap_or_default();
                let index = unplaced.remove(name).ok_or_else(|| {
                    Error::invalid(format!(
                        "it has \"{name}\", which has no gradient or appears twice"
                    ))
                })?;
                group.push(index);
            }
            let key = BucketKey::of(&params[group[0]]);
            let is_apart = |&&index: &&usize| BucketKey::of(&params[index]) != key;
            let second = group.get(1).filter(|_| key.is_sparse);
            if let Some(&other) = group.iter().find(is_apart).or(second) {
                let (first, other) = (&params[group[0]].name, &params[other].name);
                let message = format!(
                    "it has \"{first}\" and \"{other}\" in one bucket, which differ in element type, device, tag \
                     or memory"
                );
                return Err(Error::invalid(message));
            }
            groups.push(group);
        }
        if let Some(name) = unplaced.keys().min() {
            return Err(Error::invalid(format!("it lacks the parameter \"{name}\"")));
        }
        Ok(Self::of_groups(params, groups))
    }

    /// Returns the size of the largest bucket whose gradients are collected
    /// ([`BucketSpec::is_collected`]), or 0 if there is none.
    pub(super) fn largest_collected(&self) -> usize {
        let collected = self.buckets.iter().filter(|bucket| bucket.is_collected());
        collected.map(|bucket| bucket.bytes).max().unwrap_or(0)
    }
}

impl BucketSpec {
    /// Returns whether the gradients are copied together before they are reduced. A single gradient
    /// of the caller is reduced in place.
    pub(super) fn is_collected(&self) -> bool {
        self.is_owned && self.params.len() > 1 && self.device.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::param::{ParamRole, tests::param};
    use super::*;
    use crate::base::buffer::Dst;

    const LIMITS: BucketLimits = BucketLimits { first: 40, rest: 100 };

    fn groups(layout: &BucketLayout) -> Vec<Vec<usize>> {
        layout.buckets.iter().map(|bucket| bucket.params.clone()).collect()
    }

    #[test]
    fn buckets_close_at_their_limits_in_reverse_order() {
        let params: Vec<Param> = (0..7).map(|index| param(&format!("p{index}"), 10)).collect();
        // Each gradient has 40 bytes: the first bucket takes one, the next bucket three, and the
        // last bucket the remaining three.
        let layout = BucketLayout::reversed(&params, LIMITS);
        assert_eq!(groups(&layout), [vec![6], vec![5, 4, 3], vec![2, 1, 0]]);
        assert_eq!(layout.buckets[1].offsets, [0, 64, 128]);
        assert_eq!(layout.buckets[1].bytes, 168);
        assert_eq!(layout.positions[4], Some(GradPosition { bucket: 1, index: 1 }));
    }

    #[test]
    fn kinds_do_not_mix_and_order_is_by_completion() {
        let mut params: Vec<Param> = (0..6).map(|index| param(&format!("p{index}"), 1)).collect();
        params[5].grad_dtype = DataType::F64;
        params[3].tag = 9;
        params[1].grad = Some(Dst::empty());
        params[0].role = ParamRole::Frozen;
        let layout = BucketLayout::reversed(&params, LIMITS);
        assert_eq!(groups(&layout), [vec![5], vec![3], vec![4, 2], vec![1]]);
        assert_eq!(layout.positions[0], None);
        assert!(layout.buckets[3].is_owned && !layout.buckets[3].is_collected());
    }

    #[test]
    fn an_export_is_read_back_for_parameters_in_any_order() {
        let params: Vec<Param> = (0..9).map(|index| param(&format!("p{index}"), index)).collect();
        let order = [3, 1, 4, 0, 5, 8, 2, 6, 7];
        let layout = BucketLayout::in_order(&params, &order, LIMITS);
        let bytes = layout.export(&params).to_string().into_bytes();
        assert_eq!(BucketLayout::import(&params, &bytes).unwrap(), layout);
        let mut moved = params.clone();
        moved.reverse();
        let there = BucketLayout::import(&moved, &bytes).unwrap();
        assert_eq!(there.export(&moved), layout.export(&params));
    }

    #[test]
    fn layouts_of_other_models_are_refused() {
        let params = [param("a", 1), param("b", 1)];
        let refused = |text: &str| {
            BucketLayout::import(&params, text.as_bytes()).unwrap_err().message().to_owned()
        };
        assert!(refused("x").contains("not an output of dist_reducer_layout"));
        assert!(refused("{}").contains("version is none"));
        assert!(refused(r#"{"version":2,"buckets":[]}"#).contains("version is 2"));
        assert!(
            refused(r#"{"version":1,"buckets":[["a"]]}"#).contains("lacks the parameter \"b\"")
        );
        assert!(refused(r#"{"version":1,"buckets":[["a","a","b"]]}"#).contains("twice"));
        assert!(refused(r#"{"version":1,"buckets":[["c"]]}"#).contains("\"c\""));
        assert!(refused(r#"{"version":1,"buckets":[[]]}"#).contains("not a list of names"));
        let mixed = [param("a", 1), Param { tag: 1, ..param("b", 1) }];
        let text = r#"{"version":1,"buckets":[["a","b"]]}"#;
        let error = BucketLayout::import(&mixed, text.as_bytes()).unwrap_err();
        assert!(error.message().contains("in one bucket"), "{error}");
    }

    #[test]
    fn gradients_without_elements_have_a_bucket() {
        let params = [param("a", 0), param("b", 0)];
        let layout = BucketLayout::reversed(&params, LIMITS);
        assert_eq!(groups(&layout), [vec![1, 0]]);
        assert_eq!(layout.buckets[0].bytes, 0);
        assert!(groups(&BucketLayout::reversed(&[], LIMITS)).is_empty());
    }
}
