// SPDX-License-Identifier: MIT
//! The C interface of libattn as it is: names, arguments and numbers are those of
//! `attn.h`, which is its manual. A test compares every declaration with that header.
//!
//! Everything here is unsafe; the crate `attn` is the safe form. The library is found
//! by `pkg-config libattn` when this crate is built; `LIBATTN_STATIC=1` in the
//! environment links `libattn.a`.

#![allow(non_camel_case_types)]

use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::{c_char, c_void};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _data: [u8; 0],
            // Neither Send, Sync nor Unpin: C alone says what may be done with it.
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

opaque! {
    /// How to attend: sizes and rules.
    attn_op,
    /// The optional tensors of one run.
    attn_args,
    /// Projection weights around an [`attn_op`].
    attn_layer
}

/// 0 or a negative number; numbers that this crate does not know are errors, too.
pub type attn_status = i32;

pub const ATTN_OK: attn_status = 0;
pub const ATTN_EINVAL: attn_status = -1;
pub const ATTN_ENOMEM: attn_status = -2;
pub const ATTN_EOVERFLOW: attn_status = -3;
pub const ATTN_ESTATE: attn_status = -4;
pub const ATTN_EUNSUPPORTED: attn_status = -5;
pub const ATTN_EBLAS: attn_status = -6;
pub const ATTN_EINTERNAL: attn_status = -7;

pub const ATTN_CAUSAL_NONE: i32 = 0;
pub const ATTN_CAUSAL_TOP_LEFT: i32 = 1;
pub const ATTN_CAUSAL_BOTTOM_RIGHT: i32 = 2;

pub const ATTN_LAYOUT_BHLD: i32 = 0;
pub const ATTN_LAYOUT_BLHD: i32 = 1;

pub const ATTN_ENGINE_BLAS: i32 = 0;
pub const ATTN_ENGINE_VECTOR: i32 = 1;

pub const ATTN_ISA_BASE: i32 = 0;
pub const ATTN_ISA_AVX2: i32 = 1;
pub const ATTN_ISA_AVX512: i32 = 2;
pub const ATTN_ISA_ALL: i32 = 0x7fff_ffff;

pub const ATTN_Q: i32 = 0;
pub const ATTN_K: i32 = 1;
pub const ATTN_V: i32 = 2;
pub const ATTN_OUT: i32 = 3;

pub const ATTN_F32: i32 = 0;
pub const ATTN_I32: i32 = 1;
pub const ATTN_I64: i32 = 2;

pub const ATTN_STAGE_RAW: i32 = 0;
pub const ATTN_STAGE_CAPPED: i32 = 1;
pub const ATTN_STAGE_MASKED: i32 = 2;
pub const ATTN_STAGE_WEIGHTS: i32 = 3;
pub const ATTN_MEAN_HEADS: i32 = 1;

pub const ATTN_W_Q: i32 = 0;
pub const ATTN_W_K: i32 = 1;
pub const ATTN_W_V: i32 = 2;
pub const ATTN_W_O: i32 = 3;
pub const ATTN_IN_OUT: i32 = 1;
pub const ATTN_OUT_IN: i32 = 2;
pub const ATTN_W_BORROW: i32 = 4;

