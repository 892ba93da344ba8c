// SPDX-License-Identifier: MIT
//! How to attend, and the run itself.

use std::ptr::{null_mut, NonNull};

use crate::args::Args;
use crate::error::{check, text_of, Error, Result};
use crate::sizes::{check_packed, check_strided, int, Lengths};

/// How queries and keys are aligned; see [`Op::set_causal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Causal {
    /// Every query may see every key.
    None = sys::ATTN_CAUSAL_NONE as isize,
    /// j <= i + off with off = 0 (PyTorch's `is_causal`).
    TopLeft = sys::ATTN_CAUSAL_TOP_LEFT as isize,
    /// j <= i + off with off = end - Lq (FlashAttention's).
    BottomRight = sys::ATTN_CAUSAL_BOTTOM_RIGHT as isize,
}

/// Order of the axes of packed q, k, v and out; see [`Op::set_layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// (batch, head, length, size), the default.
    Bhld = sys::ATTN_LAYOUT_BHLD as isize,
    /// (batch, length, head, size).
    Blhd = sys::ATTN_LAYOUT_BLHD as isize,
}

/// What forms the two products; see [`Op::set_engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `cblas_sgemm`, the default.
    Blas = sys::ATTN_ENGINE_BLAS as isize,
    /// Tiles of libattn's own, without BLAS.
    Vector = sys::ATTN_ENGINE_VECTOR as isize,
}

/// The best instruction set that libattn's own kernels may use; see [`Op::set_isa`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every CPU of the platform has.
    Base = sys::ATTN_ISA_BASE as isize,
    /// x86-64: AVX2 and FMA.
    Avx2 = sys::ATTN_ISA_AVX2 as isize,
    /// x86-64: AVX-512 F, BW, DQ and VL.
    Avx512 = (sys::ATTN_ISA_AVX2 | sys::ATTN_ISA_AVX512) as isize,
    /// The best of this CPU, the default.
    All = sys::ATTN_ISA_ALL as isize,
}

/// One of the four tensors of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Queries.
    Q = sys::ATTN_Q as isize,
    /// Keys.
    K = sys::ATTN_K as isize,
    /// Values.
    V = sys::ATTN_V as isize,
    /// The output.
    Out = sys::ATTN_OUT as isize,
}

/// How to attend: the sizes of the heads, and the rules.
///
/// ```text
/// S = scale * Q K^T        A = softmax(rules(S))        O = A V
/// ```
///
/// Setters want the op to themselves (`&mut self`) and can be chained; any number of
/// threads may run one op at once.
///
/// ```
/// use attn::{Causal, Lengths, Op};
///
/// # fn main() -> attn::Result<()> {
/// let mut op = Op::new(2, 2, 4, 4)?; // query heads, key/value heads, sizes of a head
/// op.set_causal(Causal::TopLeft)?.set_threads(1)?;
/// let q = [0.5; 2 * 3 * 4]; // (B, Hq, Lq, Dk)
/// let mut out = [0.0; 2 * 3 * 4];
/// op.run(Lengths::new(1, 3, 3), &q, &q, &q, &mut out, None)?;
/// assert_eq!(out, q); // a mean of equal values
/// # Ok(())
/// # }
/// ```
///
/// A setter beside a run does not compile:
///
/// ```compile_fail,E0502
/// # use attn::{Lengths, Op};
/// # fn main() -> attn::Result<()> {
/// # let (n, x, mut out) = (Lengths::new(1, 1, 1), [0.0], [0.0]);
/// let mut op = Op::new(1, 1, 1, 1)?;
/// std::thread::scope(|s| {
///     s.spawn(|| op.run(n, &x, &x, &x, &mut out, None));
///     op.set_scale(2.0).unwrap();
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Op {
    raw: NonNull<sys::attn_op>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
}

// SAFETY: the library ties an op to no thread. Its setters and its end need the op to
// themselves, which `&mut self` and Drop are; runs, questions, copies and trim only take
// `&self`, and attn.h lets any number of threads make them at once.
unsafe impl Send for Op {}
// SAFETY: as above.
unsafe impl Sync for Op {}

impl Drop for Op {
    fn drop(&mut self) {
        // SAFETY: made by attn_op_create or _copy, ours alone, and no run borrows it.
        unsafe { sys::attn_op_destroy(self.raw.as_ptr()) }
    }
}

/// The pointers of a run, each at the element (0, 0, 0, 0) of a tensor that was found to
/// lie within its slice.
struct Tensors {
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *const f32,
}

impl Op {
    /// An op with these sizes and the default rules: scale 1/√head_dim, nothing masked,
    /// layout BHLD, all CPUs that the process may use.
    ///
    /// `kv_heads` divides `heads`; query head h uses key/value head h / (heads / kv_heads).
    ///
    /// # Errors
    /// [`Error::Invalid`]: a size is 0, or `kv_heads` is no divisor. [`Error::Overflow`]: a
    /// size above 2³¹ - 1. [`Error::Blas`]: the BLAS that the loader found is unusable.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, value_dim: usize) -> Result<Self> {
        let (hq, hk, dk, dv) = (int(heads)?, int(kv_heads)?, int(head_dim)?, int(value_dim)?);
        let mut raw = null_mut();
        // SAFETY: raw is ours to write.
        check(unsafe { sys::attn_op_create(&mut raw, hq, hk, dk, dv) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::new(sys::ATTN_EINTERNAL, None))?;
        Ok(Op { raw, heads, kv_heads, head_dim, value_dim })
    }

