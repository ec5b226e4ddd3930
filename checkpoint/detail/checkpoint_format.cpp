#include "checkpoint/detail/checkpoint_format.h"
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include "base/detail/bits.h"
#include "base/error.h"

namespace duet::checkpoint_format {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kFormat = 1;
constexpr std::string_view kHashKey = ",\n  \"manifest_xxh3\": \"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr size_t kHexDigits = 32;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw CheckpointError(c10::str("[CheckpointStore] '", path, "': ", what, "; use another checkpoint"));
}

// A whole number: nlohmann would quietly convert 1.5, or a number beyond the type.
template <class T>
T whole(const ordered_json& value) {
  const bool fits = std::is_signed_v<T> ? value.is_number_integer() : value.is_number_unsigned();
  if (!fits) {
    throw ordered_json::type_error::create(302, "found " + value.dump() + ", expected a whole number", nullptr);
  }
  return value.get<T>();
}

ordered_json to_json(const CheckpointTensor& tensor) {
  return {{"name", tensor.name},     {"file", tensor.file},   {"dtype", tensor.dtype}, {"shape", tensor.shape},
          {"offset", tensor.offset}, {"bytes", tensor.bytes}, {"xxh3", tensor.xxh3}};
}

CheckpointTensor to_tensor(const ordered_json& json) {
  CheckpointTensor tensor;
  tensor.name = json.at("name").get<std::string>();
  tensor.file = json.at("file").get<std::string>();
  tensor.dtype = json.at("dtype").get<std::string>();
  for (const ordered_json& extent : json.at("shape")) tensor.shape.push_back(whole<int64_t>(extent));
  tensor.offset = whole<uint64_t>(json.at("offset"));
  tensor.bytes = whole<uint64_t>(json.at("bytes"));
  tensor.xxh3 = json.at("xxh3").get<std::string>();
  return tensor;
}

Manifest to_manifest(const ordered_json& json) {
  Manifest manifest;
  manifest.step =
      whole<int64_t>(json.at(json.contains("step") ? "step" : "update"));  // named so before the first release
  manifest.created = json.at("created").get<std::string>();
  manifest.torch_version = json.at("torch_version").get<std::string>();
  manifest.duet_version = json.at("duet_version").get<std::string>();
  for (const ordered_json& file : json.at("files")) {
    manifest.files.push_back(
        {file.at("name").get<std::string>(), whole<uint64_t>(file.at("bytes")), file.at("xxh3").get<std::string>()});
  }
  for (const ordered_json& tensor : json.at("tensors")) manifest.tensors.push_back(to_tensor(tensor));
  return manifest;
}

// What is left of "step-" in a folder's name: digits, without leading zeros so that a number has one name.
std::optional<int64_t> parse_step(std::string_view digits) {
  int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool canonical = digits.size() == 1 || (!digits.empty() && digits[0] != '0');
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0 || !canonical) return std::nullopt;
  return step;
}

constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kHooksPrefix = "hooks.";
constexpr std::string_view kWeightsPart = ".weights.";
constexpr std::string_view kTensorsSuffix = ".safetensors";

// Whether a hook's weights may be called <hook>.safetensors: a plain name that no other file has.
bool names_a_file(std::string_view hook) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; };
  return !hook.empty() && hook.size() <= 64 && std::all_of(hook.begin(), hook.end(), plain) && hook != "model" &&
         hook != "state";
}

}  // namespace

TensorPlace place_of(const std::string& tensor) {
  const std::string_view name = tensor;
  if (name.starts_with(kModelPrefix)) return {kModelFile, std::string(kModelPrefix)};
  if (name.starts_with(kHooksPrefix)) {
    const std::string_view rest = name.substr(kHooksPrefix.size());
    const std::string_view hook = rest.substr(0, rest.find('.'));
    if (rest.substr(hook.size()).starts_with(kWeightsPart) && names_a_file(hook)) {
      return {c10::str(hook, kTensorsSuffix), c10::str(kHooksPrefix, hook, kWeightsPart)};
    }
  }
  return {kStateFile, ""};
}

std::optional<std::string> prefix_of(const std::string& file) {
  if (file == kModelFile) return std::string(kModelPrefix);
  if (file == kStateFile) return std::string();
  if (!file.ends_with(kTensorsSuffix)) return std::nullopt;
  const std::string hook = file.substr(0, file.size() - kTensorsSuffix.size());
  if (!names_a_file(hook)) return std::nullopt;
  return c10::str(kHooksPrefix, hook, kWeightsPart);
}

std::vector<std::string> files_for(const std::vector<std::string>& tensors) {
  std::set<std::string> hooks;
  for (const std::string& tensor : tensors) hooks.insert(place_of(tensor).file);
  hooks.erase(kModelFile);
  hooks.erase(kStateFile);
  std::vector<std::string> files = {kModelFile};
  files.insert(files.end(), hooks.begin(), hooks.end());
  files.insert(files.end(), {kStateFile, kValuesFile});
  return files;
}

std::optional<FolderName> parse_folder_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  constexpr size_t kSuffix = 5 + kHexDigits;  // ".tmp." and an id
  std::string_view rest = name;
  if (rest.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  rest.remove_prefix(kPrefix.size());

  auto kind = FolderName::Kind::kComplete;
  const size_t dot = rest.find('.');
  if (dot != std::string_view::npos) {
    const std::string_view suffix = rest.substr(dot);
    const bool temporary = suffix.substr(0, 5) == ".tmp.", aside = suffix.substr(0, 5) == ".old.";
    if (suffix.size() != kSuffix || !(temporary || aside)) return std::nullopt;
    kind = temporary ? FolderName::Kind::kTemporary : FolderName::Kind::kAside;
    rest = rest.substr(0, dot);
  }
  const auto step = parse_step(rest);
  if (!step) return std::nullopt;
  return FolderName{*step, kind};
}

std::string encode_manifest(const Manifest& manifest) {
  ordered_json json = {{"format", kFormat},
                       {"step", manifest.step},
                       {"created", manifest.created},
                       {"torch_version", manifest.torch_version},
                       {"duet_version", manifest.duet_version},
                       {"files", ordered_json::array()},
                       {"tensors", ordered_json::array()}};
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}});
  }
  for (const CheckpointTensor& tensor : manifest.tensors) json["tensors"].push_back(to_json(tensor));
  std::string text = json.dump(2);
  text.resize(text.size() - 2);  // "\n}": the hash comes before it
  return c10::str(text, kHashKey, xxh3_hex(text.data(), text.size()), kEnd);
}

Manifest decode_manifest(const std::string& text, const std::string& path) {
  constexpr size_t kTail = kHashKey.size() + kHexDigits + kEnd.size();
  const size_t body = text.size() < kTail ? 0 : text.size() - kTail;
  const std::string tail = c10::str(kHashKey, xxh3_hex(text.data(), body), kEnd);
  if (body == 0 || text.compare(body, kTail, tail) != 0) refuse(path, "the manifest does not match its own hash");
  try {
    const ordered_json json = ordered_json::parse(text);
    const auto format = whole<int64_t>(json.at("format"));
    if (format != kFormat) {
      refuse(path, c10::str("found format ", format, ", expected ", kFormat, "; read it with the duet that wrote it"));
    }
    return to_manifest(json);
  } catch (const ordered_json::exception& error) {
    refuse(path, c10::str("the manifest is not as expected: ", error.what()));
  }
}

}  // namespace duet::checkpoint_format
