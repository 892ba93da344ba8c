# SPDX-License-Identifier: MIT
# The target dist: libattn-VERSION.tar.gz with the source, in the build directory.
#   cmake -DSOURCE=DIR -DARCHIVE=FILE -DVERSION=X.Y.Z [-DSKIP=DIR] -P attn-dist.cmake
#
# In a git work tree it holds what git tracks, as it is in the work tree, dated as the last
# commit; elsewhere, in an unpacked archive, all files but those below SKIP and build/, dated
# as the newest. The same files give the same bytes: an archive made from an unpacked one
# is that one again.

cmake_minimum_required(VERSION 3.21) # above all: links are entries, and not followed
find_program(TAR NAMES gtar tar)
find_program(GZIP gzip)
find_program(GIT git)
if(NOT TAR OR NOT GZIP)
    message(FATAL_ERROR "dist needs tar and gzip")
endif()
execute_process(COMMAND "${TAR}" --version OUTPUT_VARIABLE tar_version ERROR_QUIET)
if(NOT tar_version MATCHES "GNU tar")
    message(FATAL_ERROR "dist needs GNU tar; ${TAR} is none")
endif()

# .git is a file in worktrees and submodules; a repository around the tree is none of ours.
set(date "")
set(in_git OFF)
if(EXISTS "${SOURCE}/.git" AND NOT GIT)
    message(FATAL_ERROR "dist needs git in a git work tree")
endif()
if(EXISTS "${SOURCE}/.git")
    set(in_git ON)
    execute_process(COMMAND "${GIT}" -C "${SOURCE}" -c core.quotePath=false ls-files
        OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND "${GIT}" -C "${SOURCE}" log -1 --format=%ct
        OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE "\n$" "" names "${names}")
    string(REPLACE "\n" ";" names "${names}")
else()
    file(GLOB_RECURSE names RELATIVE "${SOURCE}" "${SOURCE}/*")
    list(FILTER names EXCLUDE REGEX "^\\.git(/|$)|^build/|(^|/)(__pycache__|target|venv)/|\\.pyc$|^compile_commands\\.json$|^\\.cache/")
    file(RELATIVE_PATH skip "${SOURCE}" "${SKIP}")
    if(skip STREQUAL "")
        message(FATAL_ERROR "dist needs a build in a directory of its own")
    endif()
    string(REGEX REPLACE "/$" "" skip "${skip}")
    string(APPEND skip "/")
endif()

list(SORT names)
set(list "")
foreach(name IN LISTS names)
    if(NOT EXISTS "${SOURCE}/${name}") # removed, and git was not told yet
        continue()
    endif()
    if(skip)
        string(FIND "${name}" "${skip}" at)
        if(at EQUAL 0)
            continue()
        endif()
    endif()
    string(APPEND list "${name}\n")
    if(NOT in_git AND NOT IS_SYMLINK "${SOURCE}/${name}")
        file(TIMESTAMP "${SOURCE}/${name}" changed "%s" UTC)
        if(date STREQUAL "" OR changed GREATER date)
            set(date "${changed}")
        endif()
    endif()
endforeach()
file(WRITE "${ARCHIVE}.files" "${list}")

# Nothing of the machine or of who made it: order, dates, owner, modes.
execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C "${TAR}" --create --format=gnu --sort=name
        --owner=0 --group=0 --numeric-owner "--mode=u=rwX,go=rX" "--mtime=@${date}"
        "--transform=s,^,libattn-${VERSION}/,S" --directory "${SOURCE}"
        --verbatim-files-from "--files-from=${ARCHIVE}.files"
    COMMAND "${GZIP}" -9n
    OUTPUT_FILE "${ARCHIVE}"
    RESULTS_VARIABLE results)
file(REMOVE "${ARCHIVE}.files")
if(NOT results STREQUAL "0;0")
    file(REMOVE "${ARCHIVE}")
    message(FATAL_ERROR "tar and gzip ended with ${results}")
endif()
message("${ARCHIVE}")
