// SPDX-License-Identifier: MIT
//! Projections around an op: a multi-head attention layer.

use std::ptr::{null, null_mut, NonNull};

use crate::args::Args;
use crate::error::{check, Error, Result};
use crate::op::{Op, Slot};
use crate::sizes::{check_packed, check_strided, count, int, Lengths, Strides};

/// One of the four projections of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// E_in = E_q, N = Hq * Dk.
    Q = sys::ATTN_W_Q as isize,
    /// E_in = E_kv, N = Hk * Dk.
    K = sys::ATTN_W_K as isize,
    /// E_in = E_kv, N = Hk * Dv.
    V = sys::ATTN_W_V as isize,
    /// E_in = Hq * Dv, N = E_out.
    O = sys::ATTN_W_O as isize,
}

/// A weight matrix of a projection from E_in to N.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    flags: i32,
    row_stride: usize,
}

impl<'a> Matrix<'a> {
    /// (E_in, N): y = x W, as in the books.
    pub const fn in_out(data: &'a [f32]) -> Self {
        Matrix { data, flags: sys::ATTN_IN_OUT, row_stride: 0 }
    }

    /// (N, E_in): y = x W^T, what PyTorch's Linear stores.
    pub const fn out_in(data: &'a [f32]) -> Self {
        Matrix { data, flags: sys::ATTN_OUT_IN, row_stride: 0 }
    }

    /// The same with this many elements from one row to the next; 0: packed.
    #[must_use]
    pub const fn with_row_stride(self, row_stride: usize) -> Self {
        Matrix { row_stride, ..self }
    }
}

/// A multi-head attention layer:
///
/// ```text
/// Q = X_q W_Q + b_Q     K = X_kv W_K + b_K     V = X_kv W_V + b_V
/// Y = attention(Q, K, V) W_O + b_O
/// ```
///
/// Head h owns the columns h * D .. (h + 1) * D of a projection. Inputs and output are
/// (B, L, E), packed, whatever the layout of the op.
///
/// ```
/// use attn::{Layer, Lengths, Matrix, Op, Projection};
///
/// # fn main() -> attn::Result<()> {
/// let op = Op::new(1, 1, 2, 2)?;
/// let mut layer = Layer::new(&op, 2, 2, 2)?; // E_q, E_kv, E_out = Hq * Dv: no W_O
/// let unit = [1.0, 0.0, 0.0, 1.0];
/// for which in [Projection::Q, Projection::K, Projection::V] {
///     layer.set_weights(which, Matrix::in_out(&unit), None)?;
/// }
/// let (x, mut y) = ([3.0, 1.0], [0.0; 2]);
/// layer.run(Lengths::new(1, 1, 1), &x, None, &mut y, None)?;
/// assert_eq!(y, x);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Layer {
    raw: NonNull<sys::attn_layer>,
    op: Op,
    e_q: usize,
    e_kv: usize,
    e_out: usize,
}

// SAFETY: as for Op: setters and the end have `&mut self`; runs, projections and questions
// have `&self`, and attn.h lets any number of threads make them at once.
unsafe impl Send for Layer {}
// SAFETY: as above.
unsafe impl Sync for Layer {}

impl Drop for Layer {
    fn drop(&mut self) {
        // SAFETY: made by attn_layer_create, ours alone, and no run borrows it.
        unsafe { sys::attn_layer_destroy(self.raw.as_ptr()) }
    }
}

