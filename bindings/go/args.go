// SPDX-License-Identifier: MIT

package attn

// #include "run.h"
import "C"

import "unsafe"

// Mask over (B, Hq, Lq, Lk). Dims[0..2] are 1 (the same for all) or the full extent;
// Dims[3] <= Lk hides the keys from there on. To broadcast along keys give the full
// extent and a step of 0 (MaskDims). Strides nil: packed in Dims.
type Mask[T bool | float32] struct {
	Data    []T
	Dims    [4]int
	Strides *Strides
}

// Stage is which scores to hand out; see Scores.
type Stage int32

const (
	StageRaw     Stage = C.ATTN_STAGE_RAW     // scale * (q . k)
	StageCapped  Stage = C.ATTN_STAGE_CAPPED  // after the softcap
	StageMasked  Stage = C.ATTN_STAGE_MASKED  // after every additive and boolean rule; invisible is -Inf
	StageWeights Stage = C.ATTN_STAGE_WEIGHTS // after the softmax
)

// Scores asks for the scores at a stage, at most one for each stage.
type Scores struct {
	Stage Stage
	Mean  bool      // the mean over the query heads
	Out   []float32 // (B, Hq, Lq, Lk), or (B, Lq, Lk) for the mean
}

// Args are the optional tensors of a run; the zero value has none. nil slices are not
// set; an empty one is, and fits where no element is needed. C keeps nothing of it, so it
// may be changed, shared and used again at will.
type Args struct {
	// Other strides than the packed ones; the last step is 1, those of out are positive.
	StridesQ, StridesK, StridesV, StridesOut *Strides

	MaskBool *Mask[bool]    // true = attend
	MaskAdd  *Mask[float32] // added after the softcap; -Inf is exactly "not visible"

	// The keys of each item that exist: KeyBegin[b] <= j < KeyEnd[b]; nil: 0 and Lk.
	KeyBegin, KeyEnd []int64
	// Where each item's query 0 stands on the key axis: the number of keys before it.
	Positions []int64

	Alibi []float32 // a slope a query head: adds -slope * |i + off - j|; see AlibiSlopes
	Sinks []float32 // one more logit a query head, in the denominator only

	// Segment ids, (B, Lq) and (B, Lk): queries see keys of their own segment. Both or
	// neither are nil.
	SegmentsQ, SegmentsK []int32

	// Packed sequences: b has the tokens Offsets[b] .. Offsets[b+1]-1 of a buffer
	// (token, head, D); one more than sequences, never decreasing. Lengths then count
	// sequences and all tokens.
	OffsetsQ, OffsetsK []int64

	Weights []float32 // receives A of each head, (B, Hq, Lq, Lk)
	Scores  []Scores  // more stages
	LSE     []float32 // receives the log-sum-exp of each row, (B, Hq, Lq)

	Workspace []byte // memory for the run, as many bytes as WorkspaceBytes says
}

func (a *Args) packed() (q, k bool) {
	if a == nil {
		return false, false
	}
	return a.OffsetsQ != nil, a.OffsetsK != nil
}

func (a *Args) stridesOf(slot int) *Strides {
	if a == nil {
		return nil
	}
	return [4]*Strides{a.StridesQ, a.StridesK, a.StridesV, a.StridesOut}[slot]
}

// items is the first extent of a tensor: packed sequences have no axis B.
func items(n Lengths, packed bool) int {
	if packed {
		return 1
	}
	return n.Batch
}

// toC checks the optional tensors and gathers their addresses for one call of C.
func (a *Args) toC(n Lengths, heads int) (r C.attn_go_run_args, err error) {
	if n.Batch < 0 || n.Queries < 0 || n.Keys < 0 {
		return r, invalid("a length is negative: %+v", n)
	}
	r.b, r.lq, r.lk = C.int64_t(n.Batch), C.int64_t(n.Queries), C.int64_t(n.Keys)
	if a == nil {
		return r, nil
	}
	r.optional = 1
	for slot := range r.strides {
		if at := a.stridesOf(slot); at != nil {
			r.has_strides[slot], r.strides[slot] = 1, four(at.Steps)
		}
	}
	if err = a.addMasks(&r); err != nil {
		return r, err
	}
	if err = a.checkSmall(n, heads); err != nil {
		return r, err
	}
	if err = a.addSmall(&r); err != nil {
		return r, err
	}
	if err = a.addSegments(&r, n); err != nil {
		return r, err
	}
	err = a.addOutputs(&r, n, heads)
	return r, err
}

// locate is the first element of a mask, all of which lies in its slice, and its steps.
func (m *Mask[T]) locate(name string) (first *T, steps [4]C.int64_t, err error) {
	at := m.Strides
	if _, err = count(m.Dims[:]...); err != nil {
		return nil, steps, err
	}
	if at == nil {
		at = &Strides{Steps: packedSteps(m.Dims)}
	}
	if err = checkStrided(name, len(m.Data), m.Dims, *at); err != nil {
		return nil, steps, err
	}
	first = new(T) // an empty mask is a mask
	if at.Offset < len(m.Data) {
		first = &m.Data[at.Offset]
	}
	return first, four(at.Steps), nil
}

