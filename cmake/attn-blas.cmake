# SPDX-License-Identifier: MIT
# Finds the BLAS under libattn; used by the build, and by the installed
# attn-config.cmake for the static library.
#
# attn_find_blas(kind), kind openblas, scipy-openblas (the wheel of PyPI, in a
# site-packages of CMAKE_PREFIX_PATH) or generic, defines the imported target
# attn::blas when it finds one, and sets
#   ATTN_BLAS_PC         the pkg-config module it came from, or empty
#   ATTN_BLAS_LIBRARIES  without a module: what to link

include_guard(GLOBAL)

# The wheel needs no pkg-config, whose file would also add an RPATH: the wheel of
# a build may be gone when its result runs beside another one.
macro(attn_find_scipy_openblas)
    find_library(ATTN_SCIPY_OPENBLAS scipy_openblas PATH_SUFFIXES scipy_openblas32/lib)
    mark_as_advanced(ATTN_SCIPY_OPENBLAS)
    set(ATTN_BLAS_LIBRARIES "")
    if(ATTN_SCIPY_OPENBLAS)
        set(ATTN_BLAS_LIBRARIES "${ATTN_SCIPY_OPENBLAS}")
        get_filename_component(scipy_openblas_root "${ATTN_SCIPY_OPENBLAS}/../.." ABSOLUTE)
        if(NOT TARGET attn::blas)
            message(STATUS "Found OpenBLAS: ${ATTN_SCIPY_OPENBLAS}")
            add_library(attn::blas SHARED IMPORTED GLOBAL)
            set_target_properties(attn::blas PROPERTIES IMPORTED_LOCATION "${ATTN_SCIPY_OPENBLAS}")
            target_include_directories(attn::blas INTERFACE "${scipy_openblas_root}/include")
            target_compile_definitions(attn::blas INTERFACE BLAS_SYMBOL_PREFIX=scipy_)
        endif()
    endif()
endmacro()

function(attn_find_blas kind)
    set(ATTN_BLAS_PC "" PARENT_SCOPE)
    set(ATTN_BLAS_LIBRARIES "" PARENT_SCOPE)
    if(kind STREQUAL "scipy-openblas")
        attn_find_scipy_openblas()
        set(ATTN_BLAS_LIBRARIES "${ATTN_BLAS_LIBRARIES}" PARENT_SCOPE)
        return()
    endif()
    if(kind STREQUAL "openblas")
        find_package(PkgConfig QUIET)
        if(PkgConfig_FOUND)
            pkg_check_modules(ATTN_OPENBLAS QUIET IMPORTED_TARGET GLOBAL openblas)
        endif()
        if(TARGET PkgConfig::ATTN_OPENBLAS)
            set(ATTN_BLAS_PC openblas PARENT_SCOPE)
            if(NOT TARGET attn::blas)
                message(STATUS "Found OpenBLAS ${ATTN_OPENBLAS_VERSION} by pkg-config")
                add_library(attn::blas INTERFACE IMPORTED GLOBAL)
                target_link_libraries(attn::blas INTERFACE PkgConfig::ATTN_OPENBLAS)
            endif()
            return()
        endif()
        set(BLA_VENDOR OpenBLAS)
    elseif(kind STREQUAL "generic")
        if(NOT BLA_VENDOR)
            set(BLA_VENDOR Generic)
        endif()
    else()
        message(FATAL_ERROR "ATTN_BLAS is openblas, scipy-openblas or generic, not '${kind}'")
    endif()

    set(BLA_SIZEOF_INTEGER 4)
    find_package(BLAS QUIET)
    if(NOT BLAS_FOUND)
        return()
    endif()
    set(libraries ${BLAS_LINKER_FLAGS} ${BLAS_LIBRARIES})
    if(kind STREQUAL "generic")
        # Reference BLAS keeps the C interface in a library of its own.
        find_library(ATTN_CBLAS_LIBRARY cblas)
        mark_as_advanced(ATTN_CBLAS_LIBRARY)
        if(ATTN_CBLAS_LIBRARY)
            list(PREPEND libraries "${ATTN_CBLAS_LIBRARY}")
        endif()
    endif()
    find_path(ATTN_CBLAS_INCLUDE_DIR cblas.h
        PATH_SUFFIXES openblas openblas-pthread openblas-openmp openblas-serial cblas)
    mark_as_advanced(ATTN_CBLAS_INCLUDE_DIR)
    set(ATTN_BLAS_LIBRARIES "${libraries}" PARENT_SCOPE)
    if(NOT TARGET attn::blas)
        message(STATUS "Found BLAS: ${libraries}")
        add_library(attn::blas INTERFACE IMPORTED GLOBAL)
        target_link_libraries(attn::blas INTERFACE ${libraries})
        if(ATTN_CBLAS_INCLUDE_DIR)
            target_include_directories(attn::blas INTERFACE "${ATTN_CBLAS_INCLUDE_DIR}")
        endif()
    endif()
endfunction()
