# SPDX-License-Identifier: Apache-2.0
# Prints what ptxas gave each kernel, and fails where one spills more than its row of
# cuda/instances.cmake allows, keeps an array in local memory, or has its wgmma serialised (C75xx).
# cmake -DALLOWED=<spills.txt> -DOBJECTS=<folder of the objects> -P CheckPtxas.cmake
cmake_minimum_required(VERSION 3.24)
file(STRINGS "${ALLOWED}" rows)
set(table "")
set(faults "")

# The lines of one kernel on one architecture.
function(check_kernel name allowed text)
  string(REGEX MATCH "for '(sm_[0-9a-z]+)'" match "${text}")
  set(arch "${CMAKE_MATCH_1}")
  string(REGEX MATCH
    "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads" match
    "${text}")
  set(frame "${CMAKE_MATCH_1}")
  set(stores "${CMAKE_MATCH_2}")
  set(loads "${CMAKE_MATCH_3}")
  string(REGEX MATCH "Used ([0-9]+) registers" match "${text}")
  set(registers "${CMAKE_MATCH_1}")
  if(arch STREQUAL "" OR frame STREQUAL "" OR registers STREQUAL "")
    string(APPEND faults "  ${name}: cannot read what ptxas says: ${text}\n")
  elseif(stores GREATER "${allowed}")
    string(APPEND faults "  ${name} on ${arch}: spills ${stores} bytes a thread (loads ${loads}), "
      "SPILLS in cuda/instances.cmake allows ${allowed}\n")
  elseif(frame GREATER 0 AND stores EQUAL 0)
    string(APPEND faults "  ${name} on ${arch}: ${frame} bytes of local memory without a spill, "
      "an array is indexed at run time\n")
  endif()
  if(stores GREATER 0 OR allowed GREATER 0)
    string(APPEND table "${name} ${arch}: ${registers} registers, spills ${stores} bytes, "
      "loads ${loads}, allowed ${allowed}\n")
  endif()
  set(table "${table}" PARENT_SCOPE)
  set(faults "${faults}" PARENT_SCOPE)
endfunction()

set(kernels 0)
foreach(row IN LISTS rows)
  string(REGEX MATCH "^(.+/([^ ]+)) ([0-9]+)$" match "${row}")
  set(report "${OBJECTS}/${CMAKE_MATCH_1}.cu.o.ptxas")
  set(name "${CMAKE_MATCH_2}")
  set(allowed "${CMAKE_MATCH_3}")
  if(NOT EXISTS "${report}")
    string(APPEND faults "  ${name}: ${report} is not there, build first\n")
    continue()
  endif()
  file(READ "${report}" text)
  if(text MATCHES "[^\n]*C75[0-9][0-9][^\n]*")
    string(APPEND faults "  ${name}: ${CMAKE_MATCH_0}\n")
  endif()
  string(REPLACE ";" "," text "${text}")
  string(REPLACE "Compiling entry function" ";" parts "${text}")
  list(POP_FRONT parts)
  if(NOT parts)
    string(APPEND faults "  ${name}: ${report} names no kernel\n")
  endif()
  foreach(part IN LISTS parts)
    math(EXPR kernels "${kernels} + 1")
    check_kernel("${name}" "${allowed}" "${part}")
  endforeach()
endforeach()

message(STATUS "${kernels} kernels; those that spill, or may:\n${table}")
if(faults)
  message(FATAL_ERROR "ptxas:\n${faults}")
endif()
