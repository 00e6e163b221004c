// NUMA nodes with their cpus and memory, through system calls and sysfs, without libnuma.
#pragma once

#include <cstddef>
#include <map>
#include <variant>
#include <vector>

namespace ktbench {

// Node of a cpu; 0 on kernels without NUMA. Throws std::invalid_argument for a cpu that this machine lacks.
int node_of(int cpu);

// Nodes with memory that this process may use, ascending; {0} on kernels without NUMA.
std::vector<int> memory_nodes();

// Where the pages of a buffer come from.
struct FirstTouch {};  // near the thread that touches a page first, as long as that node has memory left
struct Interleaved {   // from these in turn
  std::vector<int> nodes = memory_nodes();
};
struct OnNode {  // from this node only
  int node;
};
using Placement = std::variant<FirstTouch, Interleaved, OnNode>;

// For whole, untouched pages. Throws std::system_error if the kernel refuses: a missing node, a container without
// permission for mbind(2).
void place(void* begin, std::size_t bytes, const Placement& placement);

// Current bytes of a range on each node. Pages that are not present (never written, or not yet read from their file)
// are left out. Throws std::system_error in a container without permission for move_pages(2).
std::map<int, std::size_t> bytes_by_node(const void* begin, std::size_t bytes);

}  // namespace ktbench
