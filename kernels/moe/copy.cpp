// Copies packed experts from one set to another.
#include <cstring>
#include <stdexcept>
#include <string>

#include "moe/experts.h"

namespace ktbench {
namespace {

void check_equal(const char* what, int here, int source) {
  if (here != source)
    throw std::invalid_argument(std::string(what) + "=" + std::to_string(source) + " of the source is not " +
                                std::to_string(here));
}

void check_same(const char* what, bool same) {
  if (!same) throw std::invalid_argument("the source differs in " + std::string(what));
}

void check_alike(const PackedExperts& here, const PackedExperts& source) {
  const Geometry &g = here.geometry(), &s = source.geometry();
  check_equal("hidden", g.hidden, s.hidden);
  check_equal("intermediate", g.intermediate, s.intermediate);
  check_equal("domains", static_cast<int>(here.shards().size()), static_cast<int>(source.shards().size()));
  check_same("precision", g.format == s.format && g.down_format() == s.down_format());
  check_same("biases", g.biases == s.biases);
  check_same("activation", here.glu() == source.glu());
}

// Share `part` of `parts` of one expert, in whole lines.
void copy_lines(const Shard& to, int expert, const Shard& from, int source_expert, int part, int parts) {
  const std::size_t lines = to.geometry.expert_bytes() / line_bytes;
  const std::size_t begin = lines * part / parts * line_bytes, end = lines * (part + 1) / parts * line_bytes;
  std::memcpy(to.data + expert * to.geometry.expert_bytes() + begin, from.gate_up(source_expert) + begin, end - begin);
}

}  // namespace

void PackedExperts::copy(int expert, const PackedExperts& source, int source_expert, Team* team) {
  check_alike(*this, source);
  check_expert(expert);
  source.check_expert(source_expert);
  if (file_) throw std::logic_error("packed experts in a file cannot be written");
  if (this == &source && expert == source_expert) return;
  const int domains = static_cast<int>(shards_.size());
  const auto copy = [&](int d, int part, int parts) {
    copy_lines(shards_[d], expert, source.shards_[d], source_expert, part, parts);
  };
  if (!team || team->threads() < domains) {
    for (int d = 0; d < domains; ++d) copy(d, 0, 1);
  } else {
    team->run([&, threads = team->threads()](int thread) {
      const int d = domain_of(thread, threads, domains), begin = first_thread(d, threads, domains);
      copy(d, thread - begin, first_thread(d + 1, threads, domains) - begin);
    });
  }
  source.check_file();
}

}  // namespace ktbench
