#include "checkpoint/detail/checkpoint_format.h"
#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <nlohmann/json.hpp>
#include "base/detail/bits.h"
#include "base/detail/concat_text.h"
#include "base/detail/pattern.h"
#include "base/detail/text.h"
#include "io/bounded_json.h"
#include "io/plain_tensor.h"

namespace duet {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointFile, name, bytes, xxh3)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointTensor, name, file, dtype, shape, offset, bytes, xxh3)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RunIdentity, config, data, classes, encoding, launch, parent,
                                                world_size)

std::string to_text(const UncheckedSteps& unchecked) {
  if (unchecked.count == 0) return "the host code of every step has run";
  return c10::str(unchecked.count, " replays did not run their host code, at most ", unchecked.in_a_row,
                  " in a row: in these and no others a change of it, or an exception, may have been missed");
}

namespace checkpoint_format {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kFormat = 1;
constexpr std::string_view kHashKey = ",\n  \"manifest_xxh3\": \"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr size_t kHexDigits = 32;

// A whole number: nlohmann would quietly convert 1.5, or a number beyond the type.
int64_t whole(const json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  throw json::type_error::create(302, "found " + value.dump() + ", expected a whole number", nullptr);
}

json to_json(const UncheckedSteps& unchecked) {
  return {{"replays", unchecked.count},
          {"in_a_row", unchecked.in_a_row},
          {"confirmed_step", unchecked.confirmed},
          {"means", to_text(unchecked)}};
}

UncheckedSteps to_unchecked(const json& entry) {
  return {whole(entry.at("replays")), whole(entry.at("in_a_row")), whole(entry.at("confirmed_step"))};
}

Manifest to_manifest(const json& document) {
  Manifest manifest;
  manifest.step = whole(document.at("step"));
  document.at("created").get_to(manifest.created);
  document.at("torch_version").get_to(manifest.torch_version);
  document.at("duet_version").get_to(manifest.duet_version);
  manifest.run = document.value("run", RunIdentity());
  if (document.contains("unchecked")) manifest.run.unchecked = to_unchecked(document.at("unchecked"));
  document.at("files").get_to(manifest.files);
  document.at("tensors").get_to(manifest.tensors);
  return manifest;
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

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw CheckpointError(c10::str("[CheckpointStore] '", path, "': ", what, "; use another checkpoint"));
}

std::string name_of(const std::string& path) {
  const std::filesystem::path folder(path);
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

constexpr uint64_t kMostOfPointer = 4096;

std::string pointed_name(const std::string& path) try {
  const std::string text = file_io::read_text(path, kMostOfPointer);
  return text.substr(0, text.find_first_of(" \t\r\n"));
} catch (const file_io::IoError&) {
  return {};
}

std::optional<AbandonedSteps> abandoned_in(const std::string& root) try {
  std::istringstream text(file_io::read_text(concat_text(root, "/", kAbandonedFile), kMostOfPointer));
  AbandonedSteps found;
  return text >> found.after >> found.number ? std::optional(found) : std::nullopt;
} catch (const file_io::IoError&) {
  return {};
}

bool is_best_file(std::string_view name) {
  const std::string_view best = kBest;
  if (!name.starts_with(best) || name.find('.') != std::string_view::npos) return false;
  return name.size() == best.size() || name[best.size()] == '_';
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw file_io::IoError("cannot list", folder, error.value());
  }
  return names;
}

TensorPlace place_of(const std::string& tensor) {
  const std::string_view name = tensor;
  if (name.starts_with(kModelPrefix)) return {kModelFile, std::string(kModelPrefix)};
  if (name.starts_with(kHooksPrefix)) {
    const std::string_view rest = name.substr(kHooksPrefix.size());
    const std::string_view hook = rest.substr(0, rest.find('.'));
    if (rest.substr(hook.size()).starts_with(kWeightsPart) && names_a_file(hook)) {
      return {concat_text(hook, kTensorsSuffix), concat_text(kHooksPrefix, hook, kWeightsPart)};
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
  return concat_text(kHooksPrefix, hook, kWeightsPart);
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
  // Without leading zeros, so that a number has one name.
  static const Pattern pattern(R"(step-(0|[1-9]\d*)(\.(tmp|old)\.[^]{32})?)");
  const auto parts = pattern.groups_of(name);
  const auto step = parts ? parse_number<int64_t>((*parts)[1]) : std::nullopt;
  if (!step) return std::nullopt;
  if ((*parts)[2].empty()) return FolderName{*step, FolderName::Kind::kComplete};
  return FolderName{*step, (*parts)[3] == "tmp" ? FolderName::Kind::kTemporary : FolderName::Kind::kAside};
}

std::string encode_manifest(const Manifest& manifest) {
  std::string lines;
  for (const auto& [path, value] : manifest.run.config) lines += path + ": " + value + "\n";
  ordered_json json = {{"format", kFormat},
                       {"step", manifest.step},
                       {"created", manifest.created},
                       {"torch_version", manifest.torch_version},
                       {"duet_version", manifest.duet_version},
                       {"run", nlohmann::json(manifest.run)},
                       {"files", nlohmann::json(manifest.files)},
                       {"tensors", nlohmann::json(manifest.tensors)}};
  json["run"]["config_xxh3"] = xxh3_hex(lines.data(), lines.size());
  if (manifest.run.unchecked) json["unchecked"] = to_json(*manifest.run.unchecked);
  // Texts of a config, and paths, need not be UTF-8.
  std::string text = json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
  text.resize(text.size() - 2);  // "\n}": the hash comes before it
  const std::string hash = xxh3_hex(text.data(), text.size());
  // No stream: without memory those go on with what they have.
  return text.append(kHashKey).append(hash).append(kEnd);
}

Manifest decode_manifest(const std::string& text, const std::string& path) {
  constexpr size_t kTail = kHashKey.size() + kHexDigits + kEnd.size();
  const size_t body = text.size() < kTail ? 0 : text.size() - kTail;
  const std::string tail = concat_text(kHashKey, xxh3_hex(text.data(), body), kEnd);
  check(path, body > 0 && text.compare(body, kTail, tail) == 0, "the manifest does not match its own hash");
  try {
    const auto document = parse_json<json>(text, "the manifest");
    const int64_t format = whole(document.at("format"));
    check(path, format == kFormat, "found format ", format, ", expected ", kFormat,
          "; read it with the duet that wrote it");
    return to_manifest(document);
  } catch (const json::exception& error) {
    refuse(path, c10::str("the manifest is not as expected: ", one_line(error.what())));
  } catch (const MalformedFile& error) {
    refuse(path, one_line(error.what));
  }
}

namespace {

// state.json: {"name": {"int": 7}}, with the type in each value's key. A double has its bits beside the number, which
// JSON cannot hold if it is NaN or infinite; a text that is not UTF-8 is written as the hex digits of its bytes.

template <class T>
T parse_hex(std::string_view digits) {
  T value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 2 * sizeof(T) || error != std::errc() || end != digits.data() + digits.size()) {
    throw json::type_error::create(302, c10::str("'", digits, "' is not ", 2 * sizeof(T), " hex digits"), nullptr);
  }
  return value;
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(parse_hex<unsigned char>(std::string_view(hex).substr(i, 2)));
  }
  return bytes;
}

json to_json(const StateValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return {{"bool", *flag}};
  if (const auto* integer = std::get_if<int64_t>(&value)) return {{"int", *integer}};
  if (const auto* number = std::get_if<double>(&value)) {
    char text[32], bits[17];
    std::snprintf(text, sizeof text, "%.17g", *number);
    std::snprintf(bits, sizeof bits, "%016llx", static_cast<unsigned long long>(std::bit_cast<uint64_t>(*number)));
    return {{"float", text}, {"bits", bits}};
  }
  const auto& text = std::get<std::string>(value);
  if (is_utf8(text)) return {{"text", text}};
  return {{"hex", hex_of(text)}};
}

StateValue to_value(const json& value) {
  if (value.contains("bool")) return value.at("bool").get<bool>();
  if (value.contains("int")) return whole(value.at("int"));
  if (value.contains("bits")) return std::bit_cast<double>(parse_hex<uint64_t>(value.at("bits").get<std::string>()));
  if (value.contains("text")) return value.at("text").get<std::string>();
  return bytes_of(value.at("hex").get<std::string>());
}

}  // namespace

std::string encode_values(const std::map<std::string, StateValue>& values) {
  json document = json::object();
  for (const auto& [name, value] : values) {
    if (!is_utf8(name)) {
      throw CheckpointError(c10::str("[CheckpointStore] the value's name '", name, "' is not UTF-8; rename it"));
    }
    document[name] = to_json(value);
  }
  return document.dump(2) + "\n";
}

std::map<std::string, StateValue> decode_values(const std::string& text, const std::string& path) {
  std::map<std::string, StateValue> values;
  std::string at;
  try {
    const auto document = parse_json<json>(text, "its text");
    for (const auto& [name, value] : document.items()) {
      at = " at '" + name + "'";
      values.emplace(name, to_value(value));
    }
  } catch (const json::exception& error) {
    throw CheckpointError(c10::str("[CheckpointStore] '", path, "' is not as expected", at, ": ",
                                   one_line(error.what()), "; use another checkpoint"));
  } catch (const MalformedFile& error) {
    refuse(path, one_line(error.what));
  }
  return values;
}

}  // namespace checkpoint_format

}  // namespace duet
