// Memory: alignment, placement, what the kernel says of it.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>

#include "runtime/affinity.h"
#include "runtime/memory.h"
#include "tests/check.h"

namespace ktbench::tests {
namespace {

constexpr std::size_t some_bytes = 3 * huge_page + 5000;

std::size_t total(const std::map<int, std::size_t>& by_node) {
  std::size_t sum = 0;
  for (const auto& [node, bytes] : by_node) sum += bytes;
  return sum;
}

// Containers often lack the right to place memory or to ask where it lies: then the refusal is what is checked.
template <class Body>
void unless_forbidden(Body body) {
  try {
    body();
  } catch (const std::system_error& error) {
    check(error.code().value() == EPERM || error.code().value() == ENOSYS, error.what());
  }
}

KTBENCH_TEST(a_buffer_is_zero_filled_whole_huge_pages) {
  const HugeBuffer buffer(some_bytes);
  check(reinterpret_cast<std::uintptr_t>(buffer.as<>()) % huge_page == 0, "not on a huge page's boundary");
  check(buffer.bytes() == 4 * huge_page, "not whole huge pages");
  const auto* begin = buffer.as<unsigned char>();
  check(std::all_of(begin, begin + buffer.bytes(), [](unsigned char b) { return b == 0; }), "not zero");
}

KTBENCH_TEST(a_buffer_grows_and_never_shrinks) {
  HugeBuffer buffer;
  check(buffer.bytes() == 0 && buffer.as<>() == nullptr, "not empty");
  buffer.reserve(some_bytes);
  const std::byte* before = buffer.as<>();
  buffer.reserve(1);
  check(buffer.as<>() == before && buffer.bytes() == 4 * huge_page, "it shrank");
  buffer.reserve(5 * huge_page);
  check(buffer.bytes() == 5 * huge_page, "it did not grow");
}

KTBENCH_TEST(memory_that_cannot_be_had_is_bad_alloc) {
  bool refused = false;
  try {
    HugeBuffer(1ul << 60);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  check(refused, "an exbibyte was granted");
}

KTBENCH_TEST(memory_on_a_node_lies_there) {
  unless_forbidden([] {
    for (const int node : memory_nodes()) {
      const HugeBuffer buffer(some_bytes, OnNode{node});
      std::memset(buffer.as<>(), 1, buffer.bytes());
      const std::map<int, std::size_t> expected{{node, buffer.bytes()}};
      check(bytes_by_node(buffer.as<>(), buffer.bytes()) == expected, "not all on node " + std::to_string(node));
    }
  });
}

KTBENCH_TEST(interleaved_memory_lies_on_all_nodes_alike) {
  unless_forbidden([] {
    const std::size_t share = 8 * huge_page;
    const HugeBuffer buffer(share * memory_nodes().size(), Interleaved{});
    std::memset(buffer.as<>(), 1, buffer.bytes());
    std::map<int, std::size_t> expected;
    for (const int node : memory_nodes()) expected[node] = share;
    check(bytes_by_node(buffer.as<>(), buffer.bytes()) == expected, "shares differ");
  });
}

KTBENCH_TEST(a_node_that_is_not_there_is_refused) {
  unless_forbidden([] {
    check_throws<std::system_error>([] { HugeBuffer(1, OnNode{1023}); }, "cannot take memory from node 1023 of node");
  });
  check_throws<std::system_error>([] { HugeBuffer(1, OnNode{-1}); }, "node -1");
  check_throws<std::system_error>([] { HugeBuffer(1, Interleaved{{}}); }, "cannot take memory");
}

KTBENCH_TEST(untouched_pages_lie_nowhere) {
  unless_forbidden([] {
    const HugeBuffer buffer(some_bytes);
    check(bytes_by_node(buffer.as<>(), buffer.bytes()).empty(), "pages before their first touch");
  });
}

KTBENCH_TEST(only_the_bytes_of_the_range_count) {
  unless_forbidden([] {
    const HugeBuffer buffer(40ul << 20);  // several batches
    std::memset(buffer.as<>(), 1, buffer.bytes());
    for (const auto& [from, bytes] : {std::pair{0ul, 40ul << 20}, {1ul, 10ul}, {4000ul, 200ul}, {5000ul, 30'000'001ul}})
      check(total(bytes_by_node(buffer.as<>() + from, bytes)) == bytes, std::to_string(bytes) + " bytes miscounted");
    check(bytes_by_node(buffer.as<>(), 0).empty(), "bytes of nothing");
  });
}

KTBENCH_TEST(every_usable_cpu_has_a_node) {
  check(!usable_cpus().empty(), "no cpu");
  for (const int cpu : usable_cpus()) check(node_of(cpu) >= 0, "cpu " + std::to_string(cpu) + " has no node");
  check_throws<std::invalid_argument>([] { node_of(100'000); }, "no cpu 100000");
  const std::vector<int> nodes = memory_nodes();
  check(std::is_sorted(nodes.begin(), nodes.end()) && !nodes.empty(), "no memory node");
}

}  // namespace
}  // namespace ktbench::tests
