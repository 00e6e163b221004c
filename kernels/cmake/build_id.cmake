# Writes OUTPUT, a C++ file that holds the SHA-256 of every source below SOURCES and of TOOLS; rewrites it only on change.
cmake_minimum_required(VERSION 3.20)
file(GLOB_RECURSE files RELATIVE ${SOURCES} ${SOURCES}/*.cpp ${SOURCES}/*.h ${SOURCES}/*.cmake ${SOURCES}/CMakeLists.txt)
list(SORT files)
set(listing "${TOOLS}\n")
foreach(file IN LISTS files)
  file(SHA256 ${SOURCES}/${file} digest)
  string(APPEND listing "${file} ${digest}\n")
endforeach()
string(SHA256 id "${listing}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"#include \"core/build_id.h\"

namespace ktbench {
const char* build_id() { return \"${id}\"; }
}  // namespace ktbench
")
