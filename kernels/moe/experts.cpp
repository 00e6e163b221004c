#include "moe/experts.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "moe/expert_file.h"
#include "moe/pack.h"
#include "moe/widened.h"
#include "runtime/isa.h"
#include "runtime/numa.h"

namespace ktbench {
namespace {

Geometry checked(Geometry g) {
  check_size("experts", g.experts);
  check_size("hidden", g.hidden);
  check_size("intermediate", g.intermediate);
  check_depth("hidden", g.hidden, g.format);
  check_depth("intermediate", g.intermediate, g.down_format());
  if (!bytes_of(g)) throw std::bad_alloc();
  return g;
}

Glu checked(const Glu& glu) {
  if (const std::string fault = error_in(glu); !fault.empty()) throw std::invalid_argument(fault);
  return glu;
}

// Parts of the intermediate size end with groups, records and strips.
std::vector<Shard> cut(const Geometry& whole, int domains) {
  check_size("domains", domains);
  const int unit = whole.down_format().depth_multiple();
  const int units = (whole.intermediate + unit - 1) / unit;
  if (units < domains)
    throw std::invalid_argument("domains=" + std::to_string(domains) + ": intermediate=" +
                                std::to_string(whole.intermediate) + " has room for " + std::to_string(units));
  std::vector<Shard> shards;
  const auto begins = [&](std::int64_t d) { return static_cast<int>(units * d / domains * unit); };
  for (int d = 0; d < domains; ++d) {
    const int first = begins(d), end = std::min(begins(d + 1), whole.intermediate);
    Geometry part = whole;
    part.intermediate = end - first;
    shards.push_back({part, first, nullptr});
  }
  return shards;
}

void pack_rows(const AnyView& from, int row, int column, int rows, int depth, const Format& format, std::byte* to) {
  std::visit([&](const auto& view) { pack_strip(view.at(row, column), rows, depth, format, to); }, from);
}

void write_strips(const Shard& shard, int expert, const AnyView& gate, const AnyView& up, const AnyView& down, int part,
                  int parts) {
  const Geometry& g = shard.geometry;
  std::byte* const gate_up_to = shard.data + expert * g.expert_bytes();
  std::byte* const down_to = gate_up_to + g.gate_up_bytes();
  for (int s = g.gate_strips() * part / parts; s < g.gate_strips() * (part + 1) / parts; ++s) {
    const int row = s * strip_rows;
    std::byte* to = gate_up_to + 2 * s * g.gate_strip_bytes();
    for (const AnyView* from : {&gate, &up}) {
      pack_rows(*from, shard.first + row, 0, g.intermediate - row, g.hidden, g.format, to);
      to += g.gate_strip_bytes();
    }
  }
  for (int s = g.down_strips() * part / parts; s < g.down_strips() * (part + 1) / parts; ++s)
    pack_rows(down, s * strip_rows, shard.first, g.hidden - s * strip_rows, g.intermediate, g.down_format(),
              down_to + s * g.down_strip_bytes());
}

void read_strips(const Shard& shard, int expert, MatrixOut gate, MatrixOut up, MatrixOut down, int part, int parts) {
  const Geometry& g = shard.geometry;
  for (int s = g.gate_strips() * part / parts; s < g.gate_strips() * (part + 1) / parts; ++s) {
    const int row = s * strip_rows;
    const std::byte* from = shard.gate_up(expert) + 2 * s * g.gate_strip_bytes();
    for (const MatrixOut& to : {gate, up}) {
      unpack_strip(from, g.intermediate - row, g.hidden, g.format, to.data + (shard.first + row) * to.stride, to.stride);
      from += g.gate_strip_bytes();
    }
  }
  for (int s = g.down_strips() * part / parts; s < g.down_strips() * (part + 1) / parts; ++s)
    unpack_strip(shard.down(expert) + s * g.down_strip_bytes(), g.hidden - s * strip_rows, g.intermediate, g.down_format(),
                 down.data + s * strip_rows * down.stride + shard.first, down.stride);
}

// A shard's part of a matrix: strips `apart` bytes from each other, rows from `row` on, columns from `column` on.
struct StripsOf {
  const std::byte* strips;
  std::size_t apart;
  Format format;
  int rows, columns, padded_columns;
  int row, column;

