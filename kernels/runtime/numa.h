// NUMA nodes: which cpus and which memory belong to them. By system calls and sysfs, without libnuma.
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
struct FirstTouch {};  // from near the thread that touches a page first, as far as that node has any left
struct Interleaved {   // from these in turn
  std::vector<int> nodes = memory_nodes();
};
struct OnNode {  // from there and nowhere else
  int node;
};
using Placement = std::variant<FirstTouch, Interleaved, OnNode>;

// For whole pages that have not been touched yet. Throws std::system_error where the kernel refuses: a node that it
// lacks, a container without the right to mbind(2).
void place(void* begin, std::size_t bytes, const Placement& placement);

// Bytes of a range on each node, as the kernel has them now. Pages that are not present, never written to or not yet
// read from their file, are left out. Throws std::system_error where a container has no right to move_pages(2).
std::map<int, std::size_t> bytes_by_node(const void* begin, std::size_t bytes);

}  // namespace ktbench
