// SPDX-License-Identifier: MIT

package attn

// #include "run.h"
import "C"

import (
	"runtime"
	"sync"
)

// Projection is one of the four projections of a layer.
type Projection int32

const (
	ProjectQ Projection = C.ATTN_W_Q // E_in = E_q, N = Hq * Dk
	ProjectK Projection = C.ATTN_W_K // E_in = E_kv, N = Hk * Dk
	ProjectV Projection = C.ATTN_W_V // E_in = E_kv, N = Hk * Dv
	ProjectO Projection = C.ATTN_W_O // E_in = Hq * Dv, N = E_out
)

// Order is how a weight matrix from E_in to N lies in its slice.
type Order int32

const (
	InOut Order = C.ATTN_IN_OUT // (E_in, N): y = x W, as in the books
	OutIn Order = C.ATTN_OUT_IN // (N, E_in): y = x W^T, what PyTorch's Linear stores
)

// Matrix is a weight matrix.
type Matrix struct {
	Data      []float32
	Order     Order
	RowStride int // elements from one row to the next; 0: packed
}

// Layer is multi-head attention with its projections:
//
//	Q = X_q W_Q + b_Q     K = X_kv W_K + b_K     V = X_kv W_V + b_V
//	Y = attention(Q, K, V) W_O + b_O
//
// Head h owns the columns h*D .. h*D + D-1 of a projection. Inputs and output are
// (B, L, E), packed, whatever the layout of the op.
type Layer struct {
	mu            sync.RWMutex // as in Op
	raw           *C.attn_layer
	op            *Op // a copy, to explain errors with
	eQ, eKV, eOut int
}

// NewLayer makes a layer with the settings of an op, which are copied. eQ and eKV are the
// widths of the inputs, eOut that of the output: Hq * Dv when no W_O will be set.
func NewLayer(op *Op, eQ, eKV, eOut int) (*Layer, error) {
	own, err := op.Copy()
	if err != nil {
		return nil, err
	}
	l := &Layer{op: own, eQ: eQ, eKV: eKV, eOut: eOut}
	err = check(C.attn_layer_create(&l.raw, own.raw, C.int64_t(eQ), C.int64_t(eKV), C.int64_t(eOut)))
	if err != nil {
		own.Close()
		return nil, err
	}
	runtime.SetFinalizer(l, (*Layer).Close)
	return l, nil
}

// Close frees the layer, after the runs that use it; closing again does nothing. It never
// fails: the error is there for io.Closer.
func (l *Layer) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	C.attn_layer_destroy(l.raw)
	l.raw = nil
	runtime.SetFinalizer(l, nil)
	return l.op.Close()
}

// shape is E_in, heads and size of a head of a projection. No product overflows: a layer
// whose Hq * Dv exceeds 2³¹ - 1 cannot be made.
func (l *Layer) shape(which Projection) (eIn, heads, size int, err error) {
	switch which {
	case ProjectQ:
		return l.eQ, l.op.heads, l.op.headDim, nil
	case ProjectK:
		return l.eKV, l.op.kvHeads, l.op.headDim, nil
	case ProjectV:
		return l.eKV, l.op.kvHeads, l.op.valueDim, nil
	case ProjectO:
		return l.op.heads * l.op.valueDim, 1, l.eOut, nil
	}
	return 0, 0, 0, invalid("%d is no projection", which)
}

// SetWeights sets a weight matrix and its bias of N numbers (nil: none), which are
// copied. W_Q, W_K and W_V are needed before a run; without W_O the joined heads
// (Hq * Dv) are the output.
func (l *Layer) SetWeights(which Projection, w Matrix, bias []float32) error {
	eIn, heads, size, err := l.shape(which)
	if err != nil {
		return err
	}
	rows, columns := eIn, heads*size
	if w.Order == OutIn {
		rows, columns = columns, rows
	}
	stride := w.RowStride
	if stride == 0 {
		stride = columns
	}
	if stride < columns {
		return invalid("the row stride %d is less than a row of %d", stride, columns)
	}
	at := Strides{Steps: [4]int{0, 0, stride, 1}}
	if err := checkStrided("w", len(w.Data), [4]int{1, 1, rows, columns}, at); err != nil {
		return err
	}
	if bias != nil {
		if err := checkPacked("the bias", len(bias), heads, size); err != nil {
			return err
		}
	}
	return l.set(which, w.Order, floats(w.Data, 0), stride, floats(bias, 0))
}

// RemoveWeights removes a weight matrix: W_O for instance, to see the joined heads.
func (l *Layer) RemoveWeights(which Projection) error {
	return l.set(which, InOut, nil, 0, nil)
}

