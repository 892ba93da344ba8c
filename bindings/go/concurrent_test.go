// SPDX-License-Identifier: MIT

package attn_test

import (
	"attn"
	"errors"
	"runtime"
	"sync"
	"testing"
)

// Many goroutines on one op and one layer; also run with the race detector.

func together(n int, f func(int)) {
	var group sync.WaitGroup
	for i := 0; i < n; i++ {
		i := i
		group.Add(1)
		go func() {
			defer group.Done()
			f(i)
		}()
	}
	group.Wait()
}

func TestRunsOfOneOpAtOnce(t *testing.T) {
	p := newProblem(1, 4, 2, 40, 60, 16, 16)
	op, alone := p.op(t), p.out()
	must(t, op.Run(p.lengths(), p.q, p.k, p.v, alone, nil))
	together(8, func(int) {
		for n := 0; n < 20; n++ {
			out := p.out()
			args := attn.Args{LSE: p.rows()}
			if err := op.Run(p.lengths(), p.q, p.k, p.v, out, &args); err != nil {
				t.Error(err)
				return
			}
			for i := range out {
				if out[i] != alone[i] {
					t.Errorf("[%d] is %v, alone %v", i, out[i], alone[i])
					return
				}
			}
		}
	})
}

// Setters and Close beside runs: they wait, and later runs say so.
func TestSettersAndCloseBesideRuns(t *testing.T) {
	p := newProblem(1, 2, 2, 20, 20, 8, 8)
	op := p.op(t)
	layer, err := attn.NewLayer(op, 16, 16, 16)
	must(t, err)
	w := attn.Matrix{Data: noise(256, 1), Order: attn.OutIn}
	x := noise(20*16, 2)
	for which := attn.ProjectQ; which <= attn.ProjectO; which++ {
		must(t, layer.SetWeights(which, w, nil))
	}
	calls := []func() error{
		func() error { return op.SetScale(0.5) },
		func() error { return layer.SetWeights(attn.ProjectV, w, nil) },
		func() error { return op.Trim() },
		func() error { return op.Run(p.lengths(), p.q, p.k, p.v, p.out(), nil) },
		func() error { return layer.Run(p.lengths(), x, nil, make([]float32, 20*16), nil) },
	}
	together(2*len(calls)+1, func(i int) {
		if i == 2*len(calls) {
			for n := 0; n < 30; n++ {
				if err := calls[3](); err != nil {
					t.Error(err)
				}
			}
			op.Close()
			layer.Close()
			return
		}
		err := calls[i/2]()
		for err == nil {
			err = calls[i/2]()
		}
		if !errors.Is(err, attn.ErrClosed) {
			t.Error(err)
		}
	})
}

// Forgotten handles are freed by the collector, never under a run; what args point to
// stays where it is while a run goes on.
func TestCollectorBesideRuns(t *testing.T) {
	done := make(chan bool)
	go func() {
		defer close(done)
		for n := 0; n < 100; n++ {
			runtime.GC()
		}
	}()
	p := newProblem(1, 2, 2, 30, 30, 8, 8)
	want := p.attend(0.5, nil, func(x score) float64 { return keep(x.j <= x.i, x.s) })
	for n := 0; n < 200; n++ {
		op, err := attn.NewOp(2, 2, 8, 8) // never closed
		must(t, err)
		must(t, op.SetScale(0.5))
		mask := &attn.Mask[bool]{Data: make([]bool, 900), Dims: [4]int{1, 1, 30, 30}}
		for i := range mask.Data {
			mask.Data[i] = i%30 <= i/30
		}
		out := p.out()
		must(t, op.Run(p.lengths(), p.q, p.k, p.v, out, &attn.Args{MaskBool: mask, Weights: p.scores()}))
		compare(t, "out", out, want.out, want.tolerance(p, 0.5))
	}
	<-done
}
