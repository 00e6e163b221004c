// Compiled for any x86-64, AVX2, AVX-512 and AVX-512 BF16: chunks of positions whose scores become weights relative to
// the largest so far, the combination of several such parts, and products with a head's matrix.
#include "dense/products.h"
#include "dense/prompt.h"
#include "dense/scratch.h"

namespace ktbench {
namespace {

// Query heads are processed this many at a time, the rest in halves.
template <int most, class Body>
inline void for_heads(int heads, int first, Body body) {
  for (; heads - first >= most; first += most) body(std::integral_constant<int, most>{}, first);
  if constexpr (most > 1) for_heads<most / 2>(heads, first, body);
}

// Turns one head's scores into weights: exp(score - largest so far). Returns the factor for earlier sums.
float soften(float* scores, int positions, float scale, float& largest, Floats& total) {
  for (int p = 0; p < positions; ++p) scores[p] *= scale;
  for (int p = positions; p < round_up(positions, lane_pairs); ++p) scores[p] = -__builtin_inff();
  Floats most = Floats{} + largest;
  for (int p = 0; p < positions; p += lanes) most = larger(load<Floats>(scores + p), most);
  const float before = largest;
  largest = largest_lane(most);
  const float factor = before == largest ? 1.0f : exp_of(before - largest);
  total *= factor;
  const auto weights = [&](int p) { return exp_of(load<Floats>(scores + p) - largest); };
  for (int p = 0; p < positions; p += lane_pairs) total += keep_weights(weights(p), weights(p + lanes), scores, p);
  return factor;
}

struct Room {
  Operand* q;      // [heads, padded size]
  float* scores;   // [heads, chunk]
  float* factors;  // [heads]
  Floats* totals;  // [heads]
  bf16* keys;      // [chunk, padded size], where rows need padding
  bf16* values;

  template <class Job>
  explicit Room(const Job& job) {
    Scratch scratch(job.scratch);
    const std::size_t size = round_up(job.size, widest), value_size = round_up(job.value_size, widest);
    q = scratch.take<Operand>(job.heads * size / lane_pairs);
    scores = scratch.take<float>(job.heads * chunk);
    factors = scratch.take<float>(job.heads);
    totals = scratch.take<Floats>(job.heads);
    keys = scratch.take<bf16>(chunk * size);
    values = scratch.take<bf16>(chunk * value_size);
  }
};

// Rows that end within a vector are read from a padded copy: the memory behind them is not ours.
CacheRows cache_rows(const bf16* data, std::size_t stride, int size, int count, bf16* copy) {
  const int padded = round_up(size, widest);
  if (padded == size) return {data, stride, size};
  for (int i = 0; i < count; ++i) copy_padded(data + i * stride, size, padded, copy + i * padded);
  return {copy, static_cast<std::size_t>(padded), padded};
}

// `count` vectors of `size` numbers, through one `row` of the padded size.
void prepare_operands(const bf16* from, std::size_t stride, int count, int size, bf16* row, Operand* to) {
  const int padded = round_up(size, widest);
  for (int i = 0; i < count; ++i) {
    copy_padded(from + i * stride, size, padded, row);
    for (int n = 0; n < padded / lane_pairs; ++n) *to++ = operand(load<Words>(row + n * lane_pairs));
  }
}

int lines_per_step(int size, int heads) { return (size * lanes + line_numbers * heads - 1) / (line_numbers * heads); }

// Some positions of the cache, at most a chunk, in the form that the kernels read.
struct Chunk {
  int positions;
  CacheRows keys, values;
  NextRows next_keys, next_values;

  Chunk(const Attend& job, const Room& room, int first)
      : positions(smaller(chunk, job.positions - first)),
        keys(cache_rows(job.keys + first * job.key_stride, job.key_stride, job.size, positions, room.keys)),
        values(cache_rows(job.values + first * job.value_stride, job.value_stride, job.value_size, positions,
                          room.values)),
        next_keys(after(keys, room.keys)),
        next_values(after(values, room.values)) {}

 private:
  static NextRows after(const CacheRows& rows, const bf16* copy) {
    return {{rows.data + chunk * rows.stride, rows.stride, rows.size}, rows.data == copy ? 0 : chunk};
  }
};

// The same for a paged cache.
struct PagedChunk {
  int positions;
  const bf16 *key_rows[chunk], *value_rows[chunk], *following_keys[chunk], *following_values[chunk];
  ScatteredRows keys, values;
  NextScatteredRows next_keys, next_values;

