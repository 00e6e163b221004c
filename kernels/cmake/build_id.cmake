# Writes OUTPUT, a C++ file that holds the digest of SOURCES and TOOLS; rewrites it only on change.
cmake_minimum_required(VERSION 3.20)
include(${CMAKE_CURRENT_LIST_DIR}/digest.cmake)
digest_sources(id ${SOURCES} "${TOOLS}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"#include \"core/build_id.h\"

namespace ktbench {
const char* build_id() { return \"${id}\"; }
}  // namespace ktbench
")