impl Layer {
    /// A layer with the settings of an op, which are copied. `e_q` and `e_kv` are the widths
    /// of the inputs, `e_out` that of the output: Hq * Dv when no W_O will be set.
    pub fn new(op: &Op, e_q: usize, e_kv: usize, e_out: usize) -> Result<Self> {
        let op = op.try_clone()?;
        let widths = [int(e_q)?, int(e_kv)?, int(e_out)?];
        let mut raw = null_mut();
        // SAFETY: op is valid and no setter runs; raw is ours to write.
        check(unsafe {
            sys::attn_layer_create(&mut raw, op.as_ptr(), widths[0], widths[1], widths[2])
        })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::new(sys::ATTN_EINTERNAL, None))?;
        Ok(Layer { raw, op, e_q, e_kv, e_out })
    }

    /// E_in, heads and size of a head of a projection. No product overflows: a layer whose
    /// Hq * Dv exceeds 2^31 - 1 cannot be made.
    fn shape(&self, which: Projection) -> [usize; 3] {
        let op = &self.op;
        match which {
            Projection::Q => [self.e_q, op.heads, op.head_dim],
            Projection::K => [self.e_kv, op.kv_heads, op.head_dim],
            Projection::V => [self.e_kv, op.kv_heads, op.value_dim],
            Projection::O => [op.heads * op.value_dim, 1, self.e_out],
        }
    }

    /// Set a weight matrix and its bias of N numbers, which are copied. W_Q, W_K and W_V are
    /// needed before a run; without W_O the joined heads (Hq * Dv) are the output.
    pub fn set_weights(
        &mut self,
        which: Projection,
        w: Matrix<'_>,
        bias: Option<&[f32]>,
    ) -> Result<()> {
        let [e_in, heads, size] = self.shape(which);
        let n = count(&[heads, size])?;
        let (rows, columns) = if w.flags == sys::ATTN_IN_OUT { (e_in, n) } else { (n, e_in) };
        let stride = if w.row_stride == 0 { columns } else { w.row_stride };
        let step = isize::try_from(stride).map_err(|_| crate::sizes::too_large())?;
        check_strided("w", w.data.len(), [1, 1, rows, columns], Strides::new([0, 0, step, 1]))?;
        if let Some(bias) = bias {
            check_packed("the bias", bias.len(), &[n])?;
        }
        let bias = bias.map_or(null(), <[f32]>::as_ptr);
        let (raw, which, data) = (self.raw.as_ptr(), which as i32, w.data.as_ptr());
        // SAFETY: the matrix and the bias lie in their slices and are copied; the layer is
        // ours alone.
        check(unsafe {
            sys::attn_layer_set_weights(raw, which, w.flags, data, int(stride)?, bias)
        })
    }

    /// Remove a weight matrix: W_O for instance, to see the joined heads.
    pub fn remove_weights(&mut self, which: Projection) -> Result<()> {
        let (raw, flags) = (self.raw.as_ptr(), sys::ATTN_IN_OUT);
        // SAFETY: NULL removes; the layer is ours alone.
        check(unsafe { sys::attn_layer_set_weights(raw, which as i32, flags, null(), 0, null()) })
    }

    /// One projection, y = x W + b, x (B, L, E_in), written where `strides` say in the order
    /// (B, H, L, D): straight into a key/value cache. `None`: packed, (B, L, H * D).
    pub fn project(
        &self,
        which: Projection,
        batch: usize,
        len: usize,
        x: &[f32],
        y: &mut [f32],
        strides: Option<Strides>,
    ) -> Result<()> {
        let [e_in, heads, size] = self.shape(which);
        check_packed("x", x.len(), &[batch, len, e_in])?;
        match strides {
            Some(at) => check_strided("y", y.len(), [batch, heads, len, size], at)?,
            None => check_packed("y", y.len(), &[batch, len, heads, size])?,
        }
        let steps = strides.map(Strides::to_c);
        let y_steps = steps.as_ref().map_or(null(), |steps| steps.as_ptr());
        let offset = strides.map_or(0, |at| at.offset.min(y.len()));
        let y = y.as_mut_ptr().wrapping_add(offset);
        let (raw, which, x) = (self.raw.as_ptr(), which as i32, x.as_ptr());
        // SAFETY: x and all that the strides reach of y lie in their slices.
        check(unsafe {
            sys::attn_layer_project(raw, which, int(batch)?, int(len)?, x, y, y_steps)
        })
    }

    /// Run the layer: project, attend, project. `x_q` (B, Lq, E_q), `out` (B, Lq, E_out),
    /// `x_kv` (B, Lk, E_kv), or `None` for self-attention; packed sequences are (token, E).
    ///
    /// # Errors
    /// As [`Op::run`], and [`Error::NotReady`]: W_Q, W_K or W_V is not set;
    /// [`Error::Invalid`]: strides in `args`, no W_O and E_out != Hq * Dv, or no `x_kv`
    /// with other widths or lengths.
    pub fn run(
        &self,
        n: Lengths,
        x_q: &[f32],
        x_kv: Option<&[f32]>,
        out: &mut [f32],
        args: Option<&mut Args<'_>>,
    ) -> Result<()> {
        let (b, lq, lk) = (int(n.batch)?, int(n.queries)?, int(n.keys)?);
        let args = args.map(|args| &*args);
        self.check(n, x_q, x_kv, out, args)?;
        let kv = x_kv.map_or(null(), <[f32]>::as_ptr);
        let (raw, q, y) = (self.raw.as_ptr(), x_q.as_ptr(), out.as_mut_ptr());
        let c_args = Args::c_pointer(args);
        // SAFETY: check() has found every array within its slice. out is borrowed mutably,
        // so nothing overlaps it; args is borrowed mutably, so this is its only run.
        let status = unsafe { sys::attn_layer_run(raw, b, lq, lk, q, kv, y, c_args) };
        if status == sys::ATTN_OK {
            return Ok(());
        }
        let (explained, why) = self.op.why_not([b, lq, lk], c_args);
        let why = match status {
            _ if explained == status => Some(why.into()),
            sys::ATTN_ESTATE => Some("W_Q, W_K or W_V is not set".into()),
            sys::ATTN_EINVAL if args.map_or(false, Args::has_workspace) => {
                Some("the workspace has fewer bytes than workspace_bytes() says".into())
            }
            sys::ATTN_EINVAL => Some("without W_O the output has the width Hq * Dv".into()),
            _ => None,
        };
        Err(Error::new(status, why))
    }

    /// How large a workspace a run of the layer needs. Ask after the weights are set: with
    /// W_O it needs more.
    pub fn workspace_bytes(&self, n: Lengths, args: Option<&Args<'_>>) -> Result<usize> {
        let (b, lq, lk) = (int(n.batch)?, int(n.queries)?, int(n.keys)?);
        let (raw, args, mut bytes) = (self.raw.as_ptr(), Args::c_pointer(args), 0);
        // SAFETY: valid handles; bytes is ours to write.
        check(unsafe { sys::attn_layer_workspace_bytes(raw, b, lq, lk, args, &mut bytes) })?;
        Ok(bytes)
    }

    fn check(
        &self,
        n: Lengths,
        x_q: &[f32],
        x_kv: Option<&[f32]>,
        out: &[f32],
        args: Option<&Args<'_>>,
    ) -> Result<()> {
        if let Some(args) = args {
            if args.has_strides() {
                return Err(Error::Invalid("a layer takes no strides".into()));
            }
            args.check(n, self.op.heads)?;
        }
        let items = |slot| args.map_or(n.batch, |args| args.items(slot, n));
        let (b_q, b_k) = (items(Slot::Q), items(Slot::K));
        check_packed("x_q", x_q.len(), &[b_q, n.queries, self.e_q])?;
        check_packed("out", out.len(), &[b_q, n.queries, self.e_out])?;
        match x_kv {
            Some(x_kv) => check_packed("x_kv", x_kv.len(), &[b_k, n.keys, self.e_kv]),
            None => self.check_self(n, args),
        }
    }

    fn check_self(&self, n: Lengths, args: Option<&Args<'_>>) -> Result<()> {
        let one_side = args.map_or(false, Args::packs_one_side);
        if self.e_q == self.e_kv && n.queries == n.keys && !one_side {
            return Ok(());
        }
        let why = "self-attention (no x_kv) needs the same width and length on both sides, \
                   packed or not";
        Err(Error::Invalid(why.into()))
    }
}
