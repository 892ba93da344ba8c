// SPDX-License-Identifier: MIT

package attn_test

import (
	"attn"
	"math"
	"testing"
)

// Layers against loops in float64, and a key/value cache against one run over all.

// project is x W + b in float64, x (rows, eIn), W (eIn, n).
func project(x []float64, w, b []float32, n int) []float64 {
	eIn := len(w) / n
	y := make([]float64, len(x)/eIn*n)
	for at := range y {
		row, column := at/n, at%n
		y[at] = float64(b[column])
		for r := 0; r < eIn; r++ {
			y[at] += x[row*eIn+r] * float64(w[r*n+column])
		}
	}
	return y
}

// split is (B, L, H * D) as (B, H, L, D), in floats.
func split(x []float64, l, h, d int) []float32 {
	y := make([]float32, len(x))
	for n := range y {
		y[n] = float32(x[((n/(h*l*d)*l+n/d%l)*h+n/(l*d)%h)*d+n%d])
	}
	return y
}

func small(n int, seed uint32) []float32 {
	x := noise(n, seed)
	for i := range x {
		x[i] /= 4
	}
	return x
}

// Cross attention with grouped heads, other widths, biases and W_O, one matrix as PyTorch
// stores it. Q, K and V are rounded to floats once more than in the library.
func TestProjectionsAroundAttention(t *testing.T) {
	const b, lq, lk, eQ, eKV, eOut, dk, dv = 2, 4, 6, 10, 8, 5, 4, 3
	p := newProblem(b, 4, 2, lq, lk, dk, dv)
	layer, err := attn.NewLayer(p.op(t), eQ, eKV, eOut)
	must(t, err)
	defer layer.Close()
	shapes := [4][2]int{{eQ, 4 * dk}, {eKV, 2 * dk}, {eKV, 2 * dv}, {4 * dv, eOut}}
	var w, bias [4][]float32
	for which, s := range shapes {
		w[which], bias[which] = small(s[0]*s[1], uint32(which)), small(s[1], 9)
		m := attn.Matrix{Data: w[which], Order: attn.InOut}
		if which == int(attn.ProjectV) {
			m = attn.Matrix{Data: make([]float32, len(w[which])), Order: attn.OutIn}
			for n := range m.Data {
				m.Data[n] = w[which][n%s[0]*s[1]+n/s[0]]
			}
		}
		must(t, layer.SetWeights(attn.Projection(which), m, bias[which]))
	}
	xQ, xKV, y := noise(b*lq*eQ, 20), noise(b*lk*eKV, 21), nan(b*lq*eOut)
	must(t, layer.Run(p.lengths(), xQ, xKV, y, nil))

	by := func(x []float64, n int) []float64 { return project(x, w[n], bias[n], shapes[n][1]) }
	p.q = split(by(wide(xQ), 0), lq, 4, dk)
	p.k = split(by(wide(xKV), 1), lk, 2, dk)
	p.v = split(by(wide(xKV), 2), lk, 2, dv)
	e := p.attend(0.5, nil, func(x score) float64 { return x.s })
	want := by(wide(split(e.out, 4, lq, dv)), 3)
	// All sums have at most 12 terms below 1, in four steps.
	compare(t, "y", y, want, 8*e.tolerance(p, 0.5))

	bytes, err := layer.WorkspaceBytes(p.lengths(), nil)
	must(t, err)
	again := nan(len(y))
	must(t, layer.Run(p.lengths(), xQ, xKV, again, &attn.Args{Workspace: make([]byte, bytes)}))
	sameBits(t, "with a workspace", y, again)
}

// A prompt of 5 tokens, then one at a time, through a cache of 9: as one run over all.
func TestPrefillAndDecode(t *testing.T) {
	const h, d, room, total = 2, 8, 9, 8
	const e = h * d
	p := newProblem(1, h, h, total, total, d, d)
	op := p.op(t)
	must(t, op.SetCausal(attn.CausalBottomRight))
	layer, err := attn.NewLayer(op, e, e, e)
	must(t, err)
	defer layer.Close()
	for which := attn.ProjectQ; which <= attn.ProjectO; which++ {
		m := attn.Matrix{Data: small(e*e, 30+uint32(which)), Order: attn.InOut}
		must(t, layer.SetWeights(which, m, nil))
	}
	x, whole, y := noise(total*e, 40), make([]float32, total*e), make([]float32, total*e)
	must(t, layer.Run(p.lengths(), x, nil, whole, nil))

	k, v, filled := nan(room*e), nan(room*e), 0
	for _, n := range []int{5, 1, 1, 1} {
		lo, hi := filled*e, (filled+n)*e
		q, heads, joined := make([]float32, n*e), make([]float32, n*e), make([]float32, n*e)
		at := &attn.Strides{Offset: filled * d, Steps: [4]int{room * e, room * d, d, 1}}
		perHead := &attn.Strides{Steps: [4]int{n * e, n * d, d, 1}}
		must(t, layer.Project(attn.ProjectK, 1, n, x[lo:hi], k, at))
		must(t, layer.Project(attn.ProjectV, 1, n, x[lo:hi], v, at))
		must(t, layer.Project(attn.ProjectQ, 1, n, x[lo:hi], q, perHead))
		filled += n
		args := attn.Args{KeyEnd: []int64{int64(filled)}}
		must(t, op.Run(attn.Lengths{Batch: 1, Queries: n, Keys: room}, q, k, v, heads, &args))
		for at := range joined { // (H, L, D) to (L, H * D)
			joined[at] = heads[(at/d%h*n+at/e)*d+at%d]
		}
		must(t, layer.Project(attn.ProjectO, 1, n, joined, y[lo:hi], nil))
	}
	// The same sums in another order: 16 terms below 1 in each of four steps.
	compare(t, "decoded", y, wide(whole), 16*4*math.Ldexp(1, -23))
}
