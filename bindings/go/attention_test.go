// SPDX-License-Identifier: MIT

package attn_test

import (
	"attn"
	"math"
	"testing"
)

// Every option of an op against loops in float64, on both engines.

// check runs on both engines and compares out, weights and log-sum-exp.
func (p *problem) check(t *testing.T, what string, e *expected, scale float64, set func(*attn.Op) error, args attn.Args) {
	t.Helper()
	for _, engine := range []attn.Engine{attn.EngineBLAS, attn.EngineVector} {
		op := p.op(t)
		must(t, op.SetEngine(engine))
		must(t, op.SetScale(scale))
		if set != nil {
			must(t, set(op))
		}
		out := p.out()
		args.Weights, args.LSE = p.scores(), p.rows()
		must(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &args))
		tolerance := e.tolerance(p, scale)
		compare(t, what+": out", out, e.out, tolerance)
		compare(t, what+": weights", args.Weights, e.weights, tolerance)
		compare(t, what+": lse", args.LSE, e.lse, tolerance+e.largest*math.Ldexp(1, -23))
	}
}

func TestPlainAndThreads(t *testing.T) {
	p := newProblem(2, 4, 4, 33, 50, 16, 12)
	p.check(t, "plain", p.attend(0.25, nil, func(x score) float64 { return x.s }), 0.25, nil, attn.Args{})
	var results [2][]float32
	for n := range results {
		op := p.op(t)
		must(t, op.SetThreads(n+1))
		results[n] = p.out()
		must(t, op.Run(p.lengths(), p.q, p.k, p.v, results[n], nil))
	}
	sameBits(t, "threads change no bit", results[0], results[1])
}

func TestRulesOfAnOp(t *testing.T) {
	p := newProblem(2, 4, 2, 20, 31, 8, 8)
	const off = 11 // Lk - Lq
	for _, rule := range []struct {
		name  string
		set   func(*attn.Op) error
		rules func(score) float64
	}{
		{"top left", func(op *attn.Op) error { return op.SetCausal(attn.CausalTopLeft) },
			func(x score) float64 { return keep(x.j <= x.i, x.s) }},
		{"bottom right", func(op *attn.Op) error { return op.SetCausal(attn.CausalBottomRight) },
			func(x score) float64 { return keep(x.j <= x.i+off, x.s) }},
		{"window", func(op *attn.Op) error { return op.SetWindow(3, 2) },
			func(x score) float64 { return keep(x.j+3 >= x.i+off && x.j <= x.i+off+2, x.s) }},
		{"chunks", func(op *attn.Op) error { return op.SetChunk(8) },
			func(x score) float64 { return keep((x.i+off)/8 == x.j/8, x.s) }},
		{"softcap", func(op *attn.Op) error { return op.SetSoftcap(2) },
			func(x score) float64 { return 2 * math.Tanh(x.s/2) }},
	} {
		p.check(t, rule.name, p.attend(1.5, nil, rule.rules), 1.5, rule.set, attn.Args{})
	}
}

func TestMasks(t *testing.T) {
	p := newProblem(2, 2, 2, 9, 13, 8, 8)
	bits := make([]bool, 2*9*13)
	for n, x := range noise(len(bits), 7) {
		bits[n] = x > -0.3
	}
	// One mask an item, read from the end of its buffer: items go backwards.
	args := attn.Args{MaskBool: &attn.Mask[bool]{Data: bits, Dims: [4]int{2, 1, 9, 13},
		Strides: &attn.Strides{Offset: 9 * 13, Steps: [4]int{-9 * 13, 0, 13, 1}}}}
	e := p.attend(0.5, nil, func(x score) float64 {
		return keep(bits[(1-x.b)*9*13+x.i*13+x.j], x.s)
	})
	p.check(t, "bool", e, 0.5, nil, args)

	// An additive mask a query head, the same for all queries, joined with bools.
	bias := noise(2*13, 8)
	bias[3], bias[16] = float32(hidden), float32(hidden)
	dims, at, err := attn.MaskDims([]int{2, 1, 13}, 13)
	must(t, err)
	args = attn.Args{MaskBool: &attn.Mask[bool]{Data: bits, Dims: [4]int{1, 1, 9, 13}},
		MaskAdd: &attn.Mask[float32]{Data: bias, Dims: dims, Strides: at}}
	e = p.attend(0.5, nil, func(x score) float64 {
		return keep(bits[x.i*13+x.j], x.s+float64(bias[x.h*13+x.j]))
	})
	p.check(t, "both", e, 0.5, nil, args)
}

