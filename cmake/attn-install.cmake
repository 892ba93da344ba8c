# SPDX-License-Identifier: MIT
# What is installed, and where. Components: attn_Runtime (libattn.so.0),
# attn_Development (header, libraries to link, libattn.pc, CMake files) and
# attn_Tools (attn-bench). Every directory may be relative to the prefix or
# absolute; DESTDIR and cmake --install --prefix work.

set(attn_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/attn")

install(FILES "${PROJECT_SOURCE_DIR}/include/attn.h"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT attn_Development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
    DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT attn_Runtime)
install(FILES "${PROJECT_SOURCE_DIR}/doc/man/libattn.3"
    DESTINATION "${CMAKE_INSTALL_MANDIR}/man3" COMPONENT attn_Development)
if(TARGET attn-bench)
    install(FILES "${PROJECT_SOURCE_DIR}/doc/man/attn-bench.1"
        DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT attn_Tools)
endif()
if(ATTN_SHARED_LIB)
    install(TARGETS attn EXPORT attn-targets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT attn_Runtime
        NAMELINK_COMPONENT attn_Development)
    install(EXPORT attn-targets NAMESPACE attn::
        DESTINATION "${attn_cmake_dir}" COMPONENT attn_Development)
endif()
if(ATTN_STATIC_LIB)
    install(TARGETS attn_static EXPORT attn-static-targets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT attn_Development)
    install(EXPORT attn-static-targets NAMESPACE attn::
        DESTINATION "${attn_cmake_dir}" COMPONENT attn_Development)
endif()
if(TARGET attn-bench)
    install(TARGETS attn-bench
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT attn_Tools)
    # Where both shells look by themselves; Debian's zsh looks elsewhere for what packages bring.
    set(ATTN_ZSH_DIR "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" CACHE STRING
        "Where zsh finds completions, below the prefix")
    mark_as_advanced(ATTN_ZSH_DIR)
    install(FILES "${PROJECT_SOURCE_DIR}/bench/completion/attn-bench.bash"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME attn-bench
        COMPONENT attn_Tools)
    install(FILES "${PROJECT_SOURCE_DIR}/bench/completion/_attn-bench"
        DESTINATION "${ATTN_ZSH_DIR}" COMPONENT attn_Tools)
endif()

# find_package(attn)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/attn-config.cmake.in"
    attn-config.cmake INSTALL_DESTINATION "${attn_cmake_dir}"
    NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(attn-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES
    "${PROJECT_BINARY_DIR}/attn-config.cmake"
    "${PROJECT_BINARY_DIR}/attn-config-version.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/attn-blas.cmake"
    DESTINATION "${attn_cmake_dir}" COMPONENT attn_Development)

# pkg-config libattn. Relative directories hang on ${prefix}, absolute ones
# stay. The prefix itself is known only when installing: the system's is written
# as it is, for pkg-config leaves out what the compiler knows by that name; any
# other goes by where libattn.pc is, so that the tree can be moved.
foreach(dir IN ITEMS LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
        set(ATTN_PC_${dir} "${CMAKE_INSTALL_${dir}}")
    else()
        set(ATTN_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
    endif()
endforeach()
set(ATTN_PC_PREFIX "@prefix@")
set(prefix "\${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(prefix "\\\${pcfiledir}/${up}")
endif()
set(ATTN_PC_LIBS_PRIVATE ${ATTN_BLAS_LIBRARIES} pthread ${CMAKE_DL_LIBS})
if(ATTN_LIBM)
    list(APPEND ATTN_PC_LIBS_PRIVATE m)
endif()
list(TRANSFORM ATTN_PC_LIBS_PRIVATE REPLACE "^([^-/].*)$" "-l\\1")
list(JOIN ATTN_PC_LIBS_PRIVATE " " ATTN_PC_LIBS_PRIVATE)
configure_file("${PROJECT_SOURCE_DIR}/libattn.pc.in" libattn.pc.in @ONLY)
install(CODE "
set(prefix \"${prefix}\")
if(CMAKE_INSTALL_PREFIX MATCHES \"^/usr(/local)?/?$\")
    set(prefix \"\${CMAKE_INSTALL_PREFIX}\")
endif()
configure_file(\"${PROJECT_BINARY_DIR}/libattn.pc.in\"
    \"${PROJECT_BINARY_DIR}/libattn.pc\" @ONLY)" COMPONENT attn_Development)
install(FILES "${PROJECT_BINARY_DIR}/libattn.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT attn_Development)
