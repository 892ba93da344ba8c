// SPDX-License-Identifier: MIT

package attn

// #cgo pkg-config: libattn
// #include "run.h"
import "C"

import (
	"runtime"
	"sync"
)

// Causal is how queries and keys are aligned; see Op.SetCausal.
type Causal int32

const (
	CausalNone        Causal = C.ATTN_CAUSAL_NONE         // every query may see every key
	CausalTopLeft     Causal = C.ATTN_CAUSAL_TOP_LEFT     // j <= i + off with off = 0 (PyTorch's is_causal)
	CausalBottomRight Causal = C.ATTN_CAUSAL_BOTTOM_RIGHT // j <= i + off with off = end - Lq (FlashAttention's)
)

// Layout is the order of the axes of packed q, k, v and out; see Op.SetLayout.
type Layout int32

const (
	LayoutBHLD Layout = C.ATTN_LAYOUT_BHLD // (batch, head, length, size), the default
	LayoutBLHD Layout = C.ATTN_LAYOUT_BLHD // (batch, length, head, size)
)

// Engine is what forms the two products; see Op.SetEngine.
type Engine int32

const (
	EngineBLAS   Engine = C.ATTN_ENGINE_BLAS   // cblas_sgemm, the default
	EngineVector Engine = C.ATTN_ENGINE_VECTOR // tiles of libattn's own, without BLAS
)

// ISA is a mask of instruction sets; see Op.SetISA.
type ISA int32

const (
	ISABase   ISA = C.ATTN_ISA_BASE   // what every CPU of the platform has; always allowed
	ISAAVX2   ISA = C.ATTN_ISA_AVX2   // x86-64: AVX2 and FMA
	ISAAVX512 ISA = C.ATTN_ISA_AVX512 // x86-64: AVX-512 F, BW, DQ and VL
	ISAAll    ISA = C.ATTN_ISA_ALL    // the default
)

// Op is how to attend: the sizes of the heads, and the rules.
type Op struct {
	// Runs hold it for reading, setters and Close for writing: C wants an op alone to
	// change or free it. Holding it also keeps the op from its finalizer.
	mu                                sync.RWMutex
	raw                               *C.attn_op // nil after Close
	heads, kvHeads, headDim, valueDim int
}

// NewOp makes an op with these sizes and the default rules: scale 1/√headDim, nothing
// masked, layout BHLD, all CPUs that the process may use. kvHeads divides heads; query
// head h uses key/value head h / (heads / kvHeads).
//
// ErrInvalid: a size < 1, or kvHeads is no divisor. ErrOverflow: a size above 2³¹ - 1.
// ErrBLAS: the BLAS that the loader found is unusable.
func NewOp(heads, kvHeads, headDim, valueDim int) (*Op, error) {
	o := &Op{heads: heads, kvHeads: kvHeads, headDim: headDim, valueDim: valueDim}
	err := check(C.attn_op_create(&o.raw, C.int64_t(heads), C.int64_t(kvHeads),
		C.int64_t(headDim), C.int64_t(valueDim)))
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(o, (*Op).Close)
	return o, nil
}

// Copy makes a new op with the same sizes and rules; the two are independent.
func (o *Op) Copy() (*Op, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.raw == nil {
		return nil, ErrClosed
	}
	c := &Op{heads: o.heads, kvHeads: o.kvHeads, headDim: o.headDim, valueDim: o.valueDim}
	if err := check(C.attn_op_copy(&c.raw, o.raw)); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(c, (*Op).Close)
	return c, nil
}

// Close frees the op, after the runs that use it; closing again does nothing. It never
// fails: the error is there for io.Closer.
func (o *Op) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	C.attn_op_destroy(o.raw)
	o.raw = nil
	runtime.SetFinalizer(o, nil)
	return nil
}

func (o *Op) set(call func(*C.attn_op) C.attn_status) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.raw == nil {
		return ErrClosed
	}
	return check(call(o.raw))
}

// SetScale sets the factor of the scores, any finite number; 1 for the unscaled dot
// product.
func (o *Op) SetScale(scale float64) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_scale(op, C.double(scale))
	})
}

// SetCausal sets the causal rule: key j is visible to query i iff j <= i + off.
func (o *Op) SetCausal(causal Causal) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_causal(op, C.int32_t(causal))
	})
}

// SetWindow sets a sliding window, i + off - left <= j <= i + off + right; -1 is
// unbounded. A model's "sliding window of W" is left = W - 1 with a causal rule.
func (o *Op) SetWindow(left, right int) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_window(op, C.int64_t(left), C.int64_t(right))
	})
}

// SetChunk lets queries see keys of their own chunk of this size only; 0 switches it off.
func (o *Op) SetChunk(size int) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_chunk(op, C.int64_t(size))
	})
}

// SetSoftcap sets a soft cap, s = limit * tanh(s / limit), before the masks; 0 switches
// it off.
func (o *Op) SetSoftcap(limit float64) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_softcap(op, C.double(limit))
	})
}

