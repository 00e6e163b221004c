// Objects shared by all calls on one team.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "runtime/team.h"

namespace ktbench {

// The T of a team, constructed from its number of threads. It lives as long as it is referenced; its holders must also
// keep the team alive.
template <class T>
std::shared_ptr<T> of_team(const Team& team) {
  static std::mutex lock;
  static std::map<const Team*, std::weak_ptr<T>> all;
  const std::lock_guard guard(lock);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<T>& known = all[&team];
  std::shared_ptr<T> found = known.lock();
  if (!found) known = found = std::make_shared<T>(team.threads());
  return found;
}

}  // namespace ktbench
