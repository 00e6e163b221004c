// Prepared calls from several threads, on weights that are all zero: the Python tests check the results.
#include <algorithm>
#include <atomic>
#include <thread>

#include "moe/prepared.h"
#include "runtime/isa.h"
#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

constexpr int kTokens = 3, kHidden = 64;

ForwardOptions on_reference() {
  const Kernels& kernels = kernels_of("reference", Format{});
  const KernelPair all{&kernels, &kernels, 0};
  return {all, all, false, false};
}

struct Scene {
  explicit Scene(bool own)
      : pool(std::make_shared<ThreadPool>(four_cpus(), brief, own)),
        moe(std::make_shared<MoE>(
            std::make_shared<PackedExperts>(Geometry{2, kHidden, 32}, 1, std::vector<int>{}), pool, 9)),
        call(moe, {hidden.data(), {ids.data(), gates.data(), kTokens, 2}, out.data()},
             on_reference()) {}

  bool written() const { return std::all_of(out.begin(), out.end(), [](bf16 x) { return x == 0; }); }

  std::vector<bf16> hidden = std::vector<bf16>(kTokens * kHidden, 0x3f80), out = std::vector<bf16>(hidden.size(), 0x7fc0);
  std::vector<std::int64_t> ids = std::vector<std::int64_t>{0, 1, no_expert, 0, no_expert, no_expert};
  std::vector<float> gates = std::vector<float>(6, 1.0f);
  std::shared_ptr<ThreadPool> pool;
  std::shared_ptr<MoE> moe;
  Prepared call;
};

KTBENCH_TEST(a_prepared_call_is_made_again_and_again) {
  for (const bool own : {false, true}) {
    Scene scene(own);
    for (int turn = 0; turn < 50; ++turn) {
      std::fill(scene.out.begin(), scene.out.end(), bf16{0x7fc0});
      turn % 2 ? scene.call.forward() : (scene.call.submit(), scene.call.wait());
      check(scene.written() && scene.call.done(), "not written");
    }
    const std::vector<Span> spans = scene.pool->spans();
    check(spans.size() == 50 && spans.front().tag == 9, "jobs of other tags, or more of them");
    check(scene.moe->counters().flops == 50ull * 2 * 3 * kHidden * 32 * 3, "experts counted other than three times");
  }
}

KTBENCH_TEST(a_prepared_call_is_outstanding_once) {
  Scene scene(true);
  scene.call.wait();
  scene.call.submit();
  check_throws<std::logic_error>([&] { scene.call.submit(); }, "has not been waited for");
  check_throws<std::logic_error>([&] { scene.call.forward(); }, "has not been waited for");
  scene.call.wait();
  scene.ids[3] = -2;
  check_throws<std::out_of_range>([&] { scene.call.submit(); }, "expert id -2 of token 1");
  check(scene.call.done(), "a refused call is outstanding");
}

KTBENCH_TEST(a_prepared_call_has_many_waiters) {
  for (const bool own : {false, true}) {
    Scene scene(own);
    for (int turn = 0; turn < 30; ++turn) {
      std::fill(scene.out.begin(), scene.out.end(), bf16{0x7fc0});
      std::atomic<int> right{0};
      scene.call.submit();
      const auto waiter = [&] {
        scene.call.wait();
        right += scene.written();
      };
      std::jthread one(waiter), two(waiter), three(waiter);
      one.join(), two.join(), three.join();
      check(right == 3, "a waiter came back too early");
    }
  }
}

KTBENCH_TEST(a_prepared_call_that_is_dropped_is_waited_for) {
  Scene scene(true);
  {
    Prepared call(scene.moe, {scene.hidden.data(), {scene.ids.data(), scene.gates.data(), kTokens, 2}, scene.out.data()},
                  on_reference());
    call.submit();
  }
  check(scene.written(), "dropped on its way");
}

}  // namespace
}  // namespace ktbench::tests
