# SPDX-License-Identifier: Apache-2.0
# cmake -DLIBRARY=<shared library> -DSTRIP= -DNM= -DLIMIT=<bytes> -DOUT=<file> -P library.cmake
# The shared library is small and exports nothing but its own API.
cmake_minimum_required(VERSION 3.24)
execute_process(COMMAND "${STRIP}" -o "${OUT}" "${LIBRARY}" COMMAND_ERROR_IS_FATAL ANY)
file(SIZE "${OUT}" bytes)
message(STATUS "${LIBRARY}: ${bytes} bytes stripped, limit ${LIMIT}")
if(bytes GREATER LIMIT)
  message(FATAL_ERROR "The stripped library is too large")
endif()

execute_process(COMMAND "${NM}" -D --defined-only "${OUT}"
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
# Weak ones are the standard library's templates; strong ones must be onchip's.
string(REGEX MATCHALL "[^\n]* [TDBR] [^\n]*" strong "${symbols}")
list(LENGTH strong count)
list(FILTER strong EXCLUDE REGEX "onchip")
if(strong OR count EQUAL 0)
  message(FATAL_ERROR "${count} exported symbols, not onchip's: ${strong}")
endif()
