// SPDX-License-Identifier: MIT

// Package attn is attention on the CPU: libattn for Go.
//
//	S = scale * Q K^T        A = softmax(rules(S))        O = A V
//
// for float32, row-major tensors, with causal order, windows, masks, key ranges,
// grouped heads, sequences packed without padding, and a key/value cache. The
// library's attn.h is the manual; names and meanings here are the same.
//
//   - Op is how to attend: sizes of the heads and rules. Op.Run attends.
//   - Args has the optional tensors of a run.
//   - Layer has the weights of the projections around an op.
//
// Axes: B items, Hq query heads, Hk key/value heads, Lq queries and Lk keys of an
// item, Dk and Dv the sizes of a head, E the width of a model. Sizes and strides
// count elements.
//
// # Memory
//
// Slices are compared with sizes and strides before C sees their addresses, and C
// keeps none of them after a call returns. An Op and a Layer hold memory of C:
// Close gives it back, and the garbage collector does where Close was forgotten.
// After Close every call returns ErrClosed.
//
// # Errors
//
// Errors of the library are *Error with a Status, for errors.Is, and a reason in a
// sentence. After ErrInvalid, ErrOverflow, ErrState and ErrUnsupported nothing has
// been written; after ErrNoMemory, ErrBLAS and ErrInternal the outputs of a run are
// undefined.
//
// # Concurrency
//
// Everything may be called from any goroutine. Runs of one Op or Layer go side by
// side; its setters and Close wait until they are over. A run itself uses several
// threads of C (SetThreads). What a run reads and writes is its own while it goes on.
package attn
