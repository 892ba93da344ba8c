# SPDX-License-Identifier: MIT
# Is attn::blas one that src/blas.c can use? Sets ATTN_BLAS_DEFINITIONS.

set(CMAKE_REQUIRED_LIBRARIES attn::blas)
set(CMAKE_REQUIRED_QUIET ON)

# As in src/blas.c: a build may put something before all its names.
set(blas_prefix "
#ifdef BLAS_SYMBOL_PREFIX
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define BLAS(name) JOIN(BLAS_SYMBOL_PREFIX, name)
#else
#define BLAS(name) name
#endif")

check_c_source_compiles("${blas_prefix}
#include <cblas.h>
int main(void)
{
    float x = 1;
    BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1, 1, &x, 1, &x, 1, 0, &x, 1);
    return 0;
}" ATTN_CBLAS_WORKS)
if(NOT ATTN_CBLAS_WORKS)
    unset(ATTN_CBLAS_WORKS CACHE)
    message(FATAL_ERROR "The BLAS that was found (${ATTN_BLAS_PC}${ATTN_BLAS_LIBRARIES}) does not "
        "compile and link a call of cblas_sgemm: are its headers (cblas.h) installed? "
        "CMake's log under ${CMAKE_BINARY_DIR}/CMakeFiles has the compiler's words.")
endif()

check_c_source_compiles("
#include <cblas.h>
#if defined(OPENBLAS_USE64BITINT)
#error 64-bit integers
#endif
int main(void) { return 0; }" ATTN_BLAS_INT32)
if(NOT ATTN_BLAS_INT32)
    unset(ATTN_BLAS_INT32 CACHE)
    message(FATAL_ERROR "This OpenBLAS takes 64-bit integers (its 'openblas64' build); libattn "
        "needs the ordinary build with 32-bit integers.")
endif()

# The functions of OpenBLAS that every release has; what newer releases add is
# looked up at run time.
check_c_source_compiles("${blas_prefix}
char *BLAS(openblas_get_config)(void);
int BLAS(openblas_get_parallel)(void);
int BLAS(openblas_get_num_threads)(void);
void BLAS(openblas_set_num_threads)(int n);
int main(void)
{
    BLAS(openblas_set_num_threads)(BLAS(openblas_get_num_threads)());
    return BLAS(openblas_get_parallel)() + BLAS(openblas_get_config)()[0];
}" ATTN_BLAS_IS_OPENBLAS)
set(ATTN_BLAS_DEFINITIONS "")
if(ATTN_BLAS_IS_OPENBLAS)
    set(ATTN_BLAS_DEFINITIONS ATTN_HAVE_OPENBLAS=1)
elseif(NOT ATTN_BLAS STREQUAL "generic")
    message(FATAL_ERROR "The library found as OpenBLAS lacks openblas_get_parallel and its like. "
        "To build on another BLAS say -DATTN_BLAS=generic.")
endif()

unset(blas_prefix)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_QUIET)
