# SPDX-License-Identifier: MIT
# A cross build for 64-bit ARM on Linux, whose tests run under qemu-user:
#   cmake --toolchain cmake/toolchain-aarch64.cmake -DATTN_SYSROOT=DIR ...
# DIR holds the libraries of that machine; tests/run --cross aarch64 makes one.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTN_SYSROOT)
if(NOT ATTN_SYSROOT)
    message(FATAL_ERROR "cmake/toolchain-aarch64.cmake needs -DATTN_SYSROOT=DIR")
endif()
set(CMAKE_SYSROOT "${ATTN_SYSROOT}")

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# A core with NEON and no SVE: what OpenBLAS and our kernels then use is NEON.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "${ATTN_SYSROOT}" -cpu neoverse-n1)

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# pkg-config, here and in sub-processes of CMake, sees the sysroot alone.
set(ENV{PKG_CONFIG_LIBDIR}
    "${ATTN_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${ATTN_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${ATTN_SYSROOT}")
set(ENV{PKG_CONFIG_PATH} "")
