//! The modules of the library that its kernels need.
#![allow(dead_code, reason = "the kernels use only a part of it")]

#[path = "../../../src/base/buffer.rs"]
pub mod buffer;
#[path = "../../../src/base/c_numbers.rs"]
mod c_numbers;
#[path = "../../../src/base/copy.rs"]
pub mod copy;
#[path = "../../../src/base/dtype.rs"]
pub mod dtype;
#[path = "../../../src/base/error.rs"]
pub mod error;
#[path = "../../../src/base/ids.rs"]
pub mod ids;
#[path = "../../../src/base/nan_check.rs"]
pub mod nan_check;
#[path = "../../../src/base/op.rs"]
pub mod op;
#[path = "../../../src/base/processor.rs"]
pub mod processor;
#[path = "../../../src/base/vector_copy.rs"]
mod vector_copy;
