// The fused MoE operator: phases with a barrier after each.
//   1. x in the kernels' activation format: bf16, float32 or int8 per token.
//   2. h = act(x gate^T) * (x up^T), see moe/glu.h, for every expert that has tokens, rounded to bf16.
// 3. h in the kernels' activation format, unless that is bf16.
//   4. out = sum over experts of gate weight * (h down^T), float32 sums in expert order, rounded to bf16 once.
// 5. With several domains: the sum of their results for their shares of the intermediate size.
// Each output element belongs to one task, so the result depends neither on the thread count nor on the schedule.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "core/kernels.h"
#include "moe/experts.h"
#include "moe/routing.h"
#include "runtime/partition.h"

namespace ktbench {

struct KernelPair {
  const Kernels* few;   // for experts with fewer than many_from tokens
  const Kernels* many;  // for the others
  int many_from;

  const Kernels& for_tokens(int count) const { return count >= many_from ? *many : *few; }
};

struct ForwardOptions {
  KernelPair gate_up, down;
  bool dynamic;
  bool numa;  // each domain's threads compute its shard, instead of any thread any task
};

// hidden, out: [tokens, hidden], contiguous; they may be the same.
struct ForwardInputs {
  const bf16* hidden;
  Routing routing;
  bf16* out;
};

class Call;
class CallPool;

class MoE {
 public:
  // The tag names its jobs in the team's spans. Throws std::invalid_argument for a negative one.
  MoE(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team, int tag = 0);
  ~MoE();

  // A call in progress. Destroying it waits; `hidden` and `out` must live until then.
  class Ticket {
   public:
    Ticket(std::shared_ptr<MoE> moe, std::unique_ptr<Call> call, std::shared_ptr<Job> job);
    Ticket(Ticket&&) noexcept;
    ~Ticket();
    // Rethrows an exception of a thread of the team, once. Any number of threads may wait.
    void wait();
    bool done() const;  // whether wait() would return at once

   private:
    std::shared_ptr<MoE> moe_;
    std::unique_ptr<Call> call_;
    std::shared_ptr<Job> job_;
    std::atomic<bool> closed_{false};
  };

  // Throws std::out_of_range for an expert id, std::invalid_argument for numa with fewer threads than domains.
  void forward(const ForwardInputs& inputs, const ForwardOptions& options);
  // Routing is read before it returns. Calls of one team run in the order of their submission.
  static Ticket submit(const std::shared_ptr<MoE>& moe, const ForwardInputs& inputs, const ForwardOptions& options);

  const PackedExperts& experts() const { return *experts_; }
  Team& team() const { return *team_; }
    Counters counters();  // summed over all awaited calls since construction

 private:
  std::unique_ptr<Call> open(const ForwardInputs& inputs, const ForwardOptions& options);
  void close(std::unique_ptr<Call> call);

  const std::shared_ptr<PackedExperts> experts_;
  const std::shared_ptr<Team> team_;
  const int tag_;
  const std::shared_ptr<CallPool> idle_;  // with their buffers, for the next calls
  std::mutex lock_;
  Counters counted_;
};

}  // namespace ktbench
