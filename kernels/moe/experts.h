// The packed weights of one MoE layer, written expert by expert.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "moe/glu.h"
#include "moe/pack.h"
#include "runtime/mapped_file.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ktbench {

// Values, or blocks of the format in which they are packed.
using AnyView = std::variant<MatrixView, BlockView>;

struct MatrixOut {
  float* data;
  std::size_t stride;
};

// All three or none: gate, up [intermediate], down [hidden].
struct BiasView {
  const float* gate = nullptr;
  const float* up = nullptr;
  const float* down = nullptr;
};

struct BiasOut {
  float* gate;
  float* up;
  float* down;
};

enum class ExpertMatrix { gate, up, down };

// The part of every expert that one domain owns: gate and up rows, down columns [first, first + intermediate).
struct Shard {
  Geometry geometry;
  int first;
  std::byte* data;

  const std::byte* gate_up(int expert) const { return data + expert * geometry.expert_bytes(); }
  const std::byte* down(int expert) const { return gate_up(expert) + geometry.gate_up_bytes(); }
  std::size_t bytes() const { return geometry.experts * geometry.expert_bytes(); }

  // 16 floats for each strip; null without biases. Only the first shard has down's, which are added once.
  float* gate_bias(int expert) const { return bias(expert, 0); }
  float* up_bias(int expert) const { return bias(expert, geometry.gate_strips()); }
  float* down_bias(int expert) const { return first == 0 ? bias(expert, 2 * geometry.gate_strips()) : nullptr; }
  float* bias(int expert, int strip) const {
    const std::size_t at = (expert + 1) * geometry.expert_bytes() - geometry.bias_bytes();
    return geometry.biases ? reinterpret_cast<float*>(data + at) + strip * strip_rows : nullptr;
  }
};

// Bytes of all experts of a layer, with sizes in 1..largest_size; nullopt on overflow.
inline std::optional<std::size_t> bytes_of(const Geometry& g) {
  std::size_t bytes;
  const bool overflows = __builtin_mul_overflow(g.expert_bytes(), static_cast<std::size_t>(g.experts), &bytes);
  return overflows ? std::nullopt : std::optional(bytes);
}

class PackedExperts {
 public:
  // One shard for each domain, on its NUMA node in `nodes`; without one, pages are placed near the thread that writes
  // them. Throws std::invalid_argument for sizes that check_size() or check_depth() reject, for more domains than the
  // intermediate size has room for, and for errors of `glu` (error_in()), std::bad_alloc if they do not fit,
  // std::system_error if the kernel does not place memory.
  PackedExperts(Geometry geometry, int domains, const std::vector<int>& nodes, const Glu& glu = {});

  // A file written by save(): the weights stay in it, shared with every process that maps it. Throws std::system_error
  // for system errors, std::runtime_error for other files.
  static PackedExperts map(const std::string& path);
  // Throws std::invalid_argument if the experts are split over domains.
  void save(const std::string& path) const;
  // Throws std::system_error if their file can no longer be read, so that results are invalid. Called after every use
  // of the weights.
  void check_file() const;

  const Geometry& geometry() const { return geometry_; }
  const Glu& glu() const { return glu_; }
  const std::vector<Shard>& shards() const { return shards_; }
  std::size_t bytes() const;

  // gate, up: [intermediate, hidden]; down: [hidden, intermediate]. Strips are packed, and so first touched, by the
  // threads of the shard's domain; without a team, or one of fewer threads than domains, by the caller. Throws
  // std::out_of_range for the expert, std::logic_error if the weights are in a file, std::invalid_argument for missing
  // or extra biases.
  void write(int expert, const AnyView& gate, const AnyView& up, const AnyView& down, Team* team,
             const BiasView& biases = {});
  void read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down, Team* team) const;
  // x W^T in float32 arithmetic, with the values that read() gives: `x` [tokens, columns], `out` [tokens, rows]. Throws
  // std::out_of_range for the expert.
  void multiply(int expert, ExpertMatrix which, const float* x, int tokens, float* out, Team* team) const;
  // Throws std::out_of_range for the expert, std::invalid_argument if there are none.
  void read_biases(int expert, const BiasOut& to) const;

  // Copies the packed bytes of an expert of another set, with the same threads as write(). Throws like write(), and
  // std::invalid_argument naming the difference if the sets differ in more than their number of experts.
  void copy(int expert, const PackedExperts& source, int source_expert, Team* team);

  // Bytes on each NUMA node, shard by shard, as reported by the kernel.
  std::vector<std::map<int, std::size_t>> placement() const;

 private:
  PackedExperts(Geometry geometry, const Glu& glu, MappedFile file);
  void check_expert(int expert) const;
  void check_biases(const BiasView& biases) const;

  Geometry geometry_;
  Glu glu_;
  std::vector<HugeBuffer> storage_;
  std::vector<Shard> shards_;
  std::unique_ptr<MappedFile> file_;
};

// The domain of a thread, and the first thread of a domain, when `threads` are split evenly.
inline int domain_of(int thread, int threads, int domains) { return thread * domains / threads; }
inline int first_thread(int domain, int threads, int domains) { return (domain * threads + domains - 1) / domains; }

}  // namespace ktbench