extern "C" {
    pub fn attn_op_create(
        op: *mut *mut attn_op,
        heads: i64,
        kv_heads: i64,
        head_dim: i64,
        value_dim: i64,
    ) -> attn_status;
    pub fn attn_op_copy(copy: *mut *mut attn_op, op: *const attn_op) -> attn_status;
    pub fn attn_op_destroy(op: *mut attn_op);
    pub fn attn_op_set_scale(op: *mut attn_op, scale: f64) -> attn_status;
    pub fn attn_op_set_causal(op: *mut attn_op, causal: i32) -> attn_status;
    pub fn attn_op_set_window(op: *mut attn_op, left: i64, right: i64) -> attn_status;
    pub fn attn_op_set_chunk(op: *mut attn_op, size: i64) -> attn_status;
    pub fn attn_op_set_softcap(op: *mut attn_op, cap: f64) -> attn_status;
    pub fn attn_op_set_layout(op: *mut attn_op, layout: i32) -> attn_status;
    pub fn attn_op_set_engine(op: *mut attn_op, engine: i32) -> attn_status;
    pub fn attn_op_set_threads(op: *mut attn_op, n: i32) -> attn_status;
    pub fn attn_op_set_isa(op: *mut attn_op, mask: i32) -> attn_status;
    pub fn attn_op_trim(op: *mut attn_op) -> attn_status;
    pub fn attn_args_create(args: *mut *mut attn_args) -> attn_status;
    pub fn attn_args_destroy(args: *mut attn_args);
    pub fn attn_args_clear(args: *mut attn_args) -> attn_status;
    pub fn attn_args_set_strides(
        args: *mut attn_args,
        slot: i32,
        strides: *const i64,
    ) -> attn_status;
    pub fn attn_args_set_mask_bool(
        args: *mut attn_args,
        mask: *const u8,
        dims: *const i64,
        strides: *const i64,
    ) -> attn_status;
    pub fn attn_args_set_mask_add(
        args: *mut attn_args,
        mask: *const f32,
        dims: *const i64,
        strides: *const i64,
    ) -> attn_status;
    pub fn attn_args_set_key_range(
        args: *mut attn_args,
        batch: i64,
        begin: *const i64,
        end: *const i64,
    ) -> attn_status;
    pub fn attn_args_set_positions(
        args: *mut attn_args,
        batch: i64,
        pos: *const i64,
    ) -> attn_status;
    pub fn attn_args_set_alibi(
        args: *mut attn_args,
        heads: i64,
        slopes: *const f32,
    ) -> attn_status;
    pub fn attn_args_set_sinks(
        args: *mut attn_args,
        heads: i64,
        sinks: *const f32,
    ) -> attn_status;
    pub fn attn_args_set_segments(
        args: *mut attn_args,
        q_ids: *const i32,
        k_ids: *const i32,
    ) -> attn_status;
    pub fn attn_args_set_offsets_q(
        args: *mut attn_args,
        offsets: *const c_void,
        index_type: i32,
        n_sequences: i64,
    ) -> attn_status;
    pub fn attn_args_set_offsets_k(
        args: *mut attn_args,
        offsets: *const c_void,
        index_type: i32,
        n_sequences: i64,
    ) -> attn_status;
    pub fn attn_args_set_weights(args: *mut attn_args, weights: *mut f32) -> attn_status;
    pub fn attn_args_set_scores_out(
        args: *mut attn_args,
        stage: i32,
        out: *mut f32,
        flags: i32,
    ) -> attn_status;
    pub fn attn_args_set_lse(args: *mut attn_args, lse: *mut f32) -> attn_status;
    pub fn attn_args_set_type(args: *mut attn_args, slot: i32, type_: i32) -> attn_status;
    pub fn attn_args_set_workspace(
        args: *mut attn_args,
        memory: *mut c_void,
        bytes: usize,
    ) -> attn_status;
    pub fn attn_run(
        op: *const attn_op,
        B: i64,
        Lq: i64,
        Lk: i64,
        q: *const f32,
        k: *const f32,
        v: *const f32,
        out: *mut f32,
    ) -> attn_status;
    pub fn attn_run_args(
        op: *const attn_op,
        B: i64,
        Lq: i64,
        Lk: i64,
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        out: *mut c_void,
        args: *const attn_args,
    ) -> attn_status;
    pub fn attn_merge(
        rows: i64,
        Dv: i64,
        o_acc: *mut f32,
        lse_acc: *mut f32,
        o_part: *const f32,
        lse_part: *const f32,
    ) -> attn_status;
    pub fn attn_merge_sinks(
        B: i64,
        Hq: i64,
        Lq: i64,
        Dv: i64,
        o: *mut f32,
        lse: *const f32,
        sinks: *const f32,
    ) -> attn_status;
    pub fn attn_alibi_slopes(heads: i64, slopes: *mut f32) -> attn_status;
    pub fn attn_mask_dims(
        rank: i64,
        shape: *const i64,
        Lk: i64,
        dims: *mut i64,
        strides: *mut i64,
    ) -> attn_status;
    pub fn attn_layer_create(
        layer: *mut *mut attn_layer,
        op: *const attn_op,
        E_q: i64,
        E_kv: i64,
        E_out: i64,
    ) -> attn_status;
    pub fn attn_layer_destroy(layer: *mut attn_layer);
    pub fn attn_layer_set_weights(
        layer: *mut attn_layer,
        which: i32,
        flags: i32,
        w: *const f32,
        ld: i64,
        bias: *const f32,
    ) -> attn_status;
    pub fn attn_layer_project(
        layer: *const attn_layer,
        which: i32,
        B: i64,
        L: i64,
        x: *const f32,
        y: *mut f32,
        y_strides: *const i64,
    ) -> attn_status;
    pub fn attn_layer_run(
        layer: *const attn_layer,
        B: i64,
        Lq: i64,
        Lk: i64,
        x_q: *const f32,
        x_kv: *const f32,
        out: *mut f32,
        args: *const attn_args,
    ) -> attn_status;
    pub fn attn_workspace_bytes(
        op: *const attn_op,
        B: i64,
        Lq: i64,
        Lk: i64,
        args: *const attn_args,
        bytes: *mut usize,
    ) -> attn_status;
    pub fn attn_layer_workspace_bytes(
        layer: *const attn_layer,
        B: i64,
        Lq: i64,
        Lk: i64,
        args: *const attn_args,
        bytes: *mut usize,
    ) -> attn_status;
    pub fn attn_explain(
        op: *const attn_op,
        B: i64,
        Lq: i64,
        Lk: i64,
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        out: *const c_void,
        args: *const attn_args,
        text: *mut c_char,
        cap: usize,
        needed: *mut usize,
    ) -> attn_status;
    pub fn attn_version() -> *const c_char;
    pub fn attn_status_string(status: attn_status) -> *const c_char;
    pub fn attn_blas_info(text: *mut c_char, cap: usize, needed: *mut usize) -> attn_status;
}
