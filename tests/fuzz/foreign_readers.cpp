#include "tests/fuzz/foreign_readers.h"
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <zlib.h>
#include "base/detail/bits.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/state_dict.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "cli/config/config.h"
#include "cli/runs/run_folder.h"
#include "core/exported/input_shapes.h"
#include "core/exported/program.h"
#include "io/bounded_json.h"
#include "io/csv.h"
#include "io/file_io.h"
#include "io/idx.h"
#include "io/image.h"
#include "io/npy.h"
#include "io/pt2_file.h"
#include "io/pt_file.h"
#include "io/safetensors.h"
#include "io/zip_archive.h"

namespace duet {

namespace {

constexpr uint64_t kMostText = uint64_t{1} << 30;

std::string read_bytes_of(const std::string& path) { return file_io::read_text(path, kMostText); }

std::string shown(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  const std::string hash = plain.numel() == 0 ? "" : xxh3_hex(plain.const_data_ptr(), plain.nbytes());
  return c10::str(tensor.scalar_type(), tensor.sizes(), hash);
}

std::string shown(const StateDict& state) {
  std::string text;
  for (const auto& [name, tensor] : state.tensors()) text += name + "=" + shown(tensor) + ";";
  for (const auto& [name, value] : state.values()) {
    text += name + "=" + std::to_string(value.index()) + ":";
    std::visit([&](const auto& content) { text += c10::str(content, ";"); }, value);
  }
  return text;
}

std::string read_pt_file(const std::string& path) { return shown(read_pt(path).state); }

std::string read_tensors(const std::string& path) {
  std::string text;
  for (const auto& [name, tensor] : read_safetensors(path)) text += name + "=" + shown(tensor) + ";";
  return text;
}

// The archive, and the program in it.
std::string read_exported(const std::string& path) try {
  const Pt2File file = read_pt2(path);
  std::string text;
  for (const NamedTensors* tensors : {&file.weights, &file.constants}) {
    for (const auto& [name, tensor] : *tensors) text += name + "=" + shown(tensor.detach()) + ";";
  }
  const exported::Program program = exported::read_program(file.program);
  const exported::InputShapes shapes(program);
  return c10::str(text, program.graph.nodes.size(), join(program.outputs), join(shapes.unchecked()));
} catch (const MalformedFile& error) {
  throw DataError(error.what);
}

std::string read_table(const std::string& path) {
  const CsvTable table = read_csv(path);
  std::string text = join(table.columns);
  for (const auto& row : table.rows) text += "\n" + join(row);
  return text;
}

std::string read_manifest(const std::string& path) {
  return checkpoint_format::encode_manifest(checkpoint_format::decode_manifest(read_bytes_of(path), path));
}

std::string read_values(const std::string& path) {
  return checkpoint_format::encode_values(checkpoint_format::decode_values(read_bytes_of(path), path));
}

std::string read_json(const std::string& path) try {
  return parse_json<nlohmann::ordered_json>(read_bytes_of(path), "it").dump();
} catch (const MalformedFile& error) {
  throw DataError(error.what);
}

std::string read_archive(const std::string& path) try {
  zip_archive::verify_archive(path);
  return {};
} catch (const MalformedFile& error) {
  throw DataError(error.what);
}

std::string read_config(const std::string& path) {
  const ConfigNode config = ConfigNode::parse_text(read_bytes_of(path), "config.yaml");
  return config.dump() + config_json(config);
}

std::string read_old_config(const std::string& path) {
  std::string text;
  const SavedConfig config = read_saved_config(path);
  for (const auto& [name, value] : config.values) text += name + "=" + value.text + "\n";
  return text + config.problem;
}

std::string read_log(const std::string& path) {
  const LoggedRun log = read_logged_run(path);
  std::string text = c10::str(log.lines, " ", log.unreadable_lines, " ", log.earlier_runs, " ", log.mode, log.run_id,
                              log.began, log.last_time, log.seconds, " ", log.planned_steps, " ", log.step, " ",
                              log.epoch, " ", log.end ? static_cast<int>(*log.end) : -1, log.end_reason);
  for (const Curve& curve : log.curves) {
    text += c10::str("\n", curve.kind, "/", curve.name);
    for (const CurvePoint& point : curve.points) text += c10::str(" ", point.step, ":", point.value);
  }
  for (const auto& [name, content] : log.texts) text += c10::str("\n", name, "=", content);
  for (const LoggedHistogram& made : log.histograms) {
    text += c10::str("\n", made.name, " ", c10::Join(",", made.counts), " ", c10::Join(",", made.edges));
  }
  return text;
}

std::string as_it_is(std::string_view bytes) { return std::string(bytes); }

// Packed as zlib packs (window_bits 15) or as gzip (31), every checksum right.
std::string packed(std::string_view bytes, int window_bits) {
  z_stream stream{};
  deflateInit2(&stream, 1, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<unsigned char*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string big_endian(uint64_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// The bytes as a picture; if they begin as none, as the chunks of a PNG: two bytes for the length, four for the name,
// and what it holds, which of IDAT is not packed yet.
std::string around_chunks(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG") || bytes.starts_with("\xFF\xD8")) return std::string(bytes);
  std::string file = "\x89PNG\r\n\x1a\n";
  while (bytes.size() >= 6) {
    const std::size_t length = static_cast<uint8_t>(bytes[0]) * 256u + static_cast<uint8_t>(bytes[1]);
    std::string chunk(bytes.substr(2, 4));
    const std::string_view content = bytes.substr(6, length);
    bytes.remove_prefix(6 + content.size());
    chunk += chunk == "IDAT" ? packed(content, 15) : std::string(content);
    const auto crc = ::crc32_z(0, reinterpret_cast<const unsigned char*>(chunk.data()), chunk.size());
    file += big_endian(chunk.size() - 4) + chunk + big_endian(crc);
  }
  return file;
}

// After a 'g', which no such file begins with, what a gzip file holds.
std::string around_gzip(std::string_view bytes) {
  return bytes.starts_with('g') ? packed(bytes.substr(1), 31) : std::string(bytes);
}

using Entries = std::vector<std::pair<std::string, std::string_view>>;

// A ZIP archive of entries that are stored as they are, every CRC right.
std::string archive_of(const Entries& entries) {
  const auto field = [](uint64_t value, size_t count) {
    return std::string(reinterpret_cast<const char*>(&value), count);
  };
  std::string file, directory;
  for (const auto& [name, content] : entries) {
    const auto crc = ::crc32_z(0, reinterpret_cast<const unsigned char*>(content.data()), content.size());
    const std::string common = std::string(8, '\0') + field(crc, 4) + field(content.size(), 4) +
                               field(content.size(), 4) + field(name.size(), 2) + field(0, 2);
    directory += "PK\1\2" + field(20, 2) + field(20, 2) + common + std::string(10, '\0') + field(file.size(), 4) + name;
    file += "PK\3\4" + field(20, 2) + common + name;
    file += content;
  }
  const uint64_t begin = file.size(), count = entries.size();
  return file + directory + "PK\5\6" + field(0, 4) + field(count, 2) + field(count, 2) + field(directory.size(), 4) +
         field(begin, 4) + field(0, 2);
}

const std::string kStorage(64, '\1');

// The bytes as the pickle of an archive with one storage.
std::string around_pickle(std::string_view bytes) {
  return archive_of({{"a/data.pkl", bytes}, {"a/data/0", kStorage}});
}

// The bytes as the program of an exported model without tensors; after a 'w', with which no program begins, as the list
// of its tensors.
std::string around_program(std::string_view bytes) {
  const bool is_list = bytes.starts_with('w');
  const std::string_view none = R"({"config":{}})";
  return archive_of({{"a/archive_format", "pt2"},
                     {"a/models/model.json", is_list ? "{}" : bytes},
                     {"a/data/weights/model_weights_config.json", is_list ? bytes.substr(1) : none},
                     {"a/data/constants/model_constants_config.json", none},
                     {"a/data/weights/weight_0", kStorage}});
}

// The bytes as a header, before 256 bytes of data.
std::string around_header(std::string_view bytes) {
  const uint64_t length = bytes.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + std::string(bytes) +
         std::string(256, '\1');
}

// The bytes as a manifest with the right hash of itself.
std::string around_manifest(std::string_view bytes) {
  return c10::str(bytes, ",\n  \"manifest_xxh3\": \"", xxh3_hex(bytes.data(), bytes.size()), "\"\n}\n");
}

}  // namespace

const std::vector<ForeignReader>& foreign_readers() {
  static const std::vector<ForeignReader> readers = {
      {"pt", read_pt_file, as_it_is},
      {"pickle", read_pt_file, around_pickle},
      {"pt2", read_exported, as_it_is},
      {"pt2_program", read_exported, around_program},
      {"zip", read_archive, as_it_is},
      {"safetensors", read_tensors, as_it_is},
      {"safetensors_header", read_tensors, around_header},
      {"manifest", read_manifest, around_manifest},
      {"values", read_values, as_it_is},
      {"json", read_json, as_it_is},
      {"yaml", read_config, as_it_is},
      {"saved_config", read_old_config, as_it_is},
      {"log", read_log, as_it_is},
      {"idx", [](const std::string& path) { return shown(read_idx(path)); }, around_gzip},
      {"npy", [](const std::string& path) { return shown(read_npy(path)); }, as_it_is},
      {"csv", read_table, as_it_is},
      {"image", [](const std::string& path) { return shown(read_image(path)); }, around_chunks},
      {"mask", [](const std::string& path) { return shown(read_mask(path)); }, around_chunks},
  };
  return readers;
}

const ForeignReader& foreign_reader(const std::string& kind) {
  for (const ForeignReader& reader : foreign_readers()) {
    if (kind == reader.kind) return reader;
  }
  throw std::out_of_range("there is no reader of '" + kind + "'");
}

}  // namespace duet
