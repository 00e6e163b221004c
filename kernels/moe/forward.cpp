#include "moe/forward.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "moe/call.h"
#include "runtime/of_team.h"

namespace ktbench {

Counters& operator+=(Counters& sum, const Counters& other) {
  for (const CounterTraits& counter : counter_table) sum.*counter.value += other.*counter.value;
  return sum;
}

MoE::MoE(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team, int tag)
    : experts_(std::move(experts)), team_(std::move(team)), tag_(tag), idle_(of_team<CallPool>(*team_)) {
  if (tag < 0) throw std::invalid_argument("tag=" + std::to_string(tag) + " must not be negative");
}

MoE::~MoE() = default;

void MoE::forward(const ForwardInputs& inputs, const ForwardOptions& options) {
  if (inputs.routing.tokens == 0) return;
  team_->check_process();
  std::unique_ptr<Call> call = open(inputs, options);
  team_->run(call->phases(), tag_);
  close(std::move(call));
  experts_->check_file();
}

MoE::Ticket MoE::submit(const std::shared_ptr<MoE>& moe, const ForwardInputs& inputs, const ForwardOptions& options) {
  moe->team_->check_process();
  std::unique_ptr<Call> call = inputs.routing.tokens ? moe->open(inputs, options) : nullptr;
  std::shared_ptr<Job> job = moe->team_->submit(call ? call->phases() : std::vector<Team::Phase>{}, moe->tag_);
  return {moe, std::move(call), std::move(job)};
}

std::unique_ptr<Call> MoE::open(const ForwardInputs& inputs, const ForwardOptions& options) {
  std::unique_ptr<Call> call = idle_->take(*experts_);
  call->prepare(*experts_, inputs, options);
  return call;
}

void MoE::close(std::unique_ptr<Call> call) {
  if (!call) return;
  {
    const std::lock_guard lock(lock_);
    counted_ += call->take_counters();
  }
  idle_->give(std::move(call));
}

Counters MoE::counters() {
  const std::lock_guard lock(lock_);
  return counted_;
}

MoE::Ticket::Ticket(std::shared_ptr<MoE> moe, std::unique_ptr<Call> call, std::shared_ptr<Job> job)
    : moe_(std::move(moe)), call_(std::move(call)), job_(std::move(job)) {}

MoE::Ticket::Ticket(Ticket&& other) noexcept
    : moe_(std::move(other.moe_)), call_(std::move(other.call_)), job_(std::move(other.job_)),
      closed_(other.closed_.load()) {}

MoE::Ticket::~Ticket() {
  if (!job_) return;  // moved away
  try {
    wait();
  } catch (...) {  // a destructor cannot report it
  }
}

void MoE::Ticket::wait() {
  moe_->team_->wait(*job_);
  if (!closed_.exchange(true)) moe_->close(std::move(call_));
  moe_->experts().check_file();
}

bool MoE::Ticket::done() const { return moe_->team_->done(*job_); }

}  // namespace ktbench
