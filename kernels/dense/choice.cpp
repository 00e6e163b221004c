#include "dense/choice.h"

#include <stdexcept>

#include "runtime/isa.h"

namespace ktbench {
namespace {

template <class Table>
struct Named {
  const char* isa;
  const Table* kernels;
};

// Slowest first.
constexpr Named<RowKernels> rows[] = {{"reference", &rows_reference}, {"avx2", &rows_avx2}, {"avx512", &rows_avx512}};
constexpr Named<AttentionKernels> attention[] = {{"reference", &attention_reference},
                                                 {"avx2", &attention_avx2},
                                                 {"avx512", &attention_avx512},
                                                 {"avx512_bf16", &attention_avx512_bf16}};

template <class Table, int n>
const Table& named(const Named<Table> (&all)[n], const std::string& isa) {
  granted_isa(isa);
  std::string known;
  for (const Named<Table>& entry : all) {
    if (isa == entry.isa) return *entry.kernels;
    known += (known.empty() ? "" : ", ") + std::string(entry.isa);
  }
  throw std::invalid_argument("isa " + isa + " has no kernels for this: one of " + known);
}

// Products of bf16 are taken where they are for the MoE kernels, too: not where they are slower than float32's.
bool dots_bf16() {
  return granted("avx512_bf16") && &fastest_avx512(Precision::bf16) == &kernels_of("avx512_bf16", Precision::bf16);
}

template <class Table, int n>
const Table& fastest(const Named<Table> (&all)[n]) {
  const Table* found = all[0].kernels;
  for (const Named<Table>& entry : all)
    if (granted(entry.isa) && (std::string(entry.isa) != "avx512_bf16" || dots_bf16())) found = entry.kernels;
  return *found;
}

}  // namespace

const RowKernels& row_kernels(const std::optional<std::string>& isa) {
  static const RowKernels& best = fastest(rows);
  return isa ? named(rows, *isa) : best;
}

const AttentionKernels& attention_kernels(const std::optional<std::string>& isa) {
  static const AttentionKernels& best = fastest(attention);
  return isa ? named(attention, *isa) : best;
}

}  // namespace ktbench
