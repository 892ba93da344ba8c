// SPDX-License-Identifier: MIT

package attn_test

import (
	"attn"
	"errors"
	"math"
	"strings"
	"testing"
)

// What is refused, with which error and which words; and that nothing is written then.

func refuse(t *testing.T, err error, status attn.Status, words string) {
	t.Helper()
	var e *attn.Error
	if !errors.Is(err, status) || !errors.As(err, &e) || e.Status != status {
		t.Fatalf("%v, wanted %v: %s", err, status, words)
	}
	if !strings.Contains(err.Error(), words) {
		t.Fatalf("%q does not say %q", err, words)
	}
}

func TestSizesOfAnOp(t *testing.T) {
	_, err := attn.NewOp(0, 1, 1, 1)
	refuse(t, err, attn.ErrInvalid, "invalid")
	_, err = attn.NewOp(3, 2, 1, 1)
	refuse(t, err, attn.ErrInvalid, "invalid")
	_, err = attn.NewOp(1<<31, 1, 1, 1)
	refuse(t, err, attn.ErrOverflow, "too large")
	op := newProblem(1, 2, 1, 1, 1, 4, 4).op(t)
	refuse(t, op.SetScale(math.NaN()), attn.ErrInvalid, "invalid")
	refuse(t, op.SetSoftcap(-1), attn.ErrInvalid, "invalid")
	refuse(t, op.SetThreads(4097), attn.ErrInvalid, "4097")
	refuse(t, op.SetThreads(1<<32), attn.ErrInvalid, "4294967296")
	refuse(t, op.SetWindow(-2, 0), attn.ErrInvalid, "invalid")
	refuse(t, op.SetEngine(9), attn.ErrUnsupported, "not supported")
}

func TestSlicesThatAreTooShort(t *testing.T) {
	p := newProblem(2, 4, 2, 3, 5, 8, 6)
	op, n, out := p.op(t), p.lengths(), p.out()
	refuse(t, op.Run(n, p.q[1:], p.k, p.v, out, nil), attn.ErrInvalid, "q has 191 elements and needs 192")
	refuse(t, op.Run(n, p.q, p.k[1:], p.v, out, nil), attn.ErrInvalid, "k has 159")
	refuse(t, op.Run(n, p.q, p.k, p.v[1:], out, nil), attn.ErrInvalid, "v has 119")
	refuse(t, op.Run(n, p.q, p.k, p.v, out[1:], nil), attn.ErrInvalid, "out has 143")
	refuse(t, op.Run(n, nil, nil, nil, nil, nil), attn.ErrInvalid, "q has 0")
	refuse(t, op.Run(attn.Lengths{Batch: -1}, nil, nil, nil, nil, nil), attn.ErrInvalid, "negative")
	huge := attn.Lengths{Batch: 1 << 40, Queries: 1 << 40, Keys: 1}
	refuse(t, op.Run(huge, nil, nil, nil, nil, nil), attn.ErrOverflow, "too large")
	refuse(t, op.Run(n, p.q, p.k, p.v, p.q, nil), attn.ErrInvalid, "out overlaps q")
	must(t, op.Run(attn.Lengths{Queries: 3, Keys: 5}, nil, nil, nil, nil, nil))
	must(t, op.Run(attn.Lengths{Batch: 1, Queries: 3}, p.q, nil, nil, out, nil))
	if out[0] != 0 {
		t.Fatal("no key is not 0")
	}
}