// SetLayout sets the layout of packed tensors.
func (o *Op) SetLayout(layout Layout) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_layout(op, C.int32_t(layout))
	})
}

// SetEngine sets which engine forms the two products.
func (o *Op) SetEngine(engine Engine) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_engine(op, C.int32_t(engine))
	})
}

// SetThreads sets how many threads a run may use, the caller's included: 1 to 4096, or 0
// for all CPUs that this process may use. The number changes no bit of a result.
func (o *Op) SetThreads(n int) error {
	if n < 0 || n > 4096 {
		return invalid("%d threads are not within 0 to 4096", n)
	}
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_threads(op, C.int32_t(n))
	})
}

// SetISA restricts the instruction sets of libattn's own kernels (not of BLAS): the best
// of the mask that this CPU has.
func (o *Op) SetISA(mask ISA) error {
	return o.set(func(op *C.attn_op) C.attn_status {
		return C.attn_op_set_isa(op, C.int32_t(mask))
	})
}

// Trim frees the scratch memory that past runs left for the next ones.
func (o *Op) Trim() error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.raw == nil {
		return ErrClosed
	}
	return check(C.attn_op_trim(o.raw))
}

// Run attends: out = softmax(rules(scale * Q K^T)) V.
//
// Packed in layout BHLD: q (B, Hq, Lq, Dk), k (B, Hk, Lk, Dk), v (B, Hk, Lk, Dv), out
// (B, Hq, Lq, Dv); in BLHD the middle axes change places. Slices may be longer. args has
// the optional tensors and may be nil. Rows that see no key become 0; NaN stays in the
// rows that see it.
//
// ErrInvalid: a slice is too short, outputs overlap something, or something in args does
// not fit. ErrOverflow, ErrUnsupported (masks with packed sequences), ErrNoMemory.
func (o *Op) Run(n Lengths, q, k, v, out []float32, args *Args) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	r, err := o.prepare(n, q, k, v, out, args)
	if err != nil {
		return err
	}
	status := C.attn_go_run(o.raw, r)
	if status == C.ATTN_OK {
		return nil
	}
	if explained, why := o.explain(r); explained == status {
		return &Error{Status(status), why}
	}
	return check(status)
}

// Explain says what Run would do with these arguments, without doing it: path, tiles,
// threads, workspace, flops and BLAS, or the error that it would return. The wording is
// for people and may change.
func (o *Op) Explain(n Lengths, q, k, v, out []float32, args *Args) (string, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	r, err := o.prepare(n, q, k, v, out, args)
	if err != nil {
		return "", err
	}
	status, text := o.explain(r)
	if status != C.ATTN_OK {
		return "", &Error{Status(status), text}
	}
	return text, nil
}

// WorkspaceBytes is how large a workspace a run needs; enough for every smaller B, Lq
// and Lk.
func (o *Op) WorkspaceBytes(n Lengths, args *Args) (int, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.raw == nil {
		return 0, ErrClosed
	}
	r, err := args.toC(n, o.heads)
	if err != nil {
		return 0, err
	}
	var bytes C.size_t
	err = check(C.attn_go_workspace_bytes(o.raw, nil, r, &bytes))
	return int(bytes), err
}

func (o *Op) explain(r C.attn_go_run_args) (C.attn_status, string) {
	return textOf(func(text *C.char, size C.size_t, needed *C.size_t) C.attn_status {
		return C.attn_go_explain(o.raw, r, text, size, needed)
	})
}

// prepare checks everything that C cannot: that all it would look at lies in slices.
func (o *Op) prepare(n Lengths, q, k, v, out []float32, args *Args) (r C.attn_go_run_args, err error) {
	if o.raw == nil {
		return r, ErrClosed
	}
	if r, err = args.toC(n, o.heads); err != nil {
		return r, err
	}
	packedQ, packedK := args.packed()
	bq, bk := items(n, packedQ), items(n, packedK)
	if r.q, err = tensor("q", q, args.stridesOf(C.ATTN_Q), bq, o.heads, n.Queries, o.headDim); err != nil {
		return r, err
	}
	if r.k, err = tensor("k", k, args.stridesOf(C.ATTN_K), bk, o.kvHeads, n.Keys, o.headDim); err != nil {
		return r, err
	}
	if r.v, err = tensor("v", v, args.stridesOf(C.ATTN_V), bk, o.kvHeads, n.Keys, o.valueDim); err != nil {
		return r, err
	}
	r.out, err = tensor("out", out, args.stridesOf(C.ATTN_OUT), bq, o.heads, n.Queries, o.valueDim)
	return r, err
}

// tensor is the address of the first element of a tensor, all of which lies in its slice.
func tensor(name string, data []float32, at *Strides, items, heads, length, size int) (*C.float, error) {
	if at == nil {
		return floats(data, 0), checkPacked(name, len(data), items, heads, length, size)
	}
	err := checkStrided(name, len(data), [4]int{items, heads, length, size}, *at)
	if err != nil {
		return nil, err
	}
	return floats(data, at.Offset), nil
}
