#include "moe/prepared.h"

#include <stdexcept>
#include <utility>

namespace ktbench {

Prepared::Prepared(std::shared_ptr<MoE> moe, const ForwardInputs& inputs, const ForwardOptions& options)
    : moe_(std::move(moe)), inputs_(inputs), options_(options) {}

void Prepared::submit() {
  const std::lock_guard lock(lock_);
  if (ticket_) throw std::logic_error("the call before has not been waited for");
  ticket_ = std::make_shared<MoE::Ticket>(MoE::submit(moe_, inputs_, options_));
}

void Prepared::forward() {
  submit();
  wait();
}

void Prepared::wait() {
  const std::shared_ptr<MoE::Ticket> ticket = outstanding();
  if (!ticket) return;
  try {
    ticket->wait();
  } catch (...) {
    forget(ticket);
    throw;
  }
  forget(ticket);
}

bool Prepared::done() const {
  const std::shared_ptr<MoE::Ticket> ticket = outstanding();
  return !ticket || ticket->done();
}

std::shared_ptr<MoE::Ticket> Prepared::outstanding() const {
  const std::lock_guard lock(lock_);
  return ticket_;
}

void Prepared::forget(const std::shared_ptr<MoE::Ticket>& ticket) {
  const std::lock_guard lock(lock_);
  if (ticket_ == ticket) ticket_ = nullptr;
}

}  // namespace ktbench
