# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target, and the function that adds one folder of cpp/src.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

get_property(is_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(PROJECT_IS_TOP_LEVEL AND NOT is_multi_config AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# CMake's own default is -O2, which leaves the reference loops of the tests slow.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -DNDEBUG")

add_library(onchip_flags INTERFACE)
target_compile_options(onchip_flags INTERFACE -Wall -Wextra $<$<BOOL:${ONCHIP_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on "text" + std::string, mended in GCC 13.
  target_compile_options(onchip_flags INTERFACE -Wno-restrict)
endif()
if(ONCHIP_SANITIZE)
  # -O1: at -O3 one sanitized kernel file takes minutes to compile.
  add_compile_options(-fsanitize=${ONCHIP_SANITIZE} -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=${ONCHIP_SANITIZE})
  if(ONCHIP_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# Sources are listed by hand; one that was forgotten stops the build instead of not being tested.
function(onchip_check_listed dir)
  file(GLOB found RELATIVE "${dir}" CONFIGURE_DEPENDS "${dir}/*.cpp")
  list(REMOVE_ITEM found ${ARGN})
  if(found)
    message(FATAL_ERROR "${dir}: not in the list of sources: ${found}")
  endif()
endfunction()

# onchip_add_layer(<folder> SEES <folders of cpp/src it may include> [LINKS <targets>] SOURCES ...)
# The include path is a directory of links, because cpp/src itself would show every folder.
function(onchip_add_layer folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SEES;LINKS;SOURCES")
  set(source_dir "${PROJECT_SOURCE_DIR}/cpp/src")
  set(include_dir "${PROJECT_BINARY_DIR}/include-rule/${folder}")
  file(MAKE_DIRECTORY "${include_dir}")
  foreach(seen IN LISTS arg_SEES)
    if(NOT EXISTS "${include_dir}/${seen}")
      file(CREATE_LINK "${source_dir}/${seen}" "${include_dir}/${seen}" SYMBOLIC)
    endif()
  endforeach()

  onchip_check_listed("${source_dir}/${folder}" ${arg_SOURCES})
  list(TRANSFORM arg_SOURCES PREPEND "${source_dir}/${folder}/" OUTPUT_VARIABLE sources)

  set(target onchip_layer_${folder})
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cpp/include" "${include_dir}")
  target_compile_definitions(${target} PRIVATE ONCHIP_BUILDING)
  target_link_libraries(${target} PRIVATE onchip_flags Threads::Threads ${arg_LINKS})
  set(ONCHIP_OBJECTS ${ONCHIP_OBJECTS} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()
