# SPDX-License-Identifier: Apache-2.0
# NVIDIA's compiler from its pip packages, where no toolkit is installed: nvidia-cuda-nvcc,
# nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl of one version. CMake does
# not find it unaided: nvcc.profile looks for lib64, and the runtime has no unversioned link.
find_package(Python 3.10 COMPONENTS Interpreter QUIET)
if(Python_FOUND)
  execute_process(COMMAND "${Python_EXECUTABLE}" -c
    "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    OUTPUT_VARIABLE site OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(GLOB roots "${site}/nvidia/cu[0-9]*")
  foreach(root IN LISTS roots)
    if(EXISTS "${root}/bin/nvcc")
      message(STATUS "CUDA from NVIDIA's packages in ${root}")
      file(GLOB cudart "${root}/lib/libcudart.so.*")
      set(CMAKE_CUDA_COMPILER "${root}/bin/nvcc")
      set(CMAKE_CUDA_FLAGS_INIT "-L${root}/lib")
      set(CUDA_CUDART "${cudart}" CACHE FILEPATH "The CUDA runtime")
      break()
    endif()
  endforeach()
endif()
