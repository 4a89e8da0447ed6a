# SPDX-License-Identifier: Apache-2.0
# NVIDIA's compiler from its pip packages, where no toolkit is installed; pyproject.toml lists them.
# CMake does not find it unaided: nvcc.profile looks for lib64, and the runtime has no unversioned
# link.
find_package(Python 3.10 COMPONENTS Interpreter QUIET)
set(roots "")
if(Python_FOUND)
  # Wherever Python finds them: a build of pip's has a path of its own.
  execute_process(COMMAND "${Python_EXECUTABLE}" -c
    "import nvidia; print(*[p + '/cu[0-9]*' for p in nvidia.__path__], sep=';')"
    OUTPUT_VARIABLE patterns OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(GLOB roots ${patterns})
endif()
foreach(root IN LISTS roots)
  if(EXISTS "${root}/bin/nvcc" AND NOT CMAKE_CUDA_COMPILER)
    message(STATUS "CUDA from NVIDIA's packages in ${root}")
    file(GLOB cudart "${root}/lib/libcudart.so.*")
    set(CMAKE_CUDA_COMPILER "${root}/bin/nvcc")
    set(CMAKE_CUDA_FLAGS_INIT "-L${root}/lib")
    set(CUDA_CUDART "${cudart}" CACHE FILEPATH "The CUDA runtime")
  endif()
endforeach()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "ONCHIP_CUDA needs nvcc on the PATH, CMAKE_CUDA_COMPILER, or NVIDIA's compiler "
    "as pip packages, which ONCHIP_CUDA=1 ./dev build installs")
endif()
