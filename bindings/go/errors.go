// SPDX-License-Identifier: MIT

package attn

// #include <attn.h>
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Status is what kind of error it is: a number of the C library. It is an error
// itself, so that errors.Is(err, attn.ErrInvalid) asks for it.
type Status int32

// The statuses that are errors. A newer library may have others.
const (
	ErrInvalid     Status = C.ATTN_EINVAL       // an argument is outside what its text allows
	ErrNoMemory    Status = C.ATTN_ENOMEM       // memory could not be had
	ErrOverflow    Status = C.ATTN_EOVERFLOW    // a product of sizes, or an extent for BLAS, overflows
	ErrState       Status = C.ATTN_ESTATE       // a weight of a layer is missing
	ErrUnsupported Status = C.ATTN_EUNSUPPORTED // a valid wish that this build or CPU cannot serve
	ErrBLAS        Status = C.ATTN_EBLAS        // the BLAS found at run time is unusable
	ErrInternal    Status = C.ATTN_EINTERNAL    // a fault of libattn; please report it
)

// ErrClosed is returned by every call on an Op or Layer after Close.
var ErrClosed = errors.New("attn: used after Close")

// Error returns the library's short text.
func (s Status) Error() string {
	return "attn: " + C.GoString(C.attn_status_string(C.attn_status(s)))
}

// Error is a status with the reason in a sentence, whose wording may change.
type Error struct {
	Status Status
	Reason string
}

// Error returns the reason.
func (e *Error) Error() string { return "attn: " + e.Reason }

// Unwrap returns the status, for errors.Is.
func (e *Error) Unwrap() error { return e.Status }

func invalid(format string, a ...interface{}) error {
	return &Error{ErrInvalid, fmt.Sprintf(format, a...)}
}

// check turns a status into an error, with the library's short text as its reason.
func check(status C.attn_status) error {
	if status == C.ATTN_OK {
		return nil
	}
	return &Error{Status(status), C.GoString(C.attn_status_string(status))}
}

// textOf calls a function of C that writes text: once to ask for its size, once to
// get it.
func textOf(call func(*C.char, C.size_t, *C.size_t) C.attn_status) (C.attn_status, string) {
	var needed C.size_t
	call(nil, 0, &needed)
	text := make([]byte, needed+1)
	status := call((*C.char)(unsafe.Pointer(&text[0])), C.size_t(len(text)), &needed)
	return status, C.GoString((*C.char)(unsafe.Pointer(&text[0])))
}
