# SPDX-License-Identifier: Apache-2.0
# Dependencies: an installed one first, else a pinned archive. FETCHCONTENT_SOURCE_DIR_<NAME> points
# a build without network at an unpacked one.
include(FetchContent)
find_package(Threads REQUIRED)

find_package(hwy 1.0.3 CONFIG QUIET)
if(hwy_FOUND)
  set(ONCHIP_HWY_FETCHED OFF)
  set(ONCHIP_HWY_LINK hwy::hwy)
  set(ONCHIP_HWY_OBJECTS "")
else()
  message(STATUS "Highway is not installed: fetching it")
  set(ONCHIP_HWY_FETCHED ON)
  FetchContent_Declare(highway
    URL https://github.com/google/highway/archive/refs/tags/1.0.3.tar.gz
    URL_HASH SHA256=566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e
    DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  foreach(option IN ITEMS CONTRIB EXAMPLES INSTALL TESTS)
    set(HWY_ENABLE_${option} OFF CACHE BOOL "" FORCE)
  endforeach()
  set(HWY_FORCE_STATIC_LIBS ON CACHE BOOL "" FORCE)
  FetchContent_MakeAvailable(highway)
  add_library(hwy::hwy ALIAS hwy)
  set_target_properties(hwy PROPERTIES CXX_VISIBILITY_PRESET hidden)
  set_target_properties(hwy_test PROPERTIES EXCLUDE_FROM_ALL ON)
  # Its objects become part of both libraries, so nothing of Highway has to be installed.
  set(ONCHIP_HWY_LINK "")
  set(ONCHIP_HWY_OBJECTS $<TARGET_OBJECTS:hwy>)
endif()

if(ONCHIP_BUILD_TESTS)
  find_package(GTest 1.12 CONFIG QUIET)
  if(NOT GTest_FOUND)
    message(STATUS "GoogleTest is not installed: fetching it")
    FetchContent_Declare(googletest
      URL https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz
      URL_HASH SHA256=81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
    set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
    FetchContent_MakeAvailable(googletest)
  endif()

  find_package(nlohmann_json 3.10 CONFIG QUIET)
  if(NOT nlohmann_json_FOUND)
    message(STATUS "nlohmann_json is not installed: fetching it")
    FetchContent_Declare(json
      URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
      URL_HASH SHA256=d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    FetchContent_MakeAvailable(json)
  endif()
endif()
