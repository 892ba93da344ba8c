// SPDX-License-Identifier: MIT
//! What needs no op: merging of partial results, slopes, shapes of masks, versions.

use crate::error::{check, static_text, text_of, Error, Result};
use crate::sizes::{check_packed, count, int, Strides};

/// Fold one partial result into another: results of the same queries over two disjoint sets
/// of keys become the result over their union,
///
/// ```text
/// lse = log(exp(lse_acc) + exp(lse_part))
/// o   = exp(lse_acc - lse) * o_acc + exp(lse_part - lse) * o_part
/// ```
///
/// Rows are those of `lse_acc`; o is (rows, `value_dim`). For runs without sinks.
pub fn merge(
    value_dim: usize,
    o_acc: &mut [f32],
    lse_acc: &mut [f32],
    o_part: &[f32],
    lse_part: &[f32],
) -> Result<()> {
    let rows = lse_acc.len();
    check_packed("o_acc", o_acc.len(), &[rows, value_dim])?;
    check_packed("o_part", o_part.len(), &[rows, value_dim])?;
    check_packed("lse_part", lse_part.len(), &[rows])?;
    let (o, lse) = (o_acc.as_mut_ptr(), lse_acc.as_mut_ptr());
    // SAFETY: rows and rows * value_dim elements each; the outputs are borrowed mutably.
    check(unsafe {
        sys::attn_merge(int(rows)?, int(value_dim)?, o, lse, o_part.as_ptr(), lse_part.as_ptr())
    })
}

/// Apply sinks once, after all parts have been merged: scales each row of `o`
/// (B, Hq, Lq, `value_dim`) by 1 / (1 + exp(sinks\[h\] - lse)). Hq is the length of `sinks`,
/// `lse` is (B, Hq, Lq) with Lq = `queries`.
pub fn merge_sinks(
    queries: usize,
    value_dim: usize,
    o: &mut [f32],
    lse: &[f32],
    sinks: &[f32],
) -> Result<()> {
    let rows_of_item = count(&[sinks.len(), queries])?;
    if rows_of_item == 0 || lse.len() % rows_of_item != 0 {
        return Err(Error::Invalid("lse is not (B, Hq, Lq)".into()));
    }
    check_packed("o", o.len(), &[lse.len(), value_dim])?;
    let (b, hq) = (int(lse.len() / rows_of_item)?, int(sinks.len())?);
    let (lq, dv, o) = (int(queries)?, int(value_dim)?, o.as_mut_ptr());
    // SAFETY: B * Hq * Lq rows of both, Hq sinks; o is borrowed mutably.
    check(unsafe { sys::attn_merge_sinks(b, hq, lq, dv, o, lse.as_ptr(), sinks.as_ptr()) })
}

/// The usual ALiBi slopes of so many heads.
pub fn alibi_slopes(heads: usize) -> Result<Vec<f32>> {
    let mut slopes = Vec::new();
    slopes.try_reserve_exact(heads).map_err(|_| Error::new(sys::ATTN_ENOMEM, None))?;
    slopes.resize(heads, 0.0);
    // SAFETY: heads numbers, ours to write.
    check(unsafe { sys::attn_alibi_slopes(int(heads)?, slopes.as_mut_ptr()) })?;
    Ok(slopes)
}

/// Extents and strides of a packed mask from its shape, as NumPy broadcasts it: axes are
/// aligned on the right, missing ones count as 1, a last extent of 1 goes for all keys.
///
/// ```
/// # fn main() -> attn::Result<()> {
/// let (dims, strides) = attn::mask_dims(&[5, 1], 7)?; // a number a query, for every key
/// assert_eq!((dims, strides.steps), ([1, 1, 5, 7], [0, 0, 1, 0]));
/// # Ok(())
/// # }
/// ```
pub fn mask_dims(shape: &[usize], keys: usize) -> Result<([usize; 4], Strides)> {
    let shape = shape.iter().map(|&extent| int(extent)).collect::<Result<Vec<_>>>()?;
    let (mut dims, mut steps) = ([0; 4], [0; 4]);
    let (rank, data) = (int(shape.len())?, shape.as_ptr());
    // SAFETY: rank extents; four numbers each to write.
    check(unsafe {
        sys::attn_mask_dims(rank, data, int(keys)?, dims.as_mut_ptr(), steps.as_mut_ptr())
    })?;
    Ok((dims.map(|dim: i64| dim as usize), Strides::new(steps.map(|step: i64| step as isize))))
}

/// The version of the library, "MAJOR.MINOR.PATCH".
pub fn version() -> &'static str {
    // SAFETY: no arguments.
    static_text(unsafe { sys::attn_version() })
}

/// Which BLAS is in use, for people: name, version, core, threads.
///
/// # Errors
/// [`Error::Blas`] when the BLAS is unusable; the reason says why.
pub fn blas_info() -> Result<String> {
    // SAFETY: text_of() gives room of cap bytes.
    match text_of(|text, cap, needed| unsafe { sys::attn_blas_info(text, cap, needed) }) {
        (sys::ATTN_OK, text) => Ok(text),
        (status, text) => Err(Error::new(status, Some(text.into()))),
    }
}
