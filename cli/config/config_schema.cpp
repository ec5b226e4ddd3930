#include "cli/config/config_data.h"

namespace duet {

namespace {

using Data = ConfigNode::Data;
using Kind = ConfigNode::Kind;

void mark_probing(Data& data) {
  data.probing = true;
  for (auto& item : data.items) mark_probing(*item.second);
}

void collect(const Data& data, const std::string& path, std::vector<ConfigKey>& keys) {
  // Of a list the first item stands for all.
  if (data.kind == Kind::kList && !data.items.empty()) return collect(*data.items[0].second, join_path(path, "0"), keys);
  for (const std::string& name : data.known) {
    const std::shared_ptr<Data> item = data.get(name);
    if (!item) continue;
    const std::string item_path = join_path(path, name);
    const std::size_t before = keys.size();
    keys.push_back(item->key);
    keys.back().path = item_path;
    if (item->key.type.empty()) keys.back().type = "map";
    collect(*item, item_path, keys);
    // A section is said by its keys.
    if (item->key.type.empty() && keys.size() > before + 1) keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(before));
  }
}

}  // namespace

ConfigNode ConfigNode::probe(const std::string& text) {
  ConfigNode node(parse_yaml(text, "probe"));
  mark_probing(*node.data_);
  return node;
}

ConfigKey& ConfigNode::about(const std::string& key) const { return child(key).data_->key; }

void ConfigNode::note_kind(const std::string& key, const std::string& kind) const {
  const ConfigNode node = child(key);
  node.data_->key.type = kind;
  node.data_->kind_noted = true;
}

std::vector<ConfigKey> ConfigNode::schema() const {
  std::vector<ConfigKey> keys;
  collect(*data_, "", keys);
  return keys;
}

}  // namespace duet