func TestArgsThatDoNotFit(t *testing.T) {
	p := newProblem(2, 4, 2, 3, 5, 8, 6)
	op, out := p.op(t), p.out()
	mask := func(n int, dims ...int) *attn.Mask[bool] {
		return &attn.Mask[bool]{Data: make([]bool, n), Dims: *(*[4]int)(dims)}
	}
	f := func(n int) []float32 { return make([]float32, n) }
	ids := make([]int32, 10)
	for words, args := range map[string]attn.Args{
		"score output has 119 elements and needs 120":            {Weights: f(119)},
		"score output has 29 elements and needs 30":              {Scores: []attn.Scores{{Mean: true, Out: f(29)}}},
		"scores of stage 3 are unknown or asked for twice":       {Weights: f(120), Scores: []attn.Scores{{Stage: 3, Out: f(120)}}},
		"scores of stage -1":                                     {Scores: []attn.Scores{{Stage: -1}}},
		"LSE has 23":                                             {LSE: f(23)},
		"SegmentsQ has 5":                                        {SegmentsQ: ids[5:], SegmentsK: ids},
		"SegmentsK has 9":                                        {SegmentsQ: ids, SegmentsK: ids[1:]},
		"SegmentsK has 0":                                        {SegmentsQ: ids},
		"the workspace has 1 bytes":                              {Workspace: make([]byte, 1)},
		"MaskBool has 14 elements":                               {MaskBool: mask(14, 1, 1, 3, 5)},
		"extent 1 of the boolean mask is 2":                      {MaskBool: mask(30, 1, 2, 3, 5)},
		"extent 3 of the boolean mask is 6":                      {MaskBool: mask(18, 1, 1, 3, 6)},
		"a size is negative":                                     {MaskBool: mask(18, 1, 1, -3, 5)},
		"MaskAdd has 4 elements and its strides":                 {MaskAdd: &attn.Mask[float32]{Data: f(4), Dims: [4]int{1, 1, 1, 5}, Strides: &attn.Strides{Steps: [4]int{3: 1}}}},
		"ALiBi slopes of 3 heads for Hq = 4":                     {Alibi: f(3)},
		"Alibi: invalid argument":                                {Alibi: []float32{0, 0, 0, float32(math.NaN())}},
		"sinks of 5 heads for Hq = 4":                            {Sinks: f(5)},
		"positions of 1 items for B = 2":                         {Positions: []int64{0}},
		"[0, 6), is not within [0, 5)":                           {KeyEnd: []int64{5, 6}},
		"KeyBegin has 1 elements and KeyEnd 2":                   {KeyBegin: []int64{0}, KeyEnd: []int64{5, 5}},
		"offsets have one element more":                          {OffsetsQ: []int64{}},
		"OffsetsQ: invalid argument":                             {OffsetsQ: []int64{0, 3, 2}},
		"q has 192 elements and its strides reach from 0 to 192": {StridesQ: &attn.Strides{Steps: [4]int{97, 24, 8, 1}}},
		"k has 160 elements and its strides reach from -":        {StridesK: &attn.Strides{Steps: [4]int{-1, -1, -1, 1}}},
		"out": {StridesOut: &attn.Strides{Steps: [4]int{72, 18, 3, 1}}},
	} {
		args := args
		refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args), attn.ErrInvalid, words)
	}
	args := attn.Args{OffsetsQ: []int64{0, 1, 3}, MaskBool: mask(15, 1, 1, 3, 5)}
	refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args), attn.ErrUnsupported, "packed")
	args = attn.Args{StridesQ: &attn.Strides{Steps: [4]int{math.MaxInt, math.MaxInt, math.MaxInt, 1}}}
	refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args), attn.ErrOverflow, "strides of q")
	args = attn.Args{StridesQ: &attn.Strides{Steps: [4]int{math.MinInt, math.MinInt, math.MinInt, 1}}}
	refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args), attn.ErrOverflow, "strides of q")
	args = attn.Args{StridesK: &attn.Strides{Steps: [4]int{0, 0, 1 << 62, 1}}} // times 4 is 0
	refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args), attn.ErrOverflow, "strides of k")
	for _, x := range out {
		if x == x {
			t.Fatal("written in spite of an error")
		}
	}
}

// Also where there is nothing to reach: an empty tensor and an empty mask have addresses.
func TestNegativeOffsets(t *testing.T) {
	p := newProblem(2, 4, 2, 3, 5, 8, 6)
	op, none := p.op(t), attn.Lengths{Queries: 3, Keys: 5}
	before := &attn.Strides{Offset: -1, Steps: [4]int{96, 24, 8, 1}}
	for words, args := range map[string]attn.Args{
		"the offset of q is negative":        {StridesQ: before},
		"the offset of k is negative":        {StridesK: before},
		"the offset of v is negative":        {StridesV: before},
		"the offset of out is negative":      {StridesOut: before},
		"the offset of MaskBool is negative": {MaskBool: &attn.Mask[bool]{Dims: [4]int{1, 1, 3, 0}, Strides: before}},
		"the offset of MaskAdd is negative":  {MaskAdd: &attn.Mask[float32]{Dims: [4]int{1, 1, 3, 0}, Strides: before}},
	} {
		args := args
		refuse(t, op.Run(none, nil, nil, nil, nil, &args), attn.ErrInvalid, words)
		refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, p.out(), &args), attn.ErrInvalid, words)
	}
	layer, err := attn.NewLayer(op, 10, 7, 9)
	must(t, err)
	defer layer.Close()
	refuse(t, layer.Project(attn.ProjectK, 0, 2, nil, nil, before), attn.ErrInvalid, "the offset of y is negative")
}

