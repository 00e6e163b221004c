// The packed weights of one MoE layer, written expert by expert.
#pragma once

#include "core/layout.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ktbench {

// A row-major bf16 matrix whose rows may lie apart.
struct MatrixView {
  const bf16* data;
  std::size_t stride;  // elements between rows
};

struct MatrixOut {
  bf16* data;
  std::size_t stride;
};

class PackedExperts {
 public:
  // Throws std::invalid_argument on sizes below 1, std::bad_alloc when they do not fit.
  explicit PackedExperts(Geometry geometry);

  const Geometry& geometry() const { return geometry_; }
  std::size_t bytes() const { return geometry_.experts * geometry_.expert_elements() * sizeof(bf16); }

  // gate, up: [intermediate, hidden]; down: [hidden, intermediate]. Strips are packed, and so first touched, by the
  // team's threads in the order in which the forward pass deals them out; without a team by the caller.
  void write(int expert, MatrixView gate, MatrixView up, MatrixView down, Team* team);
  void read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down) const;

  const bf16* gate_up(int expert) const { return expert_data(expert); }
  const bf16* down(int expert) const { return expert_data(expert) + geometry_.gate_up_elements(); }

 private:
  bf16* expert_data(int expert) const;
  void write_strips(int expert, MatrixView gate, MatrixView up, MatrixView down, int share, int shares);

  Geometry geometry_;
  HugeBuffer storage_;
};

}  // namespace ktbench