  int count() const { return (rows + strip_rows - 1) / strip_rows; }
};

StripsOf strips_of(const Shard& shard, int expert, ExpertMatrix which) {
  const Geometry& g = shard.geometry;
  if (which == ExpertMatrix::down)
    return {shard.down(expert), g.down_strip_bytes(), g.down_format(), g.hidden,
            g.intermediate,     g.intermediate_depth(), 0,             shard.first};
  const std::byte* first = shard.gate_up(expert) + (which == ExpertMatrix::up ? g.gate_strip_bytes() : 0);
  return {first, 2 * g.gate_strip_bytes(), g.format, g.intermediate, g.hidden, g.hidden_depth(), shard.first, 0};
}

std::vector<float> padded(const float* x, int tokens, std::size_t width, const StripsOf& matrix) {
  std::vector<float> rows(1ul * tokens * matrix.padded_columns);
  for (int t = 0; t < tokens; ++t)
    std::copy_n(x + t * width + matrix.column, matrix.columns, rows.data() + 1ul * t * matrix.padded_columns);
  return rows;
}

// out += x W^T, by thread `part` of `parts`. Rows of `x` are padded, those of `out` `width` numbers apart.
void add_products(const StripsOf& matrix, const float* x, int tokens, float* out, std::size_t width, int part, int parts) {
#ifdef __x86_64__
  static const MultiplyStrip multiply = granted("avx2") ? multiply_strip_avx2 : multiply_strip_portable;
#else
  constexpr MultiplyStrip multiply = multiply_strip_portable;
#endif
  const auto products = std::make_unique<float[][strip_rows]>(tokens);
  for (int s = matrix.count() * part / parts; s < matrix.count() * (part + 1) / parts; ++s) {
    multiply(matrix.strips + s * matrix.apart, matrix.format, matrix.padded_columns, x, tokens, products.get());
    const int row = s * strip_rows;
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < std::min(strip_rows, matrix.rows - row); ++i)
        out[t * width + matrix.row + row + i] += products[t][i];
  }
}

// The values from the shard's first on.
void write_biases(const Shard& shard, int expert, const BiasView& from) {
  const Geometry& g = shard.geometry;
  if (!g.biases) return;
  std::copy_n(from.gate + shard.first, g.intermediate, shard.gate_bias(expert));
  std::copy_n(from.up + shard.first, g.intermediate, shard.up_bias(expert));
  if (float* down = shard.down_bias(expert)) std::copy_n(from.down, g.hidden, down);
}

}  // namespace

PackedExperts::PackedExperts(Geometry geometry, int domains, const std::vector<int>& nodes, const Glu& glu)
    : geometry_(checked(geometry)), glu_(checked(glu)), shards_(cut(geometry_, domains)) {
  if (!nodes.empty() && nodes.size() != shards_.size())
    throw std::invalid_argument(std::to_string(nodes.size()) + " nodes for " + std::to_string(domains) + " domains");
  for (std::size_t d = 0; d < shards_.size(); ++d) {
    storage_.emplace_back(shards_[d].bytes(), nodes.empty() ? Placement(FirstTouch{}) : Placement(OnNode{nodes[d]}));
    shards_[d].data = storage_.back().as<>();
  }
}

PackedExperts::PackedExperts(Geometry geometry, const Glu& glu, MappedFile file)
    : geometry_(geometry), glu_(glu), shards_(cut(geometry_, 1)), file_(std::make_unique<MappedFile>(std::move(file))) {
  shards_.front().data = file_->as<>() + head_bytes;
}

PackedExperts PackedExperts::map(const std::string& path) {
  MappedFile file = MappedFile::open(path);
  const FileHead head = head_in(file, path);
  return {head.geometry(), head.glu(), std::move(file)};
}

