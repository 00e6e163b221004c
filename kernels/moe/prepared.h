// One call, checked once, made repeatedly on the current contents of its arrays.
#pragma once

#include <memory>
#include <mutex>

#include "moe/forward.h"

namespace ktbench {

// At most one call is outstanding: submitted and not waited for, by whichever thread.
class Prepared {
 public:
  Prepared(std::shared_ptr<MoE> moe, const ForwardInputs& inputs, const ForwardOptions& options);

  // These throw like MoE's, and std::logic_error while a call is outstanding.
  void submit();
  void forward();

  // Returns at once if nothing is outstanding. Rethrows an exception of a thread of the team, which also ends the call.
  void wait();
  bool done() const;  // whether wait() would return at once

 private:
  std::shared_ptr<MoE::Ticket> outstanding() const;
  void forget(const std::shared_ptr<MoE::Ticket>& ticket);

  const std::shared_ptr<MoE> moe_;
  const ForwardInputs inputs_;
  const ForwardOptions options_;
  mutable std::mutex lock_;
  std::shared_ptr<MoE::Ticket> ticket_;
};

}  // namespace ktbench
