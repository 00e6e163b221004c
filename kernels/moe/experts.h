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

// Numbers, or blocks of the format that they are packed in.
using AnyView = std::variant<MatrixView, BlockView>;

struct MatrixOut {
  float* data;
  std::size_t stride;
};

// All three, or none: gate, up [intermediate], down [hidden].
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

  // 16 floats for each strip; null where there are none. The first shard alone has down's, which are added once.
  float* gate_bias(int expert) const { return bias(expert, 0); }
  float* up_bias(int expert) const { return bias(expert, geometry.gate_strips()); }
  float* down_bias(int expert) const { return first == 0 ? bias(expert, 2 * geometry.gate_strips()) : nullptr; }
  float* bias(int expert, int strip) const {
    const std::size_t at = (expert + 1) * geometry.expert_bytes() - geometry.bias_bytes();
    return geometry.biases ? reinterpret_cast<float*>(data + at) + strip * strip_rows : nullptr;
  }
};

// Of all experts of a layer, whose sizes are in 1..largest_size; nothing where no number holds them.
inline std::optional<std::size_t> bytes_of(const Geometry& g) {
  std::size_t bytes;
  const bool overflows = __builtin_mul_overflow(g.expert_bytes(), static_cast<std::size_t>(g.experts), &bytes);
  return overflows ? std::nullopt : std::optional(bytes);
}

class PackedExperts {
 public:
  // One shard for each domain, on the NUMA node `nodes` names for it; where it names none, pages lie near the thread
  // that writes them. Throws std::invalid_argument on sizes that check_size() or check_depth() refuse, on more domains
  // than the intermediate size has room for, or on what error_in() finds in `glu`, std::bad_alloc when they do not fit,
  // std::system_error where the kernel does not place memory.
  PackedExperts(Geometry geometry, int domains, const std::vector<int>& nodes, const Glu& glu = {});

  // A file that save() wrote: the weights stay in it, shared with every process that maps it. Throws std::system_error
  // for what the system refuses, std::runtime_error for a file that is not one.
  static PackedExperts map(const std::string& path);
  // Throws std::invalid_argument where the experts are split over domains.
  void save(const std::string& path) const;
  // Throws std::system_error where the file that holds them cannot be read any more: what was computed is worth
  // nothing. Whatever reads weights calls it afterwards.
  void check_file() const;

  const Geometry& geometry() const { return geometry_; }
  const Glu& glu() const { return glu_; }
  const std::vector<Shard>& shards() const { return shards_; }
  std::size_t bytes() const;

  // gate, up: [intermediate, hidden]; down: [hidden, intermediate]. Strips are packed, and so first touched, by the
  // threads of the shard's domain; without a team, or one of fewer threads than domains, by the caller. Throws
  // std::out_of_range for the expert, std::logic_error where the weights lie in a file, std::invalid_argument for
  // biases that are missing or too many.
  void write(int expert, const AnyView& gate, const AnyView& up, const AnyView& down, Team* team,
             const BiasView& biases = {});
  void read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down, Team* team) const;
  // x W^T in float32 arithmetic, of the numbers that read() gives: `x` [tokens, columns], `out` [tokens, rows]. Throws
  // std::out_of_range for the expert.
  void multiply(int expert, ExpertMatrix which, const float* x, int tokens, float* out, Team* team) const;
  // Throws std::out_of_range for the expert, std::invalid_argument where there are none.
  void read_biases(int expert, const BiasOut& to) const;

  // The packed bytes of an expert of another set, by the same threads as write(). Throws as write() does, and
  // std::invalid_argument naming what differs between the sets, where that is more than their number of experts.
  void copy(int expert, const PackedExperts& source, int source_expert, Team* team);

  // Bytes on each NUMA node, shard by shard, as the kernel answers.
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
