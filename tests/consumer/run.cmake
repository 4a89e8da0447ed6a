# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD_DIR=<build> -DWORK_DIR=<scratch> -DGENERATOR= -DPKG_CONFIG=
#   -DC_COMPILER= -DCXX_COMPILER= -DCUDA=<built in?> -DCUDA_BIN= -DCUDART= -P run.cmake
# Installs, moves the installed tree, then builds and runs the consumers against it through
# find_package and pkg-config, shared and static.
cmake_minimum_required(VERSION 3.24)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# The program says whether the library has a CUDA backend, which needs no GPU.
function(run_consumer program)
  execute_process(COMMAND "${program}" OUTPUT_VARIABLE said COMMAND_ECHO STDOUT
    COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "${said}")
  if(CUDA)
    set(expected "built in")
  else()
    set(expected "not built in")
  endif()
  if(NOT said MATCHES "cuda: ${expected}\n")
    message(FATAL_ERROR "Expected cuda: ${expected}")
  endif()
endfunction()

# A toolkit that CMake does not find unaided (CudaFromWheels.cmake) is named to the static consumers.
set(toolkit "")
if(CUDA)
  cmake_path(GET CUDA_BIN PARENT_PATH cuda_root)
  set(toolkit -DCUDAToolkit_ROOT=${cuda_root} -DCUDA_CUDART=${CUDART})
endif()

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/moved")
run(${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${WORK_DIR}/installed")
file(RENAME "${WORK_DIR}/installed" "${prefix}")
file(GLOB_RECURSE pc_file "${prefix}/*/onchip.pc")
cmake_path(GET pc_file PARENT_PATH pc_dir)
cmake_path(GET pc_dir PARENT_PATH lib_dir)
set(ENV{PKG_CONFIG_PATH} "${pc_dir}:$ENV{PKG_CONFIG_PATH}")

foreach(linkage IN ITEMS shared static)
  if(linkage STREQUAL "static")
    set(package onchip-static)
    set(link_options -lm)
  else()
    set(package onchip)
    set(link_options -lm "-Wl,-rpath,${lib_dir}")
  endif()
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ${package}
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")

  foreach(language IN ITEMS C CXX)
    set(build "${WORK_DIR}/${linkage}-${language}")
    run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}" -B "${build}" -G "${GENERATOR}"
      -DCMAKE_PREFIX_PATH=${prefix} ${toolkit} -DLINKAGE=${linkage} -DLANGUAGE=${language}
      -DCMAKE_${language}_COMPILER=${${language}_COMPILER} -DCMAKE_BUILD_TYPE=Release)
    run(${CMAKE_COMMAND} --build "${build}")
    run_consumer("${build}/consumer")

    if(language STREQUAL "C")
      set(source -std=c11 "${CMAKE_CURRENT_LIST_DIR}/consumer.c")
    else()
      set(source -std=c++20 "${CMAKE_CURRENT_LIST_DIR}/consumer.cpp")
    endif()
    run(${${language}_COMPILER} ${source} -o "${build}/with_pkg_config" ${flags} ${link_options})
    run_consumer("${build}/with_pkg_config")
  endforeach()
endforeach()

set(build "${WORK_DIR}/examples")
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/../../examples" -B "${build}" -G "${GENERATOR}"
  -DCMAKE_PREFIX_PATH=${prefix} ${toolkit} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
run(${CMAKE_COMMAND} --build "${build}")
run("${build}/attention_cpp")
run("${build}/attention_c")
run("${build}/decode_c")
