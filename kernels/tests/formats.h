// Every way to store numbers.
#pragma once

#include "core/layout.h"

namespace ktbench::tests {

inline constexpr Format formats[] = {{},
                                     {Precision::int8, 0},
                                     {Precision::int4, 32},
                                     {Precision::int4, 64},
                                     {Precision::int4, 128},
                                     {Precision::q8_0, gguf_depth},
                                     {Precision::q4_0, gguf_depth}};

}  // namespace ktbench::tests
