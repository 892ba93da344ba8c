// SPDX-License-Identifier: MIT

// Multi-head self-attention in Go: 4 tokens of width 8, 2 heads of 4.
package main

import (
	"attn"
	"fmt"
	"log"
)

const L, E, heads, headDim = 4, 8, 2, 4

// Eighths between -5/8 and 5/8: the same floats in every language.
func fill(n, seed int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32((i+1)*seed%11-5) / 8
	}
	return x
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	op, err := attn.NewOp(heads, heads, headDim, headDim)
	must(err)
	defer op.Close()
	layer, err := attn.NewLayer(op, E, E, E)
	must(err)
	defer layer.Close()
	for which := attn.ProjectQ; which <= attn.ProjectO; which++ {
		w := attn.Matrix{Data: fill(E*E, int(which)+2), Order: attn.InOut}
		must(layer.SetWeights(which, w, nil))
	}
	y := make([]float32, L*E)
	must(layer.Run(attn.Lengths{Batch: 1, Queries: L, Keys: L}, fill(L*E, 7), nil, y, nil))
	for i := 0; i < L; i++ {
		text := fmt.Sprintf("%9.6f", y[i*E:(i+1)*E])
		fmt.Println(text[1 : len(text)-1])
	}
}