    /// A new op with the same sizes and rules; the two are independent.
    pub fn try_clone(&self) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: both are valid; no setter runs, for it would need `&mut self`.
        check(unsafe { sys::attn_op_copy(&mut raw, self.raw.as_ptr()) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::new(sys::ATTN_EINTERNAL, None))?;
        Ok(Op { raw, ..*self })
    }

    pub(crate) fn as_ptr(&self) -> *const sys::attn_op {
        self.raw.as_ptr()
    }

    fn set(
        &mut self,
        call: impl FnOnce(*mut sys::attn_op) -> sys::attn_status,
    ) -> Result<&mut Self> {
        check(call(self.raw.as_ptr()))?;
        Ok(self)
    }

    /// The factor of the scores, any finite number; 1 for the unscaled dot product.
    pub fn set_scale(&mut self, scale: f64) -> Result<&mut Self> {
        // SAFETY: here and in every setter below: op is valid and ours alone.
        self.set(|op| unsafe { sys::attn_op_set_scale(op, scale) })
    }

    /// The causal rule: key j is visible to query i iff j <= i + off.
    pub fn set_causal(&mut self, causal: Causal) -> Result<&mut Self> {
        self.set(|op| unsafe { sys::attn_op_set_causal(op, causal as i32) })
    }

    /// A sliding window: i + off - left <= j <= i + off + right; `None` is unbounded.
    /// A model's "sliding window of W" is `Some(W - 1), None` with a causal rule.
    pub fn set_window(&mut self, left: Option<usize>, right: Option<usize>) -> Result<&mut Self> {
        let bound = |keys: Option<usize>| keys.map_or(Ok(-1), int);
        let (left, right) = (bound(left)?, bound(right)?);
        self.set(|op| unsafe { sys::attn_op_set_window(op, left, right) })
    }

    /// Queries see keys of their own chunk only, chunks of `size`; 0 switches it off.
    pub fn set_chunk(&mut self, size: usize) -> Result<&mut Self> {
        let size = int(size)?;
        self.set(|op| unsafe { sys::attn_op_set_chunk(op, size) })
    }

    /// A soft cap, s = cap * tanh(s / cap), before the masks; 0 switches it off.
    pub fn set_softcap(&mut self, cap: f64) -> Result<&mut Self> {
        self.set(|op| unsafe { sys::attn_op_set_softcap(op, cap) })
    }

    /// The layout of packed tensors.
    pub fn set_layout(&mut self, layout: Layout) -> Result<&mut Self> {
        self.set(|op| unsafe { sys::attn_op_set_layout(op, layout as i32) })
    }

    /// Which engine forms the two products.
    pub fn set_engine(&mut self, engine: Engine) -> Result<&mut Self> {
        self.set(|op| unsafe { sys::attn_op_set_engine(op, engine as i32) })
    }

    /// How many threads a run may use, the caller's included: 1 to 4096, or 0 for all CPUs
    /// that this process may use. The number changes no bit of a result.
    pub fn set_threads(&mut self, n: u32) -> Result<&mut Self> {
        let n = i32::try_from(n).unwrap_or(i32::MAX);
        self.set(|op| unsafe { sys::attn_op_set_threads(op, n) })
    }

    /// The best instruction set that libattn's own kernels (not BLAS) may use.
    pub fn set_isa(&mut self, isa: Isa) -> Result<&mut Self> {
        self.set(|op| unsafe { sys::attn_op_set_isa(op, isa as i32) })
    }

    /// Free the scratch memory that past runs left for the next ones.
    pub fn trim(&self) {
        // SAFETY: op is valid, and attn.h allows this beside runs. It fails for NULL only.
        unsafe { sys::attn_op_trim(self.raw.as_ptr()) };
    }

