# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: kernels and what launches them. Included where ONCHIP_CUDA is on.
if(CMAKE_VERSION VERSION_LESS 3.25)
  message(FATAL_ERROR "ONCHIP_CUDA needs CMake 3.25 or later, for CUDA in C++20")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(onchip_nvcc nvcc PATHS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(onchip_nvcc)
    set(CMAKE_CUDA_COMPILER "${onchip_nvcc}")
  else()
    include(CudaFromWheels)
  endif()
endif()
# 8.x GPUs run sm_80, 9.x run sm_90, and every later one compiles the PTX of compute_90.
if(NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPUs to compile for")
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")
set(ONCHIP_HOPPER OFF)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90")
  set(ONCHIP_HOPPER ON)
endif()
include(KernelInstances)

# The folders that a layer's sources see, as links, so that breaking the include rule does not
# compile: <name in #include>=<path>.
function(onchip_link_includes dir)
  foreach(link IN LISTS ARGN)
    string(REGEX MATCH "^(.*)=(.*)$" match "${link}")
    set(at "${dir}/${CMAKE_MATCH_1}")
    cmake_path(GET at PARENT_PATH parent)
    file(MAKE_DIRECTORY "${parent}")
    if(NOT EXISTS "${at}")
      file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_2}" "${at}" SYMBOLIC)
    endif()
  endforeach()
endfunction()

set(dir "${PROJECT_BINARY_DIR}/include-rule/kernels")
onchip_link_includes("${dir}" prims=cuda/prims common=cuda/common sm80=cuda/sm80 sm90=cuda/sm90
  host/kernel_params.hpp=cpp/src/host/kernel_params.hpp host/problem.hpp=cpp/src/host/problem.hpp
  host/sequence.hpp=cpp/src/host/sequence.hpp)
set(sources
  cuda/common/combine.cu
  cuda/common/dropout_mask.cu
  cuda/common/first_tile.cu
  cuda/common/merge.cu
  cuda/common/rows.cu
  cuda/sm80/float32.cu)
set(launcher sh "${PROJECT_SOURCE_DIR}/cmake/ptxas_report.sh" ${CMAKE_CUDA_COMPILER_LAUNCHER})
function(onchip_add_kernels target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE cpp/include "${dir}")
  target_compile_definitions(${target} PRIVATE ONCHIP_BUILDING)
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr -Xptxas=-v
    -diag-suppress=20050  # kernels that are no templates are inline, like functions in headers
    $<$<BOOL:${ONCHIP_WERROR}>:-Werror=all-warnings>)
  set_target_properties(${target} PROPERTIES
    CUDA_RUNTIME_LIBRARY Static
    CUDA_COMPILER_LAUNCHER "${launcher}")
endfunction()
onchip_add_kernels(onchip_kernels ${ONCHIP_KERNEL_SOURCES} ${sources})
if(ONCHIP_HOPPER)
  onchip_add_kernels(onchip_hopper_kernels ${ONCHIP_HOPPER_SOURCES})
  set_target_properties(onchip_hopper_kernels PROPERTIES CUDA_ARCHITECTURES 90a-real)
  list(APPEND ONCHIP_OBJECTS $<TARGET_OBJECTS:onchip_hopper_kernels>)
endif()
# What ptxas may spill, for CheckPtxas.cmake. A call to divide 64-bit integers saves a register.
set(spills_of_merge 4)
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  cmake_path(REMOVE_EXTENSION source)
  if(NOT DEFINED spills_of_${name})
    set(spills_of_${name} 0)
  endif()
  string(APPEND ONCHIP_KERNEL_SPILLS "onchip_kernels.dir/${source} ${spills_of_${name}}\n")
endforeach()
file(WRITE "${ONCHIP_KERNEL_DIR}/spills.txt" "${ONCHIP_KERNEL_SPILLS}")

set(dir "${PROJECT_BINARY_DIR}/include-rule/cuda")
onchip_link_includes("${dir}" cuda=cuda/host host=cpp/src/host
  common/kernel.hpp=cuda/common/kernel.hpp common/launchers.hpp=cuda/common/launchers.hpp
  sm90/fwd_params.hpp=cuda/sm90/fwd_params.hpp sm90/fwd_spans.hpp=cuda/sm90/fwd_spans.hpp
  sm90/fwd_timeline.hpp=cuda/sm90/fwd_timeline.hpp)
set(sources
  cuda_backend.cpp
  device_caps.cpp
  hopper.cpp
  launch.cpp
  params.cpp)
onchip_check_listed("${PROJECT_SOURCE_DIR}/cuda/host" ${sources})
list(TRANSFORM sources PREPEND "cuda/host/")
add_library(onchip_layer_cuda OBJECT ${sources} "${ONCHIP_KERNEL_DIR}/kernels.cpp")
target_include_directories(onchip_layer_cuda PRIVATE cpp/include "${dir}")
target_include_directories(onchip_layer_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(onchip_layer_cuda PRIVATE ONCHIP_BUILDING)
target_link_libraries(onchip_layer_cuda PRIVATE onchip_flags)

onchip_link_includes("${PROJECT_BINARY_DIR}/include-rule/api" cuda=cuda/host)
target_compile_definitions(onchip_layer_api PRIVATE ONCHIP_HAS_CUDA)
list(APPEND ONCHIP_OBJECTS $<TARGET_OBJECTS:onchip_kernels> $<TARGET_OBJECTS:onchip_layer_cuda>)
set(ONCHIP_CUDA_LINK CUDA::cudart_static)
