#include "binding/formats.h"

#include <pybind11/pybind11.h>

#include <stdexcept>

namespace ktbench::binding {
namespace {

struct NamedFormat {
  const char* name;
  Format format;
};
constexpr NamedFormat formats[] = {{"bf16", {}},
                                   {"int8", {Precision::int8, 0}},
                                   {"int4_g32", {Precision::int4, 32}},
                                   {"int4_g64", {Precision::int4, 64}},
                                   {"int4_g128", {Precision::int4, 128}},
                                   {"q8_0", {Precision::q8_0, gguf_depth}},
                                   {"q4_0", {Precision::q4_0, gguf_depth}}};

}  // namespace

Format format_named(const std::string& name) {
  std::string known;
  for (const NamedFormat& f : formats) {
    if (name == f.name) return f.format;
    known += (known.empty() ? "" : ", ") + std::string(f.name);
  }
  throw pybind11::value_error("precision '" + name + "': allowed are " + known);
}

std::string name_of(const Format& format) {
  for (const NamedFormat& f : formats)
    if (f.format.precision == format.precision && f.format.group == format.group) return f.name;
  throw std::logic_error("a format without a name");
}

}  // namespace ktbench::binding
