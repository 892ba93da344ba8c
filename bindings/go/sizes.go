// SPDX-License-Identifier: MIT

package attn

// #include <attn.h>
import "C"

import (
	"math"
	"unsafe"
)

// Lengths is how many items, queries and keys a run has.
type Lengths struct {
	Batch   int // B: items; with packed sequences their number
	Queries int // Lq: queries of one item; of packed queries all tokens
	Keys    int // Lk: keys of one item; of packed keys all tokens
}

// Strides is where the elements of a tensor lie in its slice: element (b, h, i, d)
// at Offset + b*Steps[0] + h*Steps[1] + i*Steps[2] + d*Steps[3]. The order of the
// axes is always (B, H, L, D), of a mask (B, Hq, Lq, Lk). A step may be 0
// (broadcast) or negative where the library allows it; what leaves the slice is an
// error.
type Strides struct {
	Offset int
	Steps  [4]int
}

// count is the product of extents.
func count(extents ...int) (int, error) {
	n, empty := 1, false
	for _, extent := range extents {
		if extent < 0 {
			return 0, invalid("a size is negative: %v", copied(extents))
		}
		empty = empty || extent == 0
	}
	if empty {
		return 0, nil
	}
	for _, extent := range extents {
		if n > math.MaxInt/extent {
			return 0, &Error{ErrOverflow, "a size is too large"}
		}
		n *= extent
	}
	return n, nil
}

// copied keeps what an error prints from moving every caller's numbers to the heap.
func copied(extents []int) []int { return append([]int(nil), extents...) }

// checkPacked is an error unless a slice of n elements holds a packed array.
func checkPacked(name string, n int, extents ...int) error {
	needed, err := count(extents...)
	if err == nil && n < needed {
		err = invalid("%s has %d elements and needs %d for %v", name, n, needed, copied(extents))
	}
	return err
}

// checkStrided is an error unless all that strides reach lies in a slice of n elements.
func checkStrided(name string, n int, dims [4]int, at Strides) error {
	if at.Offset < 0 { // of an empty tensor, too, whose address is asked for all the same
		return invalid("the offset of %s is negative", name)
	}
	if total, err := count(dims[:]...); err != nil || total == 0 {
		return err
	}
	low, high := at.Offset, at.Offset
	for axis, dim := range dims {
		if dim == 1 {
			continue
		}
		step := at.Steps[axis]
		reach := step * (dim - 1)
		if reach/(dim-1) != step || reach > 0 && high > math.MaxInt-reach || reach < 0 && low < math.MinInt-reach {
			return &Error{ErrOverflow, "the strides of " + name + " are too large"}
		}
		if reach < 0 {
			low += reach
		} else {
			high += reach
		}
	}
	if low < 0 || high >= n {
		return invalid("%s has %d elements and its strides reach from %d to %d", name, n, low, high)
	}
	return nil
}

// packedSteps are the steps of a packed array.
func packedSteps(dims [4]int) [4]int {
	return [4]int{dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}
}

func four(from [4]int) (to [4]C.int64_t) {
	for n, x := range from {
		to[n] = C.int64_t(x)
	}
	return to
}

// floats is the address of an element; nil where there is none to look at.
func floats(s []float32, offset int) *C.float {
	if offset >= len(s) {
		return nil
	}
	return (*C.float)(unsafe.Pointer(&s[offset]))
}

func int64s(s []int64) *C.int64_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int64_t)(unsafe.Pointer(&s[0]))
}