// An empty slice is not "not set": it fits no batch and no heads.
func TestEmptySlicesAreSet(t *testing.T) {
	p := newProblem(1, 4, 2, 3, 5, 8, 6)
	op := p.op(t)
	for words, args := range map[string]attn.Args{
		"KeyBegin has 0 elements and needs 1":  {KeyBegin: []int64{}},
		"KeyEnd has 0 elements and needs 1":    {KeyEnd: []int64{}},
		"Positions has 0 elements and needs 1": {Positions: []int64{}},
		"Alibi has 0 elements and needs 4":     {Alibi: []float32{}},
		"Sinks has 0 elements and needs 4":     {Sinks: []float32{}},
		"offsets have one element more":        {OffsetsK: []int64{}},
		"SegmentsQ has 0 elements and needs 3": {SegmentsQ: []int32{}, SegmentsK: []int32{}},
		"score output has 0 elements":          {Weights: []float32{}},
		"LSE has 0 elements and needs 12":      {LSE: []float32{}},
		"the workspace has 0 bytes":            {Workspace: []byte{}},
	} {
		args, out := args, p.out()
		refuse(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args), attn.ErrInvalid, words)
		if out[0] == out[0] {
			t.Fatal("written in spite of an error")
		}
	}
	args := attn.Args{KeyBegin: []int64{}, KeyEnd: []int64{}, Positions: []int64{}}
	must(t, op.Run(attn.Lengths{Queries: 3, Keys: 5}, nil, nil, nil, nil, &args))
}

func TestExplain(t *testing.T) {
	p := newProblem(2, 4, 2, 3, 5, 8, 6)
	text, err := p.op(t).Explain(p.lengths(), p.q, p.k, p.v, p.out(), nil)
	must(t, err)
	if !strings.Contains(text, "threads") || !strings.Contains(text, "workspace") {
		t.Fatal(text)
	}
	args := attn.Args{Positions: []int64{1, 2, 3}}
	_, err = p.op(t).Explain(p.lengths(), p.q, p.k, p.v, p.out(), &args)
	refuse(t, err, attn.ErrInvalid, "positions of 3 items")
}

func TestLayersThatAreRefused(t *testing.T) {
	p := newProblem(2, 4, 2, 3, 5, 8, 6)
	layer, err := attn.NewLayer(p.op(t), 10, 7, 9)
	must(t, err)
	defer layer.Close()
	w, n := make([]float32, 1000), p.lengths()
	xQ, xKV, y := make([]float32, 60), make([]float32, 70), nan(54)
	set := func(which attn.Projection, w []float32, stride int, bias []float32) error {
		return layer.SetWeights(which, attn.Matrix{Data: w, Order: attn.InOut, RowStride: stride}, bias)
	}
	run := func(xQ, xKV, y []float32, args *attn.Args) error { return layer.Run(n, xQ, xKV, y, args) }

	refuse(t, set(attn.ProjectQ, w[:319], 0, nil), attn.ErrInvalid, "w has 319 elements")
	refuse(t, set(attn.ProjectQ, w, 31, nil), attn.ErrInvalid, "row stride 31")
	refuse(t, set(attn.ProjectK, w, 0, w[:15]), attn.ErrInvalid, "the bias has 15 elements and needs 16")
	refuse(t, set(4, w, 0, nil), attn.ErrInvalid, "4 is no projection")
	refuse(t, layer.SetWeights(attn.ProjectQ, attn.Matrix{Data: w}, nil), attn.ErrInvalid, "invalid")
	refuse(t, run(xQ, xKV, y, nil), attn.ErrState, "W_Q, W_K or W_V is not set")
	for which := attn.ProjectQ; which <= attn.ProjectV; which++ {
		must(t, set(which, w, 0, nil))
	}
	refuse(t, run(xQ, xKV, y, nil), attn.ErrInvalid, "without W_O")
	must(t, set(attn.ProjectO, w, 0, nil))
	refuse(t, run(xQ, nil, y, nil), attn.ErrInvalid, "no xKV")
	refuse(t, run(xQ[1:], xKV, y, nil), attn.ErrInvalid, "xQ has 59")
	refuse(t, run(xQ, xKV[1:], y, nil), attn.ErrInvalid, "xKV has 69")
	refuse(t, run(xQ, xKV, y[1:], nil), attn.ErrInvalid, "out has 53")
	refuse(t, run(xQ, xKV, y, &attn.Args{StridesQ: new(attn.Strides)}), attn.ErrInvalid, "no strides")
	refuse(t, run(xQ, xKV, y, &attn.Args{Alibi: w[:1]}), attn.ErrInvalid, "ALiBi slopes of 1 heads for Hq = 4")
	refuse(t, run(xQ, xKV, y, &attn.Args{Workspace: make([]byte, 64)}), attn.ErrInvalid, "workspace")
	if y[0] == y[0] {
		t.Fatal("written in spite of an error")
	}
	cache := &attn.Strides{Steps: [4]int{40, 20, 8, 1}}
	refuse(t, layer.Project(attn.ProjectK, 2, 2, xKV, make([]float32, 75), cache), attn.ErrInvalid,
		"y has 75 elements and its strides reach from 0 to 75")
	must(t, layer.RemoveWeights(attn.ProjectO))
	refuse(t, run(xQ, xKV, y, nil), attn.ErrInvalid, "without W_O")
}

