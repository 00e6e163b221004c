// A test is a function registered by name; a failed check throws and says where.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ktbench::tests {

struct Test {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

inline void check(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

template <class Error, class Body>
void check_throws(Body body, const std::string& part_of_message) {
  try {
    body();
  } catch (const Error& error) {
    return check(std::string(error.what()).find(part_of_message) != std::string::npos, error.what());
  }
  throw std::logic_error("nothing thrown, expected: " + part_of_message);
}

#define KTBENCH_TEST(name)                                                                     \
  static void name();                                                                          \
  static const bool name##_added = (::ktbench::tests::all_tests().push_back({#name, name}), true); \
  static void name()

}  // namespace ktbench::tests
