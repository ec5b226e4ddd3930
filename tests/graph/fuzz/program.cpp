#include "tests/graph/fuzz/program.h"
#include <algorithm>
#include <optional>
#include <sstream>

namespace duet::testing::fuzz {

namespace {

constexpr const char* kGivenTypes = "mmmk";
constexpr const char* kGivenNames[] = {"linear(x)", "x", "y", "target"};

// Draws a program. Standard distributions differ between libraries; the engine does not.
class Drawing {
 public:
  explicit Drawing(uint64_t seed) : random_(seed) { program_.seed = seed; }

  Program draw_one(std::size_t kind) {
    add(kind);
    return program_;
  }

  Program draw() {
    draw_settings();
    const std::size_t count = 3 + below(12);
    const bool changes = below(5) == 0;
    const std::size_t first = changes ? below(count) : count;
    const std::size_t second = changes && below(2) == 0 ? below(count) : count;
    program_.settings.guarded = program_.settings.guarded || changes;
    for (std::size_t n = 0; n < count; ++n) {
      add(draw_kind(n == first || n == second ? OpKind::Host::kChanges : OpKind::Host::kSame));
    }
    return program_;
  }

 private:
  std::size_t below(std::size_t end) { return random_() % end; }

  void draw_settings() {
    Settings& settings = program_.settings;
    settings.rows = 8 * static_cast<int64_t>(1 + below(3));
    settings.steps = 6 + static_cast<int64_t>(below(5));
    settings.accumulate = below(4) == 0 ? 2 + static_cast<int64_t>(below(2)) : 1;
    settings.optimizer = static_cast<int>(below(15));
    settings.clipping = below(2) == 0 ? static_cast<int>(below(3)) : 0;
    settings.amp = below(6) == 0 ? 1 + static_cast<int>(below(2)) : 0;
    settings.layout = below(4) == 0 ? 1 + static_cast<int>(below(4)) : 0;
    settings.observers = below(6) == 0 ? 1 + static_cast<int>(below(2)) : 0;
    settings.other_rows = below(8) == 0;
    settings.guarded = below(4) != 0;
  }

  std::size_t draw_kind(OpKind::Host host) {
    const std::vector<OpKind>& kinds = op_kinds();
    for (;;) {
      const std::size_t kind = below(kinds.size());
      if (kinds[kind].host == host) return kind;
    }
  }

  std::size_t add(std::size_t kind) {
    Node node{kind, {}, static_cast<uint32_t>(random_())};
    for (const char type : op_kinds()[kind].takes) node.takes.push_back(value_of(type));
    program_.nodes.push_back(std::move(node));
    return Program::kGiven + program_.nodes.size() - 1;
  }

  // Later values more often, for longer chains.
  std::size_t value_of(char type) {
    std::vector<std::size_t> fitting;
    for (std::size_t v = 0; v < Program::kGiven + program_.nodes.size(); ++v) {
      if (program_.type(v) == type) fitting.push_back(v);
    }
    if (fitting.empty()) return add(conversion_to(type));
    const std::size_t latest = fitting.size() - 1;
    return fitting[std::max(below(latest + 1), below(latest + 1))];
  }

  std::size_t conversion_to(char type) {
    const std::vector<OpKind>& kinds = op_kinds();
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      if (kinds[k].takes == "m" && kinds[k].gives == type && kinds[k].name.rfind("to_", 0) == 0) return k;
    }
    throw std::logic_error(std::string("no conversion to ") + type);
  }

  std::mt19937_64 random_;
  Program program_;
};

std::optional<std::size_t> substitute(const Program& program, std::size_t index) {
  const std::size_t gone = Program::kGiven + index;
  for (const std::size_t v : program.nodes[index].takes) {
    if (program.type(v) == program.type(gone)) return v;
  }
  for (std::size_t v = 0; v < gone; ++v) {
    if (program.type(v) == program.type(gone)) return v;
  }
  return std::nullopt;
}

}  // namespace

char Program::type(std::size_t value) const {
  return value < kGiven ? kGivenTypes[value] : op_kinds()[nodes[value - kGiven].kind].gives;
}

bool Program::changes_host_code() const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const Node& node) { return op_kinds()[node.kind].host == OpKind::Host::kChanges; });
}

Program random_program(uint64_t seed) { return Drawing(seed).draw(); }
Program program_of(std::size_t kind, uint64_t seed) { return Drawing(seed).draw_one(kind); }

std::string text_of(const Program& program) {
  const Settings& s = program.settings;
  std::ostringstream out;
  out << "seed " << program.seed << ": rows " << s.rows << (s.other_rows ? " and others" : "") << ", steps " << s.steps
      << ", accumulate " << s.accumulate << ", optimizer " << s.optimizer << ", clipping " << s.clipping << ", amp "
      << s.amp << ", layout " << s.layout << ", observers " << s.observers << (s.guarded ? "" : ", without comparisons")
      << "\n";
  for (std::size_t n = 0; n < program.nodes.size(); ++n) {
    const OpKind& kind = op_kinds()[program.nodes[n].kind];
    out << "  %" << n << ": " << kind.gives << " = " << kind.name << "(";
    for (std::size_t i = 0; i < program.nodes[n].takes.size(); ++i) {
      const std::size_t value = program.nodes[n].takes[i];
      out << (i > 0 ? ", " : "");
      if (value < Program::kGiven) {
        out << kGivenNames[value];
      } else {
        out << "%" << value - Program::kGiven;
      }
    }
    out << ")\n";
  }
  return out.str();
}

bool without(const Program& program, std::size_t index, Program& smaller) {
  const std::size_t gone = Program::kGiven + index;
  const bool used = std::any_of(program.nodes.begin(), program.nodes.end(), [gone](const Node& node) {
    return std::find(node.takes.begin(), node.takes.end(), gone) != node.takes.end();
  });
  const std::optional<std::size_t> instead = substitute(program, index);
  if (used && !instead) return false;
  smaller = program;
  smaller.nodes.erase(smaller.nodes.begin() + static_cast<std::ptrdiff_t>(index));
  for (Node& node : smaller.nodes) {
    for (std::size_t& value : node.takes) {
      if (value == gone) value = *instead;
      if (value > gone) --value;
    }
  }
  return true;
}

}  // namespace duet::testing::fuzz