func TestRangesPositionsAndEmptyRows(t *testing.T) {
	p, clean := newProblem(3, 2, 1, 4, 20, 8, 8), newProblem(3, 2, 1, 4, 20, 8, 8)
	args := attn.Args{KeyBegin: []int64{0, 3, 5}, KeyEnd: []int64{20, 11, 5}, Positions: []int64{2, 9, 0}}
	// What lies outside the ranges is never read.
	for n := range p.k {
		b, j := n/(20*8), int64(n/8%20)
		if j < args.KeyBegin[b] || j >= args.KeyEnd[b] {
			p.k[n], p.v[n] = float32(math.NaN()), float32(math.NaN())
		}
	}
	e := clean.attend(0.5, nil, func(x score) float64 {
		j := int64(x.j)
		inside := args.KeyBegin[x.b] <= j && j < args.KeyEnd[x.b]
		return keep(inside && j <= int64(x.i)+args.Positions[x.b], x.s)
	})
	p.check(t, "ranges", e, 0.5, func(op *attn.Op) error { return op.SetCausal(attn.CausalTopLeft) }, args)
	if e.lse[2*2*4] != hidden {
		t.Fatal("item 2 sees no key")
	}
}

func TestAlibiAndSinks(t *testing.T) {
	p := newProblem(1, 4, 4, 17, 17, 8, 8)
	slopes, err := attn.AlibiSlopes(4)
	must(t, err)
	sinks := []float32{0.5, float32(hidden), -1, 2}
	biased := func(x score) float64 { return x.s - float64(slopes[x.h])*math.Abs(float64(x.i-x.j)) }
	e := p.attend(0.5, sinks, biased)
	p.check(t, "alibi, sinks", e, 0.5, nil, attn.Args{Alibi: slopes, Sinks: sinks})

	// The same sinks afterwards.
	without := p.attend(0.5, nil, biased)
	o, lse := make([]float32, len(e.out)), make([]float32, len(e.lse))
	for n := range o {
		o[n] = float32(without.out[n])
	}
	for n := range lse {
		lse[n] = float32(without.lse[n])
	}
	must(t, attn.MergeSinks(17, 8, o, lse, sinks))
	compare(t, "MergeSinks", o, e.out, 1e-6)
}

func TestSegments(t *testing.T) {
	p := newProblem(1, 2, 2, 12, 12, 8, 8)
	ids := []int32{1, 1, 1, 2, 2, 2, 2, 9, 9, 9, 9, 9}
	e := p.attend(0.5, nil, func(x score) float64 { return keep(ids[x.i] == ids[x.j], x.s) })
	p.check(t, "segments", e, 0.5, nil, attn.Args{SegmentsQ: ids, SegmentsK: ids})
}

// Sequences of 3, 0 and 5 tokens in one buffer give what each gives alone.
func TestPackedSequences(t *testing.T) {
	const h, d = 2, 8
	op, err := attn.NewOp(h, h, d, d)
	must(t, err)
	defer op.Close()
	must(t, op.SetLayout(attn.LayoutBLHD))
	must(t, op.SetCausal(attn.CausalTopLeft))
	q, k, v := noise(9*h*d, 4), noise(9*h*d, 5), noise(9*h*d, 6)
	out := make([]float32, 9*h*d)
	out[8*h*d] = 7
	offsets := []int64{0, 3, 3, 8}
	args := attn.Args{OffsetsQ: offsets, OffsetsK: offsets, LSE: make([]float32, h*9)}
	must(t, op.Run(attn.Lengths{Batch: 3, Queries: 9, Keys: 9}, q, k, v, out, &args))
	for _, r := range [][2]int{{0, 3}, {3, 8}} {
		lo, hi, n := r[0]*h*d, r[1]*h*d, r[1]-r[0]
		alone := make([]float32, hi-lo)
		must(t, op.Run(attn.Lengths{Batch: 1, Queries: n, Keys: n}, q[lo:hi], k[lo:hi], v[lo:hi], alone, nil))
		compare(t, "a sequence", out[lo:hi], wide(alone), 1e-6)
	}
	if out[8*h*d] != 7 {
		t.Fatal("no sequence has token 8")
	}
}

