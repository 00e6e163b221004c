// Attention of neighbouring tokens of a prompt over pages: rows are tokens times the heads that share a key head. A
// panel has two vectors of rows, side by side in every product, so that softmax needs no sum across lanes; keys and
// values are widened once for all panels. Everything is in an anonymous namespace, see core/epilogue.h.
#pragma once

#include "dense/products.h"
#include "dense/scratch.h"

namespace ktbench {
namespace {

constexpr int panel_rows = 2 * lanes;
constexpr int tall = lanes == 16 ? 8 : 4;  // keys, or numbers of a value, that a panel is multiplied with at once
constexpr float no_score = -__builtin_inff();

// Widened rows hold the even elements of every vector of pairs, then the odd ones.
inline int widened_at(int number) {
  return number / lane_pairs * lane_pairs + number % 2 * lanes + number % lane_pairs / 2;
}

struct PromptRoom {
  int rows, panels, size, value_size;  // padded
  float* q;                            // [panels, size, panel_rows]
  float* sums;                         // [panels, value size, panel_rows]
  Floats* largest;                     // [panels, 2]
  Floats* totals;                      // [panels, 2]
  float* keys;                         // [chunk, size]
  float* values;                       // [chunk, value size]
  float* scores;                       // [chunk, panel_rows]
  bf16* row;

  explicit PromptRoom(const AttendPrompt& job)
      : rows(job.tokens * job.heads), panels((rows + panel_rows - 1) / panel_rows), size(round_up(job.size, widest)),
        value_size(round_up(job.value_size, widest)) {
    Scratch scratch(job.scratch);
    const std::size_t padded = panels * panel_rows;
    q = scratch.take<float>(padded * size);
    sums = scratch.take<float>(padded * value_size);
    largest = scratch.take<Floats>(panels * 2);
    totals = scratch.take<Floats>(panels * 2);
    keys = scratch.take<float>(chunk * size);
    values = scratch.take<float>(chunk * value_size);
    scores = scratch.take<float>(chunk * panel_rows);
    row = scratch.take<bf16>(size > value_size ? size : value_size);
  }

  float* q_of(int panel) const { return q + panel * panel_rows * size; }
  float* sums_of(int panel) const { return sums + panel * panel_rows * value_size; }
};

void widen_row(const bf16* from, int size, int padded, bf16* copy, float* to) {
  if (size != padded) copy_padded(from, size, padded, copy), from = copy;
  for (int at = 0; at < padded; at += lane_pairs) {
    const Words pairs = load<Words>(from + at);
    store(even_of(pairs), to + at);
    store(odd_of(pairs), to + at + lanes);
  }
}

void place_queries(const AttendPrompt& job, const PromptRoom& room) {
  __builtin_memset(room.q, 0, sizeof(float) * room.panels * panel_rows * room.size);
  for (int r = 0; r < room.rows; ++r) {
    const bf16* from = job.q + r / job.heads * job.q_token_stride + r % job.heads * job.q_stride;
    float* to = room.q_of(r / panel_rows) + r % panel_rows;
    for (int i = 0; i < job.size; ++i) to[widened_at(i) * panel_rows] = widen(from[i]);
  }
}

// products[i] = sum over n of `from` [n, panel_rows] times element i of row n of `others`.
template <int at_once>
inline void multiply_panel(const float* from, int count, const float* others, std::size_t across, std::size_t along,
                           Floats (&sums)[2 * at_once]) {
  for (int n = 0; n < count; ++n) {
    const Floats a = load<Floats>(from + n * panel_rows), b = load<Floats>(from + n * panel_rows + lanes);
#pragma GCC unroll 8
    for (int i = 0; i < at_once; ++i) {
      const Floats other = others[n * along + i * across] - Floats{};
      sums[2 * i] += a * other;
      sums[2 * i + 1] += b * other;
    }
    keep_in_registers(sums);
  }
}

void score_panel(const float* q, const PromptRoom& room, int positions) {
  for (int p = 0; p < positions; p += tall) {
    Floats sums[2 * tall];
    clear(sums);
    multiply_panel<tall>(q, room.size, room.keys + p * room.size, room.size, 1, sums);
    for (int i = 0; i < 2 * tall; ++i) store(sums[i], room.scores + p * panel_rows + i * lanes);
  }
}

// Which rows of a vector attend to a position: each row's token, counted from the first, minus the chunk's first
// position.
struct Seen {
    Integers after;  // distance of the row's token from the chunk's first position
  int window;
  bool all;

