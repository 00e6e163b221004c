#include "linear/workspace.h"

#include <map>

namespace ktbench {

std::shared_ptr<Workspace> Workspace::of(const Team& team) {
  static std::mutex lock;
  static std::map<const Team*, std::weak_ptr<Workspace>> all;
  const std::lock_guard guard(lock);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Workspace>& known = all[&team];
  std::shared_ptr<Workspace> found = known.lock();
  if (!found) known = found = std::make_shared<Workspace>(team.threads());
  return found;
}

}  // namespace ktbench
