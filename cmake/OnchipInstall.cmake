# SPDX-License-Identifier: Apache-2.0
# Install rules: one export set a linkage, so that find_package(onchip COMPONENTS static) fails
# cleanly where only the shared library was packaged, and relocatable pkg-config files.
include(CMakePackageConfigHelpers)

set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/onchip")
foreach(linkage IN ITEMS shared static)
  if(linkage STREQUAL "shared")
    set(target onchip)
  else()
    set(target onchip_static)
  endif()
  install(TARGETS ${target} EXPORT onchip-${linkage}-targets
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT ${linkage}
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${linkage}
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT ${linkage}
    FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT headers)
  install(EXPORT onchip-${linkage}-targets NAMESPACE onchip::
    DESTINATION "${config_dir}" COMPONENT ${linkage})
endforeach()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/onchipConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/onchipConfig.cmake" INSTALL_DESTINATION "${config_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/onchipConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/onchipConfig.cmake"
  "${PROJECT_BINARY_DIR}/onchipConfigVersion.cmake"
  DESTINATION "${config_dir}" COMPONENT headers)

# From <prefix>/<libdir>/pkgconfig back to <prefix>, for any depth of libdir.
file(RELATIVE_PATH pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
if(ONCHIP_HWY_FETCHED)
  set(pc_requires "")
else()
  set(pc_requires "libhwy")
endif()
set(pc_variables "")
set(pc_libs "")
if(ONCHIP_CUDA)
  # Where the toolkit lies elsewhere: pkg-config --define-variable=cuda_libdir=<its lib>.
  set(pc_variables "\ncuda_libdir=${CUDAToolkit_LIBRARY_DIR}")
  set(pc_libs " -L\${cuda_libdir} -lcudart_static -lrt -ldl")
endif()
foreach(pc IN ITEMS onchip onchip-static)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/${pc}.pc.in" "${PROJECT_BINARY_DIR}/${pc}.pc" @ONLY)
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/onchip.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT shared)
install(FILES "${PROJECT_BINARY_DIR}/onchip-static.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT static)