  Integers of(int position) const { return (after >= position) & (after < position + window); }
};

// Turns scores of a vector of rows into weights relative to the largest so far. Returns the factor for earlier sums.
Floats soften_rows(float* scores, int positions, float scale, const Seen& seen, Floats& largest, Floats& total) {
  Floats most = largest;
  for (int p = 0; p < positions; ++p) {
    Floats score = load<Floats>(scores + p * panel_rows) * scale;
    if (!seen.all) score = seen.of(p) ? score : Floats{} + no_score;
    store(score, scores + p * panel_rows);
    most = larger(score, most);
  }
  const Floats from = most == no_score ? Floats{} : most;  // nothing seen yet
  const Floats factor = largest == no_score ? Floats{} : exp_of(largest - from);
  total *= factor;
  for (int p = 0; p < positions; ++p) {
    Floats weight = exp_of(load<Floats>(scores + p * panel_rows) - from);
    if (!seen.all) weight = seen.of(p) ? weight : Floats{};
    store(weight, scores + p * panel_rows);
    total += weight;
  }
  largest = most;
  return factor;
}

void add_panel(float* to, const PromptRoom& room, int positions, const Floats (&factors)[2]) {
  for (int at = 0; at < room.value_size; at += tall) {
    Floats sums[2 * tall];
#pragma GCC unroll 16
    for (int i = 0; i < 2 * tall; ++i) sums[i] = load<Floats>(to + at * panel_rows + i * lanes) * factors[i % 2];
    multiply_panel<tall>(room.scores, positions, room.values + at, 1, room.value_size, sums);
#pragma GCC unroll 16
    for (int i = 0; i < 2 * tall; ++i) store(sums[i], to + at * panel_rows + i * lanes);
  }
}

Seen seen_by(const AttendPrompt& job, const PromptRoom& room, int first_row, std::int64_t position, int count) {
  const std::int64_t before = job.position - position;
  constexpr std::int64_t far = 1 << 29;
  Seen seen{{}, static_cast<int>(job.window < far ? job.window : far), false};
  for (int i = 0; i < lanes; ++i)
    seen.after[i] = static_cast<int>(before) + smaller(first_row + i, room.rows - 1) / job.heads;
  seen.all = before >= count - 1 && before + job.tokens - 1 < seen.window;
  return seen;
}

void attend_prompt_chunk(const AttendPrompt& job, const PromptRoom& room, std::int64_t position, int count) {
  for (int i = 0; i < count; ++i) {
    const auto widened = [&](const PagedRows& rows, int size, int padded, float* to) {
      widen_row(rows.at(job.table, job.page_tokens, position + i), size, padded, room.row, to + i * padded);
    };
    widened(job.keys, job.size, room.size, room.keys);
    widened(job.values, job.value_size, room.value_size, room.values);
  }
  for (int panel = 0; panel < room.panels; ++panel) {
    score_panel(room.q_of(panel), room, count);
    Floats factors[2];
    for (int half = 0; half < 2; ++half) {
      const Seen seen = seen_by(job, room, panel * panel_rows + half * lanes, position, count);
      const int at = panel * 2 + half;
      factors[half] =
          soften_rows(room.scores + half * lanes, count, job.scale, seen, room.largest[at], room.totals[at]);
    }
    add_panel(room.sums_of(panel), room, count, factors);
  }
}

// The final factor of a row's sums.
float weight_of(const AttendPrompt& job, const PromptRoom& room, int row) {
  const float largest = room.largest[row / lanes][row % lanes], total = room.totals[row / lanes][row % lanes];
  if (!job.sinks) return 1.0f / total;
  const float sink = job.sinks[row % job.heads];
  if (sink <= largest) return 1.0f / (total + exp_of(sink - largest));
  const float factor = exp_of(largest - sink);
  return factor / (total * factor + 1.0f);
}

void write_row(const AttendPrompt& job, const PromptRoom& room, int row) {
  bf16* out = job.out + row / job.heads * job.out_token_stride + row % job.heads * job.out_stride;
  const float* sums = room.sums_of(row / panel_rows) + row % panel_rows;
  const float weight = weight_of(job, room, row);
  for (int i = 0; i < job.value_size; ++i) out[i] = to_bf16(sums[widened_at(i) * panel_rows] * weight);
}

void attend_prompt(const AttendPrompt& job) {
  const PromptRoom room(job);
  place_queries(job, room);
  __builtin_memset(room.keys, 0, sizeof(float) * chunk * room.size);
  __builtin_memset(room.sums, 0, sizeof(float) * room.panels * panel_rows * room.value_size);
  for (int i = 0; i < 2 * room.panels; ++i) room.largest[i] = Floats{} + no_score, room.totals[i] = Floats{};
  const std::int64_t end = job.position + job.tokens;
  const std::int64_t first = job.position < job.window ? 0 : job.position - job.window + 1;
  for (std::int64_t p = first; p < end; p += chunk)
    attend_prompt_chunk(job, room, p, end - p < chunk ? static_cast<int>(end - p) : chunk);
  for (int row = 0; row < room.rows; ++row) write_row(job, room, row);
}

}  // namespace
}  // namespace ktbench
