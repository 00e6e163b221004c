#include "moe/experts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "moe/pack.h"
#include "runtime/numa.h"

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

// Shares of the intermediate size end where groups and strips do.
std::vector<Shard> cut(const Geometry& whole, int domains) {
  check_size("domains", domains);
  const int unit = whole.format.depth_multiple();
  const int units = (whole.intermediate + unit - 1) / unit;
  if (units < domains)
    throw std::invalid_argument("domains=" + std::to_string(domains) + ": intermediate=" +
                                std::to_string(whole.intermediate) + " has room for " + std::to_string(units));
  std::vector<Shard> shards;
  for (int d = 0; d < domains; ++d) {
    const int first = units * d / domains * unit, end = std::min(units * (d + 1) / domains * unit, whole.intermediate);
    Geometry part = whole;
    part.intermediate = end - first;
    shards.push_back({part, first, nullptr});
  }
  return shards;
}

void write_strips(const Shard& shard, int expert, MatrixView gate, MatrixView up, MatrixView down, int share,
                  int shares) {
  const Geometry& g = shard.geometry;
  std::byte* const gate_up_to = shard.data + expert * g.expert_bytes();
  std::byte* const down_to = gate_up_to + g.gate_up_bytes();
  for (int s = g.gate_strips() * share / shares; s < g.gate_strips() * (share + 1) / shares; ++s) {
    const int row = s * strip_rows;
    std::byte* to = gate_up_to + 2 * s * g.gate_strip_bytes();
    for (const MatrixView& from : {gate, up}) {
      pack_strip(from.data + (shard.first + row) * from.stride, from.stride, g.intermediate - row, g.hidden, g.format, to);
      to += g.gate_strip_bytes();
    }
  }
  for (int s = g.down_strips() * share / shares; s < g.down_strips() * (share + 1) / shares; ++s)
    pack_strip(down.data + s * strip_rows * down.stride + shard.first, down.stride, g.hidden - s * strip_rows,
               g.intermediate, g.format, down_to + s * g.down_strip_bytes());
}

void read_strips(const Shard& shard, int expert, MatrixOut gate, MatrixOut up, MatrixOut down, int share, int shares) {
  const Geometry& g = shard.geometry;
  for (int s = g.gate_strips() * share / shares; s < g.gate_strips() * (share + 1) / shares; ++s) {
    const int row = s * strip_rows;
    const std::byte* from = shard.gate_up(expert) + 2 * s * g.gate_strip_bytes();
    for (const MatrixOut& to : {gate, up}) {
      unpack_strip(from, g.intermediate - row, g.hidden, g.format, to.data + (shard.first + row) * to.stride, to.stride);
      from += g.gate_strip_bytes();
    }
  }
  for (int s = g.down_strips() * share / shares; s < g.down_strips() * (share + 1) / shares; ++s)
    unpack_strip(shard.down(expert) + s * g.down_strip_bytes(), g.hidden - s * strip_rows, g.intermediate, g.format,
                 down.data + s * strip_rows * down.stride + shard.first, down.stride);
}

// The head of a file of packed experts.
struct FileHead {
  char magic[16];
  std::int32_t experts, hidden, intermediate, precision, group;

  bool operator==(const FileHead&) const = default;
};
constexpr std::size_t head_bytes = 4096;  // the weights begin on a page
constexpr char magic[16] = "ktbench experts";

FileHead head_of(const Geometry& g) {
  FileHead head{{}, g.experts, g.hidden, g.intermediate, static_cast<std::int32_t>(g.format.precision), g.format.group};
  std::copy(std::begin(magic), std::end(magic), head.magic);
  return head;
}

bool sensible(const FileHead& head) {
  const bool named = std::equal(std::begin(magic), std::end(magic), head.magic);
  const bool sized = head.experts > 0 && head.hidden > 0 && head.intermediate > 0;
  const bool grouped = head.precision == 2 ? head.group == 32 || head.group == 64 || head.group == 128 : head.group == 0;
  return named && sized && head.precision >= 0 && head.precision < precisions && grouped;
}

