#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/hook_list.h"

namespace duet {

// The order of a HookList's hooks, and the reasons for it.

// What sorting needs to know of a hook.
struct HookList::Node {
  const Entry* entry;
  std::string name;
  std::vector<std::size_t> predecessors;
  bool placed = false;
};

std::vector<HookList::Node> HookList::nodes() const {
  std::vector<Node> nodes;
  for (const Entry& entry : hooks_) nodes.push_back({&entry, entry.hook->name(), {}, false});
  for (Node& node : nodes) {
    for (const std::string& wanted : node.entry->hook->after()) {
      const auto found =
          std::find_if(nodes.begin(), nodes.end(), [&](const Node& other) { return other.name == wanted; });
      if (found != nodes.end()) node.predecessors.push_back(static_cast<std::size_t>(found - nodes.begin()));
    }
  }
  return nodes;
}

namespace {

template <class Node>
std::size_t first_unplaced(const std::vector<Node>& nodes, const Node& node) {
  const auto& before = node.predecessors;
  const auto found = std::find_if(before.begin(), before.end(), [&](std::size_t i) { return !nodes[i].placed; });
  return found == before.end() ? nodes.size() : *found;
}

// Every unplaced node waits for an unplaced one, so walking from any of them ends in the circle.
template <class Node>
std::string circle(const std::vector<Node>& nodes) {
  std::size_t at = 0;
  while (nodes[at].placed) ++at;
  std::vector<std::size_t> path;
  while (std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    at = first_unplaced(nodes, nodes[at]);
  }
  std::string text = nodes[at].name;
  for (auto it = std::find(path.begin(), path.end(), at) + 1; it != path.end(); ++it) {
    text += " after " + nodes[*it].name;
  }
  return text + " after " + nodes[at].name;
}

}  // namespace

// Repeatedly the hook of lowest (priority, registration) whose predecessors are placed.
std::vector<Hook*> HookList::sorted() const {
  std::vector<Node> all = nodes();
  std::vector<Hook*> order;
  while (order.size() < all.size()) {
    Node* next = nullptr;
    for (Node& node : all) {
      if (node.placed || first_unplaced(all, node) != all.size()) continue;
      if (next == nullptr || node.entry->priority < next->entry->priority) next = &node;
    }
    if (next == nullptr) {
      throw ConfigError("[HookList] found the circle " + circle(all) +
                        ", expected an order; remove one of these names from its hook's after()");
    }
    next->placed = true;
    order.push_back(next->entry->hook.get());
  }
  return order;
}

std::vector<HookPlace> HookList::places(HookPoint point) const {
  const std::vector<Node> all = nodes();
  std::vector<HookPlace> places;
  const Node* previous = nullptr;
  for (const Hook* hook : order_) {
    if (!hook->uses(point)) continue;
    const Node& node =
        *std::find_if(all.begin(), all.end(), [&](const Node& n) { return n.entry->hook.get() == hook; });
    const int priority = node.entry->priority;
    std::string reason = "priority " + priority_text(priority);
    if (priority != hook->priority()) reason += " instead of its own " + priority_text(hook->priority());
    std::string waits;
    for (const std::size_t i : node.predecessors) waits += (waits.empty() ? "" : ", ") + all[i].name;
    if (!waits.empty()) reason += "; after " + waits + ", as it declares";
    const bool tie = previous != nullptr && previous->entry->priority == priority && previous < &node;
    if (tie) reason += "; added after " + previous->name;
    places.push_back({node.name, priority, reason});
    previous = &node;
  }
  return places;
}

int HookList::priority_of(const std::string& name) const {
  for (const Entry& entry : hooks_) {
    if (entry.hook->name() == name) return entry.priority;
  }
  throw ConfigError("[HookList] found no hook '" + name + "', expected one of this list; see order()");
}

}  // namespace duet
