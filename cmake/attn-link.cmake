# SPDX-License-Identifier: MIT
# How the shared library is linked: only the names of the version script leave
# it, nothing is left undefined, and it is never unloaded (it has threads).

function(attn_try_link_option flag)
    string(MAKE_C_IDENTIFIER "ATTN_LINKS${flag}" known)
    check_linker_flag(C "${flag}" ${known})
    if(${known})
        target_link_options(attn PRIVATE "${flag}")
    endif()
endfunction()

set(map "${PROJECT_SOURCE_DIR}/src/libattn.map")
if(NOT APPLE)
    target_link_options(attn PRIVATE "-Wl,--version-script=${map}")
    set_target_properties(attn PROPERTIES LINK_DEPENDS "${map}")
    attn_try_link_option("-Wl,--no-undefined-version")
    attn_try_link_option("-Wl,-z,nodelete")
    # Clang leaves the sanitizers' functions to the program.
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang"
        OR NOT "${ATTN_SANITIZE} ${CMAKE_C_FLAGS}" MATCHES "address|thread|undefined|memory|fuzzer")
        attn_try_link_option("-Wl,-z,defs")
    endif()
endif()
