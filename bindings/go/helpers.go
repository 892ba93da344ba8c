// SPDX-License-Identifier: MIT

package attn

// #include <attn.h>
import "C"

// Merge folds one partial result into another: results of the same queries over two
// disjoint sets of keys become the result over their union,
//
//	lse = log(exp(lseAcc) + exp(lsePart))
//	o   = exp(lseAcc - lse) * oAcc + exp(lsePart - lse) * oPart
//
// Rows are those of lseAcc; o is (rows, valueDim). For runs without sinks. The four
// slices must not overlap.
func Merge(valueDim int, oAcc, lseAcc, oPart, lsePart []float32) error {
	rows := len(lseAcc)
	if err := checkPacked("oAcc", len(oAcc), rows, valueDim); err != nil {
		return err
	}
	if err := checkPacked("oPart", len(oPart), rows, valueDim); err != nil {
		return err
	}
	if err := checkPacked("lsePart", len(lsePart), rows); err != nil {
		return err
	}
	return check(C.attn_merge(C.int64_t(rows), C.int64_t(valueDim), floats(oAcc, 0),
		floats(lseAcc, 0), floats(oPart, 0), floats(lsePart, 0)))
}

// MergeSinks applies sinks once, after all parts have been merged: scales each row of o
// (B, Hq, Lq, valueDim) by 1 / (1 + exp(sinks[h] - lse)). Hq is the length of sinks, lse
// is (B, Hq, Lq) with Lq = queries.
func MergeSinks(queries, valueDim int, o, lse, sinks []float32) error {
	rows, err := count(len(sinks), queries)
	if err != nil {
		return err
	}
	if rows == 0 || len(lse)%rows != 0 {
		return invalid("lse is not (B, Hq, Lq)")
	}
	if err := checkPacked("o", len(o), len(lse), valueDim); err != nil {
		return err
	}
	return check(C.attn_merge_sinks(C.int64_t(len(lse)/rows), C.int64_t(len(sinks)),
		C.int64_t(queries), C.int64_t(valueDim), floats(o, 0), floats(lse, 0), floats(sinks, 0)))
}

// AlibiSlopes returns the usual ALiBi slopes of so many heads.
func AlibiSlopes(heads int) ([]float32, error) {
	if heads < 1 || heads > 1<<31-1 {
		return nil, invalid("%d heads", heads)
	}
	slopes := make([]float32, heads)
	return slopes, check(C.attn_alibi_slopes(C.int64_t(heads), floats(slopes, 0)))
}

// MaskDims returns extents and strides of a packed mask from its shape, as NumPy
// broadcasts it: axes are aligned on the right, missing ones count as 1, a last extent of
// 1 goes for all keys.
func MaskDims(shape []int, keys int) (dims [4]int, at *Strides, err error) {
	var cShape, cDims, cSteps [4]C.int64_t
	if len(shape) > 4 {
		return dims, nil, invalid("a mask has at most four axes, not %d", len(shape))
	}
	for n, extent := range shape {
		cShape[n] = C.int64_t(extent)
	}
	err = check(C.attn_mask_dims(C.int64_t(len(shape)), &cShape[0], C.int64_t(keys), &cDims[0], &cSteps[0]))
	if err != nil {
		return dims, nil, err
	}
	at = new(Strides)
	for n := range dims {
		dims[n], at.Steps[n] = int(cDims[n]), int(cSteps[n])
	}
	return dims, at, nil
}

// Version is the version of the library, "MAJOR.MINOR.PATCH".
func Version() string { return C.GoString(C.attn_version()) }

// BLASInfo is which BLAS is in use, for people: name, version, core, threads. ErrBLAS
// when it is unusable; the reason says why.
func BLASInfo() (string, error) {
	status, text := textOf(func(text *C.char, size C.size_t, needed *C.size_t) C.attn_status {
		return C.attn_blas_info(text, size, needed)
	})
	if status != C.ATTN_OK {
		return "", &Error{Status(status), text}
	}
	return text, nil
}