void PackedExperts::save(const std::string& path) const {
  if (shards_.size() > 1) throw std::invalid_argument("experts that are split over domains cannot be saved");
  const Shard& all = shards_.front();
  MappedFile file = MappedFile::create(path, head_bytes + all.bytes());
  const FileHead head = head_of(geometry_, glu_);
  std::memcpy(file.as<>(), &head, sizeof head);
  std::memcpy(file.as<>() + head_bytes, all.data, all.bytes());
  check_file();
  file.flush();
}

void PackedExperts::check_file() const {
  if (file_) file_->check();
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

void PackedExperts::check_biases(const BiasView& biases) const {
  const int given = !!biases.gate + !!biases.up + !!biases.down;
  if (geometry_.biases && given < 3)
    throw std::invalid_argument("experts with biases need all of gate_bias, up_bias, down_bias");
  if (!geometry_.biases && given > 0)
    throw std::invalid_argument("experts without biases take none of gate_bias, up_bias, down_bias");
}

void PackedExperts::write(int expert, const AnyView& gate, const AnyView& up, const AnyView& down, Team* team,
                          const BiasView& biases) {
  check_expert(expert);
  if (file_) throw std::logic_error("packed experts in a file cannot be written");
  check_biases(biases);
  const int domains = static_cast<int>(shards_.size());
  if (!team || team->threads() < domains) {
    for (const Shard& shard : shards_) {
      write_strips(shard, expert, gate, up, down, 0, 1);
      write_biases(shard, expert, biases);
    }
    return;
  }
  const int threads = team->threads();
  team->run([&](int thread) {
    const int d = domain_of(thread, threads, domains), begin = first_thread(d, threads, domains);
    write_strips(shards_[d], expert, gate, up, down, thread - begin, first_thread(d + 1, threads, domains) - begin);
    if (thread == begin) write_biases(shards_[d], expert, biases);
  });
}

void PackedExperts::read(int expert, MatrixOut gate, MatrixOut up, MatrixOut down, Team* team) const {
  check_expert(expert);
  const auto work = [&](int part, int parts) {
    for (const Shard& shard : shards_) read_strips(shard, expert, gate, up, down, part, parts);
  };
  team ? team->run([&](int thread) { work(thread, team->threads()); }) : work(0, 1);
  check_file();
}

void PackedExperts::multiply(int expert, ExpertMatrix which, const float* x, int tokens, float* out, Team* team) const {
  check_expert(expert);
  const bool down = which == ExpertMatrix::down;
  const std::size_t columns = down ? geometry_.intermediate : geometry_.hidden;
  const std::size_t rows = down ? geometry_.hidden : geometry_.intermediate;
  std::fill_n(out, tokens * rows, 0.0f);
  for (const Shard& shard : shards_) {
    const StripsOf matrix = strips_of(shard, expert, which);
    const std::vector<float> inputs = padded(x, tokens, columns, matrix);
    const auto work = [&](int part, int parts) {
      add_products(matrix, inputs.data(), tokens, out, rows, part, parts);
    };
    team ? team->run([&](int thread) { work(thread, team->threads()); }) : work(0, 1);
  }
  check_file();
}

void PackedExperts::read_biases(int expert, const BiasOut& to) const {
  check_expert(expert);
  if (!geometry_.biases) throw std::invalid_argument("the experts have no biases");
  for (const Shard& shard : shards_) {
    std::copy_n(shard.gate_bias(expert), shard.geometry.intermediate, to.gate + shard.first);
    std::copy_n(shard.up_bias(expert), shard.geometry.intermediate, to.up + shard.first);
  }
  std::copy_n(shards_.front().down_bias(expert), geometry_.hidden, to.down);
  check_file();
}

std::vector<std::map<int, std::size_t>> PackedExperts::placement() const {
  std::vector<std::map<int, std::size_t>> on;
  for (const Shard& shard : shards_) on.push_back(bytes_by_node(shard.data, shard.bytes()));
  return on;
}

}  // namespace ktbench
