// SPDX-License-Identifier: MIT

package attn_test

import (
	"attn"
	"math"
	"testing"
)

// Attention in float64 loops, numbers to run it on, and a comparison that no NaN passes.

// problem has sizes and inputs, packed in layout BHLD; all numbers lie in [-1, 1].
type problem struct {
	b, hq, hk, lq, lk, dk, dv int
	q, k, v                   []float32
}

// noise is the same numbers everywhere.
func noise(n int, seed uint32) []float32 {
	x := make([]float32, n)
	for i := range x {
		seed = seed*1664525 + 1013904223
		x[i] = float32(seed>>8)/8388608 - 1
	}
	return x
}

func newProblem(b, hq, hk, lq, lk, dk, dv int) *problem {
	return &problem{b, hq, hk, lq, lk, dk, dv,
		noise(b*hq*lq*dk, 1), noise(b*hk*lk*dk, 2), noise(b*hk*lk*dv, 3)}
}

func (p *problem) op(t testing.TB) *attn.Op {
	t.Helper()
	op, err := attn.NewOp(p.hq, p.hk, p.dk, p.dv)
	must(t, err)
	t.Cleanup(func() { op.Close() })
	return op
}

func (p *problem) lengths() attn.Lengths { return attn.Lengths{Batch: p.b, Queries: p.lq, Keys: p.lk} }

func nan(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

func (p *problem) out() []float32    { return nan(p.b * p.hq * p.lq * p.dv) }
func (p *problem) rows() []float32   { return nan(p.b * p.hq * p.lq) }
func (p *problem) scores() []float32 { return nan(p.b * p.hq * p.lq * p.lk) }

// score is which one it is, and scale * (q . k).
type score struct {
	b, h, i, j int
	s          float64
}

type expected struct {
	out, weights, lse []float64
	largest           float64 // absolute value of a finite score after the rules
}

var hidden = math.Inf(-1)

func keep(visible bool, s float64) float64 {
	if visible {
		return s
	}
	return hidden
}

// attend is the plain loops; rules turns a score into what the softmax sees.
func (p *problem) attend(scale float64, sinks []float32, rules func(score) float64) *expected {
	e := new(expected)
	for n := 0; n < p.b*p.hq*p.lq; n++ {
		b, h, i := n/(p.hq*p.lq), n/p.lq%p.hq, n%p.lq
		g := b*p.hk + h/(p.hq/p.hk)
		s := make([]float64, p.lk)
		for j := range s {
			for d := 0; d < p.dk; d++ {
				s[j] += float64(p.q[n*p.dk+d]) * float64(p.k[(g*p.lk+j)*p.dk+d])
			}
			s[j] = rules(score{b, h, i, j, scale * s[j]})
		}
		sink := hidden
		if sinks != nil {
			sink = float64(sinks[h])
		}
		e.row(s, sink, p.v[g*p.lk*p.dv:], p.dv)
	}
	return e
}

func (e *expected) row(s []float64, sink float64, v []float32, dv int) {
	top, sum := hidden, 0.0
	for _, x := range s {
		top = math.Max(top, x)
		if !math.IsInf(x, 0) {
			e.largest = math.Max(e.largest, math.Abs(x))
		}
	}
	w, out := make([]float64, len(s)), make([]float64, dv)
	for j, x := range s {
		if top != hidden {
			w[j] = math.Exp(x - top)
		}
		sum += w[j]
	}
	e.lse = append(e.lse, top+math.Log(sum))
	sum += math.Exp(sink - top)
	for j := range w {
		if w[j] != 0 {
			w[j] /= sum
		}
		for d := range out {
			out[d] += w[j] * float64(v[j*dv+d])
		}
	}
	e.weights, e.out = append(e.weights, w...), append(e.out, out...)
}

// tolerance is how far float32 may be off, to first order (Higham, chapter 3), with
// u = 2^-24 and numbers in [-1, 1]: a score is a sum of Dk products, scaled, with a few
// more roundings of its size for the rules; an error d of scores changes weights by the
// factor exp(2 d); exp, the sum of Lk and the division add (2 Lk + 16) u.
func (e *expected) tolerance(p *problem, scale float64) float64 {
	u := math.Ldexp(1, -24)
	d := float64(p.dk+8) * u * (scale*float64(p.dk) + 2*e.largest)
	return math.Expm1(2*d) + float64(2*p.lk+16)*u
}

// near is equality for infinities, else within the tolerance, which no NaN is.
func near(x float32, y, tolerance float64) bool {
	return float64(x) == y || math.Abs(float64(x)-y) <= tolerance
}

func compare(t *testing.T, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, %d wanted", what, len(got), len(want))
	}
	for n, x := range got {
		if !near(x, want[n], tolerance) {
			t.Fatalf("%s[%d] is %v, %v wanted within %v", what, n, x, want[n], tolerance)
		}
	}
}

func sameBits(t *testing.T, what string, a, b []float32) {
	t.Helper()
	for n := range a {
		if math.Float32bits(a[n]) != math.Float32bits(b[n]) {
			t.Fatalf("%s: [%d] is %v and %v", what, n, a[n], b[n])
		}
	}
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for n := range x {
		y[n] = float64(x[n])
	}
	return y
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestComparingFailsOnNaN(t *testing.T) {
	x := math.NaN()
	if near(float32(x), 1, 1e9) || near(1, x, 1e9) || near(float32(x), x, 1e9) {
		t.Fatal("NaN is near something")
	}
}
