# SPDX-License-Identifier: Apache-2.0
# cmake -DLIBRARY=<shared library> -DEXPORTS=<regex> -DSTRIP= -DNM= -DREADELF= -DLIMIT=<bytes>
#   -DOUT=<file> -P library.cmake
# The shared library is small, exports nothing but its own API, and needs no driver to be loaded.
cmake_minimum_required(VERSION 3.24)
execute_process(COMMAND "${STRIP}" -o "${OUT}" "${LIBRARY}" COMMAND_ERROR_IS_FATAL ANY)
file(SIZE "${OUT}" bytes)
message(STATUS "${LIBRARY}: ${bytes} bytes stripped, limit ${LIMIT}")
if(bytes GREATER LIMIT)
  message(FATAL_ERROR "The stripped library is too large")
endif()

execute_process(COMMAND "${NM}" -D --defined-only "${OUT}"
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
# Weak ones are the standard library's templates.
string(REGEX MATCHALL " [TDBR] [^\n]*" strong "${symbols}")
list(TRANSFORM strong REPLACE "^ . " "")
list(LENGTH strong count)
list(FILTER strong EXCLUDE REGEX "${EXPORTS}")
if(strong OR count EQUAL 0)
  message(FATAL_ERROR "${count} exported symbols, not the API's: ${strong}")
endif()

execute_process(COMMAND "${READELF}" -d "${OUT}" OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" needed "${dynamic}")
list(TRANSFORM needed REPLACE ".*\\[(.*)\\]" "\\1")
message(STATUS "needs ${needed}")
list(FILTER needed EXCLUDE REGEX
  "^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\\+\\+|libhwy|ld-linux[^.]*)\\.so")
if(needed)
  message(FATAL_ERROR "A user may not have ${needed}")
endif()
