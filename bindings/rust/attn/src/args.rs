// SPDX-License-Identifier: MIT
//! The optional tensors of a run. Small arrays are copied by C; large ones stay borrowed.

use std::marker::PhantomData;
use std::ptr::{null, null_mut, NonNull};

use crate::error::{check, Error, Result};
use crate::op::Slot;
use crate::sizes::{check_packed, check_strided, int, too_large, Lengths, Strides};

/// Which scores to hand out; see [`Args::set_scores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// scale * (q . k)
    Raw = sys::ATTN_STAGE_RAW as isize,
    /// After the softcap.
    Capped = sys::ATTN_STAGE_CAPPED as isize,
    /// After every additive and boolean rule; invisible is -inf.
    Masked = sys::ATTN_STAGE_MASKED as isize,
    /// After the softmax.
    Weights = sys::ATTN_STAGE_WEIGHTS as isize,
}

/// One matrix of scores for each query head, or their mean; see [`Args::set_scores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// (B, Hq, Lq, Lk)
    Each = 0,
    /// (B, Lq, Lk), summed in the order of the heads.
    Mean = sys::ATTN_MEAN_HEADS as isize,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for bool {}
    impl Sealed for u8 {}
}

/// An element of a boolean mask: `bool`, or `u8` where nonzero is true.
pub trait Boolean: sealed::Sealed {}
impl Boolean for bool {}
impl Boolean for u8 {}

/// The handle of C and nothing more, so that dropping [`Args`] touches no borrowed slice.
#[derive(Debug)]
struct Handle(NonNull<sys::attn_args>);

// SAFETY: the library ties args to no thread. Setters and runs change them and take
// `&mut Args`; `&Args` allows questions only, which attn.h lets any thread ask.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by attn_args_create and ours alone. It frees nothing borrowed.
        unsafe { sys::attn_args_destroy(self.0.as_ptr()) }
    }
}

/// Length of a borrowed array of scores.
#[derive(Clone, Copy, Debug)]
struct Scores {
    len: usize,
    heads: Heads,
}

/// What the slices of C's args are long: runs compare it with their lengths.
#[derive(Debug, Default)]
struct Shapes {
    strides: [Option<Strides>; 4],
    scores: [Option<Scores>; 4],
    lse: Option<usize>,
    segments: Option<(usize, usize)>,
    key_range: Option<usize>,
    positions: Option<usize>,
    alibi: Option<usize>,
    sinks: Option<usize>,
    packed_q: bool,
    packed_k: bool,
    workspace: bool,
}

/// The optional tensors of runs: masks, ranges, biases, outputs beside `out`, workspace.
///
/// Arrays of B or Hq elements are copied; an empty one is set, too, and fits a batch of 0
/// only. Masks, segment ids, outputs and workspace are
/// borrowed for as long as the args are used, so the compiler keeps them alive and, for
/// outputs, from being looked at too early:
///
/// ```
/// # use attn::{Args, Lengths, Op};
/// # fn main() -> attn::Result<()> {
/// let op = Op::new(1, 1, 2, 2)?;
/// let x = [1.0, 0.0, 0.0, 1.0];
/// let (mut out, mut weights) = ([0.0; 4], [0.0; 4]);
/// let mut args = Args::new()?;
/// args.set_mask_bool(&[true, false, true, true], [1, 1, 2, 2], None)?;
/// args.set_weights(&mut weights)?;
/// op.run(Lengths::new(1, 2, 2), &x, &x, &x, &mut out, Some(&mut args))?;
/// assert_eq!(weights[..2], [1.0, 0.0]); // the end of args' last use
/// # Ok(())
/// # }
/// ```
///
/// A mask must outlive the args:
///
/// ```compile_fail,E0597
/// # use attn::Args;
/// # fn main() -> attn::Result<()> {
/// let mut args = Args::new()?;
/// {
///     let mask = vec![true; 4];
///     args.set_mask_bool(&mask, [1, 1, 2, 2], None)?;
/// }
/// args.set_alibi(&[1.0])?;
/// # Ok(())
/// # }
/// ```
///
/// An output cannot be read while a later run may still write it:
///
/// ```compile_fail,E0502
/// # use attn::Args;
/// # fn main() -> attn::Result<()> {
/// let mut weights = vec![0.0; 4];
/// let mut args = Args::new()?;
/// args.set_weights(&mut weights)?;
/// println!("{}", weights[0]);
/// args.set_alibi(&[1.0])?;
/// # Ok(())
/// # }
/// ```
///
/// and cannot be handed out twice:
///
/// ```compile_fail,E0499
/// # use attn::Args;
/// # fn main() -> attn::Result<()> {
/// let mut buffer = vec![0.0; 4];
/// let mut args = Args::new()?;
/// args.set_weights(&mut buffer)?;
/// args.set_lse(&mut buffer)?;
/// # Ok(())
/// # }
/// ```
///
/// Args serve one run at a time, which `&mut` sees to:
///
/// ```compile_fail,E0499
/// # use attn::{Args, Lengths, Op};
/// # fn main() -> attn::Result<()> {
/// # let (op, n, x) = (Op::new(1, 1, 1, 1)?, Lengths::new(1, 1, 1), [0.0]);
/// let (mut a, mut b) = ([0.0], [0.0]);
/// let mut args = Args::new()?;
/// std::thread::scope(|s| {
///     s.spawn(|| op.run(n, &x, &x, &x, &mut a, Some(&mut args)));
///     s.spawn(|| op.run(n, &x, &x, &x, &mut b, Some(&mut args)));
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Args<'a> {
    handle: Handle,
    shapes: Shapes,
    borrowed: PhantomData<&'a mut [f32]>,
}

