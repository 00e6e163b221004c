// Compiled for any x86-64, AVX2, AVX-512 and AVX-512 BF16: chunks of positions, whose scores become weights by the
// largest so far, and the sum of several such parts.
#include "dense/products.h"

namespace ktbench {
namespace {

// Query heads are taken so many at a time, and what remains by halves.
template <int most, class Body>
inline void for_heads(int heads, int first, Body body) {
  for (; heads - first >= most; first += most) body(std::integral_constant<int, most>{}, first);
  if constexpr (most > 1) for_heads<most / 2>(heads, first, body);
}

// One head's scores become weights: exp(score - largest so far). Returns what earlier sums are to be multiplied by.
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

// Parts of the scratch memory, one after the other.
struct Room {
  Operand* q;      // [heads, padded size]
  float* scores;   // [heads, chunk]
  float* factors;  // [heads]
  Floats* totals;  // [heads]
  bf16* keys;      // [chunk, padded size], where rows need padding
  bf16* values;

  explicit Room(const Attend& job) {
    std::byte* at = job.scratch;
    const auto take = [&](std::size_t bytes) {
      std::byte* const begin = at;
      at += (bytes + line_bytes - 1) / line_bytes * line_bytes;
      return begin;
    };
    const std::size_t size = round_up(job.size, widest), value_size = round_up(job.value_size, widest);
    q = reinterpret_cast<Operand*>(take(job.heads * size / lane_pairs * sizeof(Operand)));
    scores = reinterpret_cast<float*>(take(job.heads * chunk * sizeof(float)));
    factors = reinterpret_cast<float*>(take(job.heads * sizeof(float)));
    totals = reinterpret_cast<Floats*>(take(job.heads * sizeof(Floats)));
    keys = reinterpret_cast<bf16*>(take(chunk * size * sizeof(bf16)));
    values = reinterpret_cast<bf16*>(take(chunk * value_size * sizeof(bf16)));
  }
};

void copy_padded(const bf16* from, int size, int padded, bf16* to) {
  __builtin_memcpy(to, from, size * sizeof(bf16));
  __builtin_memset(to + size, 0, (padded - size) * sizeof(bf16));
}

// Rows that end within a vector are read from a padded copy: what lies behind them is not ours.
CacheRows cache_rows(const bf16* data, std::size_t stride, int size, int count, bf16* copy) {
  const int padded = round_up(size, widest);
  if (padded == size) return {data, stride, size};
  for (int i = 0; i < count; ++i) copy_padded(data + i * stride, size, padded, copy + i * padded);
  return {copy, static_cast<std::size_t>(padded), padded};
}

void prepare_queries(const Attend& job, int padded, bf16* row, Operand* q) {
  for (int h = 0; h < job.heads; ++h) {
    copy_padded(job.q + h * job.q_stride, job.size, padded, row);
    for (int n = 0; n < padded / lane_pairs; ++n) *q++ = operand(load<Words>(row + n * lane_pairs));
  }
}

// Some positions of the cache, at most a chunk of them, where the kernels read them.
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

void attend_chunk_of(const Attend& job, const Room& room, Chunk here) {
  const std::size_t stride = PartialShape{job.heads, job.value_size}.head_floats();
  const int q_stride = here.keys.size / lane_pairs;
  const int lines = (here.keys.size * lanes + line_numbers * job.heads - 1) / (line_numbers * job.heads);
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

void attend(const Attend& job) {
  const PartialShape shape{job.heads, job.value_size};
  const std::size_t stride = shape.head_floats();
  const Room room(job);
  prepare_queries(job, round_up(job.size, widest), room.keys, room.q);
  __builtin_memset(job.partial, 0, shape.floats() * sizeof(float));
  for (int h = 0; h < job.heads; ++h) job.partial[h * stride] = -__builtin_inff(), room.totals[h] = Floats{};
  for (int first = 0; first < job.positions; first += chunk) attend_chunk_of(job, room, Chunk(job, room, first));
  for (int h = 0; h < job.heads; ++h) job.partial[h * stride + 1] = sum_of_lanes(room.totals[h]);
}

void add_scaled(float* to, float factor, const float* from, float from_factor, int count) {
  for (int i = 0; i < count; ++i) to[i] = to[i] * factor + from[i] * from_factor;
}

// Leaves the sum of all in the first partial of the head, and returns the sum of the weights.
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

void combine_head(const Combine& job, int head) {
  const int size = job.shape.value_size;
  bf16* out = job.out + head * job.out_stride;
  if (job.count == 0) {
    __builtin_memset(out, 0, size * sizeof(bf16));
    return;
  }
  float* first = job.partials + head * job.shape.head_floats();
  const float inverse = 1.0f / gathered(job, first, head);
  for (int at = 0; at < size; at += lane_pairs) {
    const float* sums = first + PartialShape::sums_at + at;
    const Words pairs = pairs_of(load<Floats>(sums) * inverse, load<Floats>(sums + lanes) * inverse);
    __builtin_memcpy(out + at, &pairs, smaller(lane_pairs, size - at) * sizeof(bf16));
  }
}

void combine(const Combine& job) {
  for (int h = 0; h < job.shape.heads; ++h) combine_head(job, h);
}

}  // namespace

const AttentionKernels KTBENCH_ATTENTION{attend, combine};

}  // namespace ktbench
