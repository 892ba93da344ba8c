// SPDX-License-Identifier: MIT
//! Sizes and strides, and the check that what they reach lies within a slice: C gets
//! pointers without a length, so this is where safety is decided.

use crate::error::{Error, Result};

/// How many items, queries and keys a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// B: batch items; with packed sequences their number.
    pub batch: usize,
    /// Lq: queries of one item; of packed queries all tokens.
    pub queries: usize,
    /// Lk: keys of one item; of packed keys all tokens.
    pub keys: usize,
}

impl Lengths {
    /// B, Lq and Lk.
    pub const fn new(batch: usize, queries: usize, keys: usize) -> Self {
        Lengths { batch, queries, keys }
    }
}

/// Where the elements of a tensor lie in its slice: element (b, h, i, d) at
/// `offset + b * steps[0] + h * steps[1] + i * steps[2] + d * steps[3]`, in elements.
///
/// The order of the axes is always (B, H, L, D), of a mask (B, Hq, Lq, Lk). A step may be
/// 0 (broadcast) or negative where the C library allows it; what leaves the slice is an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Index of the element (0, 0, 0, 0).
    pub offset: usize,
    /// Elements from one index of each axis to the next.
    pub steps: [isize; 4],
}

impl Strides {
    /// Strides from the beginning of the slice.
    pub const fn new(steps: [isize; 4]) -> Self {
        Strides { offset: 0, steps }
    }

    /// The same, from another beginning.
    pub const fn at(offset: usize, steps: [isize; 4]) -> Self {
        Strides { offset, steps }
    }

    pub(crate) fn to_c(self) -> [i64; 4] {
        self.steps.map(|step| step as i64) // isize has at most 64 bits
    }
}

/// A size as C takes it.
pub(crate) fn int(size: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| too_large())
}

pub(crate) fn too_large() -> Error {
    Error::Overflow("a size is too large".into())
}

/// The product of extents.
pub(crate) fn count(extents: &[usize]) -> Result<usize> {
    if extents.contains(&0) {
        return Ok(0);
    }
    extents.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).ok_or_else(too_large)
}

/// That a slice of `len` elements holds a packed array.
pub(crate) fn check_packed(name: &str, len: usize, extents: &[usize]) -> Result<()> {
    let needed = count(extents)?;
    if len < needed {
        let why = format!("{name} has {len} elements and needs {needed} for {extents:?}");
        return Err(Error::Invalid(why.into()));
    }
    Ok(())
}

/// That every element which strides reach lies in a slice of `len` elements.
pub(crate) fn check_strided(name: &str, len: usize, dims: [usize; 4], at: Strides) -> Result<()> {
    if dims.contains(&0) {
        return Ok(());
    }
    let (mut low, mut high) = (at.offset as i128, at.offset as i128);
    for (dim, step) in dims.into_iter().zip(at.steps) {
        let reach = (dim as i128 - 1).checked_mul(step as i128).ok_or_else(too_large)?;
        let end = if reach < 0 { &mut low } else { &mut high };
        *end = end.checked_add(reach).ok_or_else(too_large)?;
    }
    if low < 0 || high >= len as i128 {
        let why = format!("{name} has {len} elements and its strides reach from {low} to {high}");
        return Err(Error::Invalid(why.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_counted_without_overflow() {
        assert_eq!(count(&[2, 3, 4]), Ok(24));
        assert_eq!(count(&[usize::MAX, 2, 0]), Ok(0));
        assert!(matches!(count(&[usize::MAX, 2]), Err(Error::Overflow(_))));
        assert!(check_packed("x", 24, &[2, 3, 4]).is_ok());
        assert!(matches!(check_packed("x", 23, &[2, 3, 4]), Err(Error::Invalid(_))));
    }

    #[test]
    fn strides_stay_within_the_slice() {
        let dims = [2, 1, 3, 4];
        assert!(check_strided("x", 24, dims, Strides::new([12, 99, 4, 1])).is_ok());
        assert!(check_strided("x", 23, dims, Strides::new([12, 99, 4, 1])).is_err());
        assert!(check_strided("x", 24, dims, Strides::at(12, [-12, 0, 4, 1])).is_ok());
        assert!(check_strided("x", 24, dims, Strides::at(11, [-12, 0, 4, 1])).is_err());
        assert!(check_strided("x", 0, [2, 0, 3, 4], Strides::new([1; 4])).is_ok());
        assert!(check_strided("x", 9, [usize::MAX; 4], Strides::new([isize::MAX; 4])).is_err());
        assert!(check_strided("x", 9, [usize::MAX; 4], Strides::new([isize::MIN; 4])).is_err());
    }
}
