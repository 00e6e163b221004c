#pragma once

#include <pybind11/pybind11.h>

namespace ktbench::binding {

void bind_calls(pybind11::module_& module);
void bind_dense(pybind11::module_& module);
void bind_linear(pybind11::module_& module);
void bind_moe(pybind11::module_& module);
void bind_small(pybind11::module_& module);
void bind_training(pybind11::module_& module);

}  // namespace ktbench::binding
