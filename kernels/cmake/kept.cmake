# Built modules are kept by content in the user's cache, so that clones, worktrees and further environments with the same
# kernels, compiler and Python need not compile them again.
include(${CMAKE_CURRENT_LIST_DIR}/digest.cmake)
set(cache_home $ENV{XDG_CACHE_HOME})
if(NOT cache_home)
  set(cache_home $ENV{HOME}/.cache)
endif()
set(KTBENCH_KERNEL_CACHE ${cache_home}/ktbench/kernels CACHE PATH "folder of built modules; OFF: none is kept or used")

# The folder of modules with the sources' digest `id`, what else decides about a module being part of its name.
function(kept_folder result id)
  set(distribution "")
  if(EXISTS /etc/os-release)
    file(READ /etc/os-release distribution)
  endif()
  string(SHA256 key "${id} ${KTBENCH_BUILT_ISAS} ${pybind11_VERSION} ${PYTHON_MODULE_EXTENSION} ${distribution}")
  set(${result} ${KTBENCH_KERNEL_CACHE}/${key} PARENT_SCOPE)
endfunction()

# Sets KTBENCH_KEPT_MODULE to the module that was built from these very sources, if it is whole. One that is to be checked
# or instrumented is always built.
function(find_kept_module)
  if(NOT KTBENCH_KERNEL_CACHE OR KTBENCH_CHECK_PORTABLE OR KTBENCH_SANITIZE OR CMAKE_CROSSCOMPILING)
    return()
  endif()
  digest_sources(id ${CMAKE_CURRENT_SOURCE_DIR} "${BUILD_ID_TOOLS}")
  kept_folder(folder ${id})
  set(module ${folder}/_kernels${PYTHON_MODULE_EXTENSION})
  if(NOT EXISTS ${module} OR NOT EXISTS ${module}.sha256)
    return()
  endif()
  file(SHA256 ${module} digest)
  file(READ ${module}.sha256 expected)
  if(digest STREQUAL expected)
    message(STATUS "Kernels built before from the same sources: ${module}")
    set(KTBENCH_KEPT_MODULE ${module} PARENT_SCOPE)
  endif()
endfunction()

# Keeps the module once it is built.
function(keep_module target)
  if(NOT KTBENCH_KERNEL_CACHE OR KTBENCH_SANITIZE OR CMAKE_CROSSCOMPILING)
    return()
  endif()
  add_custom_command(TARGET ${target} POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} -DMODULE=$<TARGET_FILE:${target}> -DSOURCES=${CMAKE_CURRENT_SOURCE_DIR}
            -DBUILD_ID_SOURCE=${BUILD_ID_SOURCE} "-DBUILD_ID_TOOLS=${BUILD_ID_TOOLS}"
            -DKTBENCH_KERNEL_CACHE=${KTBENCH_KERNEL_CACHE} "-DKTBENCH_BUILT_ISAS=${KTBENCH_BUILT_ISAS}"
            -Dpybind11_VERSION=${pybind11_VERSION} -DPYTHON_MODULE_EXTENSION=${PYTHON_MODULE_EXTENSION}
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/keep.cmake)
endfunction()