func (l *Layer) set(which Projection, order Order, w *C.float, stride int, bias *C.float) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.raw == nil {
		return ErrClosed
	}
	return check(C.attn_layer_set_weights(l.raw, C.int32_t(which), C.int32_t(order), w,
		C.int64_t(stride), bias))
}

// Project is one projection, y = x W + b, x (batch, length, E_in), written where at says
// in the order (B, H, L, D): straight into a key/value cache. nil: packed, (B, L, H * D).
func (l *Layer) Project(which Projection, batch, length int, x, y []float32, at *Strides) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.raw == nil {
		return ErrClosed
	}
	eIn, heads, size, err := l.shape(which)
	if err != nil {
		return err
	}
	if err := checkPacked("x", len(x), batch, length, eIn); err != nil {
		return err
	}
	b, n := C.int64_t(batch), C.int64_t(length)
	if at == nil {
		if err := checkPacked("y", len(y), batch, length, heads, size); err != nil {
			return err
		}
		return check(C.attn_layer_project(l.raw, C.int32_t(which), b, n, floats(x, 0), floats(y, 0), nil))
	}
	if err := checkStrided("y", len(y), [4]int{batch, heads, length, size}, *at); err != nil {
		return err
	}
	steps := four(at.Steps)
	return check(C.attn_layer_project(l.raw, C.int32_t(which), b, n, floats(x, 0),
		floats(y, at.Offset), &steps[0]))
}

// Run runs the layer: project, attend, project. xQ (B, Lq, E_q), out (B, Lq, E_out), xKV
// (B, Lk, E_kv), or nil for self-attention; packed sequences are (token, E). args may be
// nil and has no strides.
//
// Errors as of Op.Run, and ErrState: W_Q, W_K or W_V is not set.
func (l *Layer) Run(n Lengths, xQ, xKV, out []float32, args *Args) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.raw == nil {
		return ErrClosed
	}
	r, err := args.toC(n, l.op.heads)
	if err != nil {
		return err
	}
	if err := l.check(n, xQ, xKV, out, args); err != nil {
		return err
	}
	r.q, r.k, r.out = floats(xQ, 0), floats(xKV, 0), floats(out, 0)
	if xKV != nil && r.k == nil {
		r.k = new(C.float) // no keys, which is not self-attention
	}
	status := C.attn_go_layer_run(l.raw, r)
	if status == C.ATTN_OK {
		return nil
	}
	return l.why(status, r)
}

// why is the error of a run with a reason: that of the options, or what is left.
func (l *Layer) why(status C.attn_status, r C.attn_go_run_args) error {
	explained, reason := textOf(func(text *C.char, size C.size_t, needed *C.size_t) C.attn_status {
		return C.attn_go_explain_options(l.op.raw, r, text, size, needed)
	})
	switch {
	case explained == status:
	case status == C.ATTN_ESTATE:
		reason = "W_Q, W_K or W_V is not set"
	case status == C.ATTN_EINVAL && r.workspace != nil:
		reason = "the workspace has fewer bytes than WorkspaceBytes says, or outputs overlap"
	case status == C.ATTN_EINVAL:
		reason = "without W_O the output has the width Hq * Dv, or outputs overlap"
	default:
		return check(status)
	}
	return &Error{Status(status), reason}
}

func (l *Layer) check(n Lengths, xQ, xKV, out []float32, args *Args) error {
	for slot := 0; slot < 4; slot++ {
		if args.stridesOf(slot) != nil {
			return invalid("a layer takes no strides")
		}
	}
	packedQ, packedK := args.packed()
	if err := checkPacked("xQ", len(xQ), items(n, packedQ), n.Queries, l.eQ); err != nil {
		return err
	}
	if err := checkPacked("out", len(out), items(n, packedQ), n.Queries, l.eOut); err != nil {
		return err
	}
	if xKV != nil {
		return checkPacked("xKV", len(xKV), items(n, packedK), n.Keys, l.eKV)
	}
	if l.eQ != l.eKV || n.Queries != n.Keys || packedQ != packedK {
		return invalid("self-attention (no xKV) needs the same width and length on both sides, packed or not")
	}
	return nil
}

// WorkspaceBytes is how large a workspace a run of the layer needs. Ask after the weights
// are set: with W_O it needs more.
func (l *Layer) WorkspaceBytes(n Lengths, args *Args) (int, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.raw == nil {
		return 0, ErrClosed
	}
	r, err := args.toC(n, l.op.heads)
	if err != nil {
		return 0, err
	}
	var bytes C.size_t
	err = check(C.attn_go_workspace_bytes(nil, l.raw, r, &bytes))
	return int(bytes), err
}
