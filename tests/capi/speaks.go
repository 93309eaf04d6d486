// speaks.go ADDRESS: the C ABI from Go.
package main

/*
#include <laika.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func need(status C.laika_status_t) {
	if status != C.LAIKA_OK {
		fmt.Fprintln(os.Stderr, C.GoString(C.laika_last_error()))
		os.Exit(1)
	}
}

func main() {
	address := C.CString(os.Args[1])
	source := C.CString("builtin:sum")
	x := (*[4]C.float)(C.malloc(16))
	total := (*C.double)(C.malloc(8))
	for i := range x {
		x[i] = 2
	}
	var model C.laika_model_t
	in := C.laika_tensor_t{data: unsafe.Pointer(x), dtype: C.LAIKA_FLOAT32, ndim: 1}
	in.shape[0] = 4
	out := C.laika_tensor_t{data: unsafe.Pointer(total), dtype: C.LAIKA_FLOAT64}
	need(C.laika_init(address, C.LAIKA_INIT_DEFAULT))
	need(C.laika_model_load(source, C.LAIKA_MODEL_DEFAULT, &model))
	need(C.laika_infer(model, &in, 1, &out, 1))
	need(C.laika_finalize())
	if *total != 8 {
		os.Exit(1)
	}
	fmt.Println("1 passed, 0 failed")
}
