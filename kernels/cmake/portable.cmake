# Fails when vector code could run on a CPU without it. ISA_OBJECTS were compiled with an ISA's flags, OBJECTS without.
# The linker keeps any one copy of a weak function, for all callers; an initialiser runs before CPUID is asked.
cmake_minimum_required(VERSION 3.20)

function(refuse_matches reason object pattern)
  execute_process(COMMAND ${ARGN} ${object} COMMAND grep -m 1 -E ${pattern} OUTPUT_VARIABLE line RESULTS_VARIABLE codes)
  if(codes MATCHES ";0$")
    string(STRIP "${line}" line)
    message(FATAL_ERROR "${object}: ${reason}: ${line}")
  elseif(NOT codes STREQUAL "0;1")  # neither read to its end nor found anything
    message(FATAL_ERROR "${object}: cannot be inspected")
  endif()
endfunction()

foreach(object IN LISTS ISA_OBJECTS)
  refuse_matches("a weak function compiled for one ISA" ${object} " [VWu] " ${NM} --defined-only --demangle)
  refuse_matches("an initialiser compiled for one ISA" ${object} "_GLOBAL__sub_I_" ${NM} --defined-only)
endforeach()
list(FILTER OBJECTS EXCLUDE REGEX "\\.[gp]ch$")  # a precompiled header, which CMake lists beside the objects
foreach(object IN LISTS OBJECTS)
  refuse_matches("vector instructions outside the ISA folders" ${object} "%[yz]mm|%k[1-7]|\tv[a-z]" ${OBJDUMP} -d)
endforeach()
