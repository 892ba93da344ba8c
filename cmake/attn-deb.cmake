# SPDX-License-Identifier: MIT
# Read by CPack when the components are staged and not yet packed.

set(control "${CPACK_TOPLEVEL_DIRECTORY}/control")
execute_process(
    COMMAND bash "${CPACK_ATTN_SOURCE_DIR}/cmake/deb-stage.sh" "${CPACK_ATTN_SOURCE_DIR}"
        "${CPACK_TEMPORARY_INSTALL_DIRECTORY}" "${control}"
        "${CPACK_DEBIAN_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}"
        "${CPACK_DEBIAN_PACKAGE_MAINTAINER}"
    COMMAND_ERROR_IS_FATAL ANY)

# Not CPack's own SHLIBDEPS and GENERATE_SHLIBS: with them it adds scripts that call ldconfig,
# where Debian has a trigger.
file(STRINGS "${control}/libattn0.depends" CPACK_DEBIAN_ATTN_RUNTIME_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_ATTN_RUNTIME_PACKAGE_CONTROL_EXTRA
    "${control}/shlibs" "${control}/symbols" "${control}/triggers")
if(EXISTS "${control}/attn-bench.depends")
    file(STRINGS "${control}/attn-bench.depends" CPACK_DEBIAN_ATTN_TOOLS_PACKAGE_DEPENDS)
endif()
