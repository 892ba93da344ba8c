# SPDX-License-Identifier: MIT
# Debian packages: libattn0, libattn-dev and attn-bench, by CPack from the components of
# attn-install.cmake. Configured by the preset deb; the target is package. What Debian wants
# beyond the installed files is done by deb-stage.sh.

foreach(tool IN ITEMS dpkg-architecture dpkg-shlibdeps objdump)
    find_program(ATTN_${tool} ${tool})
    mark_as_advanced(ATTN_${tool})
    if(NOT ATTN_${tool})
        message(FATAL_ERROR "Debian packages need ${tool}: install dpkg-dev and binutils")
    endif()
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libattn)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL attn_Runtime attn_Development)
if(TARGET attn-bench)
    list(APPEND CPACK_COMPONENTS_ALL attn_Tools)
endif()

# The revision is that of these packages of a version.
set(ATTN_DEB_REVISION 1 CACHE STRING "Revision of the Debian packages")
set(ATTN_DEB_MAINTAINER "" CACHE STRING
    "Maintainer of the Debian packages, 'Name <address>'; default: DEBFULLNAME and DEBEMAIL")
mark_as_advanced(ATTN_DEB_REVISION ATTN_DEB_MAINTAINER)
set(version "${PROJECT_VERSION}-${ATTN_DEB_REVISION}")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${ATTN_DEB_MAINTAINER}")
if(NOT CPACK_DEBIAN_PACKAGE_MAINTAINER)
    set(CPACK_DEBIAN_PACKAGE_MAINTAINER "libattn contributors <libattn@packages.invalid>")
    if(DEFINED ENV{DEBEMAIL} AND DEFINED ENV{DEBFULLNAME})
        set(CPACK_DEBIAN_PACKAGE_MAINTAINER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
    endif()
endif()
set(CPACK_DEBIAN_PACKAGE_SOURCE libattn)
set(CPACK_DEBIAN_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_DEBIAN_PACKAGE_RELEASE "${ATTN_DEB_REVISION}")
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

# Or it would stand before each of those below.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(what
"libattn computes scaled dot-product attention, softmax(QK^T)V, for
transformer models on CPUs: with masks, causal order, sliding windows,
grouped heads, key/value caches and packed sequences, in memory
proportional to the lengths. Its products are those of OpenBLAS, or tiles
of its own; kernels for AVX2 and AVX-512 are chosen at run time.")

set(CPACK_DEBIAN_ATTN_RUNTIME_PACKAGE_NAME libattn0)
set(CPACK_DEBIAN_ATTN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_ATTN_RUNTIME_DESCRIPTION "attention on the CPU - shared library
${what}")

set(CPACK_DEBIAN_ATTN_DEVELOPMENT_PACKAGE_NAME libattn-dev)
set(CPACK_DEBIAN_ATTN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_ATTN_DEVELOPMENT_PACKAGE_DEPENDS "libattn0 (= ${version}), libopenblas-dev")
set(CPACK_DEBIAN_ATTN_DEVELOPMENT_DESCRIPTION "attention on the CPU - development files
${what}

This package has the header, which is the manual, the static library and
what pkg-config and CMake need to find both.")

set(CPACK_DEBIAN_ATTN_TOOLS_PACKAGE_NAME attn-bench)
set(CPACK_DEBIAN_ATTN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_ATTN_TOOLS_DESCRIPTION "measure attention on this CPU
attn-bench times attention on the shapes of known models or any others,
checks each result against float64, and sets it beside what the machine
could reach: its multiply-adds, its BLAS, its memory.

${what}")

set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/attn-deb.cmake")
set(CPACK_ATTN_SOURCE_DIR "${PROJECT_SOURCE_DIR}")
include(CPack)
