#pragma once

#include <pybind11/pybind11.h>

namespace ktbench::binding {

void bind_small(pybind11::module_& module);

}  // namespace ktbench::binding
