# Writes OUTPUT, the JSON that an installed package knows its origin by: the commit of CHECKOUT, and TOOLS.
cmake_minimum_required(VERSION 3.20)
set(commit null)
if(EXISTS ${CHECKOUT}/.git)
  execute_process(COMMAND git -C ${CHECKOUT} rev-parse HEAD OUTPUT_VARIABLE sha RESULT_VARIABLE code
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND git -C ${CHECKOUT} status --porcelain OUTPUT_VARIABLE changes ERROR_QUIET)
  if(code EQUAL 0 AND changes STREQUAL "")
    set(commit "{\"sha\": \"${sha}\", \"dirty\": false}")
  elseif(code EQUAL 0)
    set(commit "{\"sha\": \"${sha}\", \"dirty\": true}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"{\"commit\": ${commit}, \"tools\": \"${TOOLS}\"}
")
