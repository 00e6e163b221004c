#include "binding/arrays.h"
#include "binding/module.h"
#include "dense/attention.h"
#include "dense/paged.h"
#include "runtime/isa.h"

#include <pybind11/stl.h>

#include <limits>
#include <optional>

namespace ktbench::binding {
namespace {

using IsaName = std::optional<std::string>;

RowsOf<const bf16> rows(const py::array& array, const char* name, int count, int size) {
  const MatrixView view = matrix(array, name, count, size);
  return {view.data, view.stride};
}

RowsOf<bf16> writable_rows(py::array& array, const char* name, int count, int size) {
  const MatrixView view = matrix(array, name, count, size);
  check_writeable(array, name);
  return {static_cast<bf16*>(array.mutable_data()), view.stride};
}

std::size_t stride_of(const py::array& array, const char* name, int axis) {
  const py::ssize_t bytes = array.strides(axis), item = array.itemsize();
  if (array.shape(axis) <= 1) return 0;
  if (bytes < 0 || bytes % item)
    throw py::value_error(std::string(name) + " must not run backwards or between elements");
  return static_cast<std::size_t>(bytes / item);
}

void check_last_axis(const py::array& array, const char* name) {
  const auto last = array.ndim() - 1;
  if (array.size() > 0 && array.shape(last) > 1 && array.strides(last) != array.itemsize())
    throw py::value_error(std::string(name) + " must be contiguous along the last axis");
}

// [sequences, heads, positions, size]; -1: any.
CacheOf<const bf16> cache(const py::array& array, const char* name, const std::vector<py::ssize_t>& shape) {
  check(array, {name, py::dtype::of<bf16>(), shape});
  check_last_axis(array, name);
  return {static_cast<const bf16*>(array.data()), stride_of(array, name, 0), stride_of(array, name, 1),
          stride_of(array, name, 2)};
}

CacheOf<bf16> writable_cache(py::array& array, const char* name, const std::vector<py::ssize_t>& shape) {
  const CacheOf<const bf16> view = cache(array, name, shape);
  check_writeable(array, name);
  return {static_cast<bf16*>(array.mutable_data()), view.sequence_stride, view.head_stride, view.stride};
}

// [sequences, heads, size]
CacheOf<const bf16> heads(const py::array& array, const char* name, const std::vector<py::ssize_t>& shape) {
  check(array, {name, py::dtype::of<bf16>(), shape});
  check_last_axis(array, name);
  return {static_cast<const bf16*>(array.data()), stride_of(array, name, 0), stride_of(array, name, 1), 0};
}

CacheOf<bf16> writable_heads(py::array& array, const char* name, const std::vector<py::ssize_t>& shape) {
  const CacheOf<const bf16> view = heads(array, name, shape);
  check_writeable(array, name);
  return {static_cast<bf16*>(array.mutable_data()), view.sequence_stride, view.head_stride, view.stride};
}

void check_groups(int query_heads, int key_heads) {
  if (key_heads < 1 || query_heads < 1 || query_heads % key_heads)
    throw py::value_error(std::to_string(query_heads) + " query heads are no multiple of " + std::to_string(key_heads) +
                          " key heads");
}

// A copy: another thread may write to the array between the check and the use.
std::vector<std::int64_t> integers(const py::array& array, const char* name, int count) {
  check(array, {name, py::dtype::of<std::int64_t>(), {count}});
  check_contiguous(array, name);
  const auto* data = static_cast<const std::int64_t*>(array.data());
  return {data, data + count};
}

const float* optional_floats(const std::optional<py::array>& array, const char* name, int count) {
  if (!array) return nullptr;
  check(*array, {name, py::dtype::of<float>(), {count}});
  check_contiguous(*array, name);
  return static_cast<const float*>(array->data());
}

const bf16* weights(const py::array& array, const char* name, int count) {
  check(array, {name, py::dtype::of<bf16>(), {count}});
  check_contiguous(array, name);
  return static_cast<const bf16*>(array.data());
}

Norm norm(const std::optional<py::array>& weight, const char* name, int size, float eps, float offset) {
  return {weight ? weights(*weight, name, size) : nullptr, eps, offset};
}

void rms_norm_of(const py::array& x, const py::array& weight, py::array& out, float eps, float offset, Team* team,
                 const IsaName& isa) {
  check(x, {"x", py::dtype::of<bf16>(), {-1, -1}});
  const int count = checked_count("rows", x.shape(0)), size = checked_count("columns", x.shape(1));
  if (size == 0) throw py::value_error("x must have at least one column");
  const RowsOf<const bf16> from = rows(x, "x", count, size);
  const RowsOf<bf16> to = writable_rows(out, "out", count, size);
  const Norm how{weights(weight, "weight", size), eps, offset};
  const RowKernels& kernels = row_kernels(isa);
  const py::gil_scoped_release unlocked;
  rms_norm(from, count, size, how, to, kernels, team);
}

void check_position(const char* name, std::int64_t value, int sequence, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw py::index_error(std::string(name) + "=" + std::to_string(value) + " of sequence " + std::to_string(sequence) +
                          " is not in " + std::to_string(least) + ".." + std::to_string(most));
}

std::vector<std::int64_t> pages_of(const py::array& page, int count, py::ssize_t pages) {
  const std::vector<std::int64_t> found = integers(page, "page", count);
  for (int t = 0; t < count; ++t) check_position("page", found[t], t, 0, pages - 1);
  return found;
}

void prepare(const py::array& qkv, const std::optional<py::array>& q_norm, const std::optional<py::array>& k_norm,
             float eps, const py::array& cos, const py::array& sin, const py::array& position, py::array& q_out,
             py::array& keys, py::array& values, const std::optional<py::array>& page, float offset, Team* team,
             const IsaName& isa) {
  check(q_out, {"q_out", py::dtype::of<bf16>(), {-1, -1, -1}});
  const int sequences = checked_count("sequences", q_out.shape(0)), size = checked_count("size", q_out.shape(2));
  const int query_heads = checked_count("query heads", q_out.shape(1));
  check_contiguous(q_out, "q_out"), check_writeable(q_out, "q_out");
  HeadsCall c{};
  c.keys = writable_cache(keys, "keys", {page ? -1 : sequences, -1, -1, size});
  const int key_heads = checked_count("key heads", keys.shape(1));
  c.values = writable_cache(values, "values", {keys.shape(0), key_heads, keys.shape(2), size});
  c.qkv = rows(qkv, "qkv", sequences, (query_heads + 2 * key_heads) * size);
  check(cos, {"cos", py::dtype::of<bf16>(), {sequences, -1}});
  c.rotated = checked_count("rotated", cos.shape(1));
  if (c.rotated % 2 || c.rotated > size)
    throw py::value_error("cos has " + std::to_string(c.rotated) + " numbers: an even number up to " +
                          std::to_string(size) + " can be rotated");
  c.cos = rows(cos, "cos", sequences, c.rotated), c.sin = rows(sin, "sin", sequences, c.rotated);
  c.sequences = sequences, c.query_heads = query_heads, c.key_heads = key_heads, c.size = size;
  c.q_norm = norm(q_norm, "q_norm", size, eps, offset), c.k_norm = norm(k_norm, "k_norm", size, eps, offset);
  const std::vector<std::int64_t> positions = integers(position, "position", sequences);
  for (int b = 0; b < sequences; ++b) check_position("position", positions[b], b, 0, keys.shape(2) - 1);
  c.position = positions.data();
  const std::vector<std::int64_t> pages = page ? pages_of(*page, sequences, keys.shape(0)) : std::vector<std::int64_t>{};
  c.page = page ? pages.data() : nullptr;
  c.q_out = {static_cast<bf16*>(q_out.mutable_data()), static_cast<std::size_t>(query_heads) * size};
  const RowKernels& kernels = row_kernels(isa);
  const py::gil_scoped_release unlocked;
  prepare_heads(c, kernels, team);
}

void check_ranges(const AttentionCall& c, std::int64_t positions) {
  for (int b = 0; b < c.sequences; ++b) {
    check_position("length", c.length[b], b, 0, positions);
    check_position("first", c.first[b], b, 0, c.length[b]);
  }
}

void attend(DecodeAttention& attention, const py::array& q, const py::array& keys, const py::array& values,
            const py::array& first, const py::array& length, py::array& out, float scale,
            const std::optional<py::array>& sinks, const IsaName& isa) {
  AttentionCall c{};
  c.q = heads(q, "q", {-1, -1, -1});
  c.sequences = checked_count("sequences", q.shape(0)), c.query_heads = checked_count("query heads", q.shape(1));
  c.size = checked_count("size", q.shape(2));
  c.keys = cache(keys, "keys", {c.sequences, -1, -1, c.size});
  c.key_heads = checked_count("key heads", keys.shape(1));
  check_groups(c.query_heads, c.key_heads);
  c.values = cache(values, "values", {c.sequences, c.key_heads, keys.shape(2), -1});
  c.value_size = checked_count("value size", values.shape(3));
  c.out = writable_heads(out, "out", {c.sequences, c.query_heads, c.value_size});
  const auto firsts = integers(first, "first", c.sequences), lengths = integers(length, "length", c.sequences);
  c.first = firsts.data(), c.length = lengths.data();
  check_ranges(c, keys.shape(2));
  c.scale = scale;
  c.sinks = optional_floats(sinks, "sinks", c.query_heads);
  const AttentionKernels& kernels = attention_kernels(isa);
  const py::gil_scoped_release unlocked;
  attention.forward(c, kernels);
}

void attend_pages(PagedAttention& attention, const py::array& q, const py::array& keys, const py::array& values,
                  const py::array& tables, const py::array& sequence, const py::array& position, py::array& out,
                  float scale, const std::optional<std::int64_t>& window, const std::optional<py::array>& sinks,
                  const IsaName& isa) {
  PagedCall c{};
  c.q = heads(q, "q", {-1, -1, -1});
  c.tokens = checked_count("tokens", q.shape(0)), c.query_heads = checked_count("query heads", q.shape(1));
  c.size = checked_count("size", q.shape(2));
  c.keys = cache(keys, "keys", {-1, -1, -1, c.size});
  c.pages = checked_count("pages", keys.shape(0)), c.key_heads = checked_count("key heads", keys.shape(1));
  c.page_tokens = checked_count("page tokens", keys.shape(2));
  check_groups(c.query_heads, c.key_heads);
  if (c.page_tokens < 1) throw py::value_error("a page must have at least one position");
  c.values = cache(values, "values", {c.pages, c.key_heads, c.page_tokens, -1});
  c.value_size = checked_count("value size", values.shape(3));
  check(tables, {"tables", py::dtype::of<std::int64_t>(), {-1, -1}});
  check_contiguous(tables, "tables");
  c.sequences = checked_count("sequences", tables.shape(0)), c.table_pages = checked_count("pages", tables.shape(1));
  c.tables = static_cast<const std::int64_t*>(tables.data()), c.table_stride = tables.shape(1);
  const auto sequences = integers(sequence, "sequence", c.tokens), positions = integers(position, "position", c.tokens);
  c.sequence = sequences.data(), c.position = positions.data();
  c.window = window.value_or(std::numeric_limits<std::int64_t>::max());
  if (c.window < 1) throw py::value_error("window=" + std::to_string(c.window) + ": must be 1 or more");
  c.out = writable_heads(out, "out", {c.tokens, c.query_heads, c.value_size});
  c.scale = scale;
  c.sinks = optional_floats(sinks, "sinks", c.query_heads);
  const AttentionKernels& kernels = attention_kernels(isa);
  const py::gil_scoped_release unlocked;
  attention.forward(c, kernels);
}

void write_to_pages(const py::array& x, const py::array& page, const py::array& offset, py::array& cache) {
  check(x, {"x", py::dtype::of<bf16>(), {-1, -1, -1}});
  const int tokens = checked_count("tokens", x.shape(0)), key_heads = checked_count("heads", x.shape(1));
  const int size = checked_count("size", x.shape(2));
  const CacheOf<const bf16> from = heads(x, "x", {tokens, key_heads, size});
  const CacheOf<bf16> to = writable_cache(cache, "cache", {-1, key_heads, -1, size});
  const auto pages = pages_of(page, tokens, cache.shape(0)), offsets = integers(offset, "offset", tokens);
  for (int t = 0; t < tokens; ++t) check_position("offset", offsets[t], t, 0, cache.shape(2) - 1);
  const py::gil_scoped_release unlocked;
  write_pages(from, tokens, key_heads, size, pages.data(), offsets.data(), to);
}

// The matrices of all heads, [heads, rows, size].
CacheOf<const bf16> matrices(const py::array& array, const char* name) {
  check(array, {name, py::dtype::of<bf16>(), {-1, -1, -1}});
  check_last_axis(array, name);
  return {static_cast<const bf16*>(array.data()), 0, stride_of(array, name, 0), stride_of(array, name, 1)};
}

void multiply(const py::array& x, const py::array& weights, py::array& out, Team& team, bool transposed,
              const IsaName& isa) {
  HeadsProduct c{};
  c.transposed = transposed;
  c.weights = matrices(weights, "weights");
  c.heads = checked_count("heads", weights.shape(0)), c.rows = checked_count("rows", weights.shape(1));
  c.size = checked_count("size", weights.shape(2));
  if (c.rows < 1 || c.size < 1) throw py::value_error("weights must have at least one row and one column");
  c.x = heads(x, "x", {-1, c.heads, transposed ? c.rows : c.size});
  c.sequences = checked_count("sequences", x.shape(0));
  c.out = writable_heads(out, "out", {c.sequences, c.heads, c.out_size()});
  const AttentionKernels& kernels = attention_kernels(isa);
  const py::gil_scoped_release unlocked;
  if (c.sequences > 0 && c.heads > 0) multiply_heads(c, kernels, team);
}

}  // namespace

void bind_dense(py::module_& module) {
  module.def("rms_norm", rms_norm_of, py::arg("x").noconvert(), py::arg("weight").noconvert(),
             py::arg("out").noconvert(), py::arg("eps"), py::kw_only(), py::arg("offset") = 0.0f,
             py::arg("team").none(true) = nullptr, py::arg("isa") = py::none());
  module.def("prepare_heads", prepare, py::arg("qkv").noconvert(), py::arg("q_norm").noconvert(),
             py::arg("k_norm").noconvert(), py::arg("eps"), py::arg("cos").noconvert(), py::arg("sin").noconvert(),
             py::arg("position").noconvert(), py::arg("q_out").noconvert(), py::arg("keys").noconvert(),
             py::arg("values").noconvert(), py::kw_only(), py::arg("page").noconvert() = py::none(),
             py::arg("offset") = 0.0f, py::arg("team").none(true) = nullptr, py::arg("isa") = py::none());
  module.def("write_pages", write_to_pages, py::arg("x").noconvert(), py::arg("page").noconvert(),
             py::arg("offset").noconvert(), py::arg("cache").noconvert());
  module.def("multiply_heads", multiply, py::arg("x").noconvert(), py::arg("weights").noconvert(),
             py::arg("out").noconvert(), py::arg("team"), py::kw_only(), py::arg("transposed") = false,
             py::arg("isa") = py::none());
  py::class_<DecodeAttention>(module, "DecodeAttention")
      .def(py::init<std::shared_ptr<Team>>(), py::arg("team").none(false))
      .def("forward", attend, py::arg("q").noconvert(), py::arg("keys").noconvert(), py::arg("values").noconvert(),
           py::arg("first").noconvert(), py::arg("length").noconvert(), py::arg("out").noconvert(), py::kw_only(),
           py::arg("scale"), py::arg("sinks").noconvert() = py::none(), py::arg("isa") = py::none());
  py::class_<PagedAttention>(module, "PagedAttention")
      .def(py::init<std::shared_ptr<Team>>(), py::arg("team").none(false))
      .def("forward", attend_pages, py::arg("q").noconvert(), py::arg("keys").noconvert(),
           py::arg("values").noconvert(), py::arg("tables").noconvert(), py::arg("sequence").noconvert(),
           py::arg("position").noconvert(), py::arg("out").noconvert(), py::kw_only(), py::arg("scale"),
           py::arg("window") = py::none(), py::arg("sinks").noconvert() = py::none(), py::arg("isa") = py::none());
}

}  // namespace ktbench::binding