  PagedChunk(const AttendPages& job, const Room& room, int first)
      : positions(smaller(chunk, job.positions - first)),
        keys(rows(job, job.keys, first, positions, job.size, room.keys, key_rows)),
        values(rows(job, job.values, first, positions, job.value_size, room.values, value_rows)),
        next_keys(after(job, job.keys, first, keys, room.keys, following_keys)),
        next_values(after(job, job.values, first, values, room.values, following_values)) {}
  PagedChunk(const PagedChunk&) = delete;
  PagedChunk& operator=(const PagedChunk&) = delete;

 private:
  static void find(const AttendPages& job, const PagedRows& from, std::int64_t first, int count, const bf16** to) {
    for (int i = 0; i < count;) {
      const bf16* row = from.at(job.table, job.page_tokens, job.first + first + i);
      const int left = job.page_tokens - static_cast<int>((job.first + first + i) % job.page_tokens);
      for (const int end = smaller(count, i + left); i < end; ++i, row += from.stride) to[i] = row;
    }
  }

  static ScatteredRows rows(const AttendPages& job, const PagedRows& from, int first, int count, int size, bf16* copy,
                            const bf16** to) {
    const int padded = round_up(size, widest);
    find(job, from, first, count, to);
    if (padded != size)
      for (int i = 0; i < count; ++i) {
        copy_padded(to[i], size, padded, copy + i * padded);
        to[i] = copy + i * padded;
      }
    return {to, padded};
  }

  static NextScatteredRows after(const AttendPages& job, const PagedRows& from, int first, const ScatteredRows& rows,
                                 const bf16* copy, const bf16** to) {
    const int left = job.positions - first - chunk, count = rows[0] == copy || left < 0 ? 0 : smaller(chunk, left);
    find(job, from, first + chunk, count, to);
    return {{to, rows.size}, count};
  }
};

template <class Job, class Rows>
void attend_chunk_of(const Job& job, const Room& room, Rows& here) {
  const std::size_t stride = PartialShape{job.heads, job.value_size}.head_floats();
  const int q_stride = here.keys.size / lane_pairs;
  const int lines = lines_per_step(here.keys.size, job.heads);
  for_heads<4>(job.heads, 0, [&](auto heads, int h) {
    score<heads>(room.q + h * q_stride, q_stride, here.keys, here.positions, here.next_keys, lines,
                 room.scores + h * chunk);
  });
  for (int h = 0; h < job.heads; ++h)
    room.factors[h] =
        soften(room.scores + h * chunk, here.positions, job.scale, job.partial[h * stride], room.totals[h]);
  for_heads<lanes == 16 ? 8 : 4>(job.heads, 0, [&](auto heads, int h) {
    add_values<heads>(room.scores + h * chunk, room.factors + h, here.values, here.positions, here.next_values,
                      job.partial + h * stride + PartialShape::sums_at, stride);
  });
}

template <class Rows, class Job>
void attend_by(const Job& job) {
  const PartialShape shape{job.heads, job.value_size};
  const std::size_t stride = shape.head_floats();
  const Room room(job);
  prepare_operands(job.q, job.q_stride, job.heads, job.size, room.keys, room.q);
  __builtin_memset(job.partial, 0, shape.floats() * sizeof(float));
  for (int h = 0; h < job.heads; ++h) job.partial[h * stride] = -__builtin_inff(), room.totals[h] = Floats{};
  for (int first = 0; first < job.positions; first += chunk) {
    Rows here(job, room, first);
    attend_chunk_of(job, room, here);
  }
  for (int h = 0; h < job.heads; ++h) job.partial[h * stride + 1] = sum_of_lanes(room.totals[h]);
}

void add_scaled(float* to, float factor, const float* from, float from_factor, int count) {
  for (int i = 0; i < count; ++i) to[i] = to[i] * factor + from[i] * from_factor;
}

// Leaves the total in the first partial of the head, and returns the sum of the weights.
float gathered(const Combine& job, float* first, int head) {
  const std::size_t apart = job.shape.floats();
  const int padded = round_up(job.shape.value_size, widest);
  float largest = job.sinks ? job.sinks[head] : -__builtin_inff();
  for (int i = 0; i < job.count; ++i) largest = first[i * apart] > largest ? first[i * apart] : largest;
  const float factor = exp_of(first[0] - largest);
  float total = first[1] * factor + (job.sinks ? exp_of(job.sinks[head] - largest) : 0.0f);
  for (int i = 1; i < job.count; ++i) {
    const float* other = first + i * apart;
    const float weight = exp_of(other[0] - largest);
    total += other[1] * weight;
    add_scaled(first + PartialShape::sums_at, i == 1 ? factor : 1.0f, other + PartialShape::sums_at, weight, padded);
  }
  return job.count > 1 ? total : total / factor;
}

// Sums in the order of add_values.
void write_sums(const float* sums, float factor, int size, bf16* out) {
  for (int at = 0; at < size; at += lane_pairs) {
    const Words pairs = pairs_of(load<Floats>(sums + at) * factor, load<Floats>(sums + at + lanes) * factor);
    __builtin_memcpy(out + at, &pairs, smaller(lane_pairs, size - at) * sizeof(bf16));
  }
}

void combine_head(const Combine& job, int head) {
  const int size = job.shape.value_size;
  bf16* out = job.out + head * job.out_stride;
  if (job.count == 0) {
    __builtin_memset(out, 0, size * sizeof(bf16));
    return;
  }
  float* first = job.partials + head * job.shape.head_floats();
  write_sums(first + PartialShape::sums_at, 1.0f / gathered(job, first, head), size, out);
}

void combine(const Combine& job) {
  for (int h = 0; h < job.shape.heads; ++h) combine_head(job, h);
}

// Rows of a head's matrix, at most a chunk, and the following ones.
struct MatrixRows {
  int count;
  CacheRows rows;
  NextRows next;

