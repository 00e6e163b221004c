// Files as memory.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "runtime/mapped_file.h"
#include "tests/check.h"

namespace ktbench::tests {
namespace {

constexpr std::size_t some_bytes = 3 * huge_page + 5000;

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "ktbench-XXXXXX";
    check(mkdtemp(name.data()) != nullptr, "no temporary folder");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const char* name) const { return path_ / name; }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

KTBENCH_TEST(a_file_is_read_back_as_it_was_written) {
  const Folder folder;
  const std::string path = folder.file("weights");
  std::vector<char> written(some_bytes, 0);
  {
    MappedFile file = MappedFile::create(path, some_bytes);
    check(file.bytes() == some_bytes, "its size");
    check(std::equal(written.begin(), written.end(), file.as<char>()), "not zero");
    for (std::size_t i = 0; i < some_bytes; ++i) written[i] = static_cast<char>(i * 7 + i / 4096);
    std::copy(written.begin(), written.end(), file.as<char>());
    file.flush();
  }
  const MappedFile file = MappedFile::open(path);
  check(file.bytes() == some_bytes && std::filesystem::file_size(path) == some_bytes, "its size");
  check(reinterpret_cast<std::uintptr_t>(file.as<>()) % huge_page == 0, "not on a huge page's boundary");
  check(std::equal(written.begin(), written.end(), file.as<char>()), "other bytes");
}

void save(const std::string& path, std::size_t bytes, char first) {
  MappedFile file = MappedFile::create(path, bytes);
  file.as<char>()[0] = first;
  file.flush();
}

KTBENCH_TEST(a_replaced_file_stays_with_those_who_have_it) {
  const Folder folder;
  const std::string path = folder.file("weights");
  save(path, 10, 'a');
  const MappedFile old = MappedFile::open(path);
  save(path, 20, 'b');
  check(old.bytes() == 10 && old.as<char>()[0] == 'a', "the old one changed");
  check(MappedFile::open(path).bytes() == 20 && MappedFile::open(path).as<char>()[0] == 'b', "the new one is missing");
}

KTBENCH_TEST(half_a_file_is_never_seen) {
  const Folder folder;
  const std::string path = folder.file("weights");
  save(path, 10, 'a');
  {
    MappedFile begun = MappedFile::create(path, 20), moved = std::move(begun);
    moved.as<char>()[0] = 'b';
    check(MappedFile::open(path).bytes() == 10, "it was replaced too early");
  }
  check(MappedFile::open(path).as<char>()[0] == 'a', "the old one is gone");
  check(folder.files() == 1, "something was left behind");
}

KTBENCH_TEST(errors_name_the_file) {
  const Folder folder;
  const std::string missing = folder.file("missing"), empty = folder.file("empty"), deep = folder.file("no/folder");
  std::ofstream{empty};
  check_throws<std::system_error>([&] { MappedFile::open(missing); }, "cannot open " + missing + ": No such file");
  check_throws<std::system_error>([&] { MappedFile::open(empty); }, empty);
  check_throws<std::system_error>([&] { MappedFile::open(folder.file("")); }, folder.file(""));
  check_throws<std::system_error>([&] { MappedFile::create(deep, 1); }, "cannot create " + deep);
  check_throws<std::system_error>([&] { MappedFile::create(missing, 0); }, missing);
  check_throws<std::system_error>([&] { MappedFile::create(missing, 1ul << 60); }, "cannot make room for " + missing);
  check(folder.files() == 1, "something was left behind");
}

}  // namespace
}  // namespace ktbench::tests
