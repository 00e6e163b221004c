#include "runtime/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace ktbench {
namespace {

const std::filesystem::path kSystem = "/sys/devices/system";

// The kernel's list format: "0-3,8".
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream in(text);
  for (std::string range; std::getline(in, range, ',');) {
    const std::size_t dash = range.find('-');
    const int first = std::stoi(range), last = dash == std::string::npos ? first : std::stoi(range.substr(dash + 1));
    for (int n = first; n <= last; ++n) numbers.push_back(n);
  }
  return numbers;
}

// The text after `key` on its line; the first line for an empty key; empty if there is none.
std::string line_after(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return line.substr(key.size());
  return "";
}

std::string names(const std::vector<int>& nodes) {
  std::string text = nodes.size() == 1 ? "node " : "nodes ";
  for (std::size_t i = 0; i < nodes.size(); ++i) text.append(i ? "," : "").append(std::to_string(nodes[i]));
  return text;
}

void set_policy(void* begin, std::size_t bytes, int policy, const std::vector<int>& nodes) {
  constexpr int bits = 8 * sizeof(unsigned long);
  const std::string what = "cannot take memory from " + names(nodes) + " of " + names(memory_nodes()) + ": mbind";
  if (nodes.empty() || *std::min_element(nodes.begin(), nodes.end()) < 0)
    throw std::system_error(EINVAL, std::generic_category(), what);
  std::vector<unsigned long> mask(*std::max_element(nodes.begin(), nodes.end()) / bits + 1);
  for (const int node : nodes) mask[node / bits] |= 1ul << node % bits;
  const std::size_t one_more = mask.size() * bits + 1;  // the kernel takes one off
  if (syscall(SYS_mbind, begin, bytes, policy, mask.data(), one_more, 0))
    throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

int node_of(int cpu) {
  const auto folder = kSystem / "cpu" / ("cpu" + std::to_string(cpu));
  if (!std::filesystem::exists(folder)) throw std::invalid_argument("this machine has no cpu " + std::to_string(cpu));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node")) return std::stoi(name.substr(4));
  }
  return 0;
}

// The task's own list may name possible nodes that the machine does not have.
std::vector<int> memory_nodes() {
  const std::vector<int> present = parse_list(line_after(kSystem / "node" / "has_memory", ""));
  const std::vector<int> allowed = parse_list(line_after("/proc/self/status", "Mems_allowed_list:"));
  std::vector<int> both;
  std::set_intersection(present.begin(), present.end(), allowed.begin(), allowed.end(), std::back_inserter(both));
  return both.empty() ? std::vector{0} : both;
}

void place(void* begin, std::size_t bytes, const Placement& placement) {
  if (const auto* interleaved = std::get_if<Interleaved>(&placement))
    set_policy(begin, bytes, MPOL_INTERLEAVE, interleaved->nodes);
  if (const auto* on = std::get_if<OnNode>(&placement)) set_policy(begin, bytes, MPOL_BIND, {on->node});
}

std::map<int, std::size_t> bytes_by_node(const void* begin, std::size_t bytes) {
  constexpr std::size_t batch = 4096;
  const std::size_t page = sysconf(_SC_PAGESIZE);
  const auto first = reinterpret_cast<std::uintptr_t>(begin), end = first + bytes;
  std::map<int, std::size_t> sums;
  std::vector<void*> pages(batch);
  std::vector<int> nodes(batch);
  for (std::uintptr_t at = first / page * page; at < end;) {
    std::size_t count = 0;
    const std::uintptr_t batch_begin = at;
    for (; count < batch && at < end; ++count, at += page) pages[count] = reinterpret_cast<void*>(at);
    if (syscall(SYS_move_pages, 0, count, pages.data(), nullptr, nodes.data(), 0))
      throw std::system_error(errno, std::generic_category(), "cannot query where memory lies: move_pages");
    for (std::size_t i = 0; i < count; ++i) {
      const std::uintptr_t from = batch_begin + i * page;
      if (nodes[i] >= 0) sums[nodes[i]] += std::min(from + page, end) - std::max(from, first);
    }
  }
  return sums;
}

}  // namespace ktbench
