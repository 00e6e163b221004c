#include "moe/experts.h"

#include <stdexcept>
#include <string>

#include "moe/pack.h"

namespace ktbench {
namespace {

void check_size(const char* name, int value) {
  if (value < 1) throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) + " must be at least 1");
}

Geometry checked(Geometry g) {
  check_size("experts", g.experts);
  check_size("hidden", g.hidden);
  check_size("intermediate", g.intermediate);
  return g;
}

}  // namespace

PackedExperts::PackedExperts(Geometry geometry) : geometry_(checked(geometry)), storage_(bytes()) {}

bf16* PackedExperts::expert_data(int expert) const {
  if (expert < 0 || expert >= geometry_.experts)
    throw std::out_of_range("expert " + std::to_string(expert) + " is not in 0.." +
                            std::to_string(geometry_.experts - 1));
  return storage_.as<bf16>() + expert * geometry_.expert_elements();
}

void PackedExperts::write(int expert, MatrixView gate, MatrixView up, MatrixView down, Team* team) {
  expert_data(expert);  // refuses here, on the caller's thread
  if (!team) return write_strips(expert, gate, up, down, 0, 1);
  team->run([&](int thread) { write_strips(expert, gate, up, down, thread, team->threads()); });
}

void PackedExperts::write_strips(int expert, MatrixView gate, MatrixView up, MatrixView down, int share, int shares) {
  const Geometry& g = geometry_;
  bf16* const gate_up_to = expert_data(expert);
  bf16* const down_to = gate_up_to + g.gate_up_elements();
  const std::size_t long_strip = 1ul * g.hidden_tiles() * tile_elements;
  const std::size_t short_strip = 1ul * g.intermediate_tiles() * tile_elements;
  for (int s = g.gate_strips() * share / shares; s < g.gate_strips() * (share + 1) / shares; ++s) {
    const int row = s * strip_rows;
    pack_strip(gate.data + row * gate.stride, gate.stride, g.intermediate - row, g.hidden,
               gate_up_to + 2 * s * long_strip);
    pack_strip(up.data + row * up.stride, up.stride, g.intermediate - row, g.hidden,
               gate_up_to + (2 * s + 1) * long_strip);
  }
  for (int s = g.down_strips() * share / shares; s < g.down_strips() * (share + 1) / shares; ++s)
    pack_strip(down.data + s * strip_rows * down.stride, down.stride, g.hidden - s * strip_rows, g.intermediate,
               down_to + s * short_strip);
}

void PackedExperts::read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down) const {
  const Geometry& g = geometry_;
  const bf16* from = expert_data(expert);
  for (int row = 0; row < g.intermediate; row += strip_rows)
    for (MatrixOut* to : {&gate, &up}) {
      unpack_strip(from, g.intermediate - row, g.hidden, to->data + row * to->stride, to->stride);
      from += 1ul * g.hidden_tiles() * tile_elements;
    }
  from = this->down(expert);
  for (int row = 0; row < g.hidden; row += strip_rows) {
    unpack_strip(from, g.hidden - row, g.intermediate, down.data + row * down.stride, down.stride);
    from += 1ul * g.intermediate_tiles() * tile_elements;
  }
}

}  // namespace ktbench