impl<'a> Args<'a> {
    /// Args with nothing set.
    pub fn new() -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: raw is ours to write.
        check(unsafe { sys::attn_args_create(&mut raw) })?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::new(sys::ATTN_EINTERNAL, None))?;
        Ok(Args { handle: Handle(raw), shapes: Shapes::default(), borrowed: PhantomData })
    }

    /// The same args with nothing set, free to borrow anew.
    pub fn cleared<'b>(self) -> Args<'b> {
        // SAFETY: valid and ours alone; it fails for NULL only.
        unsafe { sys::attn_args_clear(self.handle.0.as_ptr()) };
        Args { handle: self.handle, shapes: Shapes::default(), borrowed: PhantomData }
    }

    fn raw(&mut self) -> *mut sys::attn_args {
        self.handle.0.as_ptr()
    }

    /// Strides of one tensor instead of the packed ones. The step of the last axis is 1;
    /// those of `Out` are positive. `None`: packed again.
    pub fn set_strides(&mut self, slot: Slot, strides: Option<Strides>) -> Result<()> {
        let steps = strides.map(Strides::to_c);
        let pointer = steps.as_ref().map_or(null(), |steps| steps.as_ptr());
        // SAFETY: four numbers, copied, or NULL.
        check(unsafe { sys::attn_args_set_strides(self.raw(), slot as i32, pointer) })?;
        self.shapes.strides[slot as usize] = strides;
        Ok(())
    }

    /// A boolean mask over (B, Hq, Lq, Lk), true = attend. `dims[0..3]` are 1 (the same for
    /// all) or the full extent, `dims[3]` <= Lk hides the keys from there on; to broadcast
    /// along keys give the full extent and a step of 0 ([`mask_dims`](crate::mask_dims)).
    pub fn set_mask_bool<T: Boolean>(
        &mut self,
        mask: &'a [T],
        dims: [usize; 4],
        strides: Option<Strides>,
    ) -> Result<()> {
        let (c_dims, c_steps, offset) =
            mask_shape("the boolean mask", mask.len(), dims, strides)?;
        let data = mask.as_ptr().cast::<u8>().wrapping_add(offset); // T has the size of a byte
        let steps = c_steps.as_ref().map_or(null(), |steps| steps.as_ptr());
        // SAFETY: all that dims and strides reach lies in mask, borrowed for 'a.
        check(unsafe { sys::attn_args_set_mask_bool(self.raw(), data, c_dims.as_ptr(), steps) })
    }

    /// An additive mask, like [`set_mask_bool`](Args::set_mask_bool) but added to the scores
    /// after the softcap; -inf is exactly "not visible". Both masks combine.
    pub fn set_mask_add(
        &mut self,
        mask: &'a [f32],
        dims: [usize; 4],
        strides: Option<Strides>,
    ) -> Result<()> {
        let (c_dims, c_steps, offset) =
            mask_shape("the additive mask", mask.len(), dims, strides)?;
        let data = mask.as_ptr().wrapping_add(offset);
        let steps = c_steps.as_ref().map_or(null(), |steps| steps.as_ptr());
        // SAFETY: as in set_mask_bool.
        check(unsafe { sys::attn_args_set_mask_add(self.raw(), data, c_dims.as_ptr(), steps) })
    }

    /// The keys of each item that exist, `begin[b] <= j < end[b]`, others are not attended
    /// to: lengths of right-padded items, or how far a cache is filled. `None`: 0 and Lk.
    pub fn set_key_range(&mut self, begin: Option<&[i64]>, end: Option<&[i64]>) -> Result<()> {
        let len = begin.or(end).map(<[i64]>::len);
        let batch = len.unwrap_or(0);
        if end.map_or(batch, <[i64]>::len) != batch {
            return Err(Error::Invalid("begin and end have different lengths".into()));
        }
        let pointer = |array: Option<&[i64]>| array.map_or(null(), <[i64]>::as_ptr);
        // SAFETY: both have batch elements or are NULL; copied.
        check(unsafe {
            sys::attn_args_set_key_range(self.raw(), int(batch)?, pointer(begin), pointer(end))
        })?;
        self.shapes.key_range = len;
        Ok(())
    }

    /// Where each item's query 0 stands on the key axis: the number of keys before it.
    pub fn set_positions(&mut self, positions: &[i64]) -> Result<()> {
        let (n, data) = (int(positions.len())?, positions.as_ptr());
        // SAFETY: n elements, copied.
        check(unsafe { sys::attn_args_set_positions(self.raw(), n, data) })?;
        self.shapes.positions = Some(positions.len());
        Ok(())
    }

    /// ALiBi slopes, one a query head: adds `-slopes[h] * |i + off - j|` to the scores.
    /// [`alibi_slopes`](crate::alibi_slopes) has the usual ones.
    pub fn set_alibi(&mut self, slopes: &[f32]) -> Result<()> {
        let (n, data) = (int(slopes.len())?, slopes.as_ptr());
        // SAFETY: n elements, copied.
        check(unsafe { sys::attn_args_set_alibi(self.raw(), n, data) })?;
        self.shapes.alibi = Some(slopes.len());
        Ok(())
    }

    /// Attention sinks: one more logit a query head, in the denominator only.
    pub fn set_sinks(&mut self, sinks: &[f32]) -> Result<()> {
        let (n, data) = (int(sinks.len())?, sinks.as_ptr());
        // SAFETY: n elements, copied.
        check(unsafe { sys::attn_args_set_sinks(self.raw(), n, data) })?;
        self.shapes.sinks = Some(sinks.len());
        Ok(())
    }

    /// Segment ids, (B, Lq) and (B, Lk), of packed sequences one a token: key j is visible
    /// to query i only if their ids are equal.
    pub fn set_segments(&mut self, queries: &'a [i32], keys: &'a [i32]) -> Result<()> {
        let (q, k) = (queries.as_ptr(), keys.as_ptr());
        // SAFETY: borrowed for 'a; check() compares their lengths before each run.
        check(unsafe { sys::attn_args_set_segments(self.raw(), q, k) })?;
        self.shapes.segments = Some((queries.len(), keys.len()));
        Ok(())
    }

    /// Packed queries: sequence b has the tokens `offsets[b] .. offsets[b + 1]` of q and out,
    /// (token, head, D) whatever the layout; one offset more than sequences, never
    /// decreasing. Then the lengths of a run are the number of sequences and of tokens.
    pub fn set_offsets_q(&mut self, offsets: &[i64]) -> Result<()> {
        let (n, data) = (sequences(offsets)?, offsets.as_ptr());
        // SAFETY: n + 1 elements of 64 bits, copied.
        check(unsafe {
            sys::attn_args_set_offsets_q(self.raw(), data.cast(), sys::ATTN_I64, n)
        })?;
        self.shapes.packed_q = true;
        Ok(())
    }

    /// Packed keys and values, like [`set_offsets_q`](Args::set_offsets_q).
    pub fn set_offsets_k(&mut self, offsets: &[i64]) -> Result<()> {
        let (n, data) = (sequences(offsets)?, offsets.as_ptr());
        // SAFETY: n + 1 elements of 64 bits, copied.
        check(unsafe {
            sys::attn_args_set_offsets_k(self.raw(), data.cast(), sys::ATTN_I64, n)
        })?;
        self.shapes.packed_k = true;
        Ok(())
    }

    /// Ask for the weights A of each head, (B, Hq, Lq, Lk).
    pub fn set_weights(&mut self, weights: &'a mut [f32]) -> Result<()> {
        self.set_scores(Stage::Weights, Heads::Each, weights)
    }

    /// Ask for the scores at a stage: (B, Hq, Lq, Lk), or (B, Lq, Lk) for the mean of the
    /// heads. Each stage has a buffer of its own.
    pub fn set_scores(&mut self, stage: Stage, heads: Heads, out: &'a mut [f32]) -> Result<()> {
        let (len, data) = (out.len(), out.as_mut_ptr());
        let (stage, flags) = (stage as i32, heads as i32);
        // SAFETY: borrowed for 'a; check() compares its length before each run.
        check(unsafe { sys::attn_args_set_scores_out(self.raw(), stage, data, flags) })?;
        self.shapes.scores[stage as usize] = Some(Scores { len, heads });
        Ok(())
    }

    /// Ask for the log-sum-exp of each row, (B, Hq, Lq), of packed queries (Hq, Lq); -inf
    /// for a row that sees no key.
    pub fn set_lse(&mut self, lse: &'a mut [f32]) -> Result<()> {
        // SAFETY: borrowed for 'a; check() compares its length before each run.
        check(unsafe { sys::attn_args_set_lse(self.raw(), lse.as_mut_ptr()) })?;
        self.shapes.lse = Some(lse.len());
        Ok(())
    }

    /// Memory for runs, so that they allocate nothing; as many bytes as `workspace_bytes`
    /// of the op or layer says.
    pub fn set_workspace(&mut self, memory: &'a mut [u8]) -> Result<()> {
        let (len, data) = (memory.len(), memory.as_mut_ptr());
        // SAFETY: borrowed for 'a; C knows its length.
        check(unsafe { sys::attn_args_set_workspace(self.raw(), data.cast(), len) })?;
        self.shapes.workspace = true;
        Ok(())
    }

    pub(crate) fn c_pointer(args: Option<&Args<'_>>) -> *const sys::attn_args {
        args.map_or(null(), |args| args.handle.0.as_ptr())
    }

    pub(crate) fn strides(&self, slot: Slot) -> Option<Strides> {
        self.shapes.strides[slot as usize]
    }

    pub(crate) fn has_strides(&self) -> bool {
        self.shapes.strides.iter().any(Option::is_some)
    }

    /// Queries packed and keys not, or the other way about.
    pub(crate) fn packs_one_side(&self) -> bool {
        self.shapes.packed_q != self.shapes.packed_k
    }

    pub(crate) fn has_workspace(&self) -> bool {
        self.shapes.workspace
    }

    /// The first extent of a tensor: packed sequences have no batch axis.
    pub(crate) fn items(&self, slot: Slot, n: Lengths) -> usize {
        let packed = match slot {
            Slot::Q | Slot::Out => self.shapes.packed_q,
            Slot::K | Slot::V => self.shapes.packed_k,
        };
        if packed {
            1
        } else {
            n.batch
        }
    }

    /// That no copied array is empty where it must not be: to C that is "not set". It compares
    /// all other lengths itself.
    fn check_copied(&self, n: Lengths, heads: usize) -> Result<()> {
        for (name, len, needed) in [
            ("the key range", self.shapes.key_range, n.batch),
            ("the array of positions", self.shapes.positions, n.batch),
            ("the array of ALiBi slopes", self.shapes.alibi, heads),
            ("the array of sinks", self.shapes.sinks, heads),
        ] {
            if len == Some(0) {
                check_packed(name, 0, &[needed])?;
            }
        }
        Ok(())
    }

    /// That the arrays are as long as a run of these lengths takes them to be.
    pub(crate) fn check(&self, n: Lengths, heads: usize) -> Result<()> {
        let (b_q, b_k) = (self.items(Slot::Q, n), self.items(Slot::K, n));
        self.check_copied(n, heads)?;
        if let Some((q, k)) = self.shapes.segments {
            check_packed("the segment ids of queries", q, &[b_q, n.queries])?;
            check_packed("the segment ids of keys", k, &[b_k, n.keys])?;
        }
        if let Some(len) = self.shapes.lse {
            check_packed("the log-sum-exp", len, &[b_q, heads, n.queries])?;
        }
        for scores in self.shapes.scores.into_iter().flatten() {
            let heads = if scores.heads == Heads::Mean { 1 } else { heads };
            check_packed("a score output", scores.len, &[n.batch, heads, n.queries, n.keys])?;
        }
        Ok(())
    }
}

fn sequences(offsets: &[i64]) -> Result<i64> {
    let none = || Error::Invalid("offsets have one element more than there are sequences".into());
    int(offsets.len().checked_sub(1).ok_or_else(none)?)
}

/// Extents and strides of a mask for C, and its first element: all checked to lie within.
fn mask_shape(
    name: &str,
    len: usize,
    dims: [usize; 4],
    strides: Option<Strides>,
) -> Result<([i64; 4], Option<[i64; 4]>, usize)> {
    let c_dims = dims.map(|dim| i64::try_from(dim).unwrap_or(-1));
    if c_dims.contains(&-1) {
        return Err(too_large());
    }
    match strides {
        None => check_packed(name, len, &dims).map(|()| (c_dims, None, 0)),
        Some(at) => {
            check_strided(name, len, dims, at)?;
            Ok((c_dims, Some(at.to_c()), at.offset.min(len)))
        }
    }
}