func (a *Args) addMasks(r *C.attn_go_run_args) error {
	if a.MaskBool != nil {
		first, steps, err := a.MaskBool.locate("MaskBool")
		if err != nil {
			return err
		}
		r.mask_bool = (*C.uint8_t)(unsafe.Pointer(first)) // a bool is a byte, 0 or 1
		r.bool_dims, r.bool_steps = four(a.MaskBool.Dims), steps
	}
	if a.MaskAdd != nil {
		first, steps, err := a.MaskAdd.locate("MaskAdd")
		if err != nil {
			return err
		}
		r.mask_add = (*C.float)(unsafe.Pointer(first))
		r.add_dims, r.add_steps = four(a.MaskAdd.Dims), steps
	}
	return nil
}

// checkSmall is an error when an array that is set is empty and must not be: to C that
// is "not set". It compares all other lengths itself.
func (a *Args) checkSmall(n Lengths, heads int) error {
	for _, s := range [...]struct {
		name   string
		empty  bool
		needed int
	}{
		{"KeyBegin", a.KeyBegin != nil && len(a.KeyBegin) == 0, n.Batch},
		{"KeyEnd", a.KeyEnd != nil && len(a.KeyEnd) == 0, n.Batch},
		{"Positions", a.Positions != nil && len(a.Positions) == 0, n.Batch},
		{"Alibi", a.Alibi != nil && len(a.Alibi) == 0, heads},
		{"Sinks", a.Sinks != nil && len(a.Sinks) == 0, heads},
	} {
		if s.empty && s.needed > 0 {
			return invalid("%s has 0 elements and needs %d", s.name, s.needed)
		}
	}
	return nil
}

// addSmall gathers the arrays that C copies.
func (a *Args) addSmall(r *C.attn_go_run_args) error {
	if a.KeyBegin != nil && a.KeyEnd != nil && len(a.KeyBegin) != len(a.KeyEnd) {
		return invalid("KeyBegin has %d elements and KeyEnd %d", len(a.KeyBegin), len(a.KeyEnd))
	}
	r.key_begin, r.key_end, r.n_range = int64s(a.KeyBegin), int64s(a.KeyEnd), C.int64_t(len(a.KeyEnd))
	if a.KeyEnd == nil {
		r.n_range = C.int64_t(len(a.KeyBegin))
	}
	r.positions, r.n_positions = int64s(a.Positions), C.int64_t(len(a.Positions))
	r.alibi, r.n_alibi = floats(a.Alibi, 0), C.int64_t(len(a.Alibi))
	r.sinks, r.n_sinks = floats(a.Sinks, 0), C.int64_t(len(a.Sinks))
	if err := sequences(a.OffsetsQ, &r.offsets_q, &r.n_sequences_q); err != nil {
		return err
	}
	return sequences(a.OffsetsK, &r.offsets_k, &r.n_sequences_k)
}

func sequences(offsets []int64, to **C.int64_t, n *C.int64_t) error {
	if offsets == nil {
		return nil
	}
	if len(offsets) == 0 {
		return invalid("offsets have one element more than there are sequences")
	}
	*to, *n = int64s(offsets), C.int64_t(len(offsets)-1)
	return nil
}

func (a *Args) addSegments(r *C.attn_go_run_args, n Lengths) error {
	if a.SegmentsQ == nil && a.SegmentsK == nil {
		return nil
	}
	packedQ, packedK := a.packed()
	if err := checkPacked("SegmentsQ", len(a.SegmentsQ), items(n, packedQ), n.Queries); err != nil {
		return err
	}
	if err := checkPacked("SegmentsK", len(a.SegmentsK), items(n, packedK), n.Keys); err != nil {
		return err
	}
	r.segments_q, r.segments_k = ids(a.SegmentsQ), ids(a.SegmentsK)
	return nil
}

// ids is never nil: that would be "no segments".
func ids(s []int32) *C.int32_t {
	if len(s) == 0 {
		return new(C.int32_t)
	}
	return (*C.int32_t)(unsafe.Pointer(&s[0]))
}

// bytes is never nil: that would be "no workspace", and a run would allocate one.
func bytes(s []byte) *C.uint8_t {
	if len(s) == 0 {
		return new(C.uint8_t)
	}
	return (*C.uint8_t)(unsafe.Pointer(&s[0]))
}

func (a *Args) addOutputs(r *C.attn_go_run_args, n Lengths, heads int) error {
	all := a.Scores
	if a.Weights != nil {
		all = append(all[:len(all):len(all)], Scores{Stage: StageWeights, Out: a.Weights})
	}
	for _, s := range all {
		if s.Stage < StageRaw || s.Stage > StageWeights || r.scores[s.Stage] != nil {
			return invalid("scores of stage %d are unknown or asked for twice", s.Stage)
		}
		rows := heads
		if s.Mean {
			rows, r.score_flags[s.Stage] = 1, C.ATTN_MEAN_HEADS
		}
		if err := checkPacked("a score output", len(s.Out), n.Batch, rows, n.Queries, n.Keys); err != nil {
			return err
		}
		r.scores[s.Stage] = floats(s.Out, 0)
	}
	packedQ, _ := a.packed()
	if a.LSE != nil {
		if err := checkPacked("LSE", len(a.LSE), items(n, packedQ), heads, n.Queries); err != nil {
			return err
		}
		r.lse = floats(a.LSE, 0)
	}
	if a.Workspace != nil {
		r.workspace, r.workspace_bytes = bytes(a.Workspace), C.size_t(len(a.Workspace))
	}
	return nil
}