// One buffer (B, L, 3, H, D), as a fused projection leaves it, without a copy.
func TestStridesOfAFusedBuffer(t *testing.T) {
	const h, l, d = 2, 6, 4
	p := newProblem(2, h, h, l, l, d, d)
	fused := make([]float32, 2*l*3*h*d)
	for n, tensor := range [][]float32{p.q, p.k, p.v} {
		for x, value := range tensor {
			b, head, i, e := x/(h*l*d), x/(l*d)%h, x/d%l, x%d
			fused[(((b*l+i)*3+n)*h+head)*d+e] = value
		}
	}
	steps := [4]int{l * 3 * h * d, d, 3 * h * d, 1}
	args := attn.Args{StridesQ: &attn.Strides{Steps: steps},
		StridesK: &attn.Strides{Offset: h * d, Steps: steps},
		StridesV: &attn.Strides{Offset: 2 * h * d, Steps: steps}}
	out, e := p.out(), p.attend(0.5, nil, func(x score) float64 { return x.s })
	must(t, p.op(t).Run(p.lengths(), fused, fused, fused, out, &args))
	compare(t, "fused", out, e.out, e.tolerance(p, 0.5))
}

func TestScoresAtEachStage(t *testing.T) {
	p := newProblem(1, 2, 2, 5, 5, 4, 4)
	op := p.op(t)
	must(t, op.SetCausal(attn.CausalTopLeft))
	must(t, op.SetSoftcap(1))
	raw, capped, masked, mean := p.scores(), p.scores(), p.scores(), nan(25)
	args := attn.Args{Scores: []attn.Scores{{Stage: attn.StageRaw, Out: raw}, {Stage: attn.StageCapped, Out: capped},
		{Stage: attn.StageMasked, Out: masked}, {Stage: attn.StageWeights, Mean: true, Out: mean}}}
	must(t, op.Run(p.lengths(), p.q, p.k, p.v, p.out(), &args))

	var wantRaw, wantCapped, wantMasked []float64
	e := p.attend(0.5, nil, func(x score) float64 {
		s := math.Tanh(x.s)
		wantRaw, wantCapped = append(wantRaw, x.s), append(wantCapped, s)
		wantMasked = append(wantMasked, keep(x.j <= x.i, s))
		return keep(x.j <= x.i, s)
	})
	wantMean := make([]float64, 25)
	for n := range wantMean {
		wantMean[n] = (e.weights[n] + e.weights[25+n]) / 2
	}
	tolerance := e.tolerance(p, 0.5)
	compare(t, "raw", raw, wantRaw, tolerance)
	compare(t, "capped", capped, wantCapped, tolerance)
	compare(t, "masked", masked, wantMasked, tolerance)
	compare(t, "mean of the heads", mean, wantMean, tolerance)
}

func TestTwoPartsMerge(t *testing.T) {
	p := newProblem(1, 2, 2, 3, 40, 8, 8)
	part := func(begin, end int64) (out, lse []float32) {
		args := attn.Args{KeyBegin: []int64{begin}, KeyEnd: []int64{end}, LSE: p.rows()}
		out = p.out()
		must(t, p.op(t).Run(p.lengths(), p.q, p.k, p.v, out, &args))
		return out, args.LSE
	}
	o, lse := part(0, 13)
	oPart, lsePart := part(13, 40)
	must(t, attn.Merge(8, o, lse, oPart, lsePart))
	e := p.attend(1/math.Sqrt(8), nil, func(x score) float64 { return x.s })
	compare(t, "merged", o, e.out, 1e-4)
	compare(t, "merged lse", lse, e.lse, 1e-4)
}

func TestWorkspace(t *testing.T) {
	p := newProblem(1, 2, 2, 70, 90, 16, 16)
	op, out, again := p.op(t), p.out(), p.out()
	must(t, op.Run(p.lengths(), p.q, p.k, p.v, out, nil))
	bytes, err := op.WorkspaceBytes(p.lengths(), nil)
	must(t, err)
	must(t, op.Run(p.lengths(), p.q, p.k, p.v, again, &attn.Args{Workspace: make([]byte, bytes)}))
	sameBits(t, "with a workspace", out, again)
	must(t, op.Trim())
}

// A run without options makes no garbage but the word in which cgo of Go 1.19 wraps the
// handle.
func TestRunsMakeNoGarbage(t *testing.T) {
	p := newProblem(1, 2, 2, 4, 8, 16, 16)
	op, out := p.op(t), p.out()
	var err error
	n := testing.AllocsPerRun(10, func() { err = op.Run(p.lengths(), p.q, p.k, p.v, out, nil) })
	if n > 1 || err != nil {
		t.Fatalf("%v allocations, %v", n, err)
	}
}
