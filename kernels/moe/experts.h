// The packed weights of one MoE layer, written expert by expert.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/layout.h"
#include "runtime/mapped_file.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ktbench {

// A row-major bf16 matrix whose rows may lie apart.
struct MatrixView {
  const bf16* data;
  std::size_t stride;  // elements between rows
};

struct MatrixOut {
  float* data;
  std::size_t stride;
};

// The part of every expert that one domain owns: gate and up rows, down columns [first, first + intermediate).
struct Shard {
  Geometry geometry;
  int first;
  std::byte* data;

  const std::byte* gate_up(int expert) const { return data + expert * geometry.expert_bytes(); }
  const std::byte* down(int expert) const { return gate_up(expert) + geometry.gate_up_bytes(); }
  std::size_t bytes() const { return geometry.experts * geometry.expert_bytes(); }
};

class PackedExperts {
 public:
  // One shard for each domain, on the NUMA node `nodes` names for it; where it names none, pages lie near the thread
  // that writes them. Throws std::invalid_argument on sizes below 1 and on more domains than the intermediate size has
  // room for, std::bad_alloc when they do not fit, std::system_error where the kernel does not place memory.
  PackedExperts(Geometry geometry, int domains, const std::vector<int>& nodes);

  // A file that save() wrote: the weights stay in it, shared with every process that maps it. Throws std::system_error
  // for what the system refuses, std::runtime_error for a file that is not one.
  static PackedExperts map(const std::string& path);
  // Throws std::invalid_argument where the experts are split over domains.
  void save(const std::string& path) const;

  const Geometry& geometry() const { return geometry_; }
  const std::vector<Shard>& shards() const { return shards_; }
  std::size_t bytes() const;

  // gate, up: [intermediate, hidden]; down: [hidden, intermediate]. Strips are packed, and so first touched, by the
  // threads of the shard's domain; without a team, or one of fewer threads than domains, by the caller. Throws
  // std::out_of_range for the expert, std::logic_error where the weights lie in a file.
  void write(int expert, MatrixView gate, MatrixView up, MatrixView down, Team* team);
  void read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down, Team* team) const;

  // Bytes on each NUMA node, shard by shard, as the kernel answers.
  std::vector<std::map<int, std::size_t>> placement() const;

 private:
  PackedExperts(Geometry geometry, MappedFile file);
  void check_expert(int expert) const;

  Geometry geometry_;
  std::vector<HugeBuffer> storage_;
  std::vector<Shard> shards_;
  std::unique_ptr<MappedFile> file_;
};

// The domain of a thread, and the first thread of a domain, when `threads` are split evenly.
inline int domain_of(int thread, int threads, int domains) { return thread * domains / threads; }
inline int first_thread(int domain, int threads, int domains) { return (domain * threads + domains - 1) / domains; }

}  // namespace ktbench
