# SPDX-License-Identifier: Apache-2.0
# cmake -DLIBRARY=<shared library> -DSTRIP=<strip> -DLIMIT=<bytes> -DOUT=<file> -P size.cmake
cmake_minimum_required(VERSION 3.24)
execute_process(COMMAND "${STRIP}" -o "${OUT}" "${LIBRARY}" COMMAND_ERROR_IS_FATAL ANY)
file(SIZE "${OUT}" bytes)
message(STATUS "${LIBRARY}: ${bytes} bytes stripped, limit ${LIMIT}")
if(bytes GREATER LIMIT)
  message(FATAL_ERROR "The stripped library is too large")
endif()