  MatrixRows(const HeadProduct& job, int first, bf16* copy)
      : count(smaller(chunk, job.rows - first)),
        rows(cache_rows(job.weights + first * job.weight_stride, job.weight_stride, job.size, count, copy)),
        next({rows.data + chunk * rows.stride, rows.stride, rows.size},
             rows.data == copy ? 0 : smaller(chunk, job.rows - first - count)) {}
};

void multiply(const HeadProduct& job) {
  const int size = round_up(job.size, widest), x_stride = size / lane_pairs;
  Scratch scratch(job.scratch);
  Operand* const x = scratch.take<Operand>(job.sequences * x_stride);
  float* const products = scratch.take<float>(job.sequences * chunk);
  bf16* const copy = scratch.take<bf16>(chunk * size);
  prepare_operands(job.x, job.x_stride, job.sequences, job.size, copy, x);
  const int lines = lines_per_step(size, job.sequences);
  for (int first = 0; first < job.rows; first += chunk) {
    MatrixRows here(job, first, copy);
    for_heads<4>(job.sequences, 0, [&](auto sequences, int b) {
      score<sequences>(x + b * x_stride, x_stride, here.rows, here.count, here.next, lines, products + b * chunk);
    });
    for (int b = 0; b < job.sequences; ++b)
      for (int i = 0; i < here.count; ++i)
        job.out[b * job.out_stride + first + i] = to_bf16(products[b * chunk + i]);
  }
}

// A chunk of numbers as add_values reads weights; missing ones at the end count as zero.
void prepare_weights(const bf16* from, int count, float* to) {
  bf16 padded[chunk] = {};
  __builtin_memcpy(padded, from, count * sizeof(bf16));
  for (int p = 0; p < chunk; p += step) {
    if constexpr (step == 2)
      __builtin_memcpy(to + p / step, padded + p, sizeof(float));
    else
      to[p] = widen(padded[p]);
  }
}

void multiply_transposed(const HeadProduct& job) {
  const int size = round_up(job.size, widest);
  Scratch scratch(job.scratch);
  float* const sums = scratch.take<float>(job.sequences * size);
  float* const weights = scratch.take<float>(job.sequences * chunk);
  float* const factors = scratch.take<float>(job.sequences);
  bf16* const copy = scratch.take<bf16>(chunk * size);
  __builtin_memset(sums, 0, job.sequences * size * sizeof(float));
  for (int b = 0; b < job.sequences; ++b) factors[b] = 1.0f;
  for (int first = 0; first < job.rows; first += chunk) {
    MatrixRows here(job, first, copy);
    for (int b = 0; b < job.sequences; ++b)
      prepare_weights(job.x + b * job.x_stride + first, here.count, weights + b * chunk);
    for_heads<lanes == 16 ? 8 : 4>(job.sequences, 0, [&](auto sequences, int b) {
      add_values<sequences>(weights + b * chunk, factors + b, here.rows, here.count, here.next, sums + b * size, size);
    });
  }
  for (int b = 0; b < job.sequences; ++b) write_sums(sums + b * size, 1.0f, job.size, job.out + b * job.out_stride);
}

}  // namespace

const AttentionKernels KTBENCH_ATTENTION{
    attend_by<Chunk, Attend>, attend_by<PagedChunk, AttendPages>, attend_prompt, combine, multiply, multiply_transposed};

}  // namespace ktbench
