# SPDX-License-Identifier: MIT
# The warnings under which everything here is clean, with GCC and Clang.
add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes
    -Wmissing-prototypes -Wold-style-definition -Wpointer-arith -Wcast-qual -Wwrite-strings
    -Wundef -Wvla -Wformat-security)
foreach(flag IN ITEMS -Wlogical-op -Wduplicated-cond -Wjump-misses-init)
    string(MAKE_C_IDENTIFIER "ATTN_HAVE${flag}" known)
    check_c_compiler_flag(${flag} ${known})
    if(${known})
        add_compile_options(${flag})
    endif()
endforeach()
