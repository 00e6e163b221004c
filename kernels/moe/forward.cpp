#include "moe/forward.h"

#include <utility>

#include "moe/call.h"

namespace ktbench {

Counters& Counters::operator+=(const Counters& other) {
  reference_calls += other.reference_calls;
  avx2_calls += other.avx2_calls;
  avx512_calls += other.avx512_calls;
  amx_tiles += other.amx_tiles;
  emulated_tiles += other.emulated_tiles;
  tasks_static += other.tasks_static;
  tasks_dynamic += other.tasks_dynamic;
  tasks_stolen += other.tasks_stolen;
  weight_bytes += other.weight_bytes;
  flops += other.flops;
  local_bytes += other.local_bytes;
  remote_bytes += other.remote_bytes;
  return *this;
}

MoE::MoE(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team)
    : experts_(std::move(experts)), team_(std::move(team)) {}

MoE::~MoE() = default;

void MoE::forward(const ForwardInputs& inputs, const ForwardOptions& options) {
  if (inputs.routing.tokens == 0) return;
  std::unique_ptr<Call> call = open(inputs, options);
  team_->run(call->phases());
  close(std::move(call));
}

MoE::Ticket MoE::submit(const std::shared_ptr<MoE>& moe, const ForwardInputs& inputs, const ForwardOptions& options) {
  std::unique_ptr<Call> call = inputs.routing.tokens ? moe->open(inputs, options) : nullptr;
  std::shared_ptr<Job> job = moe->team_->submit(call ? call->phases() : std::vector<Team::Phase>{});
  return {moe, std::move(call), std::move(job)};
}

std::unique_ptr<Call> MoE::open(const ForwardInputs& inputs, const ForwardOptions& options) {
  std::unique_ptr<Call> call;
  {
    const std::lock_guard lock(lock_);
    if (!idle_.empty()) call = std::move(idle_.back()), idle_.pop_back();
  }
  if (!call) call = std::make_unique<Call>(*experts_, team_->threads());
  call->prepare(inputs, options);
  return call;
}

void MoE::close(std::unique_ptr<Call> call) {
  if (!call) return;
  const std::lock_guard lock(lock_);
  counted_ += call->take_counters();
  idle_.push_back(std::move(call));
}

Counters MoE::counters() {
  const std::lock_guard lock(lock_);
  return counted_;
}

MoE::Ticket::Ticket(std::shared_ptr<MoE> moe, std::unique_ptr<Call> call, std::shared_ptr<Job> job)
    : moe_(std::move(moe)), call_(std::move(call)), job_(std::move(job)) {}

MoE::Ticket::Ticket(Ticket&&) noexcept = default;

MoE::Ticket::~Ticket() {
  try {
    wait();
  } catch (...) {  // nobody is left to hear of it
  }
}

void MoE::Ticket::wait() {
  if (!job_) return;
  const std::shared_ptr<Job> job = std::exchange(job_, nullptr);
  const std::shared_ptr<MoE> moe = moe_;
  std::unique_ptr<Call> call = std::move(call_);
  moe->team_->wait(*job);
  moe->close(std::move(call));
}

}  // namespace ktbench
