#include <cstdio>
#include <exception>

#include "tests/check.h"

int main() {
  int failed = 0;
  for (const ktbench::tests::Test& test : ktbench::tests::all_tests()) {
    try {
      test.body();
      std::printf("ok    %s\n", test.name);
    } catch (const std::exception& error) {
      ++failed;
      std::printf("WRONG %s: %s\n", test.name, error.what());
    }
  }
  return failed != 0;
}