Geometry geometry_in(const MappedFile& file, const std::string& path) {
  FileHead head;
  if (file.bytes() >= head_bytes) std::memcpy(&head, file.as<>(), sizeof head);
  if (file.bytes() < head_bytes || !sensible(head)) throw std::runtime_error(path + " holds no packed experts");
  const Geometry g{head.experts, head.hidden, head.intermediate, {static_cast<Precision>(head.precision), head.group}};
  if (file.bytes() != head_bytes + g.experts * g.expert_bytes())
    throw std::runtime_error(path + " has " + std::to_string(file.bytes()) + " bytes, its packed experts need " +
                             std::to_string(head_bytes + g.experts * g.expert_bytes()));
  return g;
}

}  // namespace

PackedExperts::PackedExperts(Geometry geometry, int domains, const std::vector<int>& nodes)
    : geometry_(checked(geometry)), shards_(cut(geometry_, domains)) {
  if (!nodes.empty() && nodes.size() != shards_.size())
    throw std::invalid_argument(std::to_string(nodes.size()) + " nodes for " + std::to_string(domains) + " domains");
  for (std::size_t d = 0; d < shards_.size(); ++d) {
    storage_.emplace_back(shards_[d].bytes(), nodes.empty() ? Placement(FirstTouch{}) : Placement(OnNode{nodes[d]}));
    shards_[d].data = storage_.back().as<>();
  }
}

PackedExperts::PackedExperts(Geometry geometry, MappedFile file)
    : geometry_(geometry), shards_(cut(geometry_, 1)), file_(std::make_unique<MappedFile>(std::move(file))) {
  shards_.front().data = file_->as<>() + head_bytes;
}

PackedExperts PackedExperts::map(const std::string& path) {
  MappedFile file = MappedFile::open(path);
  const Geometry geometry = geometry_in(file, path);
  return {geometry, std::move(file)};
}

void PackedExperts::save(const std::string& path) const {
  if (shards_.size() > 1) throw std::invalid_argument("experts that are split over domains cannot be saved");
  const Shard& all = shards_.front();
  MappedFile file = MappedFile::create(path, head_bytes + all.bytes());
  const FileHead head = head_of(geometry_);
  std::memcpy(file.as<>(), &head, sizeof head);
  std::memcpy(file.as<>() + head_bytes, all.data, all.bytes());
  file.flush();
}

std::size_t PackedExperts::bytes() const {
  std::size_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.bytes();
  return sum;
}

void PackedExperts::check_expert(int expert) const {
  if (expert < 0 || expert >= geometry_.experts)
    throw std::out_of_range("expert " + std::to_string(expert) + " is not in 0.." +
                            std::to_string(geometry_.experts - 1));
}

void PackedExperts::write(int expert, MatrixView gate, MatrixView up, MatrixView down, Team* team) {
  check_expert(expert);
  if (file_) throw std::logic_error("packed experts in a file cannot be written");
  const int domains = static_cast<int>(shards_.size());
  if (!team || team->threads() < domains) {
    for (const Shard& shard : shards_) write_strips(shard, expert, gate, up, down, 0, 1);
    return;
  }
  const int threads = team->threads();
  team->run([&](int thread) {
    const int d = domain_of(thread, threads, domains), begin = first_thread(d, threads, domains);
    write_strips(shards_[d], expert, gate, up, down, thread - begin, first_thread(d + 1, threads, domains) - begin);
  });
}

void PackedExperts::read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down, Team* team) const {
  check_expert(expert);
  const auto share = [&](int part, int parts) {
    for (const Shard& shard : shards_) read_strips(shard, expert, gate, up, down, part, parts);
  };
  if (!team) return share(0, 1);
  team->run([&](int thread) { share(thread, team->threads()); });
}

std::vector<std::map<int, std::size_t>> PackedExperts::placement() const {
  std::vector<std::map<int, std::size_t>> on;
  for (const Shard& shard : shards_) on.push_back(bytes_by_node(shard.data, shard.bytes()));
  return on;
}

}  // namespace ktbench
