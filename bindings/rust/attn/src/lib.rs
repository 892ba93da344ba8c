// SPDX-License-Identifier: MIT
//! Attention on the CPU: the safe form of libattn.
//!
//! ```text
//! S = scale * Q K^T        A = softmax(rules(S))        O = A V
//! ```
//!
//! for float32, row-major tensors, with causal order, windows, masks, key ranges, grouped
//! heads, sequences packed without padding, and a key/value cache. `attn.h` of the library
//! is the manual; names and meanings here are the same.
//!
//! - [`Op`] is how to attend: sizes of the heads and rules. [`Op::run`] attends.
//! - [`Args`] has the optional tensors of a run and borrows them.
//! - [`Layer`] has the weights of the projections around an op.
//!
//! Every slice is compared with the sizes and strides before C sees its address, and
//! borrowing follows the library's rules, so no use of this crate reads or writes outside a
//! slice. Errors are values with a sentence; nothing here panics.
//!
//! Threads: runs take `&self` and may be made from any number of threads at once; setters
//! take `&mut self`. A run itself uses several threads ([`Op::set_threads`]).

#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

extern crate attn_sys as sys;

mod args;
mod error;
mod helpers;
mod layer;
mod op;
mod sizes;

pub use args::{Args, Boolean, Heads, Stage};
pub use error::{Error, Reason, Result};
pub use helpers::{alibi_slopes, blas_info, mask_dims, merge, merge_sinks, version};
pub use layer::{Layer, Matrix, Projection};
pub use op::{Causal, Engine, Isa, Layout, Op, Slot};
pub use sizes::{Lengths, Strides};

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