    /// Attend: `out = softmax(rules(scale * Q K^T)) V`.
    ///
    /// Packed in layout BHLD: q (B, Hq, Lq, Dk), k (B, Hk, Lk, Dk), v (B, Hk, Lk, Dv), out
    /// (B, Hq, Lq, Dv); in BLHD the middle axes change places. Slices may be longer.
    /// `args` has the optional tensors, other strides, and offsets of packed sequences.
    ///
    /// Rows that see no key become 0. NaN stays in the rows that see it.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a slice is too short, or something in `args` does not fit these
    /// lengths; the reason says which. [`Error::Overflow`], [`Error::Unsupported`] (masks
    /// with packed sequences), [`Error::NoMemory`].
    pub fn run(
        &self,
        n: Lengths,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
        args: Option<&mut Args<'_>>,
    ) -> Result<()> {
        let (b, lq, lk) = (int(n.batch)?, int(n.queries)?, int(n.keys)?);
        let args = args.map(|args| &*args);
        let out_len = out.len();
        let t = self.locate(n, q, k, v, (out.as_mut_ptr(), out_len), args)?;
        let c_args = Args::c_pointer(args);
        // SAFETY: locate() has found every tensor and optional array within its slice, and
        // the setters of Args have done so for masks. out is borrowed mutably, so nothing
        // overlaps it; args is borrowed mutably, so this is its only run.
        let status = unsafe {
            let (q, k, v) = (t.q.cast(), t.k.cast(), t.v.cast());
            sys::attn_run_args(self.as_ptr(), b, lq, lk, q, k, v, t.out as *mut _, c_args)
        };
        if status == sys::ATTN_OK {
            return Ok(());
        }
        let (explained, why) = self.explain_raw([b, lq, lk], &t, c_args);
        Err(Error::new(status, (explained == status).then(|| why.into())))
    }

    /// Say what [`run`](Op::run) would do with these arguments, without doing it: path,
    /// tiles, threads, workspace, flops and BLAS, or the error that it would return. The
    /// wording is for people and may change.
    pub fn explain(
        &self,
        n: Lengths,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &[f32],
        args: Option<&Args<'_>>,
    ) -> Result<String> {
        let sizes = [int(n.batch)?, int(n.queries)?, int(n.keys)?];
        let t = self.locate(n, q, k, v, (out.as_ptr(), out.len()), args)?;
        match self.explain_raw(sizes, &t, Args::c_pointer(args)) {
            (sys::ATTN_OK, text) => Ok(text),
            (status, text) => Err(Error::new(status, Some(text.into()))),
        }
    }

    /// How large a workspace a run needs; enough for every smaller B, Lq and Lk.
    pub fn workspace_bytes(&self, n: Lengths, args: Option<&Args<'_>>) -> Result<usize> {
        let (b, lq, lk) = (int(n.batch)?, int(n.queries)?, int(n.keys)?);
        let (args, mut bytes) = (Args::c_pointer(args), 0);
        // SAFETY: valid handles; bytes is ours to write.
        check(unsafe { sys::attn_workspace_bytes(self.as_ptr(), b, lq, lk, args, &mut bytes) })?;
        Ok(bytes)
    }

    fn explain_raw(
        &self,
        [b, lq, lk]: [i64; 3],
        t: &Tensors,
        args: *const sys::attn_args,
    ) -> (sys::attn_status, String) {
        let (q, k, v, out) = (t.q.cast(), t.k.cast(), t.v.cast(), t.out.cast());
        // SAFETY: valid handles; explain looks at pointers of tensors, never behind them.
        text_of(|text, cap, needed| unsafe {
            sys::attn_explain(self.as_ptr(), b, lq, lk, q, k, v, out, args, text, cap, needed)
        })
    }

    /// Why options do not go with these lengths, for a layer, which has other tensors:
    /// explained with addresses that overlap nothing and that nobody follows.
    pub(crate) fn why_not(
        &self,
        sizes: [i64; 3],
        args: *const sys::attn_args,
    ) -> (sys::attn_status, String) {
        let (input, output) = (8 as *const f32, ((usize::MAX / 2) & !7) as *const f32);
        let t = Tensors { q: input, k: input, v: input, out: output };
        self.explain_raw(sizes, &t, args)
    }

    fn locate(
        &self,
        n: Lengths,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: (*const f32, usize),
        args: Option<&Args<'_>>,
    ) -> Result<Tensors> {
        if let Some(args) = args {
            args.check(n, self.heads)?;
        }
        Ok(Tensors {
            q: self.tensor(Slot::Q, n, (q.as_ptr(), q.len()), args)?,
            k: self.tensor(Slot::K, n, (k.as_ptr(), k.len()), args)?,
            v: self.tensor(Slot::V, n, (v.as_ptr(), v.len()), args)?,
            out: self.tensor(Slot::Out, n, out, args)?,
        })
    }

    /// The address of the first element of a tensor, all of which lies in the slice.
    fn tensor(
        &self,
        slot: Slot,
        n: Lengths,
        (data, len): (*const f32, usize),
        args: Option<&Args<'_>>,
    ) -> Result<*const f32> {
        let (name, heads, size, dim) = match slot {
            Slot::Q => ("q", self.heads, n.queries, self.head_dim),
            Slot::K => ("k", self.kv_heads, n.keys, self.head_dim),
            Slot::V => ("v", self.kv_heads, n.keys, self.value_dim),
            Slot::Out => ("out", self.heads, n.queries, self.value_dim),
        };
        let batch = args.map_or(n.batch, |args| args.items(slot, n));
        let dims = [batch, heads, size, dim];
        match args.and_then(|args| args.strides(slot)) {
            Some(strides) => {
                check_strided(name, len, dims, strides)?;
                // An empty tensor has no first element; its pointer is never followed.
                Ok(data.wrapping_add(strides.offset.min(len)))
            }
            None => check_packed(name, len, &dims).map(|()| data),
        }
    }
}