func TestAfterClose(t *testing.T) {
	p := newProblem(1, 1, 1, 1, 1, 1, 1)
	op := p.op(t)
	layer, err := attn.NewLayer(op, 1, 1, 1)
	must(t, err)
	for n := 0; n < 2; n++ { // closing twice is fine
		must(t, op.Close())
		must(t, layer.Close())
	}
	x, n := []float32{1}, p.lengths()
	_, explain := op.Explain(n, x, x, x, x, nil)
	_, bytes := op.WorkspaceBytes(n, nil)
	_, layerBytes := layer.WorkspaceBytes(n, nil)
	_, copied := op.Copy()
	_, made := attn.NewLayer(op, 1, 1, 1)
	for what, err := range map[string]error{
		"Run": op.Run(n, x, x, x, x, nil), "SetScale": op.SetScale(1), "Trim": op.Trim(), "Explain": explain,
		"WorkspaceBytes": bytes, "Copy": copied, "NewLayer": made, "Layer.Run": layer.Run(n, x, nil, x, nil),
		"Project":              layer.Project(attn.ProjectQ, 1, 1, x, x, nil),
		"SetWeights":           layer.SetWeights(attn.ProjectQ, attn.Matrix{Data: x, Order: attn.InOut}, nil),
		"Layer.WorkspaceBytes": layerBytes,
	} {
		if !errors.Is(err, attn.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

func TestHelpers(t *testing.T) {
	f := func(n int) []float32 { return make([]float32, n) }
	_, err := attn.AlibiSlopes(0)
	refuse(t, err, attn.ErrInvalid, "heads")
	refuse(t, attn.Merge(3, f(4), f(2), f(6), f(2)), attn.ErrInvalid, "oAcc")
	refuse(t, attn.Merge(2, f(4), f(2), f(3), f(2)), attn.ErrInvalid, "oPart")
	refuse(t, attn.Merge(2, f(4), f(2), f(4), f(1)), attn.ErrInvalid, "lsePart")
	refuse(t, attn.MergeSinks(1, 2, f(4), f(2), f(3)), attn.ErrInvalid, "lse")
	refuse(t, attn.MergeSinks(1, 3, f(4), f(2), f(2)), attn.ErrInvalid, "o has")
	_, _, err = attn.MaskDims([]int{1, 1, 1, 1, 1}, 1)
	refuse(t, err, attn.ErrInvalid, "four axes")
	_, _, err = attn.MaskDims([]int{-1}, 1)
	refuse(t, err, attn.ErrInvalid, "invalid")
	info, err := attn.BLASInfo()
	must(t, err)
	if !strings.Contains(info, "BLAS") || !strings.HasPrefix(attn.Version(), "0.") {
		t.Fatal(info, attn.Version())
	}
}
